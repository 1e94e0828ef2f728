#include "autotune/studies/why_slower.h"

#include <gtest/gtest.h>

#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

Prediction prediction_of(const Plan& plan, const Machine& machine) {
  return predict(small_model(), plan, machine, nullptr);
}

// Micro-batches of one sequence instead of four.
TEST(WhySlower, changes_of_the_longest_path_sum_to_the_difference_and_descend) {
  Plan other = fixed_plan();
  other.micro_batch = 1;
  const SlowerStep slower =
      why_slower(prediction_of(fixed_plan(), gpu_machine()), prediction_of(other, gpu_machine()));
  EXPECT_GT(slower.longer.ps, 0);
  EXPECT_FALSE(slower.is_tie());
  Duration sum;
  for (const PathChange& change : slower.path) sum += change.more;
  EXPECT_NEAR(sum.seconds(), slower.longer.seconds(), 1e-9);
  for (size_t i = 1; i < slower.path.size(); ++i) {
    EXPECT_GE(slower.path[i - 1].more, slower.path[i].more);
  }
}

// The same plan on a machine whose CPU steps 20 times slower: what is longer is Adam.
TEST(WhySlower, a_slow_cpu_shows_as_more_of_adam) {
  Machine slow = gpu_machine();
  slow.cpu.adam["plain"] = flat(2.5e7);
  const SlowerStep slower =
      why_slower(prediction_of(fixed_plan(), gpu_machine()), prediction_of(fixed_plan(), slow));
  EXPECT_EQ(slower.path.front().name, "adam");
  EXPECT_NEAR(slower.path.front().more.seconds() / slower.longer.seconds(), 1, 0.2);
}

TEST(WhySlower, a_plan_is_a_tie_with_itself) {
  const Prediction same = prediction_of(fixed_plan(), gpu_machine());
  const SlowerStep slower = why_slower(same, same);
  EXPECT_TRUE(slower.is_tie());
  for (const PathChange& change : slower.path) EXPECT_EQ(change.more.ps, 0) << change.name;
}

}  // namespace
}  // namespace ballast::tests
