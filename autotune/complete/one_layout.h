// One layout: the knobs of one rank that are still open, filled in, and what the plan then takes.
//
// Will not do: choose among layouts (autotune/complete/layouts/layout_chooser.h).
#pragma once

#include <functional>

#include "autotune/complete/setting.h"
#include "sim/engine/predict.h"
#include "sim/spec/measurements.h"

namespace ballast {

struct Completed {
  Setting setting;  // every knob of the plan has a value
  Prediction prediction;
};

// The plan, of one layout, with every "auto" knob filled in: the fastest of ways_of()
// (autotune/calibrate/published_cases.h) that fits; where none does, of those that recompute and
// offload the layers' inputs, or the outputs of attention too; or else that of feasibility().
// Throws Error where no way is legal.
Plan choose(const Setting& setting);

// Open knobs by a search where is_searched(), else by choose(); then as predict_reusing(). A search
// that is interrupted throws Error. `measurements` may be null.
Completed complete_layout(Setting setting, const Measurements* measurements,
                          const std::function<bool()>& interrupted);

// A plan as it is, or with memory reused at once where only that fits.
Completed predict_reusing(Setting setting, const Measurements* measurements);

}  // namespace ballast
