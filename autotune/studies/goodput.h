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
#include "sim/engine/predict.h"

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

// Redundant stages of a pipeline (Bamboo, arXiv 2204.12013): every stage also keeps the weights of
// its successor, the last one those of the first, and computes the successor's forward in its own
// bubbles. Where a device fails, its predecessor does the lost backward and goes on for both until
// another device has taken its place; only where two neighbours fail at once is a checkpoint read.
//
// What it costs is told from a prediction of the plan as it is: no graph has these forwards, and
// nothing here trains so. Weights are counted in their 16 bits alone, for the state of the
// optimizer comes back with the device that takes over, out of a checkpoint or its data ranks.
// Interleaved stages, which have several successors, are refused.

// Of the stage that it costs most, each for itself.
struct RedundantStages {
  int64_t stages = 1;
  Bytes memory;      // of a GPU: the successor's weights
  Bytes traffic;     // in a step, to the predecessor: what was stepped
  Duration forward;  // in a step, of the successor's micro-batches
  Duration idle;     // of the compute lane in a step, where least is
  Duration longer;   // the step, by what no bubble holds
};

// Throws Error where the plan has one stage or interleaved ones. Requires a prediction that fits.
RedundantStages redundant_stages(const Prediction& prediction, const Plan& plan);

// Shares of the whole time as in Goodput; `slowed` is what steps take longer than without: forwards
// that no bubble holds, and, as long as a device is missing, half of the speed, for its predecessor
// has two stages to do and all others wait.
struct RedundantGoodput {
  double kept = 0, slowed = 0, repeated = 0, checkpoints = 0, down = 0;
  double failures = 0, restarts = 0;  // of a run; restarts from a checkpoint among them
};

// A failure that a neighbour covers stops training for Failures::detection and one step, which is
// done again; Failures::restart later another device has taken its place. One beside a device that
// is missing costs what it does without redundant stages. None comes while training rests. Devices
// of a stage fail each for itself.
RedundantGoodput simulate_redundant_goodput(const LongRun& run, const Failures& failures,
                                            const RedundantStages& stages, int runs, uint64_t seed);

}  // namespace ballast
