// Ablations of plans whose knobs add up by hand, and of real predictions.
#include "autotune/studies/ablation.h"

#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/engine/predict.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

// Four knobs of the start differ: micro-batch, cast, sync and the share that flows.
Plan slow_plan() {
  Plan plan = fixed_plan();
  plan.micro_batch = 1;
  plan.optimizer.cast = CastPlacement::kCpu;
  return plan;
}
Plan fast_plan() {
  Plan plan = fixed_plan();
  plan.micro_batch = 4;
  plan.optimizer.cast = CastPlacement::kGpu;
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.optimizer.undo = UndoKind::kExact;
  plan.weights.flow_share = 0.5;
  return plan;
}

// 100 us, less 5 for the micro-batch, 30 for the cast, 10 for the sync, 1 for what flows.
Duration by_hand(const Plan& plan) {
  const bool speculates = plan.optimizer.sync == SyncMode::kSpeculate;
  double us = 100;
  us -= plan.micro_batch == 4 ? 5 : 0;
  us -= plan.optimizer.cast == CastPlacement::kGpu ? 30 : 0;
  us -= speculates && plan.optimizer.undo == UndoKind::kExact ? 10 : 0;
  us -= *plan.weights.flow_share == 0.5 ? 1 : 0;
  return Duration::from_us(us);
}

TEST(Ablation, takes_the_largest_gain_first_and_ends_at_the_best) {
  const Ablation ablation =
      ablate({slow_plan(), fast_plan()}, [](const Plan& plan) { return by_hand(plan); });
  EXPECT_EQ(ablation.start, Duration::from_us(100));
  ASSERT_EQ(ablation.steps.size(), 4u);
  const std::vector<std::string> order = {"optimizer.cast", "optimizer.sync", "micro_batch",
                                          "weights.flow_share"};
  const std::vector<double> gains = {30, 10, 5, 1};
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(ablation.steps[i].knob, order[i]);
    EXPECT_EQ(ablation.steps[i].gain, Duration::from_us(gains[i]));
  }
  EXPECT_EQ(ablation.steps[0].from, "cpu");
  EXPECT_EQ(ablation.steps[0].to, "gpu");
  EXPECT_EQ(ablation.steps.back().step_time, Duration::from_us(54));
}

// Four plans are tried for the first step, three for the second.
TEST(Ablation, interrupted_keeps_the_steps_that_are_done) {
  for (int plans = 0; plans <= 10; ++plans) {
    int asked = 0;
    const Ablation ablation = ablate(
        {slow_plan(), fast_plan()}, [](const Plan& plan) { return by_hand(plan); },
        [&] { return asked++ == plans; });
    const size_t done = plans < 4 ? 0 : plans < 7 ? 1 : plans < 9 ? 2 : plans < 10 ? 3 : 4;
    EXPECT_EQ(ablation.steps.size(), done);
    EXPECT_EQ(ablation.whole, done == 4);
  }
}

// The start does not fit until its micro-batch is 4.
TEST(Ablation, of_a_start_that_does_not_fit_first_takes_what_makes_it_fit) {
  const Ablation ablation =
      ablate({slow_plan(), fast_plan()}, [](const Plan& plan) -> std::optional<Duration> {
        if (plan.micro_batch != 4) return std::nullopt;
        return by_hand(plan);
      });
  EXPECT_FALSE(ablation.start);
  EXPECT_EQ(ablation.steps[0].knob, "micro_batch");
  EXPECT_EQ(ablation.steps[0].step_time, Duration::from_us(95));
  EXPECT_FALSE(ablation.steps[0].gain);
  EXPECT_EQ(ablation.steps[1].gain, Duration::from_us(30));
}

TEST(Ablation, comes_to_knobs_that_are_not_legal_alone_last) {
  const Ablation ablation = ablate({slow_plan(), fast_plan()}, [](const Plan& plan) {
    const bool speculates = plan.optimizer.sync == SyncMode::kSpeculate;
    if (speculates && *plan.weights.flow_share == 0) throw Error("sync", "needs flow", "");
    return std::optional(by_hand(plan));
  });
  EXPECT_EQ(ablation.steps[2].knob, "weights.flow_share");
  EXPECT_EQ(ablation.steps[3].knob, "optimizer.sync");
}

// 4 buckets of 2 MiB on the GPU are 8 of 1 MiB until their number is changed too.
TEST(Ablation, keeps_the_bytes_on_the_gpu_where_buckets_change_their_size) {
  Plan start = fixed_plan();
  start.optimizer.bucket_bytes = {2 << 20};
  start.optimizer.gpu_buckets = 4;
  Plan best = fixed_plan();
  best.optimizer.bucket_bytes = {1 << 20};
  best.optimizer.gpu_buckets = 2;
  std::vector<std::pair<int64_t, int64_t>> seen;
  ablate({start, best}, [&](const Plan& plan) {
    seen.emplace_back(plan.optimizer.bucket_bytes.count >> 20, *plan.optimizer.gpu_buckets);
    return std::optional(Duration::from_us(1));
  });
  const std::vector<std::pair<int64_t, int64_t>> expected = {{2, 4}, {1, 8}, {2, 1}, {1, 2}};
  EXPECT_EQ(seen, expected);
}

TEST(Ablation, of_a_plan_to_itself_has_no_steps) {
  const Ablation ablation =
      ablate({fast_plan(), fast_plan()}, [](const Plan& plan) { return by_hand(plan); });
  EXPECT_TRUE(ablation.steps.empty());
}

TEST(Ablation, of_predictions_adds_up_to_the_difference_of_its_ends) {
  const Model model = small_model();
  const Machine machine = gpu_machine();
  const StepTime predicted = [&](const Plan& plan) -> std::optional<Duration> {
    check(plan, model);
    return predict(model, plan, machine, nullptr).step_time;
  };
  Plan start = slow_plan();
  start.activations->fate.fill(ActivationFate::kRecompute);
  start.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  const SearchResult found = run_search(auto_plan(), OpenKnobs::all(), machine);
  const Ablation ablation = ablate({start, found.best->plan}, predicted);
  Duration gains;
  for (const AblationStep& step : ablation.steps) gains += step.gain.value();
  EXPECT_EQ(ablation.steps.back().step_time, found.best->step_time);
  EXPECT_EQ(*ablation.start - gains, found.best->step_time);
}

}  // namespace
}  // namespace ballast::tests
