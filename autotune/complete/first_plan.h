// What a search of several layouts begins with: a lean plan, and what complete() would choose.
//
// Will not do: search (autotune/search), or choose among layouts (autotune/complete/complete.h).
#pragma once

#include "autotune/complete/setting.h"
#include "autotune/search/search.h"

namespace ballast {

// Adds first_plans() of these layouts to options.starts, as far as they are found within half of
// the search's deadline and nothing interrupts it, and takes the time of it from that deadline.
// Adds nothing to an exhaustive search, to one of a single layout, and for more devices than there
// are. Requires layouts. `measurements` may be null. like.plan is not read.
void begin_with_first_plan(Setting like, const std::vector<Plan>& layouts,
                           const Measurements* measurements, SearchOptions& options);

}  // namespace ballast
