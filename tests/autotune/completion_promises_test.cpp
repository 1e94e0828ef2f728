// What steps that were timed promise of others: by hand, and held against steps that are timed.
#include "autotune/complete/estimates/completion_promises.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>

#include "autotune/bounds/convex_floor.h"
#include "autotune/complete/completion_lists.h"
#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/complete/layouts/open_layouts.h"
#include "sim/base/error.h"
#include "tests/autotune/random_settings.h"

namespace ballast::tests {
namespace {

using Points = std::vector<CurvePoint>;

TEST(ConvexFloor, is_where_lines_through_two_points_meet) {
  // From 10 down to 6 by 2 a piece, and up to 9 by 0.5: at 3 the second line is at 4.5.
  const Points points = {{0, 10}, {2, 6}, {10, 8}, {12, 9}};
  const auto lowest = lowest_of_convex(points, 0, 12);
  ASSERT_TRUE(lowest);
  EXPECT_EQ(lowest->at, 3);
  EXPECT_DOUBLE_EQ(lowest->value, 4.5);
  // Both twice as steep: the first, falling by 4 a piece, is at 2 there, and the second at 1.
  EXPECT_DOUBLE_EQ(lowest_of_convex(points, 3, 3, 2)->value, 2);
  EXPECT_DOUBLE_EQ(lowest_of_convex(points, 20, 20)->value, 13);
  EXPECT_DOUBLE_EQ(lowest_of_convex(points, 20, 20, 2)->value, 11);
  EXPECT_FALSE(lowest_of_convex(points, 2, 2));
}

TEST(ConvexFloor, is_nowhere_where_no_line_tells) {
  for (const Points& points : {Points{}, Points{{4, 1}}, Points{{0, 1}, {8, 1}}}) {
    const auto lowest = lowest_of_convex(points, 0, 8);
    ASSERT_TRUE(lowest);
    EXPECT_EQ(lowest->value, -INFINITY);
  }
  EXPECT_EQ(lowest_of_convex(Points{{0, 1}, {8, 1}}, 0, 8)->at, 4);
}

TEST(ConvexFloor, lies_under_every_convex_curve) {
  Numbers numbers(20261127);
  for (int i = 0; i < 200; ++i) {
    const auto a = static_cast<double>(numbers.below(100)),
               b = static_cast<double>(numbers.below(9));
    const auto curve = [&](int64_t x) {
      const auto at = static_cast<double>(x);
      return std::max({a - b * at, 0.3 * at, 0.01 * (at - 20) * (at - 20)});
    };
    Points points;
    for (int64_t x = 0; x <= 60; x += 1 + numbers.below(12)) points.push_back({x, curve(x)});
    const auto lowest = lowest_of_convex(points, 0, 60);
    for (int64_t x = 0; x <= 60; ++x) {
      const auto here = lowest_of_convex(points, x, x);
      if (!here) continue;
      EXPECT_LE(here->value, curve(x) + 1e-9);
      EXPECT_LE(lowest->value, here->value + 1e-9);
    }
  }
}

Completion with(int64_t buckets, double flow, int64_t micro_batch = 1) {
  Completion completion;
  completion.plan.global_batch = 2;
  completion.plan.micro_batch = micro_batch;
  completion.plan.optimizer.gpu_buckets = buckets;
  completion.plan.weights.flow_share = flow;
  return completion;
}

TimedStep step(double time, double compute = 0) {
  return {Duration::from_seconds(time), Duration::from_seconds(compute), {}};
}

TEST(CompletionPromises, of_more_buckets_are_the_computation_of_fewer) {
  CompletionPromises promises;
  EXPECT_EQ(promises.at_least(with(8, 0)), Duration{});
  promises.learn(with(4, 0), step(9, 5));
  EXPECT_EQ(promises.at_least(with(8, 0)).seconds(), 5);
  EXPECT_EQ(promises.at_least(with(8, 1)).seconds(), 5);
  EXPECT_EQ(promises.at_least(with(2, 0)), Duration{});
  EXPECT_EQ(promises.at_least(with(8, 0, 2)), Duration{}) << "another micro-batch";
  EXPECT_TRUE(promises.was_timed(with(4, 0)));
  EXPECT_FALSE(promises.was_timed(with(4, 1)));
}

// A bucket takes 0.125 s of the other lanes at most, and twice that beside others.
TEST(CompletionPromises, of_buckets_are_what_was_done_for_them) {
  CompletionPromises promises;
  promises.learn(with(4, 0), {Duration::from_seconds(9), {}, Duration::from_seconds(0.125)});
  EXPECT_DOUBLE_EQ(promises.at_least(with(8, 0)).seconds(), 8);
  EXPECT_DOUBLE_EQ(promises.at_least(with(8, 1)).seconds(), 8 - 0.065 * 8);
  EXPECT_DOUBLE_EQ(promises.best_between(with(0, 0), 5, 12)->at_least.seconds(), 7);
}

// Of the computation that four buckets added four more add as much, but for the last one of all and
// a tenth.
TEST(CompletionPromises, of_more_buckets_are_what_others_added_to_the_computation) {
  CompletionPromises promises;
  promises.learn(with(0, 0), step(9, 5));
  promises.learn(with(4, 0), step(9, 7));
  EXPECT_DOUBLE_EQ(promises.at_least(with(9, 0)).seconds(), 7 + 4 * 0.5 * 0.9);
  EXPECT_DOUBLE_EQ(promises.at_least(with(5, 1)).seconds(), 7);
  promises.learn(with(2, 1), step(9, 8));
  EXPECT_DOUBLE_EQ(promises.at_least(with(3, 0)).seconds(), 8) << "of any flow";
}

TEST(CompletionPromises, of_fewer_buckets_are_no_less_where_more_take_less) {
  CompletionPromises promises;
  promises.learn(with(4, 0), step(9));
  promises.learn(with(8, 0), step(10));
  EXPECT_EQ(promises.at_least(with(2, 0)), Duration{}) << "it may still fall";
  promises.learn(with(2, 0), step(9.5));
  EXPECT_DOUBLE_EQ(promises.at_least(with(1, 0)).seconds(), 9.5);
  EXPECT_EQ(promises.at_least(with(6, 0)), Duration{}) << "between others";
}

// Six buckets at most, and no more than 7.5 beyond what they gained with another count.
TEST(CompletionPromises, of_flow_are_a_few_buckets) {
  CompletionPromises promises;
  const auto learn = [&](int64_t buckets, double flow, double time) {
    promises.learn(with(buckets, flow),
                   {Duration::from_seconds(time), {}, Duration::from_seconds(1.0 / 64)});
  };
  learn(4, 0, 9);
  learn(8, 0, 8);
  EXPECT_DOUBLE_EQ(promises.at_least(with(8, 1)).seconds(), 8 - 6.0 / 64);
  learn(4, 1, 9 + 4.0 / 64);
  EXPECT_DOUBLE_EQ(promises.at_least(with(8, 1)).seconds(), 8 - 3.5 / 64);
  learn(16, 0, 7.5);
  learn(16, 1, 7.5 + 8.0 / 64);
  EXPECT_DOUBLE_EQ(promises.at_least(with(8, 1)).seconds(), 8);
  EXPECT_DOUBLE_EQ(promises.best_between(with(0, 1), 5, 8)->at_least.seconds(), 7.5);
}

// 13 % of one micro-batch, and of two half of that.
TEST(CompletionPromises, of_flow_are_a_share_of_the_same_plan_whose_weights_stay) {
  CompletionPromises promises;
  promises.learn(with(4, 0), step(10));
  promises.learn(with(4, 0, 2), step(10));
  EXPECT_DOUBLE_EQ(promises.at_least(with(4, 1)).seconds(), 9.35);
  EXPECT_DOUBLE_EQ(promises.at_least(with(4, 1, 2)).seconds(), 8.7);
  EXPECT_EQ(promises.at_least(with(8, 1)), Duration{});
}

// Room for more buckets is what they are for, and these made the step longer.
TEST(CompletionPromises, of_activations_that_leave_are_nothing_where_more_buckets_were_no_use) {
  CompletionPromises promises;
  const auto with_fate = [](int64_t buckets, ActivationFate fate) {
    Completion completion = with(buckets, 0);
    completion.plan.activations = activations_of(Recompute::kFull);
    completion.plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = fate;
    return completion;
  };
  const auto stays = [&](int64_t buckets) { return with_fate(buckets, ActivationFate::kKeep); };
  const Completion leaves = with_fate(0, ActivationFate::kOffload);
  EXPECT_TRUE(promises.may_use_room(leaves)) << "nothing is known";
  promises.learn(stays(4), step(9));
  promises.learn(stays(8), step(8));
  EXPECT_TRUE(promises.may_use_room(leaves)) << "it may fall further";
  promises.learn(stays(16), step(8.5));
  EXPECT_FALSE(promises.may_use_room(leaves));
  EXPECT_TRUE(promises.may_use_room(stays(4)));
}

TEST(CompletionPromises, name_the_count_where_a_step_may_be_shortest) {
  CompletionPromises promises;
  const auto anything = promises.best_between(with(0, 0), 0, 100);
  ASSERT_TRUE(anything);
  EXPECT_EQ(anything->at_least, Duration{});
  for (const auto& [buckets, time] : std::vector<std::pair<int64_t, double>>{
           {0, 1.768}, {26, 1.6863}, {53, 1.6007}, {106, 1.5658}, {213, 1.6015}}) {
    promises.learn(with(buckets, 0), step(time));
  }
  const auto best = promises.best_between(with(0, 0), 0, 106);
  ASSERT_TRUE(best);
  EXPECT_GE(best->gpu_buckets, 60);
  EXPECT_LE(best->gpu_buckets, 72);
  EXPECT_LT(best->at_least.seconds(), 1.5658);
  EXPECT_GT(best->at_least.seconds(), 1.53);
  EXPECT_FALSE(promises.best_between(with(0, 0), 53, 53));
}

// In the order in which a list is looked at, of settings at random: what is promised of a
// completion before it is timed is seldom more than it takes, and never much more.
TEST(CompletionPromises, are_kept) {
  Numbers numbers(20261127);
  int asked = 0, promised = 0, broken = 0;
  double worst = 0;
  for (int i = 0; i < 100; ++i) {
    for (const OpenLayout& layout : open_layouts_or_none(random_setting(numbers))) {
      const Setting& setting = layout.setting;
      if (setting.plan.optimizer.placement != OptimizerPlacement::kCpu) continue;
      if (setting.plan.pipeline > 1) continue;
      CompletionEstimates known;
      for (const std::vector<Completion>& group : completions_of(setup_of(setting))) {
        for (const Completion& completion : group) {
          const double least = known.promises().at_least(completion).seconds();
          std::optional<Duration> time;
          try {
            time = known.step_time_if_fits(setting, completion);
          } catch (const Error&) {
            continue;  // the graph knows no such plan
          }
          if (!time) continue;
          ++asked;
          promised += least > 0.9 * time->seconds() ? 1 : 0;
          broken += least > time->seconds() ? 1 : 0;
          worst = std::max(worst, least / time->seconds() - 1);
        }
      }
    }
  }
  std::printf("%d steps, %d promised to 10 %%, %d promises broken, by %.2f %% at most\n", asked,
              promised, broken, 100 * worst);
  EXPECT_GE(asked, 1000);
  EXPECT_GE(promised, asked / 10);
  EXPECT_LE(broken, asked / 200);
  EXPECT_LE(worst, 0.06);
}

}  // namespace
}  // namespace ballast::tests
