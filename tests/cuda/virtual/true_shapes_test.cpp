// Llama 3 8B on a GH200 that is played, at its true shapes: nothing is computed, all is handed
// over, waited for and timed.
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>

#include "backend/cuda/cuda_edges.h"
#include "backend/execute/executor.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"
#include "tests/cuda/virtual/virtual_training.h"

namespace ballast {
namespace {

using tests::Arithmetic;
using tests::VirtualRun;

constexpr int kSteps = 12;

struct Outcome {
  Graph graph;
  Timeline predicted;
  Timeline ran;
  double idle = 0;
  double predicted_idle = 0;
  double told_idle = 0;  // by the device's own times
  tests::HostTime host;
  Duration compute_calls;  // of a step
  std::vector<std::string> wrong;
};

Plan superoffload() {
  Plan plan;
  plan.global_batch = 8;
  plan.micro_batch = 8;
  plan.sequence_length = 2048;
  plan.weights.flow_share = 0;
  plan.optimizer.bucket_bytes = {64 << 20};
  plan.optimizer.gpu_buckets = 192;
  plan.optimizer.undo = UndoKind::kExact;
  plan.optimizer.cast = CastPlacement::kGpu;
  plan.optimizer.sync = SyncMode::kSpeculate;
  ActivationPlan activations;
  activations.fate.fill(ActivationFate::kOffload);
  activations.offload_share = 0.75;
  plan.activations = activations;
  return plan;
}

Plan zero_offload() {
  Plan plan = superoffload();
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.cast = CastPlacement::kCpu;
  plan.optimizer.sync = SyncMode::kWait;
  plan.activations = ActivationPlan{};
  return plan;
}

// Of recorded runs also with all steps timed, as verify does; else few are, as train does.
enum class Launches : uint8_t { kPlain, kRecorded, kRecordedAndTimed };

Outcome run_of(const Plan& plan, Launches launches = Launches::kPlain) {
  static const Machine kMachine = load_machine("gh200-96gb-480gb");
  const Model model = load_model("llama-3-8b");
  Outcome outcome;
  outcome.graph = build(model, plan);
  const Graph& graph = outcome.graph;
  TokenOptions tokens;
  tokens.vocab = model.vocab;
  const TokenSource data = TokenSource::from_text(std::string(1 << 20, 'x'), "text", tokens);
  VirtualRun run(kMachine, Arithmetic::kNone, kSteps);
  DeviceOptions with;
  with.captures = launches != Launches::kPlain;
  with.timed_steps_apart = launches == Launches::kRecordedAndTimed ? 1 : 1000;
  const auto device = run.make_device({model, plan, graph, data}, with, {});
  RunOptions steps;
  steps.last_step = kSteps - 1;
  Executor executor(graph, *device);
  const RunResult result = executor.run(steps);
  outcome.predicted = simulate(graph.step, graph, run.playing().step);
  outcome.ran = run.timeline();
  outcome.idle = run.idle_share(graph);
  const auto idle_of = [&](const Timeline& timeline) {
    double idle = 1;
    for (const LaneUse& use : lane_use(graph, timeline)) {
      if (kind_of(use.lane) == LaneKind::kCompute) idle = 1 - use.share;
    }
    return idle;
  };
  outcome.predicted_idle = idle_of(outcome.predicted);
  outcome.told_idle = idle_of(result.timeline);
  outcome.host = run.host_time(graph);
  outcome.compute_calls = run.compute_calls_of_a_step(graph);
  outcome.wrong = run.device().too_early();
  for (const std::string& each : run.out_of_order(graph)) outcome.wrong.push_back(each);
  return outcome;
}

struct NamedPlan {
  const char* name;
  Plan plan;
};

// SuperOffload as predict completes it for 8 sequences of 2,048 tokens, ZeRO-Offload, and plans
// that differ from either in what moves between lanes.
std::vector<NamedPlan> plans() {
  std::vector<NamedPlan> all;
  const auto add = [&](const char* name, const Plan& plan) { all.push_back({name, plan}); };
  add("superoffload", superoffload());
  add("zero-offload", zero_offload());
  Plan plan = superoffload();
  plan.optimizer.gpu_buckets = 100;
  add("fewer buckets on the GPU", plan);
  plan = superoffload();
  plan.optimizer.bucket_bytes = {16 << 20};
  plan.optimizer.gpu_buckets = 700;
  add("buckets of 16 MiB", plan);
  plan = superoffload();
  plan.optimizer.cast = CastPlacement::kCpu;
  add("cast on the CPU", plan);
  plan = superoffload();
  plan.optimizer.undo = UndoKind::kSnapshot;
  plan.optimizer.gpu_buckets = 64;
  add("undo by snapshot", plan);
  plan = superoffload();
  plan.micro_batch = 2;
  add("four micro-batches", plan);
  plan = zero_offload();
  plan.optimizer.sync = SyncMode::kDelay;
  plan.activations->fate.fill(ActivationFate::kOffload);
  add("zero-offload, late", plan);
  plan = zero_offload();
  plan.optimizer.cast = CastPlacement::kGpu;
  add("zero-offload, cast on the GPU", plan);
  plan = zero_offload();
  plan.weights.flow_share = 1;
  add("weights flow", plan);
  plan = zero_offload();
  plan.optimizer.gpu_buckets = 64;
  plan.activations->fate.fill(ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  add("recomputes", plan);
  plan = zero_offload();
  plan.global_batch = 1;
  plan.micro_batch = 1;
  plan.sequence_length = 512;
  add("512 tokens", plan);
  plan = superoffload();
  plan.optimizer.transfers = StateTransfers::kDirect;
  add("superoffload by kernels", plan);
  plan = zero_offload();
  plan.optimizer.cast = CastPlacement::kGpu;
  plan.optimizer.transfers = StateTransfers::kDirect;
  add("zero-offload by kernels", plan);
  plan.weights.flow_share = 1;
  add("weights flow by kernels", plan);
  return all;
}

// By operation, how long it took in the last step of a timeline.
std::map<OpId, Duration> lengths(const Timeline& timeline) {
  std::map<OpId, Duration> found;
  const int32_t last = timeline.first_step + timeline.steps - 1;
  for (const Span& span : timeline.spans) {
    if (span.step == last) found[span.op] = span.end - span.begin;
  }
  return found;
}

// Every operation that the prediction gives time on its own lane: how much longer it took, at most.
// Those of other lanes share the link and memories with what a few microseconds move beside them.
Duration most_beyond(const Outcome& outcome) {
  const std::map<OpId, Duration> ran = lengths(outcome.ran);
  Duration most;
  int compared = 0;
  for (const auto& [id, predicted] : lengths(outcome.predicted)) {
    const Op& op = outcome.graph.step.ops[static_cast<size_t>(id)];
    if (predicted.ps == 0 || kind_of(op.lane) != LaneKind::kCompute) continue;
    const auto found = ran.find(id);
    EXPECT_NE(found, ran.end()) << describe(op);
    if (found == ran.end()) continue;
    ++compared;
    most = std::max(most, found->second - predicted);
  }
  EXPECT_GT(compared, 500);
  return most;
}

TEST(TrueShapes, fifteen_plans_take_what_is_predicted_in_the_order_of_the_graph) {
  const std::vector<NamedPlan> all = plans();
  ASSERT_EQ(all.size(), 15U);
  for (const auto& [name, plan] : all) {
    const Outcome outcome = run_of(plan);
    const double ratio = outcome.ran.step_time.seconds() / outcome.predicted.step_time.seconds();
    const Duration beyond = most_beyond(outcome);
    std::printf("| %s | %.1f | %.1f | %+.2f %% | %.1f %% | %.1f %% | %.0f | %.1f + %.1f |\n", name,
                outcome.predicted.step_time.ms(), outcome.ran.step_time.ms(), 100 * (ratio - 1),
                100 * outcome.predicted_idle, 100 * outcome.idle, beyond.us(),
                outcome.host.calls.us(), outcome.host.waits.us());
    EXPECT_EQ(outcome.wrong, std::vector<std::string>{}) << name;
    EXPECT_NEAR(ratio, 1, 0.02) << name;
    EXPECT_NEAR(outcome.idle, outcome.predicted_idle, 0.02) << name;
    // If a kernel that moves state overlaps a product 600 us longer than predicted, the product
    // takes up to 0.31 * 600 = 186 us more.
    const bool by_kernels = plan.optimizer.transfers == StateTransfers::kDirect;
    EXPECT_LT(beyond.us(), by_kernels ? 200 : 100) << name;
    EXPECT_LT(outcome.host.calls.us(), 5) << name;
  }
}

// Runs that are launched as one keep every edge of the graph, and take the GPU as long as predicted
// and the host a fraction: plain launches take the compute lane's thread about 5 us an operation.
TEST(TrueShapes, recorded_runs_keep_the_order_and_take_little_of_the_host) {
  const std::set<std::string> recorded = {"superoffload", "zero-offload", "four micro-batches",
                                          "zero-offload, late", "weights flow"};
  size_t ran = 0;
  for (const auto& [name, plan] : plans()) {
    if (!recorded.contains(name)) continue;
    ++ran;
    const Outcome outcome = run_of(plan, Launches::kRecorded);
    int64_t ops = 0;
    for (const Op& op : outcome.graph.step.ops) ops += kind_of(op.lane) == LaneKind::kCompute;
    const double ratio = outcome.ran.step_time.seconds() / outcome.predicted.step_time.seconds();
    std::printf("| %s | %.1f | %.1f | %lld | %.2f |\n", name, outcome.predicted.step_time.ms(),
                outcome.ran.step_time.ms(), static_cast<long long>(ops),
                outcome.compute_calls.ms());
    EXPECT_EQ(outcome.wrong, std::vector<std::string>{}) << name;
    EXPECT_NEAR(ratio, 1, 0.01) << name;
    EXPECT_NEAR(outcome.idle, outcome.predicted_idle, 0.02) << name;
    EXPECT_LT(outcome.compute_calls.us(), 2.0 * static_cast<double>(ops)) << name;
  }
  EXPECT_EQ(ran, recorded.size());
}

// Where operations are timed, what waits within a run is told of as waiting.
TEST(TrueShapes, the_device_tells_how_long_recorded_runs_wait) {
  Plan flows = zero_offload();
  flows.weights.flow_share = 1;
  const Outcome outcome = run_of(flows, Launches::kRecordedAndTimed);
  EXPECT_GT(outcome.idle, 0.2);
  EXPECT_NEAR(outcome.told_idle, outcome.idle, 0.01);
}

TEST(TrueShapes, superoffload_leaves_the_gpu_no_time_and_zero_offload_nearly_half) {
  EXPECT_LT(run_of(superoffload()).idle, 0.02);
  const double idle = run_of(zero_offload()).idle;
  EXPECT_GT(idle, 0.40);
  EXPECT_LT(idle, 0.50);
}

// Waits of a step that an earlier one of the same lane implies, and all (docs/cuda.md).
std::pair<int, int> implied_waits(const Plan& plan) {
  const Graph graph = build(load_model("llama-3-8b"), plan);
  const NeededEdges edges(graph.step, kLaneKinds, true);
  int implied = 0;
  for (size_t id = 0; id < graph.step.ops.size(); ++id) {
    for (int32_t e = graph.step.edge_begin[id]; e < graph.step.edge_begin[id + 1]; ++e) {
      const OpId before = graph.step.edges[static_cast<size_t>(e)].op;
      implied += edges.must_wait(static_cast<OpId>(id), before) ? 0 : 1;
    }
  }
  return {implied, static_cast<int>(graph.step.edges.size())};
}

TEST(TrueShapes, more_than_half_of_the_waits_are_implied) {
  for (const Plan& plan : {superoffload(), zero_offload()}) {
    const auto [implied, all] = implied_waits(plan);
    std::printf("of %d waits %d are implied\n", all, implied);
    EXPECT_GT(2 * implied, all);
  }
}

// In one line, and the memory that the mathematics has taken by then is given back.
TEST(TrueShapes, a_plan_that_the_gpu_has_no_room_for_is_refused_in_one_line) {
  Plan plan = superoffload();
  plan.activations = ActivationPlan{};
  try {
    run_of(plan);
    FAIL() << "no such memory";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("arena hbm: the plan needs"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace ballast
