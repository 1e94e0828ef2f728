// Llama 3 8B on a GH200 that is played, at its true shapes: nothing is computed, all is handed over,
// waited for and timed.
#include <gtest/gtest.h>
#include <map>

#include "backend/execute/executor.h"
#include "profiles/load.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"
#include "tests/cuda/virtual/virtual_training.h"

namespace ballast {
namespace {

using tests::Arithmetic;
using tests::VirtualRun;

constexpr int kSteps = 4;

struct Outcome {
  Graph graph;
  Timeline predicted;
  Timeline ran;
  double idle = 0;
  double predicted_idle = 0;
  Duration host;
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

Outcome run_of(const Plan& plan) {
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
  with.timed_steps_apart = 1000;  // as train does
  const auto device = run.make_device({model, plan, graph, data}, with, {});
  RunOptions steps;
  steps.last_step = kSteps - 1;
  Executor executor(graph, *device);
  executor.run(steps);
  outcome.predicted = simulate(graph.step, graph, run.playing().step);
  outcome.ran = run.timeline();
  outcome.idle = run.idle_share(graph);
  for (const LaneUse& use : lane_use(graph, outcome.predicted)) {
    if (kind_of(use.lane) == LaneKind::kCompute) outcome.predicted_idle = 1 - use.share;
  }
  outcome.host = run.host_time(graph);
  outcome.wrong = run.device().too_early();
  for (const std::string& each : run.out_of_order(graph)) outcome.wrong.push_back(each);
  return outcome;
}

TEST(TrueShapes, superoffload_and_zero_offload) {
  for (const Plan& plan : {superoffload(), zero_offload()}) {
    const Outcome outcome = run_of(plan);
    std::printf("step %.3f ms, predicted %.3f ms; idle %.1f %%, predicted %.1f %%; host %.2f us\n",
                outcome.ran.step_time.ms(), outcome.predicted.step_time.ms(), 100 * outcome.idle,
                100 * outcome.predicted_idle, outcome.host.us());
    EXPECT_EQ(outcome.wrong, std::vector<std::string>{});
    std::printf("%s\n", text_timeline(outcome.graph, outcome.ran, 90).c_str());
  }
}

}  // namespace
}  // namespace ballast
