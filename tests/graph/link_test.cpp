// Edges: that they suffice (no two lanes may touch the same bytes out of order) is proven by
// brute force over whole graphs; that they are few, by the lanes.
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>

#include "sim/graph/core/edit.h"
#include "sim/graph/report/memory.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

struct Touch {
  int32_t step;
  OpId op;
  int64_t begin, end;
  Place place;
  int device;
  bool writes;
};

// Every byte range that an operation of a step touches.
std::vector<Touch> touches_of(const Graph& graph, OpId id, int32_t step) {
  std::vector<Touch> touches;
  for (const Access& access : graph.step.ops[static_cast<size_t>(id)].accesses) {
    const Tensor& tensor = graph.tensors[static_cast<size_t>(access.tensor)];
    const int64_t copy = (step + access.step_offset) % tensor.copies;
    const int64_t begin =
        graph.arenas.offset[static_cast<size_t>(access.tensor)] + copy * tensor.bytes().count;
    touches.push_back({step, id, begin, begin + tensor.bytes().count, tensor.place, tensor.device,
                       writes(access)});
  }
  return touches;
}

// ordered[a] holds every earlier instance that surely finishes before instance a starts, where an
// instance is step * operations + operation.
std::vector<std::vector<bool>> orders_of(const Graph& graph, int32_t steps) {
  const size_t n = graph.step.ops.size();
  const size_t total = n * static_cast<size_t>(steps);
  std::vector<std::vector<bool>> before(total, std::vector<bool>(total, false));
  std::map<LaneId, size_t> last_of_lane;
  const auto after = [&](size_t a, size_t b) {  // b finishes before a starts
    for (size_t i = 0; i < b; ++i) {
      if (before[b][i]) before[a][i] = true;
    }
    before[a][b] = true;
  };
  for (size_t a = 0; a < total; ++a) {
    const size_t id = a % n;
    const LaneId lane = graph.step.ops[id].lane;
    if (last_of_lane.contains(lane)) after(a, last_of_lane[lane]);
    last_of_lane[lane] = a;
    for (auto e = graph.step.edge_begin[id]; e < graph.step.edge_begin[id + 1]; ++e) {
      const Edge edge = graph.step.edges[static_cast<size_t>(e)];
      const auto back = static_cast<size_t>(edge.steps_ahead);
      if (a / n < back) continue;
      after(a, (a / n - back) * n + static_cast<size_t>(edge.op));
    }
  }
  return before;
}

// Two operations that touch the same bytes, at least one writing, must be ordered.
void expect_no_race(const Graph& graph) {
  constexpr int32_t kSteps = 3;
  const size_t n = graph.step.ops.size();
  const auto before = orders_of(graph, kSteps);
  std::vector<Touch> earlier;
  for (int32_t step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < n; ++i) {
      const size_t now = static_cast<size_t>(step) * n + i;
      const std::vector<Touch> touches = touches_of(graph, static_cast<OpId>(i), step);
      for (const Touch& mine : touches) {
        for (const Touch& other : earlier) {
          const bool overlap = mine.device == other.device && mine.place == other.place &&
                               mine.begin < other.end && other.begin < mine.end;
          if (!overlap || !(mine.writes || other.writes)) continue;
          const size_t then = static_cast<size_t>(other.step) * n + static_cast<size_t>(other.op);
          ASSERT_TRUE(before[now][then])
              << describe(graph.step.ops[i]) << " of step " << step << " races with "
              << describe(graph.step.ops[static_cast<size_t>(other.op)]) << " of step "
              << other.step;
        }
      }
      earlier.insert(earlier.end(), touches.begin(), touches.end());
    }
  }
}

Plan random_plan(std::mt19937& random) {
  const auto pick = [&](int choices) {
    return static_cast<int>(random() % static_cast<unsigned>(choices));
  };
  Plan plan = tiny::plan();
  plan.micro_batch = 1 + pick(2);
  plan.optimizer.sync = static_cast<SyncMode>(pick(3));
  plan.optimizer.undo = static_cast<UndoKind>(pick(2));
  plan.optimizer.cast = static_cast<CastPlacement>(pick(2));
  plan.optimizer.bucket_bytes = {pick(2) == 0 ? 1 : 4000};
  plan.optimizer.gpu_buckets = pick(4);
  plan.weights.flow_share = 0.5 * pick(3);
  plan.weights.look_ahead = pick(6);
  plan.activations->look_ahead = pick(6);
  plan.loss_chunks = 1 + pick(4);
  for (int kind = 0; kind < kModuleKinds; ++kind) {
    const auto module = static_cast<ModuleKind>(kind);
    if (!saves_output(module)) continue;
    const int fates = module == ModuleKind::kFc2 ? 2 : 3;
    const int fate = pick(fates);
    plan.activations->fate[static_cast<size_t>(kind)] = module == ModuleKind::kFc2 && fate == 1
                                                            ? ActivationFate::kOffload
                                                            : static_cast<ActivationFate>(fate);
  }
  return plan;
}

TEST(link, no_two_lanes_touch_the_same_bytes_out_of_order) {
  for (const MemoryReuse reuse : {MemoryReuse::kApart, MemoryReuse::kAtOnce}) {
    std::mt19937 random(7);
    for (int i = 0; i < 12; ++i) {
      Plan plan = random_plan(random);
      plan.memory_reuse = reuse;
      expect_no_race(build(tiny::model(), plan));
    }
  }
}

TEST(link, no_two_lanes_of_a_pipeline_touch_the_same_bytes_out_of_order) {
  std::mt19937 random(23);
  bool any_is_spread = false;
  for (int i = 0; i < 8; ++i) {
    Plan plan = random_plan(random);
    plan.optimizer.sync = SyncMode::kWait;
    plan.devices = plan.pipeline = 2;
    plan.global_batch = 3 * *plan.micro_batch;
    plan.memory_reuse = i % 2 == 0 ? MemoryReuse::kAtOnce : MemoryReuse::kApart;
    Model model = tiny::model();
    model.layers = 4;
    const Graph graph = build(model, plan);
    any_is_spread |= graph.blocks.empty();
    expect_no_race(graph);
  }
  EXPECT_TRUE(any_is_spread);
}

// Whatever the plan: nothing is held back that has been used for the last time, and the only gaps
// are those that tensors of different sizes leave.
TEST(link, memory_that_is_reused_at_once_is_less_and_at_least_what_is_alive) {
  std::mt19937 random(11);
  Bytes apart;
  Bytes at_once;
  Bytes live;
  for (int i = 0; i < 20; ++i) {
    Plan plan = random_plan(random);
    const auto peak = [&](MemoryReuse reuse) {
      plan.memory_reuse = reuse;
      return memory_peaks(build(tiny::model(), plan)).front();
    };
    const PlacePeak held = peak(MemoryReuse::kApart);
    const PlacePeak tight = peak(MemoryReuse::kAtOnce);
    EXPECT_EQ(held.live, tight.live);
    EXPECT_GE(tight.arena, tight.live);
    apart += held.arena;
    at_once += tight.arena;
    live += tight.live;
  }
  // Of what is held beyond the live bytes most is given up.
  EXPECT_LT(2 * (at_once - live).count, (apart - live).count);
}

TEST(link, the_check_above_sees_a_missing_edge) {
  Plan plan = tiny::plan();
  const Graph graph = build(tiny::model(), plan);
  const auto before = orders_of(graph, 2);
  // The second step's first product needs the weights that the first step's upload brings.
  const size_t n = graph.step.ops.size();
  size_t product = n;
  while (graph.step.ops[product - n].kind != OpKind::kGemm) ++product;
  bool any = false;
  Graph cut = graph;
  for (Edge& edge : cut.step.edges) {
    if (edge.steps_ahead > 0) edge.steps_ahead = 5;  // never reached in two steps
  }
  const auto without = orders_of(cut, 2);
  for (size_t i = 0; i < n; ++i) any |= before[product][i] && !without[product][i];
  EXPECT_TRUE(any);
}

TEST(link, an_operation_waits_for_at_most_one_operation_of_each_lane_and_the_fence) {
  Plan plan = tiny::plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  const Graph graph = build(tiny::model(), plan);
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    std::set<LaneId> lanes;
    for (auto e = graph.step.edge_begin[i]; e < graph.step.edge_begin[i + 1]; ++e) {
      const Edge edge = graph.step.edges[static_cast<size_t>(e)];
      if (edge.op == graph.commit) continue;
      const LaneId lane = graph.step.ops[static_cast<size_t>(edge.op)].lane;
      EXPECT_TRUE(lanes.insert(lane).second);
      EXPECT_NE(lane, graph.step.ops[i].lane);
    }
  }
}

TEST(link, every_lane_waits_for_the_fence) {
  Plan plan = tiny::plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  const Graph graph = build(tiny::model(), plan);
  const auto before = orders_of(graph, 2);
  const size_t n = graph.step.ops.size();
  for (size_t i = static_cast<size_t>(graph.commit) + 1; i < n; ++i) {
    EXPECT_TRUE(before[i][static_cast<size_t>(graph.commit)]) << describe(graph.step.ops[i]);
  }
}

// The GPU's arena is smaller than its tensors together, and no smaller than what lives at once.
TEST(arenas, reuse_memory_whose_tensor_is_dead) {
  const Graph graph = build(tiny::model(), tiny::plan());
  int64_t sum = 0;
  const std::vector<Life> lives = lives_of(graph);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (lives[t].first >= 0 && graph.tensors[t].place == Place::kHbm) {
      sum += round_up(graph.tensors[t].all_bytes().count, 256);
    }
  }
  EXPECT_LT(graph.arenas.size[static_cast<size_t>(Place::kHbm)].count, sum);
  for (const PlacePeak& peak : memory_peaks(graph)) EXPECT_GE(peak.arena, peak.live);
}

}  // namespace
}  // namespace ballast
