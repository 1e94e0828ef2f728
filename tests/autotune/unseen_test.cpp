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

// Of the first framework 0.1 and 0.3, of the second 0.4.
TEST(MeanMiss, each_framework_counts_as_one) {
  EXPECT_NEAR(mean_miss({{0, 0.1, 0}, {1, 0.4, 0}, {0, 0.3, 0}}), 0.3, 1e-12);
  EXPECT_EQ(mean_miss({}), 0);
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
    return with_misses_of_facts(unsure(typical), figures, std::nullopt).uncertainty->memory;
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
  EXPECT_EQ(with_misses_of_facts(typical, figures, 1).uncertainty->memory, 0.01);
  EXPECT_NEAR(with_misses_of_facts(typical, figures, std::nullopt).uncertainty->memory,
              std::log(3.0) / kIntervalWidth, 1e-3);
}

// Steps of two frameworks last exp(0.1) and exp(0.3) times as long as their facts say; of one that
// nobody measured, exp(0.2). Without the second one, exp(0.1).
TEST(MissesOfFacts, all_takes_as_much_longer_as_frameworks_did_on_average) {
  std::vector<SourcedCase> cases;
  for (const char* name : {"one", "two"}) {
    CaseSetup setup = calibrated::large_setup(name, name);
    setup.stack.constants = prior_constants();
    cases.push_back(calibrated::publish(setup, {Metric::kStepTime}, prior_constants()));
    for (Measured& one : cases.back().setup.published.measured) {
      one.value *= std::exp(name == std::string("one") ? 0.1 : 0.3);
    }
  }
  const std::vector<SourcedCase> as_typical = run_as_typical(cases, cases[0].setup.stack);
  Figures figures(as_typical);
  figures.linearise(std::vector<StackConstants>(2, prior_constants()), [](double) {});
  const Stack typical = unsure(cases[0].setup.stack);
  const auto longer = [&](std::optional<size_t> without) {
    const StackConstants moved = with_misses_of_facts(typical, figures, without).constants;
    EXPECT_NEAR(moved.launch.us() / prior_constants().launch.us(),
                prior_constants().elementwise / moved.elementwise, 1e-6);
    EXPECT_EQ(moved.memory_slack, prior_constants().memory_slack);
    return std::log(prior_constants().gemm / moved.gemm);
  };
  EXPECT_NEAR(longer(std::nullopt), 0.2, 1e-3);
  EXPECT_NEAR(longer(1), 0.1, 1e-3);
}

}  // namespace
}  // namespace ballast
