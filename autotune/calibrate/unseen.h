// Unseen: how far a prediction as the typical framework is off from one that nobody has measured.
//
// The hierarchy says how constants differ from framework to framework where facts are known. Of a
// framework that is not here facts are not known either: what it stores, casts and gathers, the
// typical one may not. So every case is predicted as if the typical framework had run it. What
// frameworks took longer than that on average, one that is not here will take longer as well; and
// the spread of what no constant explains is made so wide that eight of ten frameworks' figures lie
// inside the interval. Each framework counts as one however many rows it has. The spread is the
// quantile of split conformal prediction (Lei et al., "Distribution-Free Predictive Inference for
// Regression", 2018) without its (n + 1) / n, which of six frameworks takes the widest: coverage is
// held against left-out frameworks instead (docs/validation.md).
// Will not do: say anything of a framework that has a profile.
#pragma once

#include <optional>
#include <vector>

#include "autotune/calibrate/figures.h"
#include "sim/spec/stack.h"

namespace ballast {

// The same cases, each as the facts of `typical` would have it run. Frameworks keep their names, so
// that figures of these cases have the indices that those of `cases` have.
std::vector<SourcedCase> run_as_typical(const std::vector<SourcedCase>& cases,
                                        const Stack& typical);

// One figure of a framework: how far off its logarithm was, and what variance of that the constants
// explain already.
struct Miss {
  size_t framework = 0;
  double log_error = 0;
  double explained = 0;
};
// The least standard deviation beside what is explained, with which eight of ten frameworks'
// figures lie inside their intervals; 0 where there are none.
double covering_spread(const std::vector<Miss>& misses);

// The mean of the logarithms that frameworks were off by, each framework counting as one; 0 where
// there are none.
double mean_miss(const std::vector<Miss>& misses);

// `typical`, a fitted_stack() of no framework, as slow as frameworks were on average, and with
// spreads no narrower than what `figures` (of run_as_typical(), linearised) are missed by then;
// those of framework `without` have no say.
Stack with_misses_of_facts(Stack typical, const Figures& figures, std::optional<size_t> without);

}  // namespace ballast
