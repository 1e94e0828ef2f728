#include "sim/engine/interval.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

// Steps of the derivatives, in coordinates (as the calibration takes them).
constexpr double kDifference = 0.05;

double normal_cumulative(double deviations) { return 0.5 * std::erfc(-deviations / std::sqrt(2)); }

// Of log(memory) by the slack alone.
double memory_spread(const StackUncertainty& uncertainty, double slack) {
  double variance = uncertainty.memory * uncertainty.memory;
  for (int i = 0; i < kStackConstants; ++i) {
    if (constant_kind(i) != ConstantKind::kSlack) continue;
    const auto at = static_cast<size_t>(i * (kStackConstants + 1));
    variance += uncertainty.covariance[at] / ((1 + slack) * (1 + slack));
  }
  return std::sqrt(variance);
}

// Of log(time) by the coordinate of every constant.
std::vector<double> time_slopes(const Prediction& prediction, const Plan& plan,
                                const Machine& machine, const Stack& stack,
                                const Measurements* measurements) {
  std::vector<double> slopes(kStackConstants);
  parallel_for(kStackConstants, hardware_threads(), [&](size_t index) {
    const int i = static_cast<int>(index);
    if (constant_kind(i) == ConstantKind::kSlack ||
        stack.uncertainty->covariance[static_cast<size_t>(i * (kStackConstants + 1))] <= 0) {
      return;
    }
    Stack moved = stack;
    const double at = coordinate(stack.constants, i);
    set_coordinate(moved.constants, i, std::isfinite(at) ? at - kDifference : kDifference);
    const CostModel costs(machine, plan, moved, measurements);
    CostTable of_step = costs_of(prediction, costs);
    if (of_step == prediction.costs) return;  // the plan has nothing that it is of
    const Duration time = step_time_of(prediction, plan, [&](const Prediction& step) {
      return &step == &prediction ? std::move(of_step) : costs_of(step, costs);
    });
    slopes[index] = std::log(prediction.step_time.seconds() / time.seconds()) / kDifference;
  });
  return slopes;
}

}  // namespace

double explained_variance(std::span<const double> slope, const StackUncertainty& uncertainty) {
  CHECK(slope.size() == static_cast<size_t>(kStackConstants));
  double sum = 0;
  for (size_t i = 0; i < slope.size(); ++i) {
    for (size_t j = 0; j < slope.size(); ++j) {
      sum += slope[i] * slope[j] * uncertainty.covariance[i * slope.size() + j];
    }
  }
  return sum;
}

double told_apart_from() { return std::exp(kIntervalWidth * kWithinSource) - 1; }

bool cannot_be_told_apart(Duration one, Duration other) {
  const double ratio = one.seconds() / other.seconds();
  return std::max(ratio, 1 / ratio) < 1 + told_apart_from();
}

double probability_to_fit(const std::vector<PlacePeak>& peaks, const Machine& machine,
                          const StackUncertainty& uncertainty) {
  double probability = 1;
  for (const PlacePeak& peak : peaks) {
    const Bytes limit = usable(machine, peak.place);
    if (peak.place != Place::kHbm) {
      if (peak.arena > limit) return 0;
      continue;
    }
    if (peak.arena.count <= 0) continue;
    const double slack =
        static_cast<double>(peak.arena.count) / static_cast<double>(peak.live.count) - 1;
    const double spread = memory_spread(uncertainty, slack);
    const double room =
        std::log(static_cast<double>(limit.count) / static_cast<double>(peak.arena.count));
    if (spread <= 0) {
      probability = room >= 0 ? 1 : 0;
    } else {
      probability = normal_cumulative(room / spread);
    }
  }
  return probability;
}

std::optional<Confidence> confidence_of(const Prediction& prediction, const Model& model,
                                        const Plan& plan, const Machine& machine,
                                        const Stack& stack, const Measurements* measurements) {
  if (!stack.uncertainty) return std::nullopt;
  const StackUncertainty& uncertainty = *stack.uncertainty;
  Confidence result;
  // Without peaks the plan asks for devices that are not there.
  result.fits =
      prediction.peaks.empty() ? 0 : probability_to_fit(prediction.peaks, machine, uncertainty);
  if (prediction.gpu_peak.count > 0) {
    const double spread = memory_spread(uncertainty, stack.constants.memory_slack);
    const double factor = std::exp(kIntervalWidth * spread);
    const auto peak = static_cast<double>(prediction.gpu_peak.count);
    result.gpu_peak = BytesInterval{{std::llround(peak / factor)}, {std::llround(peak * factor)}};
  }
  if (prediction.step_time.ps > 0) {
    const std::vector<double> slopes = time_slopes(prediction, plan, machine, stack, measurements);
    const double rest = uncertainty.time_of(model);
    const double variance = explained_variance(slopes, uncertainty) + rest * rest;
    const double factor = std::exp(kIntervalWidth * std::sqrt(variance));
    result.step_time =
        DurationInterval{prediction.step_time * (1 / factor), prediction.step_time * factor};
  }
  return result;
}

}  // namespace ballast
