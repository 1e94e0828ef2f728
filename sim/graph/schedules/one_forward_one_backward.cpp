// 1F1B (arXiv 2006.09503; arXiv 2104.04473, figure 4): a stage runs as many forwards ahead as
// stages follow it, and then a forward and a backward in turn.
#include <algorithm>

#include "sim/graph/schedules/schedule.h"

namespace ballast {

std::vector<Turn> one_forward_one_backward(int64_t stage, const Plan& plan) {
  const int64_t total = plan.accumulation();
  const int64_t ahead = std::min(plan.pipeline - stage - 1, total);
  std::vector<Turn> turns;
  for (int64_t i = 0; i < ahead; ++i) turns.push_back({Direction::kForward, 0, i});
  for (int64_t i = 0; i < total; ++i) {
    if (ahead + i < total) turns.push_back({Direction::kForward, 0, ahead + i});
    turns.push_back({Direction::kBackward, 0, i});
  }
  return turns;
}

}  // namespace ballast
