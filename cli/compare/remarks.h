// What the text of a comparison says below its table, column by column. Each is empty where there
// is nothing to say.
#pragma once

#include <string>

#include "cli/compare/comparison.h"

namespace ballast {

bool is_undecided(const CellResult& cell);

// Why what does not fit does not.
std::string reasons_text(const Comparison& comparison);

// Whether what was searched is proven, and what was not decided.
std::string searches_text(const Comparison& comparison);

// Which strategy each cell came to, where nobody named one.
std::string chosen_text(const Comparison& comparison);

// What this build runs of it.
std::string running_text(const Comparison& comparison);

}  // namespace ballast
