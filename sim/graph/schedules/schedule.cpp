#include "sim/graph/schedules/schedule.h"

#include <algorithm>
#include <iterator>

#include "sim/base/error.h"

namespace ballast {
namespace {

int64_t stages_after(int64_t stage, const Plan& plan) { return plan.pipeline - stage - 1; }

// Megatron-LM's warm-up of several chunks (arXiv 2104.04473, section 2.2); of one, twice 1F1B's.
// With parts the first backward is that of the last one, so all before it come first too (Seq1F1B,
// arXiv 2406.03488).
int64_t ahead_of_rounds(int64_t stage, const Plan& plan) {
  const int64_t round = plan.pipeline * plan.subsequences;
  return 2 * stages_after(stage, plan) + (plan.virtual_pipeline - 1) * round + plan.subsequences -
         1;
}

// The order that a plan names, with one chunk a stage or with several.
bool names(const Plan& plan, PipelineSchedule schedule) {
  return plan.pipeline_schedule == schedule;
}

int64_t turns_each_way(const Plan& plan) {
  return plan.accumulation() * plan.subsequences * plan.virtual_pipeline;
}
int64_t stages_of(const Plan& plan) { return plan.pipeline; }

constexpr Schedule kSchedules[] = {
    // arXiv 2006.09503; arXiv 2104.04473, figure 4.
    {"1F1B", "one chunk a stage; as many forwards ahead as stages follow",
     [](const Plan& plan) {
       return names(plan, PipelineSchedule::k1F1B) && plan.virtual_pipeline == 1 &&
              plan.subsequences == 1;
     },
     stages_after, stages_of},
    // arXiv 2406.03488.
    {"Seq1F1B", "1F1B over parts of sequences; as many more forwards ahead as follow the first",
     [](const Plan& plan) {
       return names(plan, PipelineSchedule::k1F1B) && plan.virtual_pipeline == 1 &&
              plan.subsequences > 1;
     },
     [](int64_t stage, const Plan& plan) {
       return stages_after(stage, plan) + plan.subsequences - 1;
     },
     stages_of},
    {"interleaved", "several chunks a stage, in rounds of as many micro-batches as stages",
     [](const Plan& plan) {
       return names(plan, PipelineSchedule::k1F1B) && plan.virtual_pipeline > 1;
     },
     ahead_of_rounds, stages_of},
    // arXiv 1811.06965; with several chunks breadth-first, arXiv 2211.05953.
    {"GPipe", "all forwards, then all backwards; all micro-batches through a chunk before the next",
     [](const Plan& plan) {
       return names(plan, PipelineSchedule::kGpipe) && plan.subsequences == 1;
     },
     [](int64_t, const Plan& plan) { return turns_each_way(plan); },
     [](const Plan& plan) { return plan.accumulation(); }},
    // arXiv 2102.07988: GPipe whose micro-batches are parts of sequences.
    {"TeraPipe", "GPipe over parts of sequences, of a micro-batch back from the last part on",
     [](const Plan& plan) {
       return names(plan, PipelineSchedule::kGpipe) && plan.subsequences > 1;
     },
     [](int64_t, const Plan& plan) { return turns_each_way(plan); },
     [](const Plan& plan) { return plan.accumulation(); }},
    // arXiv 2211.05322, section 4. Interleaved runs as far ahead, and could not run further: a
    // chunk's forward waits for the backward of those in whose place it would come.
    {"eager 1F1B",
     "1F1B with a forward more ahead for every stage that follows, as interleaved has",
     [](const Plan& plan) { return names(plan, PipelineSchedule::kEager1F1B); }, ahead_of_rounds,
     stages_of},
};

}  // namespace

std::span<const Schedule> schedules() { return kSchedules; }

const Schedule& schedule_of(const Plan& plan) {
  const auto found = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                  [&](const Schedule& schedule) { return schedule.applies(plan); });
  CHECK(found != std::end(kSchedules));
  return *found;
}

std::vector<Turn> turns_of(int64_t stage, const Plan& plan) {
  const Schedule& schedule = schedule_of(plan);
  const int64_t chunks = plan.virtual_pipeline;
  const int64_t parts = plan.subsequences;
  const int64_t round = schedule.round(plan) * parts;
  const auto turn = [&](int64_t index, Direction direction) {
    const bool forward = direction == Direction::kForward;
    const int64_t chunk = index % (round * chunks) / round;
    const int64_t unit = index / (round * chunks) * round + index % round;
    const int64_t part = unit % parts;
    return Turn{direction, forward ? chunk : chunks - 1 - chunk, unit / parts,
                forward ? part : parts - 1 - part};
  };
  const int64_t total = turns_each_way(plan);
  const int64_t ahead = std::min(schedule.ahead(stage, plan), total);
  std::vector<Turn> turns;
  for (int64_t i = 0; i < ahead; ++i) turns.push_back(turn(i, Direction::kForward));
  for (int64_t i = 0; i < total; ++i) {
    if (ahead + i < total) turns.push_back(turn(ahead + i, Direction::kForward));
    turns.push_back(turn(i, Direction::kBackward));
  }
  return turns;
}

int64_t most_in_flight(int64_t stage, const Plan& plan) {
  return std::min(schedule_of(plan).ahead(stage, plan) + 1, turns_each_way(plan));
}

// The first chunk's backward comes last, after a round of each of the others.
bool fills_again(int64_t stage, const Plan& plan) {
  const int64_t others =
      (plan.virtual_pipeline - 1) * schedule_of(plan).round(plan) * plan.subsequences;
  return turns_each_way(plan) > most_in_flight(stage, plan) + others;
}

void for_turns(const Plan& plan, const std::function<bool(int64_t stage, const Turn& turn)>& run) {
  const auto stages = static_cast<size_t>(plan.pipeline);
  std::vector<std::vector<Turn>> turns;
  for (size_t s = 0; s < stages; ++s) turns.push_back(turns_of(static_cast<int64_t>(s), plan));
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
