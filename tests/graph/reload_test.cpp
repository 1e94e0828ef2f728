// Pass `reload`, and what else a plan says of activations that leave: which tensors do, what their
// copies wait for, and where they stand in a pipeline.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "sim/graph/core/edit.h"
#include "sim/graph/schedules/pipeline.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

Plan plan_with(std::initializer_list<ModuleKind> offloaded) {
  Plan plan = tiny::plan();
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.activations.emplace();
  plan.activations->reload = ReloadOrder::kByModule;
  for (const ModuleKind kind : offloaded) {
    plan.activations->fate[static_cast<size_t>(kind)] = ActivationFate::kOffload;
  }
  return plan;
}

Model layers(int64_t count) { return tiny::llama({.layers = count}); }

bool waits_for(const Graph& graph, size_t op, size_t before) {
  const Program& step = graph.step;
  for (int32_t e = step.edge_begin[op]; e < step.edge_begin[op + 1]; ++e) {
    const Edge& edge = step.edges[static_cast<size_t>(e)];
    if (edge.steps_ahead == 0 && edge.op == static_cast<OpId>(before)) return true;
  }
  return false;
}

size_t place_of(const Graph& graph, Phase phase, ModuleKind module, int64_t layer,
                int64_t micro_batch = 0) {
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (op.phase == phase && op.label.module == module && op.label.layer == layer &&
        op.label.micro_batch == micro_batch) {
      return i;
    }
  }
  return graph.step.ops.size();
}

TEST(reload_pass, its_copies_have_the_four_waits_and_no_others_of_their_own) {
  const Graph graph = build(layers(4), plan_with({ModuleKind::kFc1}));
  EXPECT_EQ(tiny::count(graph, OpKind::kCopy, Phase::kOffload), 3);
  EXPECT_EQ(tiny::count(graph, OpKind::kCopy, Phase::kReload), 3);
  for (int64_t layer = 0; layer < 3; ++layer) {
    const auto at = [&](Phase phase, ModuleKind module, int64_t of) {
      return place_of(graph, phase, module, of);
    };
    const size_t out = at(Phase::kOffload, ModuleKind::kFc1, layer);
    const size_t in = at(Phase::kReload, ModuleKind::kFc1, layer);
    EXPECT_TRUE(waits_for(graph, out, at(Phase::kForward, ModuleKind::kActivation, layer)));
    EXPECT_TRUE(waits_for(graph, in, at(Phase::kBackward, ModuleKind::kActivation, layer + 1)));
    EXPECT_TRUE(waits_for(graph, in, out));
    EXPECT_TRUE(waits_for(graph, at(Phase::kBackward, ModuleKind::kActivation, layer), in));
  }
}

// What such a wait is read by in traces: a byte of no module, of which nothing is summed.
TEST(reload_pass, its_tokens_are_called_so) {
  const Graph graph = build(layers(4), plan_with({ModuleKind::kFc1}));
  int tokens = 0;
  for (const Tensor& tensor : graph.tensors) {
    if (!is_token(tensor)) continue;
    ++tokens;
    EXPECT_EQ(describe(tensor), "order token [1 uint8] in hbm");
  }
  EXPECT_GT(tokens, 0);
}

// Of every module's offloaded outputs those of one layer are on the GPU while layers go back.
TEST(reload_pass, never_two_layers_of_a_module_are_back_at_once) {
  using enum ModuleKind;
  const Graph graph = build(layers(6), plan_with({kNorm1, kQkv, kCoreAttention, kAttentionOut,
                                                  kNorm2, kFc1, kActivation, kFc2}));
  std::map<TensorId, size_t> last;
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    for (const Access& access : graph.step.ops[i].accesses) last[access.tensor] = i;
  }
  std::map<std::tuple<ModuleKind, TensorKind, Bytes>, size_t> free_from;
  int back = 0;
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (op.phase != Phase::kReload) continue;
    const TensorId id = op.accesses[1].tensor;
    const Tensor& tensor = graph.tensor(id);
    size_t& from = free_from[{tensor.label.module, tensor.kind, tensor.bytes()}];
    EXPECT_LE(from, i) << describe(op);
    from = last[id];
    ++back;
  }
  // Five layers' outputs, both norms' statistics and what attention sums; with the input of the
  // first layer, which is the embedding's, and without that of the last one, which stays.
  EXPECT_EQ(back, 5 * (8 + 2 + 1) + 1 - 1);
}

// A layer whose norms and activation are recomputed and whose other outputs leave keeps nothing.
TEST(reload_pass, with_what_is_cheap_recomputed_a_layer_keeps_nothing) {
  using enum ModuleKind;
  Plan plan = plan_with({kQkv, kCoreAttention, kAttentionOut, kFc1, kFc2});
  for (const ModuleKind kind : {kNorm1, kNorm2, kActivation}) {
    plan.activations->fate[static_cast<size_t>(kind)] = ActivationFate::kRecompute;
  }
  const Graph graph = build(layers(4), plan);
  std::set<TensorId> forward;
  std::set<TensorId> backward;
  for (const Op& op : graph.step.ops) {
    if (kind_of(op.lane) != LaneKind::kCompute) continue;
    for (const Access& access : op.accesses) {
      const Tensor& tensor = graph.tensor(access.tensor);
      // The last layer stays, and with it what it reads.
      const bool enters_last = tensor.label.layer == 2 && tensor.label.module == kFc2;
      const bool saved = tensor.category == Category::kActivations && tensor.label.layer >= 0 &&
                         tensor.label.layer < 3 && !enters_last;
      if (saved) (op.phase == Phase::kForward ? forward : backward).insert(access.tensor);
    }
  }
  for (const TensorId id : forward) {
    EXPECT_FALSE(backward.contains(id)) << describe(graph.tensor(id));
  }
  EXPECT_FALSE(forward.empty());
}

// Two stages of two layers, four micro-batches:
//
//   stage 0   F0 F1 B0 F2 B1 F3 B2 B3      stage 1   F0 B0 F1 B1 F2 B2 F3 B3
//
// On stage 1 the backward follows at once: its last layer never leaves. On stage 0 that is so of
// the first micro-batch, which no backward comes before.
TEST(reload_pass, in_a_pipeline_the_chunk_before_brings_back_the_last_layer) {
  Plan plan = plan_with({ModuleKind::kFc1});
  plan.devices = plan.pipeline = 2;
  plan.global_batch = 4 * *plan.micro_batch;
  const Graph graph = build_pipeline(layers(4), plan, StackFacts(), Folding::kOff);
  std::map<int64_t, int> leaving;
  for (const Op& op : graph.step.ops) leaving[op.label.layer] += op.phase == Phase::kOffload;
  EXPECT_EQ(leaving[0], 4);
  EXPECT_EQ(leaving[1], 3);
  EXPECT_EQ(leaving[2], 4);
  EXPECT_EQ(leaving[3], 0);
  for (int64_t micro_batch = 1; micro_batch < 4; ++micro_batch) {
    const size_t in = place_of(graph, Phase::kReload, ModuleKind::kFc1, 1, micro_batch);
    EXPECT_LT(place_of(graph, Phase::kBackward, ModuleKind::kActivation, 0, micro_batch - 1), in);
    EXPECT_LT(in, place_of(graph, Phase::kBackward, ModuleKind::kNorm1, 0, micro_batch - 1));
  }
}

// Two chunks a stage. The queue of what returns is that of backwards: the last chunk first, its
// micro-batches in order (PipelineOffloadManager: stages in reverse, micro-batches in order).
TEST(reload_pass, chunks_return_from_the_last_on_and_micro_batches_in_order) {
  Plan plan = plan_with({ModuleKind::kFc1});
  plan.devices = plan.pipeline = 2;
  plan.virtual_pipeline = 2;
  plan.global_batch = 4 * *plan.micro_batch;
  const Graph graph = build_pipeline(layers(8), plan, StackFacts(), Folding::kOff);
  std::vector<std::pair<int64_t, int64_t>> back;  // chunk and micro-batch, on stage 0
  for (const Op& op : graph.step.ops) {
    if (op.phase != Phase::kReload || device_of(op.lane) != 0) continue;
    const std::pair<int64_t, int64_t> of{op.label.layer / 4, op.label.micro_batch};
    if (back.empty() || back.back() != of) back.push_back(of);
  }
  using Order = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(back, (Order{{1, 0}, {1, 1}, {0, 0}, {0, 1}, {1, 2}, {1, 3}, {0, 2}, {0, 3}}));
}

TEST(reload_pass, where_all_forwards_come_first_only_the_first_backward_finds_its_last_layer_kept) {
  Plan plan = plan_with({ModuleKind::kFc1});
  plan.devices = plan.pipeline = 2;
  plan.pipeline_schedule = PipelineSchedule::kGpipe;
  plan.global_batch = 4 * *plan.micro_batch;
  const Graph graph = build_pipeline(layers(4), plan, StackFacts(), Folding::kOff);
  std::map<int64_t, int> leaving;
  for (const Op& op : graph.step.ops) leaving[op.label.layer] += op.phase == Phase::kOffload;
  EXPECT_EQ(leaving[1], 3);
  EXPECT_EQ(leaving[3], 3);
}

// Parts of 128 tokens pass a stage one after another: of the model's last layer the last part
// stays.
TEST(reload_pass, of_parts_of_sequences_only_the_last_one_stays) {
  Plan plan = plan_with({ModuleKind::kFc1});
  plan.sequence_length = 4 * kAttentionTile;
  plan.subsequences = 4;
  const Graph whole = build(layers(3), plan);
  plan.devices = plan.pipeline = 3;
  plan.micro_batch = 1;
  plan.global_batch = 2;
  for (const Graph& graph : {whole, build_pipeline(layers(3), plan, StackFacts(), Folding::kOff)}) {
    for (const Op& op : graph.step.ops) {
      if (op.phase != Phase::kOffload || op.label.layer != 2) continue;
      EXPECT_LT(op.label.subsequence, 3);
    }
    const int batches = graph.lanes > kLaneKinds ? 2 : 1;
    int leaving = 0;
    for (const Op& op : graph.step.ops) {
      leaving += op.phase == Phase::kOffload && op.label.layer == 2;
    }
    EXPECT_EQ(leaving, 3 * batches);
  }
}

TEST(checkpoint_pass, tensors_below_the_least_stay) {
  using enum ModuleKind;
  Plan plan = plan_with({kFc1, kAttentionOut, kNorm1});
  plan.activations->reload = ReloadOrder::kLookAhead;
  // fc1 has 8 tokens of 64 values, 1024 B; the others 8 of 8, 128 B; a norm's statistics 64 B.
  const auto leaving = [&](int64_t least) {
    plan.activations->offload_least = {least};
    return tiny::count(build(layers(2), plan), OpKind::kCopy, Phase::kOffload);
  };
  EXPECT_EQ(leaving(0), 4);
  EXPECT_EQ(leaving(64), 4);
  EXPECT_EQ(leaving(65), 3);
  EXPECT_EQ(leaving(129), 1);
  EXPECT_EQ(leaving(1025), 0);
}

// Four layers a stage, of which 1, 3/4, 1/2 and 1/4 leave; the model's last one stays.
TEST(checkpoint_pass, later_stages_may_offload_less) {
  Plan plan = plan_with({ModuleKind::kFc1});
  plan.activations->reload = ReloadOrder::kLookAhead;
  plan.activations->offload_share_fall = 0.25;
  plan.devices = plan.pipeline = 4;
  plan.global_batch = *plan.micro_batch;
  const Graph graph = build_pipeline(layers(16), plan, StackFacts(), Folding::kOff);
  std::map<int, int> leaving;
  for (const Op& op : graph.step.ops) {
    leaving[device_of(op.lane)] += op.phase == Phase::kOffload;
  }
  EXPECT_EQ(leaving, (std::map<int, int>{{0, 4}, {1, 3}, {2, 2}, {3, 1}}));
}

// 8 tokens, two experts each: 16 rows of 8 values, 256 B, in each of two layers.
TEST(checkpoint_pass, rows_of_experts_leave_or_are_sent_again) {
  Plan plan = plan_with({});
  const Model model = tiny::mixtral({.layers = 3});
  plan.activations->dispatched = ActivationFate::kOffload;
  const Graph away = build(model, plan);
  int64_t leaving = 0;
  for (const Op& op : away.step.ops) {
    if (op.phase != Phase::kOffload) continue;
    EXPECT_EQ(bytes_of(op.work), Bytes{256});
    ++leaving;
  }
  EXPECT_EQ(leaving, 2);
  plan.activations->dispatched = ActivationFate::kRecompute;
  plan.devices = plan.data = plan.expert = 2;
  plan.global_batch *= 2;
  plan.zero_stage = 0;
  const Graph again = build(model, plan);
  EXPECT_EQ(tiny::count(again, OpKind::kPermute, Phase::kRecompute), 3);
  EXPECT_EQ(tiny::count(again, OpKind::kCollective, Phase::kRecompute), 3);
}

}  // namespace
}  // namespace ballast
