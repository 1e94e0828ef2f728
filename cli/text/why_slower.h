// Why one plan is slower than another, in words: the knobs that differ, and where the time goes.
//
// Will not do: find that out (autotune/studies/why_slower.h).
#pragma once

#include <string>

#include "cli/flags/inputs.h"

namespace ballast {

// "micro_batch 4 (not 8), optimizer.sync wait (not speculate)": differing_knobs() with commas.
std::string differing_text(const Plan& plan, const Plan& other);

// One or two sentences. Both plans fit, as the settings' stacks run them.
std::string why_it_loses(const Setting& best, const Setting& other,
                         const Measurements& measurements);

}  // namespace ballast
