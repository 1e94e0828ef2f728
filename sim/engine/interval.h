// Interval: how sure a prediction is, from what the constants of its stack leave open and from how
// far predictions for sources that nobody had fitted were off.
//
// log(predicted / measured) is taken as normal. Its variance is slope' covariance slope, with the
// slope of log(time) by the coordinates of the constants, and what no constant explains
// (StackUncertainty). To first order; the derivation stands in docs/validation.md.
// Will not do: estimate the covariance (autotune/calibrate).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sim/engine/predict.h"
#include "sim/graph/report/memory.h"
#include "sim/spec/machine.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

// Of eight tenths of a normal distribution: standard deviations on each side.
inline constexpr double kIntervalWidth = 1.2816;

// Eight of ten such predictions should have the measured value between these.
struct DurationInterval {
  Duration low;
  Duration high;
};
struct BytesInterval {
  Bytes low;
  Bytes high;
};

// How far the ratio of two step times under one stack is off, as a standard deviation of its
// logarithm. The constants and a source's own offset are common to both and cancel; what is left is
// how one setup differs from the next (repeats, stragglers, neighbours in a sweep), for which this
// is a round figure and no fit. StackUncertainty::time would count what is common twice.
inline constexpr double kWithinSource = 0.05;
// Step times nearer than this to each other, as a share of the shorter (6.6 %), cannot be told
// apart: one time in ten or more the slower plan is the faster.
double told_apart_from();
bool cannot_be_told_apart(Duration one, Duration other);

struct Confidence {
  std::optional<DurationInterval> step_time;  // absent where nothing was simulated
  std::optional<BytesInterval> gpu_peak;
  double fits = 0;  // probability that every memory holds what the plan needs
};

// Simulates the plan again for every constant that its stack is unsure of. `prediction` must be of
// these very arguments. Absent where the stack has no uncertainty.
std::optional<Confidence> confidence_of(const Prediction& prediction, const Model& model,
                                        const Plan& plan, const Machine& machine,
                                        const Stack& stack, const Measurements* measurements);

// slope' covariance slope: the variance that the constants leave in a logarithm with this slope by
// their coordinates. Requires kStackConstants numbers.
double explained_variance(std::span<const double> slope, const StackUncertainty& uncertainty);

// That GPU memory holds a plan with these peaks, where it is known only to this spread; zero where
// another memory is overfilled.
double probability_to_fit(const std::vector<PlacePeak>& peaks, const Machine& machine,
                          const StackUncertainty& uncertainty);

}  // namespace ballast
