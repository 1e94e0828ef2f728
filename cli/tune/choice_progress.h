// What takes a while where no knob is named, with a line on the terminal that says how far it is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autotune/complete/complete.h"
#include "autotune/complete/least_changes.h"
#include "cli/terminal/progress.h"

namespace ballast {

// `where`: stands in front, for what the choice is.
void show(Progress& progress, const std::string& where, const LayoutProgress& at);

// complete() and least_changes(), with such a line where they take longer than a moment.
Completed complete_in_sight(Setting setting, const Measurements* measurements,
                            const std::function<bool()>& interrupted = {});
std::vector<LeastChange> least_changes_in_sight(LeastChangeQuestion question);

}  // namespace ballast
