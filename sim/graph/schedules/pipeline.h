// The order in which the stages of a pipeline run their blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/spec/plan.h"

namespace ballast {

enum class Direction : uint8_t { kForward, kBackward };

// One block of a stage's program.
struct Turn {
  Direction direction{};
  int64_t chunk =
      0;  // of the stage: chunk c of the pipeline is chunk c / stages of stage c % stages
  int64_t micro_batch = 0;
};

// 1F1B, interleaved where a stage has several chunks (Megatron-LM, schedules of arXiv 2104.04473
// section 2.2).
std::vector<Turn> turns_of(int64_t stage, const Plan& plan);

// Calls run(stage, turn) for every turn of every stage, in an order in which each block comes after
// what it reads. `run` says false, and is asked again later, where that is not there yet.
void for_turns(const Plan& plan, const std::function<bool(int64_t stage, const Turn& turn)>& run);

// The layers of a model, cut into chunks: where the one of this index begins. Of index `chunks`:
// where the last one ends.
inline int64_t first_layer_of(int64_t chunk, int64_t chunks, int64_t layers) {
  return chunk * layers / chunks;
}

}  // namespace ballast
