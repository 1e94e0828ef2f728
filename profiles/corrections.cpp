#include "profiles/corrections.h"

#include <cmath>

namespace ballast {
namespace {

// A store does not fill with noise.
constexpr double kSameFactor = 1e-3;

using Factors = std::map<std::string, double>;

Factors changes_of(const Factors& before, const Factors& now) {
  Factors changes;
  for (const auto& [name, factor] : now) {
    const auto known = before.find(name);
    const double old = known != before.end() ? known->second : 1;
    const bool same = known != before.end() && std::abs(factor - old) <= kSameFactor * old;
    if (!same) changes.emplace(name, factor);
  }
  return changes;
}

}  // namespace

Measurements corrected(Measurements timed, const Corrections& corrections) {
  for (auto& [key, measurement] : timed) {
    const auto own = corrections.operations.find(key);
    const auto group = corrections.groups.find(measurement.group);
    double factor = 1;
    if (own != corrections.operations.end()) {
      factor = own->second;
    } else if (group != corrections.groups.end()) {
      factor = group->second;
    }
    if (factor == 1) continue;
    measurement.median = measurement.median * factor;
    measurement.deviation = measurement.deviation * factor;
  }
  return timed;
}

Corrections changes_of(const Corrections& before, const Corrections& now) {
  return {changes_of(before.operations, now.operations), changes_of(before.groups, now.groups)};
}

}  // namespace ballast
