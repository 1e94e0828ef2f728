// The two forms of a pipeline on the virtual clock: a turn as one operation, and as all of it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <set>
#include <tuple>

#include "sim/engine/cost.h"
#include "sim/engine/predict.h"
#include "sim/graph/core/capabilities.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/schedules/pipeline.h"
#include "tests/engine/tiny_machine.h"
#include "tests/numbers.h"

namespace ballast {
namespace {

struct Shape {
  int64_t stages = 1, chunks = 1, micro_batches = 1;
};

Model model_of(const Shape& shape) {
  Model model;
  model.name = "small";
  model.architecture = "llama";
  model.layers = 2 * shape.stages * shape.chunks;
  model.hidden = 512;
  model.heads = model.kv_heads = 4;
  model.head_size = 128;
  model.ffn = 1024;
  model.vocab = 1024;
  model.max_positions = 1024;
  model.norm = NormKind::kRmsNorm;
  model.position = PositionKind::kRope;
  model.activation = ActivationKind::kSwiGlu;
  return model;
}

Plan plan_of(const Shape& shape) {
  Plan plan;
  plan.devices = plan.pipeline = shape.stages;
  plan.virtual_pipeline = shape.chunks;
  plan.global_batch = 4 * shape.micro_batches;
  plan.micro_batch = 4;
  plan.sequence_length = 1024;
  plan.weights.flow_share = 0;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.bucket_bytes = {int64_t{1} << 22};
  plan.optimizer.sync = SyncMode::kWait;
  plan.activations = ActivationPlan{};
  return plan;
}

double step_of(const Model& model, const Plan& plan, Folding folding,
               const Machine& machine = tests::tiny_cluster(), const Stack& stack = {}) {
  Graph graph = build_pipeline(model, plan, stack.facts, folding);
  graph = run_passes(std::move(graph), {model, plan, stack.facts}, "place", "link");
  const CostModel costs(machine, Plan{}, stack, nullptr);
  return step_time_of(graph, plan, costs).seconds();
}

const Shape kShapes[] = {{2, 1, 4}, {4, 1, 8}, {2, 2, 4}, {4, 2, 8}};

// Where all is kept, nothing is exchanged and one decision stands between the backward and the
// step, there is nothing to overlap but a norm that lies between two turns and fills a gap, or,
// spread, lies inside of one and does not: less than a hundredth.
TEST(pipeline_forms, take_the_same_time_where_there_is_nothing_to_overlap) {
  for (const Shape& shape : kShapes) {
    const Model model = model_of(shape);
    const Plan plan = plan_of(shape);
    const double folded = step_of(model, plan, Folding::kOn);
    const double spread = step_of(model, plan, Folding::kOff);
    EXPECT_NEAR(spread / folded, 1, 0.01)
        << shape.stages << " " << shape.chunks << ": " << folded << " and " << spread;
  }
}

// On a slow link a folded turn ends with its copies; spread, they run beside the turns that follow.
TEST(pipeline_forms, spread_turns_hide_what_folded_ones_cannot) {
  Machine machine = tests::tiny_cluster();
  machine.link.host_to_device = machine.link.device_to_host = tests::flat(0.2e9);
  for (const Shape& shape : kShapes) {
    const Model model = model_of(shape);
    Plan plan = plan_of(shape);
    for (const ModuleKind module : {ModuleKind::kFc1, ModuleKind::kActivation}) {
      plan.activations->fate[static_cast<size_t>(module)] = ActivationFate::kOffload;
    }
    plan.activations->offload_share = 1;
    const double folded = step_of(model, plan, Folding::kOn, machine);
    const double spread = step_of(model, plan, Folding::kOff, machine);
    EXPECT_LT(spread, 0.95 * folded) << shape.stages << " " << shape.chunks;
    EXPECT_EQ(step_of(model, plan, Folding::kAuto, machine), spread);
  }
}

// A host that reads how many rows each expert gets waits for the GPU in every layer's forward, and
// what it enqueues then the GPU waits for, in a turn that is one operation as in one that is many.
TEST(pipeline_forms, wait_alike_where_the_host_reads_the_rows_of_experts) {
  for (const Shape& shape : kShapes) {
    Model model = model_of(shape);
    model.architecture = "mixtral";
    model.experts = 4;
    model.experts_per_token = 2;
    model.expert_ffn = 1024;
    const Plan plan = plan_of(shape);
    Stack stack;
    stack.constants.launch = Duration::from_us(100);
    const auto step = [&](Folding folding, bool reads_routing) {
      stack.facts.reads_routing = reads_routing;
      return step_of(model, plan, folding, tests::tiny_cluster(), stack);
    };
    const auto added = [&](Folding folding) { return step(folding, true) - step(folding, false); };
    EXPECT_GT(added(Folding::kOn), 0.9 * added(Folding::kOff));
    EXPECT_LT(added(Folding::kOn), 2 * added(Folding::kOff))
        << "the host is not ahead when a folded turn ends: a launch more for each";
  }
}

// Some of what makes operations of its own: what leaves, what flows, how a step is taken and where.
Plan moving_plan(tests::Numbers& numbers, Plan plan) {
  for (int kind = 0; kind < kModuleKinds; ++kind) {
    const auto module = static_cast<ModuleKind>(kind);
    if (!saves_output(module)) continue;
    const bool leaves = numbers.below(3) == 0;
    if (leaves) plan.activations->fate[static_cast<size_t>(kind)] = ActivationFate::kOffload;
  }
  plan.activations->offload_share = numbers.below(2) == 0 ? 0.5 : 1;
  plan.weights.flow_share = 0.5 * static_cast<double>(numbers.below(3));
  plan.optimizer.placement = static_cast<OptimizerPlacement>(numbers.below(2));
  plan.optimizer.sync = static_cast<SyncMode>(numbers.below(3));
  plan.optimizer.undo = static_cast<UndoKind>(numbers.below(2));
  plan.optimizer.cast = static_cast<CastPlacement>(numbers.below(2));
  plan.optimizer.gpu_buckets = numbers.below(3);
  if (plan.optimizer.placement == OptimizerPlacement::kGpu) plan.optimizer.gpu_buckets = 0;
  return plan;
}

// All that a device is asked about: of every operation its variants and what it takes.
auto asked_of(const Graph& graph) {
  std::set<std::tuple<OpKind, int, Role, DType>> all;
  for (const Program* program : {&graph.step, &graph.repair}) {
    for (const Op& op : program->ops) {
      const WorkVariants variants = variants_of(op, graph);
      for (int v = 0; v < kWorkVariants; ++v) {
        if (variants.has(static_cast<WorkVariant>(v))) all.insert({op.kind, v, {}, {}});
      }
      for (const Access& access : op.accesses) {
        all.insert({op.kind, -1, access.role, graph.tensor(access.tensor).dtype});
      }
    }
  }
  return all;
}

// What a device is asked of a step is asked of few micro-batches: a step of ten thousand would take
// gigabytes to say that it does not run.
TEST(pipeline_forms, few_micro_batches_ask_for_all_that_a_folded_step_asks_for) {
  int surely = 0;
  for (const Shape& shape : {Shape{2, 1, 6000}, Shape{4, 2, 3000}, Shape{12, 2, 9600}}) {
    const Model model = model_of(shape);
    const Plan plan = plan_of(shape);
    const Graph whole = build_to_run_placed(model, plan);
    const Graph few = build_to_ask(model, plan);
    ASSERT_FALSE(whole.blocks.empty()) << "it is not folded";
    EXPECT_EQ(asked_of(few), asked_of(whole));
    EXPECT_LT(20 * few.step.ops.size(), whole.step.ops.size());
    // What needs no graph to be known as folded begins with a turn as well.
    surely += is_surely_folded(model, plan) ? 1 : 0;
    EXPECT_EQ(whole.step.ops.front().kind, OpKind::kBlock);
  }
  EXPECT_GT(surely, 0);
  const Shape small{2, 1, 4};
  EXPECT_FALSE(is_surely_folded(model_of(small), plan_of(small)));
  EXPECT_EQ(build_to_ask(model_of(small), plan_of(small)).step.ops.size(),
            build_to_run_placed(model_of(small), plan_of(small)).step.ops.size());
}

// Estimates are timed in the form that is predicted, and ask before they build.
TEST(pipeline_forms, what_is_spread_is_known_before_it_is_built) {
  int spread = 0;
  tests::Numbers numbers(20261129);
  for (const int64_t micro_batches : {4, 40, 2000, 3000, 4000}) {
    const Shape shape{2, 1, micro_batches};
    const Model model = model_of(shape);
    const Plan resting = plan_of(shape);
    EXPECT_FALSE(is_spread(model, resting, {})) << "nothing overlaps";
    const Plan moving = moving_plan(numbers, resting);
    const bool is = build_pipeline(model, moving, {}, Folding::kAuto).blocks.empty();
    EXPECT_EQ(is_spread(model, moving, {}), is) << micro_batches;
    spread += is;
  }
  EXPECT_GT(spread, 0);
  EXPECT_LT(spread, 5);
}

TEST(pipeline_forms, few_micro_batches_ask_for_all_that_a_spread_step_asks_for) {
  tests::Numbers numbers(20261128);
  size_t shorter = 0;
  for (int i = 0; i < 150; ++i) {
    const int64_t stages = 1 + numbers.below(4);
    const int64_t chunks = stages == 1 ? 1 : 1 + numbers.below(3);
    const int64_t rounds = 1 + numbers.below(12);
    const Shape shape{stages, chunks, chunks > 1 ? rounds * stages : rounds};
    const Model model = model_of(shape);
    const Plan plan = moving_plan(numbers, plan_of(shape));
    const Graph whole = build_to_run_placed(model, plan);
    ASSERT_TRUE(whole.blocks.empty()) << "it is folded";
    const Graph few = build_to_ask(model, plan);
    EXPECT_EQ(asked_of(few), asked_of(whole)) << "of plan " << i;
    shorter += few.step.ops.size() < whole.step.ops.size() ? 1 : 0;
  }
  EXPECT_GT(shorter, 75U);
}

}  // namespace
}  // namespace ballast
