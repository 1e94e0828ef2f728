// The least that a step takes whose stages share the parts next to the bubbles (Plan::multiplex).
//
// A device runs the shared turns of all stages and the others of its own, one after another. A
// shared turn is over when each device has computed its share, and when all has come and gone that
// it is sent: weights, keys and values, the sums of their gradients
// (sim/graph/schedules/multiplex). Will not do: what the first layer of a turn waits for, or what
// the ends of the model are sent.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/bounds/step_floor.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// What a stage's parts take it alone, at least.
struct StageParts {
  std::vector<int64_t> forward_ps, backward_ps;  // by part
  int64_t layers = 0;
  int64_t parameters = 0;  // of these layers
};

// `stages`: as many as the plan has. Requires plan.multiplex. Picoseconds, without the optimizer.
int64_t least_with_shared_turns(const Model& model, const Plan& plan,
                                const std::vector<StageParts>& stages, const StepFloor& floor);

}  // namespace ballast
