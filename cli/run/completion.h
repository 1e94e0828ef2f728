// A plan with every knob filled in, and its prediction: what predict, graph, train and verify
// start from.
#pragma once

#include "cli/flags/inputs.h"
#include "sim/engine/predict.h"

namespace ballast {

struct CompletedCase {
  Case of;  // every knob has a value
  Prediction prediction;
};

// The case with the plan of complete() (autotune/complete/complete.h).
CompletedCase complete_case(Case of, const Measurements& measurements);

}  // namespace ballast
