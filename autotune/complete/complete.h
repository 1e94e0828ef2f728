// Complete: the knobs that a plan leaves open ("auto"), filled in for the shortest step that fits.
// Whoever needs a whole plan asks here: predict, compare, graph, train, verify, export, studies.
//
// Will not do: change anything that the plan says, or prove that nothing is faster
// (autotune/search).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "autotune/complete/layouts/layout_progress.h"
#include "autotune/complete/layouts/open_layouts.h"
#include "autotune/complete/one_layout.h"
#include "autotune/complete/setting.h"
#include "sim/engine/predict.h"
#include "sim/spec/measurements.h"

namespace ballast {

// Where the layout is open, layouts are completed, the most promising first, until by its bound
// none that is left can be faster; the fastest that fits is taken.
// Open knobs are searched where is_searched(), to within 1 % or until hundreds of plans in a row
// were no better than the best: a prediction should not wait for a proof. Else the fastest of a
// list is taken (choose()), which does not look at measurements. A memory_reuse that is open
// becomes kApart, or kAtOnce where only that fits. Where nothing fits, the plan is the one that
// comes nearest, and its prediction says why. `measurements` may be null. Throws Error where no
// plan is legal, or where a search was interrupted before it found one. `looked` hears how far the
// choice of a layout is; it may be empty.
Completed complete(Setting setting, const Measurements* measurements,
                   const std::function<bool()>& interrupted = {},
                   const LayoutProgress::Listener& looked = {});

// Plans of Ballast among these layouts, which all share devices and batch: what a search of them
// begins with. A good one, unless looking for it was interrupted, then one that needs little
// memory, which is found at once. Empty where none was found to fit; that is no proof.
std::vector<Plan> first_plans(const std::vector<OpenLayout>& layouts,
                              const Measurements* measurements,
                              const std::function<bool()>& interrupted = {});

}  // namespace ballast
