// A plan with every knob filled in, and its prediction: what predict, graph, train and verify
// start from.
#pragma once

#include "cli/flags/inputs.h"
#include "sim/engine/predict.h"

namespace ballast {

struct Completed {
  Case of;  // every knob has a value
  Prediction prediction;
};

// Chooses the knobs that are "auto" for the shortest step that fits: by the tuner where Ballast
// runs on one device or on data-parallel ones, else from a small grid (choose() in
// autotune/calibrate/capacity.h), which does not look at measurements. Where nothing fits, the plan
// is the one that comes nearest, and its prediction says why.
Completed complete_case(Case of, const Measurements& measurements);

}  // namespace ballast
