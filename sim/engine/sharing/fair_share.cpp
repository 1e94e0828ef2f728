#include "sim/engine/sharing/fair_share.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr double kGrowing = -1;  // a rate that has not stopped yet

// The common rate of the growing flows at which this capacity is full: what the stopped flows
// leave of it over what the growing ones ask for. Infinite where no growing flow crosses it.
double full_at(double capacity, int32_t index, std::span<const FlowUse> uses,
               std::span<const double> rates) {
  double left = capacity;
  double growing = 0;
  for (const FlowUse& use : uses) {
    if (use.capacity != index) continue;
    const double rate = rates[static_cast<size_t>(use.flow)];
    if (rate == kGrowing) {
      growing += use.amount;
    } else {
      left -= use.amount * rate;
    }
  }
  if (growing == 0) return std::numeric_limits<double>::infinity();
  return std::max(left, 0.0) / growing;
}

}  // namespace

void fair_share(std::span<const double> capacities, std::span<const FlowUse> uses,
                std::span<double> rates, std::span<double> filled) {
  CHECK(filled.size() >= capacities.size());
  std::fill(rates.begin(), rates.end(), kGrowing);
  // Every round fills at least one capacity for good, so there are at most as many as capacities.
  while (true) {
    double level = 1;
    for (size_t c = 0; c < capacities.size(); ++c) {
      filled[c] = full_at(capacities[c], static_cast<int32_t>(c), uses, rates);
      level = std::min(level, filled[c]);
    }
    if (level >= 1) break;
    for (const FlowUse& use : uses) {
      double& rate = rates[static_cast<size_t>(use.flow)];
      if (rate == kGrowing && filled[static_cast<size_t>(use.capacity)] == level) rate = level;
    }
  }
  std::replace(rates.begin(), rates.end(), kGrowing, 1.0);
}

std::vector<double> fair_share(std::span<const double> capacities, std::span<const FlowUse> uses,
                               int32_t flows) {
  std::vector<double> rates(static_cast<size_t>(flows));
  std::vector<double> filled(capacities.size());
  fair_share(capacities, uses, rates, filled);
  return rates;
}

}  // namespace ballast
