// Ties: which of the ranked plans nobody could tell apart, which of those is taken, and which plan
// is the next-best. Text, JSON, page and explanation all ask here.
//
// Will not do: rank plans (autotune/search).
#pragma once

#include <cstddef>

#include "autotune/search/search.h"

namespace ballast {

inline constexpr double kTieShare = 2e-3;  // of a step: nobody could measure it

// Of the ranked plans, of which there is one at least: after prefer_simple() not always the
// first's.
Duration shortest_step(const SearchResult& found);

// Ranked plans, the first among them, within this share of the shortest step; 0 where none is
// ranked. The same before and after prefer_simple().
size_t count_within(const SearchResult& found, double share);

// Of the plans that tie the simplest becomes the best: whoever runs it has least to understand.
void prefer_simple(SearchResult& found);

// The first ranked plan behind those that tie; where all tie, the last. Null where only one is
// ranked. `found` owns it.
const Candidate* next_best(const SearchResult& found);

}  // namespace ballast
