#include "backend/checkpoint/checkpoint_period.h"

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"

namespace ballast {

namespace {

// What is remembered: enough for a mean that one slow step does not move far, few enough to follow
// a machine that changes.
constexpr size_t kStepsKept = 64;
constexpr size_t kCostsKept = 5;
// Of a period, which neither a write nor the lanes' beginning disturbs: without them nobody would
// know any more what a step takes alone.
constexpr double kUndisturbedSteps = 2;
constexpr int64_t kMostSteps = int64_t{1} << 30;

template <class Value>
void keep(std::deque<Value>& values, Value value, size_t most) {
  values.push_back(value);
  if (values.size() > most) values.pop_front();
}

double median_of(std::deque<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

CheckpointPeriod::CheckpointPeriod(std::optional<double> bound, int64_t given)
    : bound_(bound), given_(given) {
  CHECK(!bound || *bound > 0);
}

void CheckpointPeriod::add(const std::vector<Step>& steps, double drained_seconds) {
  for (const Step& step : steps) {
    const bool touches_memory_first = count_++ == 0;
    if (step.beside_write || step.first || touches_memory_first) continue;
    keep(undisturbed_, {step.seconds, step.repairs}, kStepsKept);
  }
  drained_ += drained_seconds;
  if (undisturbed_.empty()) return;
  for (const Step& step : steps) {
    const double alone = expected(step.repairs);
    alone_ += alone;
    if (!any_ || (!step.beside_write && !step.first)) continue;
    latest_stretch_ += step.seconds - alone;
    stretched_ += step.seconds - alone;
  }
}

void CheckpointPeriod::add_checkpoint(double rest_seconds) {
  if (any_) keep(costs_, latest(), kCostsKept);
  any_ = true;
  latest_rest_ = drained_ + rest_seconds;
  latest_stretch_ = 0;
  rested_ += drained_ + rest_seconds;
  drained_ = 0;
}

void CheckpointPeriod::add_written(double seconds) { keep(written_, seconds, kCostsKept); }

double CheckpointPeriod::mean_of(std::optional<bool> repairs) const {
  double sum = 0;
  int64_t steps = 0;
  for (const Undisturbed& step : undisturbed_) {
    if (repairs && step.repairs != *repairs) continue;
    sum += step.seconds;
    ++steps;
  }
  return steps > 0 ? sum / static_cast<double>(steps) : 0;
}

double CheckpointPeriod::undisturbed_step() const { return mean_of(std::nullopt); }

double CheckpointPeriod::expected(bool repairs) const {
  const double of_kind = mean_of(repairs);
  return of_kind > 0 ? of_kind : undisturbed_step();
}

double CheckpointPeriod::written() const { return median_of(written_); }

double CheckpointPeriod::cost() const { return costs_.empty() ? latest() : median_of(costs_); }

// Steps may by chance be faster beside a write than without; that it pays for the rest is not so.
double CheckpointPeriod::latest() const { return latest_rest_ + std::max(latest_stretch_, 0.0); }

int64_t CheckpointPeriod::steps() const {
  if (!bound_) return given_;
  const double alone = undisturbed_step();
  // What the first one costs is known once the steps beside its write are over.
  if (costs_.empty() || alone == 0) return kProfiledSteps;
  const double within_bound = std::ceil(cost() / (*bound_ * alone));
  const double within_write = std::ceil(written() / alone) + kUndisturbedSteps;
  const double steps = std::max(within_bound, within_write);
  return static_cast<int64_t>(std::min(steps, static_cast<double>(kMostSteps)));
}

double CheckpointPeriod::measured_overhead() const {
  return alone_ > 0 ? (rested_ + stretched_) / alone_ : 0;
}

}  // namespace ballast
