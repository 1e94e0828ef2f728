// Interleaved 1F1B (Megatron-LM; arXiv 2104.04473, section 2.2): a stage has several chunks of
// layers, which it visits in rounds of as many micro-batches as there are stages.
#include <algorithm>

#include "sim/graph/schedules/schedule.h"

namespace ballast {

std::vector<Turn> interleaved(int64_t stage, const Plan& plan) {
  const int64_t stages = plan.pipeline;
  const int64_t chunks = plan.virtual_pipeline;
  const int64_t total = plan.accumulation() * chunks;
  const auto turn = [&](int64_t index, Direction direction) {
    const int64_t round = stages * chunks;
    int64_t chunk = index % round / stages;
    if (direction == Direction::kBackward) chunk = chunks - 1 - chunk;
    return Turn{direction, chunk, index / round * stages + index % stages};
  };
  const int64_t ahead = std::min(2 * (stages - stage - 1) + (chunks - 1) * stages, total);
  std::vector<Turn> turns;
  for (int64_t i = 0; i < ahead; ++i) turns.push_back(turn(i, Direction::kForward));
  for (int64_t i = 0; i < total; ++i) {
    if (ahead + i < total) turns.push_back(turn(ahead + i, Direction::kForward));
    turns.push_back(turn(i, Direction::kBackward));
  }
  return turns;
}

}  // namespace ballast
