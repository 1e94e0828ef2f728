#include "autotune/studies/experiments.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <set>

#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

Space whole_space(const Plan& base) { return space_of(small_model(), base, OpenKnobs::all()); }

// Every size of a micro-batch, of a bucket and of the share that flows, and every choice of
// activations, cast and sync is in one of few plans.
TEST(Experiments, covering_plans_show_every_value_of_every_knob) {
  const Plan base = auto_plan();
  const Space space = whole_space(base);
  const std::vector<Plan> plans = covering_plans(space, base);
  EXPECT_LT(plans.size(), choices_of(space, base).size() / 10);
  const auto count = [&](auto value_of) {
    std::set<decltype(value_of(plans.front()))> seen;
    for (const Plan& plan : plans) seen.insert(value_of(plan));
    return seen.size();
  };
  EXPECT_EQ(count([](const Plan& plan) { return *plan.micro_batch; }), space.micro_batch.size());
  EXPECT_EQ(count([](const Plan& plan) { return plan.optimizer.bucket_bytes.count; }),
            space.buckets.size());
  EXPECT_EQ(count([](const Plan& plan) { return plan.optimizer.cast; }), space.cast.size());
  EXPECT_EQ(count([](const Plan& plan) { return *plan.weights.flow_share; }),
            space.flow_share.size());
  for (const ActivationChoice& choice : space.activations) {
    EXPECT_TRUE(std::any_of(plans.begin(), plans.end(), [&](const Plan& plan) {
      return plan.activations == choice.plan;
    })) << choice.name;
  }
}

TEST(Experiments, rivals_of_a_plan_are_its_neighbours_and_then_the_covering_plans) {
  const Plan base = auto_plan();
  const Space space = whole_space(base);
  const std::vector<Plan> covering = covering_plans(space, base);
  const Plan best = plan_of(space, base, choices_of(space, base).front());
  const std::vector<Plan> rivals = rival_plans(best, space, base);
  ASSERT_GT(rivals.size(), covering.size());
  EXPECT_TRUE(std::equal(covering.rbegin(), covering.rend(), rivals.rbegin()));
  EXPECT_EQ(
      std::find(rivals.begin(), rivals.end() - static_cast<std::ptrdiff_t>(covering.size()), best),
      rivals.end() - static_cast<std::ptrdiff_t>(covering.size()));
  Plan elsewhere = best;
  elsewhere.optimizer.bucket_bytes = Bytes{12345};
  EXPECT_EQ(rival_plans(elsewhere, space, base), covering);
}

}  // namespace
}  // namespace ballast::tests
