// Calibration: constants that made the numbers are found again, those that no number depends on
// stay at their priors, and a case that is left out is predicted without itself.
#include "autotune/calibrate/calibrate.h"

#include <gtest/gtest.h>

#include "tests/autotune/published.h"

namespace ballast {
namespace {

using testing::small_setup;

constexpr int kGemm = 0, kAttention = 1, kElementwise = 2, kCollective = 3, kLaunch = 4, kSlack = 5;

void ignore(const CalibrationProgress&) {}

// A case large enough that products decide its time: 1024 wide, 16 sequences of 512 tokens at once.
CaseSetup large_setup(const std::string& id) {
  CaseSetup setup = small_setup(id);
  setup.of.stack = setup.stack.name = "synthetic";
  setup.of.model.hidden = 1024;
  setup.of.model.heads = setup.of.model.kv_heads = 8;
  setup.of.model.head_size = 128;
  setup.of.model.ffn = 4096;
  setup.of.model.max_positions = 512;
  setup.of.plan.sequence_length = 512;
  setup.of.plan.global_batch = 16;
  setup.of.plan.micro_batch = 16;
  return setup;
}

// Publishes what would be measured if these constants were true.
CaseSetup publish(CaseSetup setup, std::vector<Metric> metrics, const StackConstants& truth) {
  for (const Metric metric : metrics) setup.of.measured.push_back({metric, 1});
  const CasePrediction prediction = predict_case(setup, truth);
  for (size_t i = 0; i < metrics.size(); ++i) {
    setup.of.measured[i].value = prediction.metrics[i].predicted.value();
  }
  return setup;
}

// Four shapes: wide, long (attention counts), many small (launches count), and accumulating.
std::vector<CaseSetup> four_cases(const StackConstants& truth) {
  CaseSetup wide = large_setup("wide");
  wide.of.model.hidden = 2048;
  wide.of.model.ffn = 8192;
  wide.of.model.head_size = 256;
  CaseSetup longer = large_setup("long");
  longer.of.model.max_positions = longer.of.plan.sequence_length = 8192;
  longer.of.plan.global_batch = 2;
  longer.of.plan.micro_batch = 2;
  CaseSetup small = large_setup("small");
  small.of.model.hidden = 256;
  small.of.model.head_size = 32;
  small.of.model.ffn = 1024;
  small.of.plan.micro_batch = 1;
  CaseSetup plain = large_setup("plain");
  std::vector<CaseSetup> cases;
  for (CaseSetup* one : {&wide, &longer, &small, &plain}) {
    cases.push_back(publish(*one, {Metric::kStepTime, Metric::kPeakMemory}, truth));
  }
  return cases;
}

bool is_fitted(const Stack& stack, int index) {
  return std::find(stack.fitted.begin(), stack.fitted.end(), constant_name(index)) !=
         stack.fitted.end();
}

TEST(calibrate, finds_constants_that_made_the_numbers) {
  StackConstants truth = prior_constants();
  truth.gemm = 0.7;
  truth.launch = Duration::from_us(9);
  truth.memory_slack = 0.12;
  const std::vector<CaseSetup> cases = four_cases(truth);
  const Calibration result = calibrate(cases[0].stack, cases, ignore);
  const StackConstants& found = result.stack.constants;
  // The priors pull a little: every number is still met within four percent.
  EXPECT_NEAR(found.gemm, 0.7, 0.05);
  EXPECT_NEAR(found.launch.us(), 9, 1);
  EXPECT_NEAR(found.memory_slack, 0.12, 0.02);
  ASSERT_EQ(result.rows.size(), 8u);
  for (const CalibrationRow& row : result.rows) {
    EXPECT_LT(std::abs(row.error_percent(row.fit)), 4) << row.id << metric_name(row.metric);
    ASSERT_TRUE(row.left_out.has_value());
    const double left_out = std::abs(row.error_percent(*row.left_out));
    // Only the small one shows what a launch takes: nobody else can predict it.
    if (row.id == "small" && is_time(row.metric)) {
      EXPECT_GT(left_out, 12);
    } else {
      EXPECT_LT(left_out, 12) << row.id;
    }
  }
  EXPECT_EQ(result.stack.fitted_on, (std::vector<std::string>{"wide", "long", "small", "plain"}));
}

// One device sends nothing, and a time says nothing about memory.
TEST(calibrate, constant_that_no_case_sees_keeps_its_prior_and_is_not_listed) {
  StackConstants truth = prior_constants();
  truth.gemm = 0.75;
  const CaseSetup only = publish(large_setup("only"), {Metric::kStepTime}, truth);
  const Calibration result = calibrate(only.stack, {only}, ignore);
  EXPECT_TRUE(is_fitted(result.stack, kGemm));
  EXPECT_FALSE(is_fitted(result.stack, kCollective));
  EXPECT_FALSE(is_fitted(result.stack, kSlack));
  EXPECT_DOUBLE_EQ(result.stack.constants.collective, prior_of(kCollective).value);
  EXPECT_DOUBLE_EQ(result.stack.constants.memory_slack, prior_of(kSlack).value);
  EXPECT_LT(result.stack.constants.gemm, prior_of(kGemm).value);
  EXPECT_FALSE(result.rows[0].left_out.has_value()) << "there is no other case";
}

TEST(calibrate, numbers_of_the_priors_leave_the_priors) {
  const Calibration result =
      calibrate(large_setup("x").stack, four_cases(prior_constants()), ignore);
  for (int i = 0; i < kStackConstants; ++i) {
    EXPECT_NEAR(constant(result.stack.constants, i), prior_of(i).value, 1e-3 * prior_of(i).value)
        << constant_name(i);
  }
}

// Both publish the same plan, one at the priors' time and one at twice that. Left out, each is
// predicted by what the other says: too slow, and too fast.
TEST(calibrate, case_left_out_is_predicted_by_the_others) {
  CaseSetup fast = publish(large_setup("fast"), {Metric::kStepTime}, prior_constants());
  CaseSetup slow = fast;
  slow.of.id = "slow";
  slow.of.measured[0].value *= 2;
  const Calibration result = calibrate(fast.stack, {fast, slow}, ignore);
  ASSERT_EQ(result.rows.size(), 2u);
  const CalibrationRow& of_fast = result.rows[0];
  const CalibrationRow& of_slow = result.rows[1];
  EXPECT_GT(*of_fast.left_out, of_fast.fit);
  EXPECT_NEAR(*of_slow.left_out, fast.of.measured[0].value, 0.01 * fast.of.measured[0].value);
  EXPECT_GT(of_fast.fit, of_fast.published);
  EXPECT_LT(of_slow.fit, of_slow.published);
}

TEST(calibrate, cases_of_another_stack_and_cases_without_numbers_are_refused) {
  const CaseSetup one = publish(large_setup("one"), {Metric::kStepTime}, prior_constants());
  Stack other = one.stack;
  other.name = "other";
  EXPECT_THROW(calibrate(other, {one}, ignore), Error);
  CaseSetup verdict = large_setup("verdict");
  verdict.of.measured = {{Metric::kFits, 1}};
  EXPECT_THROW(calibrate(verdict.stack, {verdict}, ignore), Error);
}

TEST(calibrate, prior_lies_within_its_bounds) {
  for (const int index : {kGemm, kAttention, kElementwise, kCollective, kLaunch, kSlack}) {
    const Prior prior = prior_of(index);
    EXPECT_LE(prior.least, prior.value) << constant_name(index);
    EXPECT_GE(prior.most, prior.value);
    EXPECT_GT(prior.width, 0);
  }
}

}  // namespace
}  // namespace ballast
