// Calibrate: the constants of all frameworks, fitted together to published cases.
//
// Minimised is the distance of log(predicted / published), together with the distances of the
// constants from what is believed of them, as hierarchy.h says. Predictions are not linear in the
// constants, so cases are linearised where the last fit ended until nothing moves (Gauss-Newton).
// Knobs that a case leaves open are chosen anew every time.
// Will not do: read or write files (profiles/load.h), or change a fact.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autotune/calibrate/figures.h"
#include "autotune/calibrate/hierarchy.h"
#include "sim/spec/stack.h"

namespace ballast {

struct CalibrationRow {
  std::string id;
  std::string stack;
  Metric metric{};
  double published = 0;
  double before = 0;  // predicted with the constants that the stack came with
  double fit = 0;     // predicted with the fitted ones, to first order

  double error_percent(double predicted) const { return 100 * (predicted / published - 1); }
};

struct Calibration {
  // With new constants, `uncertainty`, `fitted` and `fitted_on`, in the order of their first case.
  // Behind them the families of these that have no case of their own, where their frameworks lie.
  std::vector<Stack> stacks;
  Stack typical;  // of what nobody has measured
  HierarchyFit fit;
  std::vector<CalibrationRow> rows;
  std::vector<Refusal> refused;  // cases that say nothing, and why
};

// Progress of long work: the share that is done, and what is being done.
using CalibrationProgress = std::function<void(double share, const std::string& text)>;

// `typical` lends its facts. Throws Error where no case has a time or a memory peak.
Calibration calibrate(const std::vector<SourcedCase>& cases, const Stack& typical,
                      const CalibrationProgress& progress);

// The fit to these figures without those of one source or one framework, or of all.
struct Without {
  std::optional<size_t> source;
  std::optional<size_t> framework;
};
HierarchyFit fit_without(const Figures& figures, const Without& left_out);

// `stack` with the constants of a framework in a fit, and what they leave open; nullopt: those of
// a framework that nobody has measured. `generations`: of GPUs, as the fit's figures count them.
Stack fitted_stack(Stack stack, const HierarchyFit& fit, std::optional<size_t> framework,
                   const std::vector<std::string>& generations);

}  // namespace ballast
