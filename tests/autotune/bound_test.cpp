#include "autotune/bounds/bound.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/engine/cost.h"
#include "tests/autotune/support.h"
#include "tests/engine/persistent_products.h"

namespace ballast::tests {
namespace {

// A space with every knob, its bounds, and the graphs behind them, on one machine.
class BoundCase {
 public:
  // Sequences of 64 tokens, or of 128 for each of several parts.
  BoundCase(Machine machine, int64_t devices, int64_t parts = 1, const ActivationPlan& like = {},
            GradientFormat gradients = GradientFormat::kAsWeights, const Stack& stack = {})
      : BoundCase(std::move(machine), with_gradients(plan(devices, parts, like), gradients),
                  stack) {}
  BoundCase(Machine machine, Plan base, const Stack& stack = {})
      : model_(model(base.subsequences)),
        machine_(std::move(machine)),
        base_(std::move(base)),
        space_(space_of(model_, base_, open())),
        costs_(machine_, Plan{}, stack, nullptr),
        bounds_(model_, base_, space_, costs_) {
    const std::vector<Choice> all = choices_of(space_, base_);
    Tasks tasks;
    bounds_.open(all, tasks);
    bounds_.refine(all, tasks);
    run_all(tasks, 2);
  }

  std::vector<Choice> some(size_t n) const { return every(choices_of(space_, base_), n); }
  const Bounds& bounds() const { return bounds_; }
  Graph graph(const Choice& choice) const { return build(model_, plan_of(space_, base_, choice)); }
  std::string name(const Choice& choice) const {
    const Plan plan = plan_of(space_, base_, choice);
    return fmt::format("micro-batch {}, {}, {} buckets of {} on the GPU, {}, {} {}, flow {}",
                       *plan.micro_batch, space_.activations[choice.activations].name,
                       *plan.optimizer.gpu_buckets, plan.optimizer.bucket_bytes.count,
                       to_string(plan.optimizer.cast), to_string(plan.optimizer.sync),
                       to_string(plan.optimizer.undo), *plan.weights.flow_share);
  }
  CostTable table(const Graph& graph) const { return costs_.table(graph.step, graph); }

 private:
  static OpenKnobs open() {
    OpenKnobs all = OpenKnobs::all();
    all.delay = true;
    return all;
  }
  static Model model(int64_t parts) {
    Model model = small_model();
    model.max_positions = std::max(model.max_positions, parts * kAttentionTile);
    return model;
  }
  static Plan plan(int64_t devices, int64_t parts, const ActivationPlan& like) {
    Plan plan = auto_plan(8 * devices);  // up to eight micro-batches
    if (like != ActivationPlan{}) plan.activations = like;
    plan.devices = plan.data = devices;
    plan.subsequences = parts;
    if (parts > 1) plan.sequence_length = parts * kAttentionTile;
    return plan;
  }
  static Plan with_gradients(Plan plan, GradientFormat gradients) {
    plan.gradients = gradients;
    return plan;
  }

  Model model_;
  Machine machine_;
  Plan base_;
  Space space_;
  CostModel costs_;
  Bounds bounds_;
};

void expect_work_of_the_graphs(const BoundCase& c, size_t n) {
  for (const Choice& choice : c.some(n)) {
    const Graph graph = c.graph(choice);
    const CostTable table = c.table(graph);
    Workload expected;
    for (size_t i = 0; i < graph.step.ops.size(); ++i) {
      expected.add(graph.step.ops[i], table.ops[i], table, 1);
    }
    const Workload work = c.bounds().work(choice);
    ASSERT_EQ(work.lane, expected.lane);
    ASSERT_EQ(work.host, expected.host);
    for (size_t i = 0; i < work.capacity.size(); ++i) {
      ASSERT_NEAR(work.capacity[i], expected.capacity[i], 1e-12);
    }
  }
}

void expect_no_step_below_its_bound(const BoundCase& c, size_t n) {
  for (const Choice& choice : c.some(n)) {
    const Graph graph = c.graph(choice);
    const Duration step_time = simulate(graph.step, graph, c.table(graph)).step_time;
    ASSERT_LE(c.bounds().step_time(choice), step_time) << c.name(choice);
    ASSERT_LE(c.bounds().quick(choice), c.bounds().step_time(choice));
  }
}

void expect_no_arena_below_its_bound(const BoundCase& c, size_t n) {
  for (const Choice& choice : c.some(n)) {
    const Graph graph = c.graph(choice);
    const std::array<Bytes, kPlaces> least = c.bounds().least_memory(choice);
    for (size_t p = 0; p < kPlaces; ++p) ASSERT_LE(least[p], graph.arenas.size[p]);
  }
}

TEST(Bound, work_of_every_lane_and_capacity_is_that_of_the_graph) {
  expect_work_of_the_graphs(BoundCase(gpu_machine(), 1), 179);
  expect_work_of_the_graphs(BoundCase(host_machine(), 1), 193);
}

TEST(Bound, work_is_that_of_the_graph_where_ranks_share_the_optimizer) {
  expect_work_of_the_graphs(BoundCase(gpu_machine(), 2), 211);
}

TEST(Bound, no_simulated_step_is_shorter_on_a_gpu) {
  expect_no_step_below_its_bound(BoundCase(gpu_machine(), 1), 47);
}

TEST(Bound, no_simulated_step_is_shorter_on_a_host_device) {
  expect_no_step_below_its_bound(BoundCase(host_machine(), 1), 59);
}

TEST(Bound, no_simulated_step_is_shorter_where_ranks_share_the_optimizer) {
  expect_no_step_below_its_bound(BoundCase(gpu_machine(), 2), 61);
}

// Collectives hold up what products have of a GPU, all of it and several at once, and leave them
// their least: no bound counts that as time.
TEST(Bound, no_simulated_step_is_shorter_where_collectives_hold_products_up) {
  expect_no_step_below_its_bound(BoundCase(with_persistent_products(gpu_machine()), 2), 61);
}

// Of 10 s a held fifth of a capacity takes 2 s of it, and all of it nothing: others have their
// least, and several may hold it at once.
TEST(Bound, what_is_held_whole_takes_no_time) {
  CostTable table;
  table.capacities = {{"a", 1}, {"b", 1}};
  OpCost cost;
  cost.alone = Duration::from_seconds(10);
  cost.demands[0] = {0, 0.2, true};
  cost.demands[1] = {1, 1, true};
  cost.demand_count = 2;
  Workload work;
  work.add(Op{}, cost, table, 1);
  EXPECT_NEAR(work.capacity[0], 2, 1e-12);
  EXPECT_EQ(work.capacity[1], 0);
}

TEST(Bound, no_arena_is_smaller) {
  expect_no_arena_below_its_bound(BoundCase(gpu_machine(), 1), 73);
  expect_no_arena_below_its_bound(BoundCase(gpu_machine(), 2), 83);
}

// Where weights are gathered for each visit, they are not there all the time.
TEST(Bound, weights_in_shards_have_bounds_of_their_graphs) {
  for (const OptimizerPlacement placement : {OptimizerPlacement::kGpu, OptimizerPlacement::kCpu}) {
    Plan base = auto_plan(16);
    base.devices = base.data = 2;
    base.zero_stage = 3;
    base.optimizer.placement = placement;
    const BoundCase c(gpu_machine(), base);
    expect_no_step_below_its_bound(c, 67);
    expect_no_arena_below_its_bound(c, 71);
  }
}

TEST(Bound, head_and_loss_in_pieces_have_bounds_of_their_graphs) {
  Plan base = auto_plan(8);
  base.loss_chunks = 5;
  const BoundCase c(gpu_machine(), base);
  expect_work_of_the_graphs(c, 179);
  expect_no_step_below_its_bound(c, 59);
  expect_no_arena_below_its_bound(c, 73);
  expect_no_step_below_its_bound(BoundCase(host_machine(), base), 59);
}

TEST(Bound, activations_that_return_by_module_have_bounds_of_their_graphs) {
  ActivationPlan like;
  like.reload = ReloadOrder::kByModule;
  for (const int64_t parts : {1, 3}) {
    const BoundCase c(gpu_machine(), 1, parts, like);
    expect_work_of_the_graphs(c, parts > 1 ? 307 : 179);
    expect_no_step_below_its_bound(c, parts > 1 ? 211 : 83);
    expect_no_arena_below_its_bound(c, parts > 1 ? 307 : 131);
  }
}

TEST(Bound, sequences_that_pass_in_parts_have_bounds_of_their_graphs) {
  for (const int64_t devices : {1, 2}) {
    const BoundCase c(gpu_machine(), devices, 3);
    expect_work_of_the_graphs(c, 307);
    expect_no_step_below_its_bound(c, 101);
    expect_no_arena_below_its_bound(c, 211);
  }
  const BoundCase host(host_machine(), 1, 2);
  expect_no_step_below_its_bound(host, 127);
  expect_no_arena_below_its_bound(host, 223);
}

// Gradients in 32 bits are not cast by the CPU, and twice the bytes of the GPU.
TEST(Bound, gradients_in_32_bits_have_bounds_of_their_graphs) {
  for (const int64_t devices : {1, 2}) {
    const BoundCase c(gpu_machine(), devices, 1, {}, GradientFormat::kF32);
    expect_work_of_the_graphs(c, 307);
    expect_no_step_below_its_bound(c, 101);
    expect_no_arena_below_its_bound(c, 211);
  }
  const BoundCase host(host_machine(), 1, 1, {}, GradientFormat::kF32);
  expect_no_step_below_its_bound(host, 127);
  const BoundCase narrow(gpu_machine(), 1);
  const BoundCase wide(gpu_machine(), 1, 1, {}, GradientFormat::kF32);
  Bytes least_narrow, least_wide;
  for (const Choice& choice : narrow.some(503)) {
    const auto hbm = static_cast<size_t>(Place::kHbm);
    least_narrow += narrow.bounds().least_memory(choice)[hbm];
    least_wide += wide.bounds().least_memory(choice)[hbm];
  }
  EXPECT_GT(least_wide, least_narrow);
}

// A host that takes 20 us for each kernel is what these small layers wait for.
TEST(Bound, a_step_is_no_shorter_than_its_host) {
  Stack stack;
  stack.constants.launch = Duration::from_us(20);
  const BoundCase c(gpu_machine(), 1, 1, {}, GradientFormat::kAsWeights, stack);
  expect_work_of_the_graphs(c, 307);
  expect_no_step_below_its_bound(c, 101);
  for (const Choice& choice : c.some(503)) {
    const Duration host{c.bounds().work(choice).host};
    EXPECT_GT(host, Duration{});
    EXPECT_GE(c.bounds().step_time(choice), lowered(host.ps));
  }
}

TEST(Bound, holders_sum_to_the_bytes_of_the_bound) {
  const BoundCase c(gpu_machine(), 1);
  for (const Choice& choice : c.some(503)) {
    const std::array<Bytes, kPlaces> least = c.bounds().least_memory(choice);
    for (const PlacePeak& peak : c.bounds().memory(choice)) {
      Bytes sum;
      for (const Holder& holder : peak.holders) sum += holder.bytes;
      EXPECT_EQ(sum, least[static_cast<size_t>(peak.place)]);
      EXPECT_EQ(peak.arena, sum);
    }
  }
}

// On a CPU that takes a thousand times as long for Adam, a step that waits for it cannot overlap:
// the bound is the whole of Adam (860 thousand parameters at 5e5 a second: 1.7 s) and the backward.
TEST(Bound, a_step_that_waits_adds_the_optimizer_to_the_compute) {
  Machine machine = gpu_machine();
  machine.cpu.adam["plain"] = flat(5e5);
  const Plan plan = fixed_plan();
  const Model model = small_model();
  const Space space = space_of(model, plan, OpenKnobs{});
  const CostModel costs(machine, Plan{}, Stack{}, nullptr);
  Bounds bounds(model, plan, space, costs);
  Tasks tasks;
  bounds.open({Choice{}}, tasks);
  bounds.refine({Choice{}}, tasks);
  run_all(tasks, 1);
  const Workload work = bounds.work(Choice{});
  const Duration cpu{work.lane[static_cast<size_t>(LaneKind::kCpu)]};
  EXPECT_NEAR(cpu.seconds(), static_cast<double>(parameter_count(model)) / 5e5, 1e-6);
  EXPECT_GE(bounds.quick(Choice{}), cpu * (1 - kBoundSlack));
  EXPECT_LE(bounds.quick(Choice{}), bounds.step_time(Choice{}));
  const Duration compute{work.lane[static_cast<size_t>(LaneKind::kCompute)]};
  EXPECT_GT(bounds.step_time(Choice{}), cpu + compute * 0.6);
}

TEST(Workload, is_as_long_as_its_busiest_lane_capacity_or_host) {
  Workload work;
  work.lane[static_cast<size_t>(LaneKind::kCompute)] = 3'000'000;  // 3 us
  work.capacity[1] = 2e-6;
  EXPECT_EQ(work.busiest_ps(), 3'000'000);
  work.capacity[1] = 4e-6;
  EXPECT_EQ(work.busiest_ps(), 4'000'000);
  work.host = 5'000'000;
  EXPECT_EQ(work.busiest_ps(), 5'000'000);
}

}  // namespace
}  // namespace ballast::tests
