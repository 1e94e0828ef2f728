// Runs a predicted plan on the paced device: hands the durations and fair rates of the virtual
// clock, for a machine that need not be here, to the executor (docs/design.md).
//
// Will not do: compare the two (cli/text/verification.h).
#pragma once

#include <optional>

#include "autotune/complete/complete.h"
#include "backend/train/trainer.h"

namespace ballast {

struct PacedRun {
  int64_t steps = 0;
  // Real seconds for a second of the machine; nothing: so that a mean operation lasts 5 ms, which
  // the delays of waking threads are small against.
  std::optional<double> slow_down;
};

// Times are those of the machine (real ones over the slow-down). The memory is empty: a paced
// device holds none. Requires a plan that fits.
TrainResult run_paced(const Completed& completed, const Measurements& measurements,
                      const PacedRun& run);

}  // namespace ballast
