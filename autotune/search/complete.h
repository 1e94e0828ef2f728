// Complete: the knobs that a plan leaves open ("auto"), filled in by a search of just those.
//
// Will not do: search anything that the plan says (autotune/search).
#pragma once

#include "autotune/search/search.h"
#include "sim/spec/stack.h"

namespace ballast {

// True if a knob is "auto".
bool has_auto(const Plan& plan);

// Whether open knobs are filled in by search_open(): the space and the bounds are made for Ballast
// on one device, or on devices that share nothing but the state of the optimizer. Else by choose()
// (autotune/calibrate/capacity.h).
bool search_completes(const Plan& plan, const Stack& stack);

// How open knobs are searched: to within 1 %, or until hundreds of plans in a row were no better
// than the best. A prediction should not wait for a proof.
SearchOptions completing();

// The plans that "auto" knobs leave; where none fits, those that reuse memory at once.
SearchResult search_open(const Model& model, const Plan& plan, const Machine& machine,
                         const Measurements* measurements, const SearchOptions& options);

// `plan` with every "auto" knob filled in; the plan itself if it has none. Throws Error, with the
// most frequent reason, where nothing fits, or where it was interrupted (SearchOptions) before a
// plan was found.
Plan complete(const Model& model, const Plan& plan, const Machine& machine,
              const Measurements* measurements, const std::function<bool()>& interrupted = {});

}  // namespace ballast
