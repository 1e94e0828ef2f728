// The programs of a pipeline's stages as one graph, in which stage s is device s.
//
// Will not do: change what a stage does, or the order in which it does it.
#pragma once

#include <vector>

#include "sim/graph/schedules/stage_program.h"

namespace ballast {

// The stages' operations in an order in which a single thread could run them. A message goes
// straight into the tensor of the stage that receives it; what all stages decide together (the
// verdict on the gradients, a commit) is one operation of the first; so is the sum of a tied
// embedding's gradients. Buckets and modules are numbered stage after stage.
Graph merge_stages(std::vector<Graph> stages, const PipelineContext& context);

}  // namespace ballast
