// Goodput: what of weeks of training is steps that stay, where devices fail.
//
// A run is steps, a checkpoint every so many of them, and failures that come at a constant rate a
// device (a Poisson process). A failure is noticed, the run starts again from the newest checkpoint
// and repeats what came after it; one that comes meanwhile begins the restart anew. Simulated over
// many runs with seeds of their own, failure by failure, beside the closed form for the mean of
// Daly (A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22,
// 2006), whose optimal period extends Young's (CACM 17, 1974).
// Will not do: spares that run short, failures that come in groups, or stragglers.
#pragma once

#include <cstdint>

#include "sim/base/units.h"

namespace ballast {

inline constexpr double kSecondsOfDay = 86'400;

// What fails, and what it takes until steps go on.
struct Failures {
  double per_device_year = 0;  // above 0; a year has 365.25 days
  Duration detection;          // until a failure is noticed
  Duration restart;            // then until the state is loaded and the next step begins
};

struct LongRun {
  int64_t devices = 1;
  Duration step_time;
  int64_t period_steps = 1;  // from one checkpoint to the next
  Duration checkpoint;       // for which training rests
  double days = 0;           // above 0
};

// Shares of the whole time, which sum to 1, in the mean of the runs.
struct Goodput {
  double kept = 0;           // steps that nothing took back
  double repeated = 0;       // steps lost in a failure
  double checkpoints = 0;    // finished or not
  double down = 0;           // noticing and restarting
  double failures = 0;       // of a run
  double low = 0, high = 0;  // between these lies `kept` of eight runs of ten
};

// Seconds from one failure of any device to the next, in the mean.
double mean_time_between(const Failures& failures, int64_t devices);

// The same seed gives the same runs. Throws Error where so much fails that a run has more than a
// million failures.
Goodput simulate_goodput(const LongRun& run, const Failures& failures, int runs, uint64_t seed);

// Goodput::kept of a run without end, by Daly's cost function.
double expected_goodput(const LongRun& run, const Failures& failures);

// The period by Daly's optimum, rounded to whole steps; at least one.
int64_t best_period_steps(const LongRun& run, const Failures& failures);

}  // namespace ballast
