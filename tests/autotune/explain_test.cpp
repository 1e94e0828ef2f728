#include "autotune/studies/explain.h"

#include <gtest/gtest.h>

#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

TEST(Explain, knobs_that_differ_are_named_with_both_values) {
  Plan other = fixed_plan();
  EXPECT_TRUE(differing_knobs(fixed_plan(), other).empty());
  other.optimizer.sync = SyncMode::kSpeculate;
  other.activations->fate[static_cast<size_t>(ModuleKind::kFc1)] = ActivationFate::kRecompute;
  EXPECT_EQ(differing_knobs(fixed_plan(), other),
            (std::vector<std::string>{"activations: keep all (not recompute fc1)",
                                      "optimizer.sync wait (not speculate)"}));
}

}  // namespace
}  // namespace ballast::tests
