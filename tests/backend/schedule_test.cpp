// Learning rate and loss scale, by hand arithmetic.
#include <cmath>
#include <gtest/gtest.h>

#include "backend/train/training_schedule.h"
#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

// Warm-up of 4 steps to 1.0: 0.25, 0.5, 0.75, 1. Cosine over the 8 steps 4..12 from 1.0 to 0.2:
// half way, at step 8, the mean 0.6; a quarter, at step 6, 0.2 + 0.8 * (1 + cos 45 degrees) / 2.
TEST(schedule, rate_warms_up_then_falls_to_its_floor) {
  const LearningRateSchedule schedule = {
      .peak = 1.0, .floor = 0.2, .warmup_steps = 4, .total_steps = 12};
  check(schedule);
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(2), 0.75);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_NEAR(schedule.at(6), 0.2 + 0.4 * (1 + 0.70710678118654752), 1e-15);
  EXPECT_NEAR(schedule.at(8), 0.6, 1e-15);
  EXPECT_DOUBLE_EQ(schedule.at(12), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(1'000'000'000'000), 0.2);
}

TEST(schedule, without_warm_up_the_first_step_has_the_peak_rate) {
  const LearningRateSchedule schedule = {
      .peak = 1.0, .floor = 0.0, .warmup_steps = 0, .total_steps = 1};
  check(schedule);
  EXPECT_EQ(schedule.at(0), 1.0);
  EXPECT_EQ(schedule.at(1), 0.0);
}

TEST(schedule, warm_up_may_last_to_the_end) {
  const LearningRateSchedule schedule = {
      .peak = 1.0, .floor = 0.5, .warmup_steps = 2, .total_steps = 2};
  check(schedule);
  EXPECT_EQ(schedule.at(1), 1.0);
  EXPECT_EQ(schedule.at(2), 0.5);
}

TEST(schedule, impossible_schedules_are_errors_that_name_the_field) {
  const auto error = [](LearningRateSchedule schedule) {
    return error_of([&] { check(schedule); });
  };
  EXPECT_TRUE(mentions(error({.peak = 0, .floor = 0, .total_steps = 9}), "peak"));
  EXPECT_TRUE(mentions(error({.peak = NAN, .floor = 0, .total_steps = 9}), "peak"));
  EXPECT_TRUE(mentions(error({.peak = 1, .floor = 2, .total_steps = 9}), "floor"));
  EXPECT_TRUE(mentions(error({.peak = 1, .floor = -1, .total_steps = 9}), "floor"));
  EXPECT_TRUE(mentions(error({.peak = 1, .floor = 0, .total_steps = 0}), "total_steps"));
  EXPECT_TRUE(mentions(error({.peak = 1, .floor = 0, .warmup_steps = 10, .total_steps = 9}),
                       "warmup_steps"));
}

TEST(loss_scale, doubles_after_enough_good_steps_in_a_row) {
  LossScale scale(8, 3);
  scale.step_was_good();
  scale.step_was_good();
  EXPECT_EQ(scale.value(), 8);
  scale.step_was_good();
  EXPECT_EQ(scale.value(), 16);
  EXPECT_EQ(scale.good_steps(), 0);
}

TEST(loss_scale, halves_on_overflow_and_counts_anew) {
  LossScale scale(8, 2);
  scale.step_was_good();
  scale.step_overflowed();
  EXPECT_EQ(scale.value(), 4);
  scale.step_was_good();
  EXPECT_EQ(scale.value(), 4);
  scale.step_was_good();
  EXPECT_EQ(scale.value(), 8);
  EXPECT_EQ(scale.skipped_steps(), 1);
}

TEST(loss_scale, stays_between_1_and_2_to_the_24) {
  LossScale low(2, 1);
  for (int i = 0; i < 5; ++i) low.step_overflowed();
  EXPECT_EQ(low.value(), 1);
  LossScale high(8388608, 1);
  for (int i = 0; i < 5; ++i) high.step_was_good();
  EXPECT_EQ(high.value(), 16777216);
}

// A run of 100 steps with an overflow every seventh, saved and restored after each step.
TEST(loss_scale, a_restored_scale_continues_as_the_original) {
  LossScale original(1024, 4);
  LossScale restored = original;
  for (int i = 1; i <= 100; ++i) {
    for (LossScale* scale : {&original, &restored}) {
      i % 7 == 0 ? scale->step_overflowed() : scale->step_was_good();
    }
    restored = LossScale::parse(restored.to_text(), "test");
    ASSERT_EQ(restored, original) << i;
  }
  EXPECT_EQ(original.skipped_steps(), 14);
}

TEST(loss_scale, bad_states_are_errors) {
  EXPECT_NO_THROW(LossScale::parse("8 4 3 0", "w"));
  for (const char* text : {"", "8", "8 4 3", "8 4 3 ", "8 4 3 0 ", "8 4 3 0 1", "9 4 3 0",
                           "0 4 3 0", "8 0 0 0", "8 4 4 0", "8 4 -1 0", "8,4,3,0", "8.0 4 3 0",
                           "8 4 3 x", "33554432 4 3 0", "99999999999999999999 4 3 0"}) {
    EXPECT_TRUE(mentions(error_of([&] { LossScale::parse(text, "c:loss_scale"); }),
                         "c:loss_scale: not a loss scale state"))
        << text;
  }
  for (const double initial : {0.0, 0.5, 3.0, -8.0, 1e300, double{NAN}}) {
    EXPECT_THROW(LossScale(initial, 10), Error) << initial;
  }
  EXPECT_THROW(LossScale(8, 0), Error);
}

}  // namespace
}  // namespace ballast
