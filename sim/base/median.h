// The middle of some numbers, for whoever sums up repeated measurements.
//
// Will not do: tell which of the numbers are measurements of the same thing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/units.h"

namespace ballast {

// The mean of two values, as median() needs it of whatever it orders.
inline double midpoint(double low, double high) { return (low + high) / 2; }
inline Duration midpoint(Duration low, Duration high) {
  return {low.ps + (high.ps - low.ps) / 2};  // rounds down to a picosecond
}

// The value in the middle; of an even count the mean of the two in the middle, so that neither the
// faster nor the slower half is preferred. Requires at least one value.
template <class Value>
Value median(std::vector<Value> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : midpoint(values[half - 1], values[half]);
}

}  // namespace ballast
