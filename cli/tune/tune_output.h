// What `tune` says about one search: the ranking, why the next-best loses, what does not fit.
//
// Will not do: decide what is best (autotune), or say what studies found (cli/tune/tune_studies.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/flags/tune_flags.h"
#include "cli/text/prediction.h"

namespace ballast {

// Ranked plans, the best among them, that cannot be told apart from the best
// (sim/engine/interval.h).
size_t near_ties(const SearchResult& found);

// {"layouts", "considered", "simulated", ..., "ranked": up to 20 plans, "reasons"}. `stack`: who
// runs the plans. `model`: of the plans; null where none was found.
OrderedJson search_json(const SearchResult& found, const Stack& stack,
                        const Model* model = nullptr);
// {"hbm": bytes, ...} of the places that hold anything.
OrderedJson memory_json(const std::array<Bytes, kPlaces>& memory);

// "stopped by the deadline (60 s)", "interrupted". Requires a search that was stopped.
std::string stop_text(SearchStop stop, double deadline_s);
// The same as JSON: "deadline", or null.
OrderedJson stop_json(SearchStop stop);
std::string search_text(const TuneFlags& flags, const Setting& best, const SearchResult& found);
// The first `top` plans, and how many cannot be told apart.
std::string ranking_text(const SearchResult& found, int64_t top);
// How many tie, and why the first that does not is slower. Empty where there is only one plan.
std::string why_text(const Setting& best, const SearchResult& found,
                     const Measurements& measurements);
// By reason, the nearest of each; empty where all plans fit.
std::string infeasible_text(const SearchResult& found, const Stack& stack);

}  // namespace ballast
