// Bottlenecks: what a step gains where one thing of its machine is 10 % faster, by simulating the
// same graph again.
//
// The longest path through a step says where its time went, not what limits it: where lanes tie
// there are several as long, and to shorten one of them gains nothing. So every gain here is a
// derivative: 1 - (step time with it faster) / (step time). The graph and the plan stay as they
// are.
//
//  * A *rate* is a figure of the machine (sim/spec/machine_figures.h) or what a launch costs a
//    framework's host. Where it is 10 % faster every operation is costed again, also those inside
//    the blocks of a pipeline. Operations that were timed keep their times, and so do fixed
//    latencies (a kernel's start, a hand-over, a hop of a collective).
//  * A *lane* 10 % faster takes 1 / 1.1 of the time for each operation that it runs, timed ones
//    too, and asks 1.1 times as much of what is shared: memory or a link that it fills alone still
//    holds it up, and its rate is then what limits. Cores and multiprocessors are occupied, not
//    used up, so of these it asks no more. A block runs on its device's compute lane as a whole.
//    Lanes of several stages are faster together, kind by kind: one stage alone waits for others.
//  * A *tie*: no single one gives more than half of what all of them give together; two or more
//    together give two thirds of it or more, none of them can be left out, and that is half as
//    much again as the sum of what each gives alone.
//
// A gain may be slightly negative: what is faster may meet others at another time and share memory
// with them then (Graham, "Bounds on multiprocessing timing anomalies", 1969).
// Will not do: choose another plan for the faster machine (autotune/studies/sensitivity.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/engine/predict.h"
#include "sim/spec/machine_figures.h"

namespace ballast {

inline constexpr double kFaster = 1.1;  // than it is: the factor of every gain

// A prediction, and what it was made from; `prediction` fits. All must outlive calls.
struct PredictedStep {
  const Prediction& prediction;
  const Plan& plan;
  const Machine& machine;
  const Stack& stack;
  const Measurements* measurements = nullptr;  // may be null
};

// How long the same graph's step is on a machine of other rates; nothing where that machine's
// memory does not hold it.
std::optional<Duration> step_time_on(const PredictedStep& step, const Machine& machine);

struct RateGain {
  MachineFigure rate;
  double gain = 0;  // share of the step time
};

struct LaneGain {
  std::string name;           // "cpu"; with several stages "cpu of all stages"
  std::vector<LaneId> lanes;  // that are faster together
  double idle = 0;            // share of the step time in which they do nothing: their slack
  double gain = 0;            // share of the step time
};

struct Tie {
  std::vector<std::string> names;  // the most needed first
  double gain = 0;                 // of these together
};

struct Bottlenecks {
  std::vector<RateGain> rates;  // that the step uses; largest gain first
  double all_rates = 0;         // gain of all together; what they leave of 1 - 1 / 1.1 is fixed
  std::optional<Tie> rate_tie;
  std::vector<LaneGain> lanes;  // that have operations; in their order
  double all_lanes = 0;
  std::optional<Tie> lane_tie;
};

// Two dozen simulations and more, on all cores; the same on any number of them. Of 100,000
// operations they take a second or two.
Bottlenecks bottlenecks(const PredictedStep& step);

}  // namespace ballast
