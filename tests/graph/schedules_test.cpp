// The table of schedules: every order of turns comes to an end, and what waits is what bounds say.
#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <set>
#include <vector>

#include "sim/graph/schedules/schedule.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

struct ScheduleShape {
  int64_t stages = 1, chunks = 1, micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t parts = 1;
};

Plan plan_of(const ScheduleShape& shape) {
  Plan plan = tiny::plan();
  plan.devices = plan.pipeline = shape.stages;
  plan.virtual_pipeline = shape.chunks;
  plan.pipeline_schedule = shape.schedule;
  plan.global_batch = 2 * shape.micro_batches;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.subsequences = shape.parts;
  if (shape.parts > 1) plan.sequence_length = shape.parts * kAttentionTile;
  return plan;
}

// Every schedule, with one chunk a stage and with several.
std::vector<ScheduleShape> shapes_of_all_schedules() {
  std::vector<ScheduleShape> all;
  for (size_t i = 0; i < std::size(kPipelineSchedules); ++i) {
    for (const ScheduleShape& shape :
         {ScheduleShape{2, 1, 1}, ScheduleShape{2, 1, 8}, ScheduleShape{4, 1, 3},
          ScheduleShape{4, 1, 16}, ScheduleShape{2, 2, 4}, ScheduleShape{4, 2, 8},
          ScheduleShape{4, 3, 8}, ScheduleShape{4, 4, 16}}) {
      for (const int64_t parts : {1, 3, 16}) {
        all.push_back(shape);
        all.back().schedule = static_cast<PipelineSchedule>(i);
        all.back().parts = parts;
      }
    }
  }
  return all;
}

// A turn comes after what it reads of other stages and of other parts: for_turns comes to an end.
void expect_an_order(const Plan& plan) {
  std::set<std::array<int64_t, 4>> done;  // direction, chunk of the pipeline, micro-batch, part
  const auto is_done = [&](Direction direction, int64_t chunk, const Turn& turn, int64_t part) {
    return done.contains({static_cast<int64_t>(direction), chunk, turn.micro_batch, part});
  };
  const int64_t chunks = plan.pipeline * plan.virtual_pipeline;
  for_turns(plan, [&](int64_t stage, const Turn& turn) {
    const bool forward = turn.direction == Direction::kForward;
    const int64_t chunk = turn.chunk * plan.pipeline + stage;
    const int64_t from = forward ? chunk - 1 : chunk + 1;
    if (from >= 0 && from < chunks && !is_done(turn.direction, from, turn, turn.part)) return false;
    const int64_t before = forward ? turn.part - 1 : turn.part + 1;
    const bool first = before < 0 || before == plan.subsequences;
    if (!first) EXPECT_TRUE(is_done(turn.direction, chunk, turn, before));
    if (!forward && first) {
      EXPECT_TRUE(is_done(Direction::kForward, chunk, turn, plan.subsequences - 1));
    }
    done.insert({static_cast<int64_t>(turn.direction), chunk, turn.micro_batch, turn.part});
    return true;
  });
}

TEST(schedules, exactly_one_applies_and_turns_come_after_what_they_read) {
  for (const ScheduleShape& shape : shapes_of_all_schedules()) {
    const Plan plan = plan_of(shape);
    EXPECT_EQ(std::count_if(schedules().begin(), schedules().end(),
                            [&](const Schedule& each) { return each.applies(plan); }),
              1);
    expect_an_order(plan);
    for (int64_t stage = 0; stage < shape.stages; ++stage) {
      EXPECT_EQ(turns_of(stage, plan).size(),
                static_cast<size_t>(2 * shape.chunks * shape.micro_batches * shape.parts));
    }
  }
}

// Counted turn by turn: the most chunks between forward and backward, and the most from when the
// first backward of every chunk has begun.
std::pair<int64_t, int64_t> counted_in_flight(int64_t stage, const Plan& plan) {
  std::set<int64_t> begun;
  int64_t waiting = 0, most = 0, most_later = 0;
  for (const Turn& turn : turns_of(stage, plan)) {
    if (turn.direction == Direction::kForward) {
      most = std::max(most, ++waiting);
    } else {
      begun.insert(turn.chunk);
    }
    const bool all_begun = static_cast<int64_t>(begun.size()) == plan.virtual_pipeline;
    if (all_begun) most_later = std::max(most_later, waiting);
    if (turn.direction == Direction::kBackward) --waiting;
  }
  return {most, most_later};
}

TEST(schedules, bounds_of_what_is_in_flight_are_those_of_the_turns) {
  for (const ScheduleShape& shape : shapes_of_all_schedules()) {
    const Plan plan = plan_of(shape);
    for (int64_t stage = 0; stage < shape.stages; ++stage) {
      const auto [most, most_later] = counted_in_flight(stage, plan);
      EXPECT_EQ(most_in_flight(stage, plan), most) << stage;
      if (fills_again(stage, plan)) {
        EXPECT_EQ(most_later, most) << stage;
      }
    }
  }
}

}  // namespace
}  // namespace ballast
