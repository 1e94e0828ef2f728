// Memory of the layers alone, as papers count it; for validation, not for what fits.
#pragma once

#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Of the layers on device 0 (the first stage of a pipeline), without embeddings and head: the two
// quantities of arXiv 2205.05198, table 2.
struct LayerMemory {
  Bytes states;       // weights, gradients, master and moments in GPU memory
  Bytes activations;  // the most that is saved for a backward at once, in program order
};

// Requires link(graph). `model` and `plan` are those it was built from.
LayerMemory layer_memory(const Graph& graph, const Model& model, const Plan& plan);

}  // namespace ballast
