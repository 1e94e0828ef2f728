// Bounds of ways to fill in a setting, from which those that cannot be the fastest, or cannot fit,
// are left out before a graph of theirs is built.
//
// A completion's bounds are those of its cell (autotune/bounds/cell_bound), with the costs of the
// setting's stack: no completion takes less time, and none whose bound is too full fits. Will not
// do: say what fits (autotune/complete/estimates/completion_estimates.h).
#pragma once

#include <vector>

#include "autotune/bounds/cell_bound.h"
#include "autotune/calibrate/published_cases.h"
#include "autotune/complete/setting.h"
#include "sim/base/units.h"

namespace ballast {

struct CompletionBound {
  Duration at_least;           // of a step; zero where nothing is known
  bool overfills = false;      // some memory, whatever else the plan says
  bool overfills_gpu = false;  // that of the GPU
};
// Of completions of one kind of attention, in their order.
std::vector<CompletionBound> completion_bounds(const Setting& setting,
                                               const std::vector<const Completion*>& completions);

// Bytes that tensors may take: of those of a GPU another framework's allocator loses some.
Usable usable_by_tensors(const Machine& machine, const Stack& stack);

// Least memory of every place, as cell_memory() has it of Ballast's graphs, where this stack's may
// need no less: empty where a fact of the stack lets them. `plan`: as cell_memory() wants it.
std::vector<PlacePeak> least_memory(const Model& model, const Stack& stack, const Plan& plan,
                                    const LayerProfile& profile, const Usable& usable,
                                    Bounded extent = Bounded::kCell);

// Least time of a step, as cell_time() has it.
Duration least_time(const Model& model, const Stack& stack, const Plan& plan,
                    const LayerProfile& profile, const StepFloor& floor, const Usable& usable,
                    Bounded extent = Bounded::kCell);

// Whether the least memory of any plan of such a layout is known.
bool memory_bounds_hold(const Stack& stack, const Plan& layout);

}  // namespace ballast
