// Explain: the knobs in which two plans differ.
//
// Will not do: say why a plan is slower (autotune/studies/why_slower.h), or print (cli).
#pragma once

#include <string>
#include <vector>

#include "sim/spec/plan.h"

namespace ballast {

// Knobs in which two plans differ, where they matter to `plan`, as "optimizer.sync speculate (not
// wait)": its value, not the other's. What becomes of activations is one of them.
std::vector<std::string> differing_knobs(const Plan& plan, const Plan& other);

}  // namespace ballast
