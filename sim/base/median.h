// The middle of some numbers: of an even count the mean of the two in the middle.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/base/error.h"

namespace ballast {

// Requires at least one value.
inline double median(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace ballast
