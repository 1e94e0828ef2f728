// What would have to give for a plan that does not fit, as text with the flags that ask for it, and
// as JSON.
//
// Will not do: look for it (autotune/complete/least_changes.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "autotune/complete/least_changes.h"

namespace ballast {

// A line a limit; `global_batch` is that of the setting, which other devices are asked about with.
std::string least_changes_text(const std::vector<LeastChange>& changes, int64_t global_batch);

// "GPU memory of 192 GB".
std::string limit_text(Limit limit, double value);

// [{"limit", "unit", "now", "fits", "does_not_fit"}]: "fits" is null where no value of this limit
// alone is enough.
nlohmann::ordered_json least_changes_json(const std::vector<LeastChange>& changes);

}  // namespace ballast
