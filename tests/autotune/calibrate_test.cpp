// Calibration of published cases: constants that made the numbers are found again, those that no
// number depends on stay where frameworks lie, and sources are told apart.
#include "autotune/calibrate/calibrate.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "autotune/calibrate/priors.h"
#include "profiles/load.h"
#include "profiles/published.h"
#include "sim/base/error.h"
#include "tests/autotune/calibrated.h"

namespace ballast {
namespace {

using calibrated::four_cases;
using calibrated::kExpertLaunch;
using calibrated::kGemm;
using calibrated::kNetwork;
using calibrated::kNode;
using calibrated::kSlack;
using calibrated::large_setup;
using calibrated::publish;

Calibration calibrate(const std::vector<SourcedCase>& cases) {
  return ballast::calibrate(cases, load_stack(std::string(kTypicalStack)), calibrated::ignore);
}

bool is_fitted(const Stack& stack, int index) {
  return std::find(stack.fitted.begin(), stack.fitted.end(), constant_name(index)) !=
         stack.fitted.end();
}

TEST(Calibrate, finds_the_constants_of_two_stacks_that_made_the_numbers) {
  StackConstants slow = prior_constants();
  slow.gemm = 0.7;
  slow.launch = Duration::from_us(12);
  slow.memory_slack = 0.12;
  StackConstants fast = prior_constants();
  fast.gemm = 1.0;
  fast.launch = Duration::from_us(7);
  fast.memory_slack = 0.02;
  std::vector<SourcedCase> cases = four_cases("slow", slow);
  for (SourcedCase& one : four_cases("fast", fast)) cases.push_back(std::move(one));
  const Calibration result = calibrate(cases);
  ASSERT_EQ(result.stacks.size(), 2u);
  const StackConstants& of_slow = result.stacks[0].constants;
  const StackConstants& of_fast = result.stacks[1].constants;
  EXPECT_EQ(result.stacks[0].name, "slow");
  EXPECT_EQ(result.stacks[1].name, "fast");
  // What relatives do pulls each a little: not more than a quarter of the way.
  EXPECT_NEAR(of_slow.gemm, slow.gemm, 0.06);
  EXPECT_NEAR(of_fast.gemm, fast.gemm, 0.06);
  EXPECT_NEAR(of_slow.launch.us(), 12, 1.5);
  EXPECT_NEAR(of_fast.launch.us(), 7, 1);
  EXPECT_NEAR(of_slow.memory_slack, 0.12, 0.025);
  EXPECT_NEAR(of_fast.memory_slack, 0.02, 0.025);
  const StackConstants& typical = result.typical.constants;
  EXPECT_GT(typical.gemm, of_slow.gemm);
  EXPECT_LT(typical.gemm, of_fast.gemm);
  EXPECT_EQ(result.typical.name, kTypicalStack);
  EXPECT_EQ(result.stacks[0].fitted_on,
            (std::vector<std::string>{"slow-wide", "slow-long", "slow-small", "slow-plain"}));
  EXPECT_EQ(result.typical.fitted_on.size(), 8u);
  EXPECT_TRUE(result.refused.empty());
}

// Many experts of few rows each are the host's time; others of the same framework say nothing of
// it.
TEST(Calibrate, finds_what_an_expert_takes_the_host_where_products_are_by_expert) {
  StackConstants truth = prior_constants();
  truth.expert_launch = Duration::from_us(100);
  std::vector<SourcedCase> cases = four_cases("one", truth);
  for (const int64_t experts : {16, 32, 64}) {
    CaseSetup setup = large_setup("experts-" + std::to_string(experts), "one");
    setup.stack.facts.multiplies_by_expert = true;
    setup.published.model = load_model("qwen3-30b-a3b");
    setup.published.model.layers = 2;
    setup.published.model.experts = experts;
    setup.published.plan.micro_batch = 2;
    cases.push_back(publish(std::move(setup), {Metric::kStepTime}, truth));
  }
  const Stack fitted = calibrate(cases).stacks[0];
  EXPECT_TRUE(is_fitted(fitted, kExpertLaunch));
  EXPECT_NEAR(fitted.constants.expert_launch.us(), 100, 15);
}

// Rows are to first order at the last linearisation, where nothing moved any more.
TEST(Calibrate, rows_tell_what_the_constants_before_and_after_predict) {
  StackConstants truth = prior_constants();
  truth.gemm = 0.75;
  truth.memory_slack = 0.1;
  const std::vector<SourcedCase> cases = four_cases("one", truth);
  const Calibration result = calibrate(cases);
  ASSERT_EQ(result.rows.size(), 8u);
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const CalibrationRow& row = result.rows[i];
    const CaseSetup& setup = cases[i / 2].setup;
    const CasePrediction fitted = predict_case(setup, result.stacks[0].constants);
    const double predicted = *fitted.metrics[i % 2].predicted;
    EXPECT_NEAR(row.fit, predicted, 0.01 * predicted) << row.id << metric_name(row.metric);
    EXPECT_LT(std::abs(row.error_percent(row.fit)), std::abs(row.error_percent(row.before)));
    EXPECT_LT(std::abs(row.error_percent(row.fit)), 4) << row.id << metric_name(row.metric);
  }
}

// One device sends nothing, and a time says nothing about memory.
TEST(Calibrate, constant_that_no_case_sees_keeps_its_prior_and_is_not_listed) {
  StackConstants truth = prior_constants();
  truth.gemm = 0.7;
  std::vector<SourcedCase> cases;
  for (int i = 0; i < 8; ++i) {
    CaseSetup setup = large_setup("case-" + std::to_string(i), "one");
    setup.published.plan.global_batch = 16 * (i + 1);
    cases.push_back(publish(std::move(setup), {Metric::kStepTime}, truth));
  }
  const Calibration result = calibrate(cases);
  const Stack& stack = result.stacks[0];
  EXPECT_TRUE(is_fitted(stack, kGemm));
  EXPECT_FALSE(is_fitted(stack, kNode));
  EXPECT_FALSE(is_fitted(stack, kNetwork));
  EXPECT_FALSE(is_fitted(stack, kExpertLaunch));
  EXPECT_FALSE(is_fitted(stack, kSlack));
  EXPECT_NEAR(stack.constants.node_collective, prior_of(kNode).value, 1e-9);
  EXPECT_NEAR(stack.constants.network_collective, prior_of(kNetwork).value, 1e-9);
  EXPECT_NEAR(stack.constants.expert_launch.us(), prior_of(kExpertLaunch).value, 1e-6);
  EXPECT_NEAR(stack.constants.memory_slack, prior_of(kSlack).value, 1e-9);
  EXPECT_LT(stack.constants.gemm, prior_of(kGemm).value);
  ASSERT_TRUE(stack.uncertainty.has_value());
  const std::vector<double>& covariance = stack.uncertainty->covariance;
  ASSERT_EQ(covariance.size(), static_cast<size_t>(kStackConstants * kStackConstants));
  EXPECT_LT(covariance[0], result.typical.uncertainty->covariance[0]);
}

// Eight ranks of one node tell how its wires are used and nothing of those between nodes; sixteen
// of two nodes, whose ring is as slow as a network of 5 GB/s a card, the other way round.
TEST(Calibrate, shares_of_wires_are_told_by_what_crosses_them) {
  const auto calibrated_on = [](int64_t ranks, const StackConstants& truth) {
    std::vector<SourcedCase> cases;
    for (int i = 0; i < 4; ++i) {
      CaseSetup setup = large_setup("case-" + std::to_string(i), "one");
      setup.published.plan.devices = setup.published.plan.tensor = ranks;
      setup.published.plan.global_batch = 16 * (i + 1);
      setup.machine.network->bandwidth.value = Bandwidth{5e9};
      setup.published.model.heads = setup.published.model.kv_heads = 16;
      setup.published.model.head_size = 64;
      cases.push_back(publish(std::move(setup), {Metric::kStepTime}, truth));
    }
    return calibrate(cases).stacks[0];
  };
  StackConstants truth = prior_constants();
  truth.node_collective = 0.6;
  const Stack inside = calibrated_on(8, truth);
  EXPECT_TRUE(is_fitted(inside, kNode));
  EXPECT_FALSE(is_fitted(inside, kNetwork));
  EXPECT_LT(inside.constants.node_collective, 0.75);
  EXPECT_NEAR(inside.constants.network_collective, prior_of(kNetwork).value, 1e-9);
  truth = prior_constants();
  truth.network_collective = 0.5;
  const Stack across = calibrated_on(16, truth);
  EXPECT_TRUE(is_fitted(across, kNetwork));
  EXPECT_FALSE(is_fitted(across, kNode));
  EXPECT_LT(across.constants.network_collective, 0.65);
  EXPECT_NEAR(across.constants.node_collective, prior_of(kNode).value, 1e-9);
}

// Those of the typical framework too where it has the facts of these runs; with others it would be
// as much slower or faster as those make it (unseen_test.cpp).
TEST(Calibrate, numbers_of_the_priors_leave_the_priors) {
  const std::vector<SourcedCase> cases = four_cases("one", prior_constants());
  Stack typical = load_stack(std::string(kTypicalStack));
  typical.facts = cases.front().setup.stack.facts;
  const Calibration result = ballast::calibrate(cases, typical, calibrated::ignore);
  for (int i = 0; i < kStackConstants; ++i) {
    const double prior = prior_of(i).value;
    EXPECT_NEAR(constant(result.stacks[0].constants, i), prior, 2e-3 * prior) << constant_name(i);
    EXPECT_NEAR(constant(result.typical.constants, i), prior, 2e-3 * prior) << constant_name(i);
  }
}

// The same numbers from one source and from four: fewer witnesses leave more open.
TEST(Calibrate, cases_of_one_source_say_less_than_those_of_many) {
  std::vector<SourcedCase> cases = four_cases("one", prior_constants());
  const Calibration of_many = calibrate(cases);
  for (SourcedCase& one : cases) one.source = "the same";
  const Calibration of_one = calibrate(cases);
  for (const int constant : {kGemm, kSlack}) {
    const auto at = static_cast<size_t>(constant * (kStackConstants + 1));
    EXPECT_GT(of_one.stacks[0].uncertainty->covariance[at],
              1.05 * of_many.stacks[0].uncertainty->covariance[at])
        << constant_name(constant);
  }
}

// What one run did otherwise (a loss that was not compiled yet, gradients of another type) is used
// to predict that run, and is not written down as a fact of its framework.
TEST(Calibrate, facts_of_a_run_do_not_become_those_of_its_framework) {
  PublishedCase published = load_published("torchtitan-h100").entries.front().published.value();
  ASSERT_EQ(published.facts.loss, LossPrecision::kTorchF32);
  const Stack profile = load_stack(published.stack);
  ASSERT_EQ(profile.facts.loss, LossPrecision::kCompiled);
  const CaseSetup setup = set_up(published);
  EXPECT_EQ(setup.stack.facts.loss, LossPrecision::kTorchF32);
  const Calibration result = calibrate({{setup, "torchtitan", "torchtitan-h100"}});
  EXPECT_EQ(result.stacks.front().facts, profile.facts);
  EXPECT_EQ(set_up(published, profile).stack.facts, setup.stack.facts);
}

TEST(Calibrate, cases_without_numbers_are_refused) {
  SourcedCase verdict{large_setup("verdict", "one"), "s", "f"};
  verdict.setup.published.measured = {{Metric::kFits, 1}};
  EXPECT_THROW(calibrate({verdict}), Error);
}

TEST(Calibrate, case_that_cannot_be_predicted_is_named_and_the_others_are_used) {
  std::vector<SourcedCase> cases = four_cases("one", prior_constants());
  SourcedCase broken = cases[0];
  broken.setup.published.id = "broken";
  broken.setup.machine.gpu.matmul.clear();
  cases.push_back(broken);
  const Calibration result = calibrate(cases);
  ASSERT_EQ(result.refused.size(), 1u);
  EXPECT_EQ(result.refused[0].id, "broken");
  EXPECT_FALSE(result.refused[0].why.empty());
  EXPECT_EQ(result.stacks[0].fitted_on.size(), 4u);
}

// Of a rate a larger prediction is a shorter time.
TEST(Figures, rates_are_told_as_times) {
  EXPECT_NEAR(log_error_of(Metric::kStepTime, 2, 1), std::log(2), 1e-12);
  EXPECT_NEAR(log_error_of(Metric::kPeakMemory, 2, 1), std::log(2), 1e-12);
  EXPECT_NEAR(log_error_of(Metric::kTokensPerS, 2, 1), -std::log(2), 1e-12);
  EXPECT_NEAR(log_error_of(Metric::kMfu, 2, 1), -std::log(2), 1e-12);
}

TEST(SourceKey, is_the_publication_without_what_says_where_in_it) {
  const std::pair<const char*, const char*> texts[] = {
      {"arXiv 2509.21271 Table 2", "arXiv 2509.21271"},
      {"arXiv 2509.21271 Fig. 13", "arXiv 2509.21271"},
      {"arXiv 2205.05198, by way of calculon's validation set", "arXiv 2205.05198"},
      {"owner/some-repo@744d01e1 insights/README.md and benchmark.py", "owner/some-repo"},
      {"owner/some-repo scripts/train/README.md", "owner/some-repo"},
      {"owner/some-repo pull requests 10, 29", "owner/some-repo"},
      {"owner/repo logs @0202e41", "owner/repo"},
      {"A Company's report; its appendix", "A Company's report"},
      {"Some tests (of 2024)", "Some tests"},
      {"", ""}};
  for (const auto& [text, key] : texts) EXPECT_EQ(source_key(text), key) << text;
}

TEST(Priors, lie_within_their_bounds) {
  for (int i = 0; i < kStackConstants; ++i) {
    const Prior prior = prior_of(i);
    EXPECT_LE(prior.least, prior.value) << constant_name(i);
    EXPECT_GE(prior.most, prior.value);
    EXPECT_GT(prior.width, 0);
    EXPECT_GT(prior.between, 0);
  }
  const StackConstants constants = prior_constants();
  const StackConstants back = constants_of(free_of(constants));
  for (int i = 0; i < kStackConstants; ++i) {
    EXPECT_NEAR(constant(back, i), constant(constants, i), 1e-5) << constant_name(i);
  }
}

TEST(Priors, coordinates_beyond_the_bounds_are_brought_within) {
  const Eigen::VectorXd far = Eigen::VectorXd::Constant(kStackConstants, 50);
  for (int i = 0; i < kStackConstants; ++i) {
    EXPECT_NEAR(constant(constants_of(far), i), prior_of(i).most, 1e-9) << constant_name(i);
    EXPECT_NEAR(constant(constants_of(-far), i), prior_of(i).least, 1e-6) << constant_name(i);
  }
}

}  // namespace
}  // namespace ballast
