// A chunk of consecutive layers on one stage of a pipeline: what its turns are made of.
//
// Chunks of layers alike, with the same ends of the model, are alike: their inside is built once,
// by the passes of a graph without a pipeline, for one micro-batch. A turn (the forward or the
// backward of a chunk for one micro-batch) then repeats its operations, or is one operation of kind
// kBlock that stands for them.
//
// Will not do: order turns (sim/graph/schedules/schedule.h), or step (the pass `optimizer`).
#pragma once

#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/schedules/schedule.h"

namespace ballast {

struct ChunkKind {
  // Forward and backward of one micro-batch; layers are counted from the chunk's first.
  Graph inside;
  // What stands for the turns, and what they take: see Graph::blocks.
  Sequence forward, backward;
  Bytes saved;              // from forward to backward
  Bytes saved_on_host;      // the same for what is offloaded
  Bytes forward_workspace;  // most alive beside what is saved
  Bytes backward_workspace;
  // Tensors of `inside` that cross the chunk's ends: what the forward reads and leaves, and the
  // gradients of these. -1 at an end of the model.
  TensorId input = -1, output = -1;
  TensorId input_gradient = -1, output_gradient = -1;
};

// True where an operation of a chunk belongs to turns of this direction.
bool belongs(const Op& op, Direction direction);

// Layers [first, last) of the model.
ChunkKind make_chunk(const Model& model, const Plan& plan, const StackFacts& facts, int64_t first,
                     int64_t last);

}  // namespace ballast
