// The plans of one layout that need least memory, as bounds know it (autotune/bounds): of all that
// its open knobs leave, those likeliest to fit. Plans of Ballast's, whose memory is planned.
//
// How many are bounded closely depends on what is asked for alone, so that a question costs as much
// however many plans a layout has: cells are taken by their own bounds, the emptiest first. Will
// not do: place a plan (autotune/complete/feasibility.h).
#pragma once

#include <cstddef>
#include <vector>

#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/complete/setting.h"
#include "sim/spec/plan.h"

namespace ballast {

// At most `most` plans that no bound refuses, the emptiest first: by the memory of a place that
// they fill most. Where bounds refuse all that were looked at, the one of these that misses by
// least. Throws Error once `known` is interrupted.
std::vector<Plan> emptiest_plans(const Setting& setting, const CompletionEstimates& known,
                                 size_t most);

}  // namespace ballast
