// What a buyer asks of every cell of a comparison: whether it fits, how fast it is, what a million
// tokens cost, how many days, how much money and how much energy a whole run takes, and which price
// would change the order of the offers.
//
// Energy is an upper bound: every device draws what its machine says it draws at most, throughout.
// Will not do: compute any of it (autotune/studies/whatif.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/compare/comparison.h"

namespace ballast {

// Whether machines were compared as offers.
bool has_offers(const Grid& grid);
// Whether offers are compared or a whole run was asked for; else nothing below is told.
bool asks_as_buyer(const Comparison& comparison);

// One line a cell, and whose power the energy assumes; or empty.
std::string buyers_text(const Comparison& comparison);
// Of every row with prices: up to which price the cheapest stays so, and at which price each other
// draws level with it; or empty.
std::string ranking_text(const Comparison& comparison);

// The keys that add_buyers_json() gives a cell.
std::vector<const char*> buyers_keys(const Comparison& comparison);
void add_buyers_json(const Comparison& comparison, size_t index, nlohmann::ordered_json& json);

}  // namespace ballast
