// Small trainings on a GH200 that is played: the bits of the host device, in the order of the
// graph, in the time that the prediction gives.
#include <gtest/gtest.h>

#include "profiles/load.h"
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

TEST(Virtual, a_step_has_the_bits_of_the_host_device) {
  const Plan plan = tiny::plan_of_both_homes(SyncMode::kWait);
  const TrainerOptions options = tiny::options_for(10);
  const tiny::Outcome host = tiny::train(tiny::gpt2_model(), plan, options, kSteps, true);
  VirtualRun run(gh200(), Arithmetic::kHost, kSteps);
  Trainer trainer(tiny::gpt2_model(), plan, on(run, options));
  trainer.train(kSteps, nullptr);
  EXPECT_TRUE(tiny::same_bits(trainer.parameters(), host.parameters));
  EXPECT_EQ(run.device().too_early(), std::vector<std::string>{});
  EXPECT_EQ(run.out_of_order(trainer.graph()), std::vector<std::string>{});
  const Timeline timeline = run.timeline();
  const Timeline predicted = simulate(trainer.graph().step, trainer.graph(), run.playing().step);
  std::printf("step %.3f ms, predicted %.3f ms; idle %.1f %%; host %.2f us an operation\n",
              timeline.step_time.ms(), predicted.step_time.ms(),
              100 * run.idle_share(trainer.graph()), run.host_time(trainer.graph()).us());
}

}  // namespace
}  // namespace ballast
