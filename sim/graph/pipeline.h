// The order in which the stages of a pipeline run their blocks.
#pragma once

#include <cstdint>
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

}  // namespace ballast
