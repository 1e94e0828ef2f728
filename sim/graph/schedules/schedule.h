// The orders in which the stages of a pipeline take their turns: one table, one file a schedule.
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

// The forward or backward of one chunk for one micro-batch.
struct Turn {
  Direction direction{};
  int64_t chunk =
      0;  // of the stage: chunk c of the pipeline is chunk c / stages of stage c % stages
  int64_t micro_batch = 0;
};

struct Schedule {
  std::string_view name;
  std::string_view does;  // one line
  bool (*applies)(const Plan& plan);
  // All turns of a stage, in their order.
  std::vector<Turn> (*turns)(int64_t stage, const Plan& plan);
};

// A plan runs by the first that applies.
std::span<const Schedule> schedules();
const Schedule& schedule_of(const Plan& plan);

// The files of the table, one each.
std::vector<Turn> one_forward_one_backward(int64_t stage, const Plan& plan);
std::vector<Turn> interleaved(int64_t stage, const Plan& plan);

// Calls run(stage, turn) for every turn of every stage, in an order in which each comes after what
// it reads. `run` says false, and is asked again later, where that is not there yet.
void for_turns(const Plan& plan, const std::function<bool(int64_t stage, const Turn& turn)>& run);

// The layers of a model, cut into chunks: where the one of this index begins. Of index `chunks`:
// where the last one ends. Where they do not divide, but would if embedding and head counted as a
// layer each, they count (Megatron-LM, --account-for-embedding-in-pipeline-split and
// --account-for-loss-in-pipeline-split: 126 layers in 64 chunks); else chunks differ by a layer.
inline int64_t first_layer_of(int64_t chunk, int64_t chunks, int64_t layers) {
  const bool ends_count = layers % chunks != 0 && (layers + 2) % chunks == 0 && layers > chunks;
  if (!ends_count) return chunk * layers / chunks;
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
