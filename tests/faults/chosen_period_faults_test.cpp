// Checkpoints as often as a bound allows, by a clock of the simulation, on a disk that takes its
// time and fails: the bound is kept, and what ends a run costs few periods.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <random>
#include <set>

#include "backend/train/checkpoint.h"
#include "tests/backend/tiny_training.h"
#include "tests/faults/seeds.h"
#include "tests/faults/simulated_clock.h"
#include "tests/faults/simulated_disk.h"
#include "tests/faults/small_training.h"

namespace ballast {
namespace {

using tests::Incident;
using tests::kFolder;
using tests::SimulatedClock;
using tests::SimulatedDisk;
using tests::small_model;

constexpr int64_t kTimedSteps = 120;
constexpr std::chrono::nanoseconds kLook{1000};

// A disk, a bound and how checkpoints are written.
struct PeriodSetting {
  SyncMode sync{};
  double bound = 0;
  bool in_background = false;
  std::chrono::nanoseconds a_change{};  // of the disk
  std::string text() const {
    return fmt::format("{}, at most {:.0f} %{}, a change takes {} us", to_string(sync), 100 * bound,
                       in_background ? " in the background" : "", a_change.count() / 1000);
  }
};

struct TimedRun {
  std::string error;  // empty: it went to its end
  std::vector<float> parameters;
  CheckpointSchedule::Report checkpoints;
  int64_t final_steps = 0;  // that its caller was told of
};

// A disk with the clock that it takes time by.
struct TimedDisk {
  TimedDisk(uint64_t seed, const PeriodSetting& setting) : disk(seed) {
    disk.take_time(clock, setting.a_change);
  }
  SimulatedClock clock{kLook};
  SimulatedDisk disk;
};

TimedRun timed_run_on(TimedDisk& timed, const PeriodSetting& setting) {
  TrainerOptions options = tiny::options_for(kTimedSteps);
  options.files = &timed.disk;
  options.clock = &timed.clock;
  options.checkpoint_folder = kFolder;
  options.checkpoint_overhead = setting.bound;
  options.checkpoints_in_background = setting.in_background;
  options.resume = true;
  Plan plan = tiny::plan_of_both_homes(setting.sync);
  plan.micro_batch = 1;
  TimedRun run;
  try {
    Trainer trainer(small_model(), plan, options);
    run.final_steps = trainer.next_step();
    const TrainResult result = trainer.train(kTimedSteps, [&](const StepRecord& record) {
      run.final_steps = std::max<int64_t>(run.final_steps, record.step + 1);
    });
    run.checkpoints = result.checkpoints;
    run.parameters = trainer.parameters();
  } catch (const Error& error) {
    run.error = error.what();
  }
  return run;
}

int64_t newest_of(SimulatedDisk& disk) {
  int64_t step = 0;
  for (const auto& [its, path] : tests::checkpoints_on(disk)) {
    EXPECT_TRUE(verify_checkpoint(path, disk)) << path;
    step = its;
  }
  return step;
}

PeriodSetting drawn_setting(std::mt19937_64& random) {
  const auto draw = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  PeriodSetting setting;
  setting.sync = std::array{SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}.at(
      static_cast<size_t>(draw(0, 2.999)));
  setting.bound = draw(0.1, 0.6);
  setting.in_background = draw(0, 1) < 0.5;
  // From next to nothing to several steps for one checkpoint.
  setting.a_change = std::chrono::nanoseconds(static_cast<int64_t>(std::exp(draw(6, 11))));
  return setting;
}

// The first checkpoint, before anything is known of what one costs, comes on top of the bound, as
// does what is under way at the end.
void expect_within_bound(const CheckpointSchedule::Report& report, const PeriodSetting& setting) {
  ASSERT_GE(report.kept, 1) << setting.text();
  const double steps = report.undisturbed_step * static_cast<double>(kTimedSteps);
  const double one = report.overhead * steps / static_cast<double>(report.kept);
  EXPECT_LE(report.overhead * steps, setting.bound * steps * 1.1 + 2 * one)
      << setting.text() << fmt::format(": {} kept, {:.1f} %, every {} steps", report.kept,
                                       100 * report.overhead, report.period_steps);
}

TEST(faults, a_chosen_period_keeps_its_bound_and_what_ends_a_run_costs_few_periods) {
  const tests::Seeds seeds = tests::seeds(24);
  std::set<int64_t> periods;
  uint64_t ended = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const PeriodSetting setting = drawn_setting(random);
    TimedDisk undisturbed_disk(seed, setting);
    const TimedRun undisturbed = timed_run_on(undisturbed_disk, setting);
    ASSERT_EQ(undisturbed.error, "") << setting.text();
    expect_within_bound(undisturbed.checkpoints, setting);
    periods.insert(undisturbed.checkpoints.period_steps);

    TimedDisk disk(seed, setting);
    Incident incident;
    incident.kind = random() % 2 == 0 ? Incident::Kind::kKill : Incident::Kind::kPowerCut;
    const auto calls = static_cast<uint64_t>(undisturbed_disk.disk.calls());
    incident.at = 1 + static_cast<int64_t>(random() % calls);
    disk.disk.expect(incident);
    const TimedRun cut = timed_run_on(disk, setting);
    ended += cut.error.empty() ? 0 : 1;
    disk.disk.restart();
    // The first comes behind the steps that are timed, and one in the background may be under way.
    const int64_t period =
        std::max(undisturbed.checkpoints.period_steps, CheckpointPeriod::kProfiledSteps);
    const int64_t left = newest_of(disk.disk);
    EXPECT_LE(cut.final_steps - left, 2 * (setting.in_background ? 2 : 1) * period)
        << setting.text() << ", call " << incident.at;
    const TimedRun resumed = timed_run_on(disk, setting);
    ASSERT_EQ(resumed.error, "") << setting.text();
    EXPECT_TRUE(tiny::same_bits(resumed.parameters, undisturbed.parameters)) << setting.text();
    ASSERT_FALSE(HasFailure()) << setting.text();
  }
  if (seeds.count < 20) return;
  EXPECT_GT(periods.size(), 5U) << "as many disks and bounds ask for other periods";
  EXPECT_GT(ended, seeds.count / 2);
}

}  // namespace
}  // namespace ballast
