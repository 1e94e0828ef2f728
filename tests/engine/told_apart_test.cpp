// What intervals say of two plans, and of a plan that has no devices.
#include <gtest/gtest.h>

#include "sim/engine/interval.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::tiny_model;
using tests::tiny_plan;

Stack unsure(double time, double memory) {
  Stack stack;
  stack.uncertainty = StackUncertainty{
      std::vector<double>(static_cast<size_t>(kStackConstants * kStackConstants), 0), time, memory,
      time};
  return stack;
}

Prediction predicted(const Stack& stack, const Plan& plan = tiny_plan(OptimizerPlacement::kGpu)) {
  return predict(tiny_model(), plan, tests::tiny_machine(), stack, nullptr);
}

// A plan for more devices than there are is not close to fitting, however unsure memory is.
TEST(Interval, of_devices_that_are_not_there_says_that_the_plan_does_not_fit) {
  const Stack stack = unsure(0.1, 0.2);
  Plan plan = tiny_plan(OptimizerPlacement::kGpu);
  plan.devices = plan.data = 1000;
  const Prediction prediction = predicted(stack, plan);
  ASSERT_FALSE(prediction.fits);
  const auto sure =
      confidence_of(prediction, tiny_model(), plan, tests::tiny_machine(), stack, nullptr);
  ASSERT_TRUE(sure);
  EXPECT_EQ(sure->fits, 0);
  EXPECT_FALSE(sure->step_time);
}

TEST(Interval, plans_nearer_than_their_scatter_cannot_be_told_apart) {
  const Duration one = Duration::from_us(1000);
  EXPECT_NEAR(told_apart_from(), 0.0662, 1e-4);
  EXPECT_TRUE(cannot_be_told_apart(one, Duration::from_us(1060)));
  EXPECT_TRUE(cannot_be_told_apart(Duration::from_us(1060), one));
  EXPECT_FALSE(cannot_be_told_apart(one, Duration::from_us(1070)));
  EXPECT_FALSE(cannot_be_told_apart(Duration::from_us(1070), one));
}

}  // namespace
}  // namespace ballast
