// What a framework that nobody has measured may be off by: how wide, by hand, and who has a say.
#include "autotune/calibrate/unseen.h"

#include <cmath>
#include <gtest/gtest.h>

#include "autotune/calibrate/priors.h"
#include "sim/engine/interval.h"
#include "tests/autotune/calibrated.h"

namespace ballast {
namespace {

// Ten frameworks with a figure each: eight lie inside, and the others may be anywhere.
TEST(CoveringSpread, eight_tenths_of_frameworks_lie_inside) {
  std::vector<Miss> misses;
  for (size_t f = 0; f < 10; ++f) misses.push_back({f, 0.1 * static_cast<double>(f + 1), 0});
  EXPECT_NEAR(covering_spread(misses), 0.8 / kIntervalWidth, 1e-12);
  misses.back().log_error = -100;
  EXPECT_NEAR(covering_spread(misses), 0.8 / kIntervalWidth, 1e-12);
  EXPECT_EQ(covering_spread({}), 0);
}

// What the constants explain is not asked for twice.
TEST(CoveringSpread, explained_variance_is_taken_off) {
  const double needed = 0.4 / kIntervalWidth;
  const Miss miss{0, 0.4, 0.01};
  EXPECT_NEAR(covering_spread({miss}), std::sqrt(needed * needed - 0.01), 1e-12);
  EXPECT_EQ(covering_spread({{0, 0.1, 0.01}}), 0);
}

// A hundred rows of one framework are one framework.
TEST(CoveringSpread, rows_of_a_framework_share_its_vote) {
  std::vector<Miss> misses;
  for (size_t f = 1; f < 9; ++f) misses.push_back({f, 0.1 * static_cast<double>(f), 0});
  for (int row = 0; row < 100; ++row) misses.push_back({0, 0.9, 0});
  EXPECT_NEAR(covering_spread(misses), 0.8 / kIntervalWidth, 1e-12);
}

// Constants are what they are taken for, but these frameworks sum gradients in 32 bits.
std::vector<SourcedCase> frameworks_that_sum_in_32_bits() {
  std::vector<SourcedCase> cases;
  for (const char* name : {"one", "two", "three"}) {
    CaseSetup setup = calibrated::large_setup(name, name);
    setup.stack.facts.gradients = GradientPrecision::kF32;
    setup.published.plan.sequence_length = 16;  // activations weigh nothing
    setup.published.plan.global_batch = 1;
    setup.published.plan.micro_batch = 1;
    setup.stack.constants = prior_constants();
    cases.push_back(calibrated::publish(setup, {Metric::kPeakMemory}, prior_constants()));
  }
  return cases;
}

Stack unsure(Stack stack) {
  stack.constants = prior_constants();
  stack.uncertainty = StackUncertainty{
      std::vector<double>(static_cast<size_t>(kStackConstants) * kStackConstants), 0.01, 0.01};
  return stack;
}

TEST(SpreadOfFacts, memory_is_as_unsure_as_facts_differ) {
  const std::vector<SourcedCase> cases = frameworks_that_sum_in_32_bits();
  Stack same = cases.front().setup.stack;
  same.name = kTypicalStack;
  Stack other = same;
  other.facts.gradients = GradientPrecision::kAsWeights;
  const auto spread = [&](const Stack& typical) {
    const std::vector<SourcedCase> as_typical = run_as_typical(cases, typical);
    Figures figures(as_typical);
    figures.linearise(std::vector<StackConstants>(3, prior_constants()), [](double) {});
    return with_spread_of_facts(unsure(typical), figures, std::nullopt).uncertainty->memory;
  };
  EXPECT_EQ(spread(same), 0.01);
  // Two bytes a parameter of eighteen, and less beside activations.
  EXPECT_GT(spread(other), 0.02);
  EXPECT_LT(spread(other), std::log(18.0 / 16) / kIntervalWidth);
}

TEST(SpreadOfFacts, framework_that_is_left_out_has_no_say) {
  std::vector<SourcedCase> cases = frameworks_that_sum_in_32_bits();
  for (Measured& measured : cases[1].setup.published.measured) measured.value *= 3;
  const std::vector<SourcedCase> as_typical = run_as_typical(cases, cases[0].setup.stack);
  Figures figures(as_typical);
  figures.linearise(std::vector<StackConstants>(3, prior_constants()), [](double) {});
  const Stack typical = unsure(cases[0].setup.stack);
  EXPECT_EQ(with_spread_of_facts(typical, figures, 1).uncertainty->memory, 0.01);
  EXPECT_NEAR(with_spread_of_facts(typical, figures, std::nullopt).uncertainty->memory,
              std::log(3.0) / kIntervalWidth, 1e-3);
}

}  // namespace
}  // namespace ballast
