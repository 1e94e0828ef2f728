#include "autotune/complete.h"

#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

TEST(Complete, fills_in_auto_knobs_and_leaves_the_others) {
  Plan plan = fixed_plan();
  plan.weights.flow_share.reset();
  plan.optimizer.gpu_buckets.reset();
  const Plan whole = complete(small_model(), plan, gpu_machine(), nullptr);
  EXPECT_FALSE(has_auto(whole));
  EXPECT_EQ(whole.micro_batch, plan.micro_batch);
  EXPECT_EQ(whole.activations, plan.activations);
  EXPECT_EQ(whole.optimizer.sync, plan.optimizer.sync);
  EXPECT_EQ(complete(small_model(), fixed_plan(), gpu_machine(), nullptr), fixed_plan());
}

TEST(Complete, says_why_where_nothing_fits) {
  Machine machine = gpu_machine();
  machine.cpu.memory = given(Bytes{1 << 10});
  machine.gpu.memory = given(Bytes{1 << 10});
  try {
    complete(small_model(), auto_plan(), machine, nullptr);
    FAIL() << "it must throw";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("test-gpu"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("usable"), std::string::npos);
  }
}

TEST(Complete, interrupted_before_a_plan_was_found_does_not_say_that_nothing_fits) {
  try {
    complete(small_model(), auto_plan(), gpu_machine(), nullptr, [] { return true; });
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("interrupted"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ballast::tests
