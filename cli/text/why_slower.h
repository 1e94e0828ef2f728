// Why one plan is slower than another, in words: the knobs that differ, and where the time goes.
//
// Will not do: find that out (autotune/studies/why_slower.h).
#pragma once

#include <string>

#include "cli/flags/inputs.h"

namespace ballast {

// "micro_batch 4 (not 8), optimizer.sync wait (not speculate)": the knobs of `other` that differ.
std::string knobs_that_differ(const Plan& best, const Plan& other);

// One or two sentences. Both plans fit.
std::string why_it_loses(const Case& best, const Case& other, const Measurements& measurements);

}  // namespace ballast
