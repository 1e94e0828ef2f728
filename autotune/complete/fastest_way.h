// The fastest of the ways to fill in the knobs that a setting of one layout leaves open, by
// estimates of their steps.
//
// Will not do: choose a layout (autotune/complete/complete.h), or predict (sim/engine/predict.h).
#pragma once

#include <functional>
#include <optional>

#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/complete/setting.h"
#include "sim/base/units.h"

namespace ballast {

// What is asked about.
struct Wanted {
  // The numbers of buckets on the GPU between those of a list, too: without them it is told how
  // good a layout is, roughly.
  bool between = false;
  std::optional<Duration> limit{};  // nothing that promises no less than this
  const std::function<bool()>& interrupted;
};

// Nothing where none fits and is faster than the limit. Of those that were looked at where it is
// interrupted. Copies of activations that leave are worth their time where nothing else fits, or a
// larger micro-batch then does: the latter is asked with `between` alone.
std::optional<TimedPlan> fastest_way(const Setting& setting, const Wanted& wanted,
                                     CompletionEstimates& known);

// False where every completion is known to take the limit or longer: nothing is built to say so.
// Throws Error where no completion is legal.
bool may_be_faster(const Setting& setting, Duration limit);

}  // namespace ballast
