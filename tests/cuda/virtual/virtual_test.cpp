// Small trainings on a GH200 that is played: the bits of the host device, in the order of the
// graph, in the time that the prediction gives.
#include <gtest/gtest.h>

#include "backend/cuda/transformer_cuda.h"
#include "profiles/load.h"
#include "tests/backend/emulated/immediate_cuda.h"
#include "tests/backend/tiny_training.h"
#include "tests/cuda/virtual/virtual_training.h"

namespace ballast {
namespace {

using tests::Arithmetic;
using tests::VirtualRun;

constexpr int kSteps = 4;

const Machine& gh200() {
  static const Machine kMachine = load_machine("gh200-96gb-480gb");
  return kMachine;
}

TrainerOptions on(VirtualRun& run, TrainerOptions options) {
  options.timed_steps_apart = 1000;  // as train does
  options.make_device = [&run](const Training& training, const DeviceOptions& with,
                               const ControlState& state) {
    return run.make_device(training, with, state);
  };
  return options;
}

struct NamedPlan {
  const char* name;
  Plan plan;
};

// What moves between lanes in each way of stepping.
std::vector<NamedPlan> plans() {
  std::vector<NamedPlan> all;
  const auto add = [&](const char* name, const Plan& plan) { all.push_back({name, plan}); };
  add("waits", tiny::plan_of_both_homes(SyncMode::kWait));
  add("is late", tiny::plan_of_both_homes(SyncMode::kDelay));
  add("speculates", tiny::plan_of_both_homes(SyncMode::kSpeculate));
  Plan offloads = tiny::plan_of_both_homes(SyncMode::kSpeculate);
  offloads.activations = tiny::all_activations(ActivationFate::kOffload);
  add("offloads", offloads);
  Plan flows = tiny::plan_of_both_homes(SyncMode::kWait);
  flows.optimizer.gpu_buckets = 0;
  flows.optimizer.cast = CastPlacement::kCpu;
  flows.weights.flow_share = 1;
  flows.activations = tiny::all_activations(ActivationFate::kRecompute);
  add("flows and recomputes", flows);
  Plan exact = offloads;
  exact.optimizer.undo = UndoKind::kExact;
  exact.optimizer.gpu_buckets = 2;
  add("takes back exactly", exact);
  Plan direct = flows;
  direct.optimizer.cast = CastPlacement::kGpu;
  direct.optimizer.transfers = StateTransfers::kDirect;
  add("flows by kernels", direct);
  direct = offloads;
  direct.optimizer.transfers = StateTransfers::kDirect;
  add("speculates by kernels", direct);
  return all;
}

// Losses and gradients that nothing clips: no step is taken back.
TrainerOptions unclipped() {
  TrainerOptions options = tiny::options_for(10);
  options.optimizer.clip_norm = 1e6;
  return options;
}

TEST(Virtual, every_way_to_step_has_the_bits_of_the_host_device_in_the_order_of_the_graph) {
  for (const auto& [name, plan] : plans()) {
    for (const TrainerOptions& options : {unclipped(), tiny::options_for(10)}) {
      const tiny::Outcome host = tiny::train(tiny::gpt2_model(), plan, options, kSteps, true);
      VirtualRun run(gh200(), Arithmetic::kHost, kSteps);
      Trainer trainer(tiny::gpt2_model(), plan, on(run, options));
      const TrainResult result = trainer.train(kSteps, nullptr);
      EXPECT_EQ(result.rollbacks, host.rollbacks) << name;
      EXPECT_TRUE(tiny::same_bits(trainer.parameters(), host.parameters)) << name;
      EXPECT_EQ(run.device().too_early(), std::vector<std::string>{}) << name;
      if (result.rollbacks > 0) continue;  // what is repeated has no place in the timeline
      EXPECT_EQ(run.out_of_order(trainer.graph()), std::vector<std::string>{}) << name;
      const Timeline timeline = run.timeline();
      const Timeline predicted =
          simulate(trainer.graph().step, trainer.graph(), run.playing().step);
      std::printf("%-22s step %.3f ms, predicted %.3f ms; idle %.1f %%; host %.2f us\n", name,
                  timeline.step_time.ms(), predicted.step_time.ms(),
                  100 * run.idle_share(trainer.graph()), run.host_time(trainer.graph()).calls.us());
    }
  }
}

// Runs of kernels that are recorded and launched as one keep the order of streams.
TEST(Virtual, recorded_runs_have_the_bits_of_the_host_device) {
  // Each of the events that take turns is launched twice.
  constexpr int kRecordedSteps = 2 + 2 * CudaLanes::kEventSteps;
  for (const auto& [name, plan] : plans()) {
    TrainerOptions options = tiny::options_for(10);
    const tiny::Outcome host = tiny::train(tiny::gpt2_model(), plan, options, kRecordedSteps, true);
    options.captures = true;
    VirtualRun run(gh200(), Arithmetic::kHost, kRecordedSteps);
    Trainer trainer(tiny::gpt2_model(), plan, on(run, options));
    trainer.train(kRecordedSteps, nullptr);
    EXPECT_TRUE(tiny::same_bits(trainer.parameters(), host.parameters)) << name;
    EXPECT_EQ(run.device().too_early(), std::vector<std::string>{}) << name;
  }
}

// A device that forgets to wait is found out by its bits and by its timeline.
TEST(Virtual, waits_that_are_missing_show) {
  const Plan plan = tiny::plan_of_both_homes(SyncMode::kWait);
  const tiny::Outcome host = tiny::train(tiny::gpt2_model(), plan, unclipped(), kSteps, true);
  VirtualRun run(gh200(), Arithmetic::kHost, kSteps);
  run.forget_waits();
  Trainer trainer(tiny::gpt2_model(), plan, on(run, unclipped()));
  trainer.train(kSteps, nullptr);
  EXPECT_FALSE(tiny::same_bits(trainer.parameters(), host.parameters));
  EXPECT_GT(run.out_of_order(trainer.graph()).size(), 10U);
}

// The CUDA kernels themselves, emulated, each launch in its turn on its stream; against the same
// kernels one after another.
TEST(Virtual, cuda_kernels_have_the_bits_of_one_after_another) {
  const Model model = tiny::llama(
      {.hidden = 32, .heads = 2, .kv_heads = 1, .head_size = 16, .ffn = 48, .vocab = 256});
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate}) {
    Plan plan = tiny::plan_of_both_homes(sync);
    plan.global_batch = 2;
    plan.micro_batch = 1;
    plan.activations = tiny::all_activations(ActivationFate::kOffload);
    TrainerOptions at_once = tiny::options_for(10);
    at_once.make_device = [](const Training& training, const DeviceOptions& with,
                             const ControlState& state) {
      auto runtime = std::make_unique<tests::ImmediateCuda>();
      auto math = std::make_unique<CudaTransformer>(
          training, RankPlace{}, *runtime, std::make_unique<tests::PlainProducts>(),
          std::make_unique<CudaAttention>(*runtime, OpenedAttention{}, AttentionMemory{}));
      return std::make_unique<CudaDevice>(
          training, with, state,
          CudaParts{std::move(runtime), std::move(math), {int64_t{1} << 40}});
    };
    const tiny::Outcome reference = tiny::train(model, plan, at_once, kSteps, true);
    VirtualRun run(gh200(), Arithmetic::kEmulated, kSteps);
    Trainer trainer(model, plan, on(run, tiny::options_for(10)));
    const TrainResult result = trainer.train(kSteps, nullptr);
    EXPECT_TRUE(tiny::same_bits(trainer.parameters(), reference.parameters));
    EXPECT_EQ(result.rollbacks, reference.rollbacks);
    EXPECT_EQ(run.device().too_early(), std::vector<std::string>{});
  }
}

// On however loaded a machine. Calls of the driver at one instant may come in either order.
TEST(Virtual, time_repeats_itself) {
  Plan plan = tiny::plan_of_both_homes(SyncMode::kSpeculate);
  plan.activations = tiny::all_activations(ActivationFate::kOffload);
  std::vector<double> steps;
  for (int i = 0; i < 3; ++i) {
    VirtualRun run(gh200(), Arithmetic::kHost, kSteps);
    Trainer trainer(tiny::gpt2_model(), plan, on(run, unclipped()));
    trainer.train(kSteps, nullptr);
    steps.push_back(run.timeline().step_time.us());
  }
  std::printf("%.2f %.2f %.2f us\n", steps[0], steps[1], steps[2]);
  for (const double step : steps) EXPECT_NEAR(step, steps[0], 0.02 * steps[0]);
}

}  // namespace
}  // namespace ballast
