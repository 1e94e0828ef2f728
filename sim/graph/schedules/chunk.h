// A chunk of consecutive layers on one stage of a pipeline: what its turns are made of.
//
// Chunks of layers alike, with the same ends of the model, are alike: their inside is built once,
// by the passes of a graph without a pipeline, for one micro-batch. A turn (the forward or the
// backward of a chunk for one micro-batch) then repeats its operations, or is one operation of kind
// kBlock that stands for them.
//
// Will not do: order turns (sim/graph/schedules/schedule.h), or step (the pass `optimizer`).
#pragma once

#include <compare>
#include <optional>
#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/schedules/schedule.h"

namespace ballast {

// What a turn is where it is one operation.
struct ChunkTurn {
  Program ops;      // what stands for it, and what it takes: see Graph::blocks
  Bytes workspace;  // most alive beside what is kept
};
// What turns of a micro-batch leave for later ones: made in one, last used in another.
enum class KeptFor : uint8_t {
  kTurns,  // on the GPU, made there
  kLeave,  // the same, until it leaves for the CPU: keys and values, which later parts read
  kAway,   // on the CPU
  kBack,   // on the GPU again for several turns, the first of which it is back for
};
struct Kept {
  size_t first = 0, last = 0;
  KeptFor what{};
  Bytes bytes;
  // Of what is away: from which of the kept it leaves and to which it returns; the rest is on the
  // GPU for its first and its last turn alone.
  struct Move {
    std::optional<size_t> from, to;
    auto operator<=>(const Move&) const = default;
  };
  std::vector<Move> moves;  // each once
  Bytes first_alone, last_alone;
};

// Turns are numbered by place_of(): without parts a forward and a backward.
struct ChunkKind {
  // Forward and backward of one micro-batch; layers are counted from the chunk's first.
  Graph inside;
  std::vector<std::vector<OpId>> operations;  // of `inside`, by turn, in their order
  // Tensors of `inside` that cross the chunk's ends, by part: what the forward reads and leaves,
  // and the gradients of these. Empty at an end of the model.
  std::vector<TensorId> input, output;
  std::vector<TensorId> input_gradient, output_gradient;
  // Of one that is folded.
  std::vector<ChunkTurn> turns;
  std::vector<Kept> kept;  // first what forwards leave on the GPU for their own backwards
};

// By operation of a graph without a pipeline, of one micro-batch in so many parts: the turn that it
// belongs to. What is recomputed or comes back belongs to what follows it, what leaves to what it
// follows.
std::vector<size_t> turns_of_operations(const std::vector<Op>& ops, int64_t parts);

// Consecutive layers of the model, [first, last), and which of its ends they come with: with one a
// chunk may have no layer.
struct ChunkLayers {
  int64_t first = 0, last = 0;
  ChunkEnds ends;
};
ChunkKind make_chunk(const Model& model, const Plan& plan, const StackFacts& facts,
                     const ChunkLayers& layers);
// Makes every turn of such a chunk one operation. Most of what a long pipeline takes to build, so
// that it is done of those alone whose turns are one.
void fold_turns(ChunkKind& chunk, const Model& model, const Plan& plan, const StackFacts& facts);

}  // namespace ballast
