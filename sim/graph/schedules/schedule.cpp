#include "sim/graph/schedules/schedule.h"

#include <algorithm>
#include <iterator>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr Schedule kSchedules[] = {
    {"1F1B", "one chunk a stage; a forward and a backward in turn",
     [](const Plan& plan) { return plan.virtual_pipeline == 1; }, one_forward_one_backward},
    {"interleaved", "several chunks a stage, in rounds of as many micro-batches as stages",
     [](const Plan& plan) { return plan.virtual_pipeline > 1; }, interleaved},
};

}  // namespace

std::span<const Schedule> schedules() { return kSchedules; }

const Schedule& schedule_of(const Plan& plan) {
  const auto found = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                  [&](const Schedule& schedule) { return schedule.applies(plan); });
  CHECK(found != std::end(kSchedules));
  return *found;
}

void for_turns(const Plan& plan, const std::function<bool(int64_t stage, const Turn& turn)>& run) {
  const auto stages = static_cast<size_t>(plan.pipeline);
  const Schedule& schedule = schedule_of(plan);
  std::vector<std::vector<Turn>> turns;
  for (size_t s = 0; s < stages; ++s) {
    turns.push_back(schedule.turns(static_cast<int64_t>(s), plan));
  }
  std::vector<size_t> next(stages, 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t s = 0; s < stages; ++s) {
      while (next[s] < turns[s].size() && run(static_cast<int64_t>(s), turns[s][next[s]])) {
        ++next[s];
        progress = true;
      }
    }
  }
  for (size_t s = 0; s < stages; ++s) CHECK(next[s] == turns[s].size());
}

}  // namespace ballast
