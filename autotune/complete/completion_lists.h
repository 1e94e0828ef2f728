// Lists of ways to fill in the open knobs of a setting, for what is not searched: the completions
// of a published case, and beyond them completions that offload.
//
// Will not do: tell which completion fits (autotune/complete/feasibility.h) or is the fastest.
#pragma once

#include <vector>

#include "autotune/calibrate/published_cases.h"
#include "autotune/complete/setting.h"

namespace ballast {

// The setting as a published case that asks for its step time.
CaseSetup setup_of(const Setting& setting);

// Nothing is recomputed: all stays, or all leaves.
ActivationPlan all_kept();
ActivationPlan all_away();

// Beyond recomputing everything: the layers' inputs leave, which needs least memory; and the
// output of attention with them, whose recompute is what hurts in long sequences.
std::vector<ActivationPlan> offloads();

// The micro-batches that need least memory: of one sequence; and of all that a rank has, whose
// gradients are reduced or leave as they come and need not wait for those of a second one.
std::vector<int64_t> lean_micro_batches(const Plan& plan);

// Whether a completion is another one but for more buckets that the GPU steps.
bool has_more_on_gpu(const Completion& completion, Completion other);

// The plans that most often need least memory: open knobs of activations at their least. Throws
// Error where no completion is legal.
std::vector<Completion> lean_completions(const Setting& setting);

}  // namespace ballast
