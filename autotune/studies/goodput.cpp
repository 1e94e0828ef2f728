#include "autotune/studies/goodput.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <random>
#include <vector>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr double kSecondsOfYear = 365.25 * kSecondsOfDay;
constexpr double kMostFailures = 1e6;

// Seconds of one run, by what they were spent on.
struct Spent {
  double kept = 0, repeated = 0, checkpoints = 0, down = 0;
  int64_t failures = 0;
};

// One run, from failure to failure.
class SimulatedRun {
 public:
  SimulatedRun(const LongRun& run, const Failures& failures, uint64_t seed)
      : work_(run.step_time.seconds() * static_cast<double>(run.period_steps)),
        checkpoint_(run.checkpoint.seconds()),
        recovery_((failures.detection + failures.restart).seconds()),
        end_(run.days * kSecondsOfDay),
        mean_(mean_time_between(failures, run.devices)),
        random_(seed) {}

  Spent whole() {
    double now = 0;
    while (now < end_) {
      const double failure = now + until_next();
      train(now, std::min(failure, end_), failure >= end_);
      if (failure >= end_) break;
      ++spent_.failures;
      now = recovered(failure);
    }
    return spent_;
  }

 private:
  // The library's own distributions differ from one to the next.
  double until_next() {
    const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;  // [0, 1)
    return -mean_ * std::log1p(-uniform);
  }

  // From a checkpoint on. What was not yet in one is lost, but for what the run ends with.
  void train(double from, double to, bool ends) {
    const double time = to - from;
    const double period = work_ + checkpoint_;
    const double whole = std::floor(time / period);
    const double rest = time - whole * period;
    const double steps = std::min(rest, work_);
    spent_.kept += whole * work_;
    spent_.checkpoints += whole * checkpoint_ + (rest - steps);
    (ends ? spent_.kept : spent_.repeated) += steps;
  }

  // When steps go on.
  double recovered(double failure) {
    double begin = failure;
    for (double next = until_next(); next < recovery_ && begin + next < end_; next = until_next()) {
      ++spent_.failures;
      begin += next;
    }
    const double now = std::min(begin + recovery_, end_);
    spent_.down += now - failure;
    return now;
  }

  double work_, checkpoint_, recovery_, end_, mean_;
  std::mt19937_64 random_;
  Spent spent_;
};

void check(const LongRun& run, const Failures& failures) {
  CHECK(run.devices > 0 && run.step_time.ps > 0 && run.period_steps > 0 && run.days > 0);
  CHECK(failures.per_device_year > 0);
  const double count = run.days * kSecondsOfDay / mean_time_between(failures, run.devices);
  if (count <= kMostFailures) return;
  throw Error(
      "--failures-per-device-year",
      fmt::format("{} devices fail {:.3g} times in {:g} days", run.devices, count, run.days),
      "give a lower rate, or fewer days");
}

}  // namespace

double mean_time_between(const Failures& failures, int64_t devices) {
  return kSecondsOfYear / (failures.per_device_year * static_cast<double>(devices));
}

Goodput simulate_goodput(const LongRun& run, const Failures& failures, int runs, uint64_t seed) {
  CHECK(runs > 0);
  check(run, failures);
  Goodput mean;
  std::vector<double> kept;
  const double whole = run.days * kSecondsOfDay;
  const double part = 1 / (whole * runs);
  for (int i = 0; i < runs; ++i) {
    const Spent spent = SimulatedRun(run, failures, seed + static_cast<uint64_t>(i)).whole();
    mean.kept += spent.kept * part;
    mean.repeated += spent.repeated * part;
    mean.checkpoints += spent.checkpoints * part;
    mean.down += spent.down * part;
    mean.failures += static_cast<double>(spent.failures) / runs;
    kept.push_back(spent.kept / whole);
  }
  std::sort(kept.begin(), kept.end());
  const auto tenth = static_cast<size_t>(runs / 10);
  mean.low = kept[tenth];
  mean.high = kept[kept.size() - 1 - tenth];
  return mean;
}

double expected_goodput(const LongRun& run, const Failures& failures) {
  check(run, failures);
  const double mean = mean_time_between(failures, run.devices);
  const double work = run.step_time.seconds() * static_cast<double>(run.period_steps);
  const double recovery = (failures.detection + failures.restart).seconds();
  const double period = work + run.checkpoint.seconds();
  return work / (mean * std::exp(recovery / mean) * std::expm1(period / mean));
}

int64_t best_period_steps(const LongRun& run, const Failures& failures) {
  check(run, failures);
  const double mean = mean_time_between(failures, run.devices);
  const double dump = run.checkpoint.seconds();
  double work = mean;
  if (dump < 2 * mean) {
    const double ratio = dump / (2 * mean);
    work = std::sqrt(2 * dump * mean) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - dump;
  }
  return std::max<int64_t>(1, std::llround(work / run.step_time.seconds()));
}

}  // namespace ballast
