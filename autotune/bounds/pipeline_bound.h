// A lower bound of a pipeline's step that is near the truth: its blocks with the times they really
// take, in the order in which every stage runs them.
//
// The graph of a pipeline with few micro-batches has the same blocks, sends and optimizer as the
// whole one. Its blocks are timed as the engine times them; then the first step is followed once
// through all micro-batches, every block after what it needs and after the one before it on its
// stage. From the first forward of the first chunk to that chunk's weights being there again is a
// cycle of the step, so no step is shorter; nor is it than what lies between that forward's end and
// the last of those weights.
// Will not do: share links or network between stages (the engine does).
#pragma once

#include "sim/engine/cost.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// False where it would take as long to bound a plan as to build and simulate it: of sequences in
// parts nearly all that either takes is to build the blocks, and a few micro-batches are the whole.
bool is_worth_bounding(const Plan& plan);

// Every knob of the plan must have a value. Requires pipeline > 1.
Duration pipeline_step_bound(const Model& model, const Plan& plan, const CostModel& costs);

}  // namespace ballast
