// Calibrate: the six constants of a stack by least squares on published cases, with what each case
// would be predicted as had it not been used.
//
// Minimised is the sum of two kinds of squares. For every published quantity
// log(predicted / published) / 0.05: five percent is how well such numbers repeat. For every
// constant its distance from a prior over the prior's width (log(value / prior) / 0.15 for shares),
// so that a case cannot drag a constant which it hardly determines. Times fit the first five
// constants, memory peaks the slack; what fits and the memory of layers alone depend on none.
// Method: Levenberg-Marquardt (Marquardt, 1963) with derivatives by differences.
// Will not do: read or write files (profiles/load.h), or change a fact.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autotune/calibrate/published_cases.h"
#include "sim/spec/stack.h"

namespace ballast {

// Where a constant is believed to lie before any case is seen, and where it may end up.
struct Prior {
  double value = 0;
  double width = 0;  // standard deviation: of log(value), or of the value itself for the slack
  double least = 0;
  double most = 0;
};
// By index of constant_name().
Prior prior_of(int index);
// Every constant at its prior.
StackConstants prior_constants();

struct CalibrationRow {
  std::string id;
  Metric metric{};
  double published = 0;
  double before = 0;               // predicted with the constants that the stack came with
  double fit = 0;                  // predicted with the fitted ones
  std::optional<double> left_out;  // predicted with those fitted without this case; absent where
                                   // there is no other case

  double error_percent(double predicted) const { return 100 * (predicted / published - 1); }
};

struct Calibration {
  Stack stack;  // with the new constants, `fitted` and `fitted_on`
  std::vector<CalibrationRow> rows;
};

struct CalibrationProgress {
  double share = 0;
  std::string text;
};

// All cases must be of one stack; `stack` is what it came with. Constants that no case can see keep
// their prior and are not listed as fitted. Knobs that a case leaves open are chosen anew whenever
// the constants have changed. Throws Error for a case that cannot be predicted, or where no case
// depends on any constant.
Calibration calibrate(const Stack& stack, const std::vector<CaseSetup>& cases,
                      const std::function<void(const CalibrationProgress&)>& progress);

}  // namespace ballast
