// What a buyer asks of every cell of a comparison: whether it fits, how fast it is, what a million
// tokens cost, and how many days and how much a whole run takes.
//
// Will not do: compute any of it (autotune/studies/whatif.h).
#pragma once

#include <string>

#include "cli/compare/comparison.h"

namespace ballast {

// Whether machines were compared as offers.
bool has_offers(const Grid& grid);

// One line a cell, where offers are compared or a whole run was asked for; else empty.
std::string buyers_text(const Comparison& comparison);

}  // namespace ballast
