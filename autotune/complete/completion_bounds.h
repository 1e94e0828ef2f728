// Least times of ways to fill in a setting, from which those that cannot be the fastest are left
// out before a graph of theirs is built.
//
// A completion's bound is that of its cell (autotune/bounds/cell_bound), with the costs of the
// setting's stack, and so never above what the completion takes. Will not do: say what fits
// (autotune/complete/completion_estimates.h).
#pragma once

#include <vector>

#include "autotune/calibrate/published_cases.h"
#include "autotune/complete/setting.h"
#include "sim/base/units.h"

namespace ballast {

// Of completions of one kind of attention, in their order. Zero where nothing is known.
std::vector<Duration> least_times(const Setting& setting,
                                  const std::vector<const Completion*>& completions);

}  // namespace ballast
