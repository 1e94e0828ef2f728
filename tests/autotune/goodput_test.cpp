// Goodput over weeks: by hand where nothing is left to chance, and against Young's and Daly's
// closed forms where it is.
#include "autotune/studies/goodput.h"

#include <cmath>
#include <gtest/gtest.h>

#include "sim/base/error.h"

namespace ballast {
namespace {

Duration seconds(double value) { return Duration::from_seconds(value); }

LongRun a_run() {
  LongRun run;
  run.devices = 1024;
  run.step_time = seconds(2);
  run.period_steps = 500;
  run.checkpoint = seconds(20);
  run.days = 30;
  return run;
}

// One failure in ten thousand years: a period of 1,000 s of steps and 20 s of a checkpoint.
TEST(Goodput, without_failures_only_checkpoints_take_time) {
  LongRun run = a_run();
  run.devices = 1;
  const Goodput goodput = simulate_goodput(run, {1e-4, seconds(60), seconds(300)}, 10, 1);
  EXPECT_EQ(goodput.failures, 0);
  EXPECT_NEAR(goodput.kept, 1000.0 / 1020, 1e-3);
  EXPECT_EQ(goodput.repeated, 0);
  EXPECT_EQ(goodput.down, 0);
  EXPECT_EQ(goodput.low, goodput.high);
}

TEST(Goodput, shares_sum_to_one_and_failures_are_as_many_as_their_rate_says) {
  const Failures failures{0.2, seconds(60), seconds(600)};
  const Goodput goodput = simulate_goodput(a_run(), failures, 400, 7);
  EXPECT_NEAR(goodput.kept + goodput.repeated + goodput.checkpoints + goodput.down, 1, 1e-12);
  const double expected = 1024 * 0.2 * 30 / 365.25;  // 16.8
  EXPECT_NEAR(goodput.failures, expected, 3 * std::sqrt(expected / 400));
  EXPECT_LT(goodput.low, goodput.kept);
  EXPECT_GT(goodput.high, goodput.kept);
}

TEST(Goodput, same_seed_gives_the_same_runs) {
  const Failures failures{0.5, seconds(60), seconds(600)};
  const Goodput one = simulate_goodput(a_run(), failures, 20, 3);
  EXPECT_EQ(one.kept, simulate_goodput(a_run(), failures, 20, 3).kept);
  EXPECT_NE(one.kept, simulate_goodput(a_run(), failures, 20, 4).kept);
}

// Four stages of 256 pipelines; a forward takes 0.5 s more of a step than the bubbles hold.
RedundantStages four_stages() {
  RedundantStages stages;
  stages.stages = 4;
  stages.longer = seconds(0.5);
  return stages;
}

// Of a period 1,000 s of steps are 1,250 s then, and 20 s a checkpoint.
TEST(RedundantGoodput, without_failures_steps_are_as_much_longer_as_no_bubble_holds) {
  LongRun run = a_run();
  run.days = 1270.0 * 100 / kSecondsOfDay;
  const Failures never{1e-9, seconds(60), seconds(300)};
  const RedundantGoodput goodput = simulate_redundant_goodput(run, never, four_stages(), 10, 1);
  EXPECT_EQ(goodput.failures, 0);
  EXPECT_NEAR(goodput.kept, 1000.0 / 1270, 1e-9);
  EXPECT_NEAR(goodput.slowed, 250.0 / 1270, 1e-9);
  EXPECT_NEAR(goodput.checkpoints, 20.0 / 1270, 1e-9);
}

// A device that is back at once leaves no neighbour alone: each failure costs its 60 s and a step
// of 2 s, and no checkpoint is read. A restart of an hour costs half of the hour's steps each time.
TEST(RedundantGoodput, a_failure_that_is_covered_costs_its_detection_a_step_and_half_the_speed) {
  RedundantStages stages = four_stages();
  stages.longer = {};
  LongRun run = a_run();
  run.checkpoint = {};
  const double whole = run.days * kSecondsOfDay;
  const RedundantGoodput at_once =
      simulate_redundant_goodput(run, {0.2, seconds(60), {}}, stages, 400, 7);
  EXPECT_EQ(at_once.restarts, 0);
  EXPECT_NEAR(at_once.down, at_once.failures * 60 / whole, 1e-6);
  EXPECT_NEAR(at_once.repeated, at_once.failures * 2 / whole, 1e-6);
  EXPECT_NEAR(at_once.kept + at_once.down + at_once.repeated, 1, 1e-9);
  const RedundantGoodput later =
      simulate_redundant_goodput(run, {0.2, {}, seconds(3600)}, stages, 400, 7);
  EXPECT_NEAR(later.slowed, later.failures * 1800 / whole, 0.02 * later.slowed);
}

// While a device is missing, for an hour, either of its two neighbours may fail: of 5,000 failures
// a year and 1,024 devices (5 a device) one in 876 does so.
TEST(RedundantGoodput, two_neighbours_at_once_read_a_checkpoint_and_shares_sum_to_one) {
  LongRun run = a_run();
  const Failures failures{5, seconds(0), seconds(3600)};
  const RedundantGoodput goodput = simulate_redundant_goodput(run, failures, four_stages(), 400, 3);
  const double each = 2 * 5.0 * 3600 / (365.25 * kSecondsOfDay);
  const double expected = goodput.failures * each;  // 0.48 of a run
  EXPECT_NEAR(goodput.restarts, expected, 4 * std::sqrt(expected / 400));
  EXPECT_NEAR(goodput.kept + goodput.slowed + goodput.repeated + goodput.checkpoints + goodput.down,
              1, 1e-9);
  EXPECT_GT(goodput.kept, simulate_goodput(run, failures, 100, 3).kept);
}

// From a failure in 28 hours to one in 20 minutes.
TEST(Goodput, is_that_of_dalys_cost_function_at_a_hundred_rates) {
  LongRun run = a_run();
  run.days = 100;
  for (int i = 0; i < 100; ++i) {
    const Failures failures{0.3 * std::pow(90, i / 99.0), seconds(30), seconds(150)};
    const double simulated = simulate_goodput(run, failures, 100, 11).kept;
    EXPECT_NEAR(simulated / expected_goodput(run, failures), 1, 0.03)
        << failures.per_device_year << " failures a device and year";
  }
}

// Twice or half the period keeps fewer steps, by simulation as by the formula; where failures are
// rare against a checkpoint the period is Young's.
TEST(Goodput, best_period_is_best_and_near_youngs) {
  LongRun run = a_run();
  const Failures failures{2, seconds(60), seconds(300)};
  run.period_steps = best_period_steps(run, failures);
  const LongRun best = run;
  for (const double factor : {0.5, 2.0}) {
    run.period_steps = std::llround(static_cast<double>(best.period_steps) * factor);
    EXPECT_LT(expected_goodput(run, failures), expected_goodput(best, failures)) << factor;
    EXPECT_LT(simulate_goodput(run, failures, 300, 5).kept,
              simulate_goodput(best, failures, 300, 5).kept)
        << factor;
  }
  const Failures rare{0.02, seconds(60), seconds(300)};
  const double young = std::sqrt(2 * 20 * mean_time_between(rare, run.devices)) / 2;
  EXPECT_NEAR(static_cast<double>(best_period_steps(run, rare)) / young, 1, 0.03);
}

TEST(Goodput, best_period_is_at_most_the_whole_run) {
  const LongRun run = a_run();
  const auto steps = static_cast<int64_t>(run.days * kSecondsOfDay / run.step_time.seconds());
  for (const double rate : {1e-20, 1e-300}) {
    EXPECT_EQ(best_period_steps(run, {rate, seconds(60), seconds(300)}), steps) << rate;
  }
}

// Llama 3 405B on 16,384 H100: 466 interruptions in 54 days, more than 90 % of the time training
// (arXiv 2407.21783, section 3.3.4). What a restart and a checkpoint took is not said: of
// checkpoints every five minutes that take 2 s, restarts of five and ten minutes keep so much.
TEST(Goodput, of_llama_3_is_above_the_nine_tenths_that_were_published) {
  LongRun run;
  run.devices = 16'384;
  run.step_time = seconds(10);
  run.period_steps = 30;
  run.checkpoint = seconds(2);
  run.days = 54;
  const double rate = 466.0 / 16'384 / (54 / 365.25);
  for (const double minutes : {5.0, 10.0}) {
    const Goodput goodput = simulate_goodput(run, {rate, {}, seconds(60 * minutes)}, 200, 2);
    EXPECT_NEAR(goodput.failures, 466, 5);
    EXPECT_GT(goodput.kept, 0.9) << minutes << " minutes";
  }
}

TEST(Goodput, rate_at_which_nothing_would_be_done_is_refused) {
  EXPECT_THROW(simulate_goodput(a_run(), {1e9, seconds(1), seconds(1)}, 1, 1), Error);
}

}  // namespace
}  // namespace ballast
