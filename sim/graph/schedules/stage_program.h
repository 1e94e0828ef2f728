// The program of one stage of a pipeline: an ordinary graph of one device, whose operations are the
// stage's turns over all micro-batches, in the order of the schedule.
//
// It has modules, buckets, weights and gradients like a graph without a pipeline, so the same
// passes run on it. What it does not have is the other stages: a value from one of them arrives by
// an operation that costs nothing (is_receive), and one for them leaves by a message without a
// destination (is_send), until merge_stages brings the two together.
//
// Will not do: step (the pass `optimizer`).
#pragma once

#include <vector>

#include "sim/graph/core/module_index.h"
#include "sim/graph/schedules/chunk.h"

namespace ballast {

// How a turn stands in the program: as one operation, or as all that its chunk is made of, which
// then overlap with what is outside of it.
enum class Turns : uint8_t { kFolded, kSpread };

struct PipelineContext {
  PipelineContext(const Model& whole, const Plan& asked, const StackFacts& known);

  const Model& model;
  const Plan& plan;
  const StackFacts& facts;
  std::vector<Subsequence> parts;  // that turns are of
  // Of every chunk of the pipeline what kind it is, and of every kind the index of its first
  // forward in Graph::blocks; its other turns come next (place_of).
  std::vector<const ChunkKind*> kind_of_chunk;
  std::vector<int32_t> block_of_chunk;
  // The same of the turns that all stages share (multiplex.h), by stage; empty where they share
  // none.
  std::vector<const ChunkKind*> shared_kinds;
  std::vector<int32_t> shared_blocks;
  // Where each chunk begins, as schedule.h cuts layers or by their weights; then where the last one
  // ends.
  std::vector<int64_t> first_layers;
  std::vector<Module> modules;  // of the whole model, as one rank holds it
  ModuleIndex module_index;

  int64_t chunks() const { return plan.pipeline * plan.virtual_pipeline; }
  int64_t first_layer(int64_t chunk) const { return first_layers[static_cast<size_t>(chunk)]; }
  // Where a chunk stands: at its first layer or, where it has none, at its end of the model. And
  // the chunk that stands or lies at such a place.
  Label place_of_chunk(int64_t chunk) const;
  int64_t chunk_of(const Label& place) const;
  // The same module of the model that the pipeline is of, as one rank holds it.
  const Module& whole_module(const Module& module) const;
};

// `context` may be used until the graph is done.
Graph stage_program(int64_t stage, const PipelineContext& context, Turns turns);

// What crosses from one chunk to the next, or back.
struct Message {
  Direction direction{};
  int64_t from = 0;  // chunk of the pipeline
  int64_t micro_batch = 0;
  int64_t part = 0;
  auto operator<=>(const Message&) const = default;
};
bool is_send(const Op& op);
// A turn of all stages at once.
bool is_shared(const Op& op);
bool is_receive(const Op& op);
// Of an operation that is one of these.
Message message_of(const Op& op, const PipelineContext& context);

// The sum of a tied embedding's two gradients, in the first and in the last stage's program.
bool sums_tied_gradient(const Op& op);

}  // namespace ballast
