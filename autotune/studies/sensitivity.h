// Sensitivity: what a machine's figures are worth to a step, and how far one would have to change
// for another plan to win.
//
// A figure is multiplied and the space is searched again; the same plan is predicted beside it, so
// that the gain of the figure and that of adapting to it are told apart.
// Will not do: search (it asks), or change a time that was measured: where operations were timed,
// figures act on the others only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autotune/search/search_question.h"
#include "sim/spec/machine_figures.h"

namespace ballast {

struct SensitivityPoint {
  double factor = 1;
  double value = 0;                   // of the figure
  std::optional<Duration> step_time;  // of the best plan there; nothing: none fits, or is known to
  bool decided = true;                // false where nothing was found before the search was stopped
  std::optional<Duration> same_plan;  // nothing: it does not fit
  std::vector<std::string> differs;   // knobs of the best plan there
};

struct PlanSwitch {
  double factor = 1;
  double value = 0;
  std::vector<std::string> differs;
};

struct Sensitivity {
  MachineFigure figure;
  // d ln(step time) / d ln(value), over the factors next to 1 on both sides: -0.5 means that 1 %
  // more makes a step 0.5 % shorter. 0 where no factor has a plan.
  double elasticity = 0;
  std::vector<SensitivityPoint> points;  // ascending factors, without 1
  // The factor nearest to 1, between the least and the greatest, from which on another plan is
  // faster than this one by more than `lead`.
  std::optional<PlanSwitch> switches_at;
};

struct SensitivityOptions {
  std::vector<double> factors = {0.5, 1 / 1.4, 1.4, 2};  // ascending, on both sides of 1
  double lead = 0.01;                                    // what the model's error cannot hide
  double resolution = 1.03;                              // of switches_at, a ratio
};

struct SensitivityQuestion {
  SearchQuestion search;
  Candidate best;  // of that search
};
// Largest |elasticity| first. Ends with what is done where `ask` has no more answers, or
// `interrupted` says so, which is asked by several threads. `measurements` may be null.
std::vector<Sensitivity> sensitivities(const SensitivityQuestion& question,
                                       const Measurements* measurements,
                                       const SensitivityOptions& options, const Ask& ask,
                                       const std::function<bool()>& interrupted = {});

}  // namespace ballast
