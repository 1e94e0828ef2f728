// Layouts: the ways to spread a plan over its devices, before any knob of a single rank is chosen.
//
// A layout is a plan whose degrees, ZeRO stage and place of the optimizer have values. Legal ones
// are generated, never filtered: every layout passes check(plan, model), and no two make the same
// graph (the stage means nothing where no two ranks hold the same weights, a pipeline knows stages
// 0 and 1 only, waits for one norm, and its weights stay). Simplest first: fewer ranks that
// communicate in a layer, so that order breaks ties.
// Will not do: cost anything, or choose what one rank does (autotune/space).
#pragma once

#include <string>
#include <vector>

#include "sim/spec/knobs.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Tokens of a part that a device has at the least and at the most where parts are open (SPPO, arXiv
// 2503.10377: fewer leave a GPU idle, more leave bubbles).
inline constexpr int64_t kLeastPartTokens = 2048;
inline constexpr int64_t kMostPartTokens = 16384;

// `open` are the knobs that may be changed, of those with KnobSearch::kLayout; `data` is always
// what the devices leave. Of base.devices devices; at least one, or none where the fixed degrees
// and the model leave no legal layout. Requires check(model) to pass. Where none is open: {base}.
// A pipeline waits, and its weights stay, but for what is `named`: of that it has the base's value,
// and may so be a plan that check() refuses.
std::vector<Plan> layouts_of(const Model& model, const Plan& base, const KnobSet& open,
                             const KnobSet& named = {});

// "tensor 8, pipeline 4, data 2, ZeRO-1": what differs from one device; "one device".
std::string layout_name(const Plan& plan);

}  // namespace ballast
