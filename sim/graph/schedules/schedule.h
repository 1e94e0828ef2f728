// The orders in which the stages of a pipeline take their turns: one table, one row a schedule.
//
// Will not do: say what a turn is made of (sim/graph/schedules/chunk.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "sim/spec/plan.h"

namespace ballast {

enum class Direction : uint8_t { kForward, kBackward };

// The forward or backward of one chunk for one micro-batch, or for a part of its sequences
// (Plan::subsequences).
struct Turn {
  Direction direction{};
  int64_t chunk =
      0;  // of the stage: chunk c of the pipeline is chunk c / stages of stage c % stages
  int64_t micro_batch = 0;
  int64_t part = 0;
};
// Of one chunk and micro-batch: the forwards of parts in their order, then the backwards from the
// last part on.
inline size_t place_of(const Turn& turn, int64_t parts) {
  return static_cast<size_t>(turn.direction == Direction::kForward ? turn.part
                                                                   : 2 * parts - 1 - turn.part);
}

// A stage runs some forwards ahead, then a forward and a backward in turn, then the backwards that
// are left. Chunks are visited in rounds: so many micro-batches pass one chunk, then the next.
// Where sequences pass in parts each of these is of a part; of a micro-batch backwards begin with
// the last, which is why all forwards of the first micro-batch come before any.
struct Schedule {
  std::string_view name;
  std::string_view does;  // one line
  bool (*applies)(const Plan& plan);
  // Forwards of chunks ahead of the first pair; more than there are means all.
  int64_t (*ahead)(int64_t stage, const Plan& plan);
  int64_t (*round)(const Plan& plan);  // micro-batches
};

// A plan runs by the first that applies.
std::span<const Schedule> schedules();
const Schedule& schedule_of(const Plan& plan);

// All turns of a stage, in their order.
std::vector<Turn> turns_of(int64_t stage, const Plan& plan);
// The most chunks, or parts of them, of a stage that wait for their backward at once.
int64_t most_in_flight(int64_t stage, const Plan& plan);
// Whether as many wait once more when the first backward of every chunk has begun.
bool fills_again(int64_t stage, const Plan& plan);

// Calls run(stage, turn) for every turn of every stage, in an order in which each comes after what
// it reads. `run` says false, and is asked again later, where that is not there yet.
void for_turns(const Plan& plan, const std::function<bool(int64_t stage, const Turn& turn)>& run);

// The layers of a model, cut into chunks: where the one of this index begins. Of index `chunks`:
// where the last one ends. Where embedding and head count as layers (ends_count_as_layers in
// sim/spec/plan.h) the chunks at the ends have one layer less, and none where others have one; else
// chunks differ by a layer.
inline int64_t first_layer_of(int64_t chunk, int64_t chunks, int64_t layers) {
  if (!ends_count_as_layers(chunks, layers)) return chunk * layers / chunks;
  return std::clamp<int64_t>(chunk * ((layers + 2) / chunks) - 1, 0, layers);
}

// The chunk that this layer lies in.
inline int64_t chunk_of_layer(int64_t layer, int64_t chunks, int64_t layers) {
  int64_t chunk = layer * chunks / layers;
  while (first_layer_of(chunk, chunks, layers) > layer) --chunk;
  while (first_layer_of(chunk + 1, chunks, layers) <= layer) ++chunk;
  return chunk;
}

}  // namespace ballast
