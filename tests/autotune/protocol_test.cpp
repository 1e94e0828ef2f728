// The protocol: what is left out has no say in its own prediction, and errors are told in one way.
#include "autotune/calibrate/protocol.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "autotune/calibrate/priors.h"
#include "tests/autotune/calibrated.h"

namespace ballast {
namespace {

std::vector<JudgedFigure> judge(const std::vector<SourcedCase>& cases) {
  return ballast::judge(cases, load_stack(std::string(kTypicalStack)), calibrated::ignore);
}

const JudgedPrediction& of(const JudgedFigure& figure, LeftOut left_out) {
  return figure.predicted[static_cast<size_t>(left_out)];
}

// Two frameworks, eight sources, sixteen figures: a time and a memory peak of each case.
std::vector<SourcedCase> two_frameworks() {
  StackConstants truth = prior_constants();
  truth.gemm = 0.7;
  truth.memory_slack = 0.1;
  std::vector<SourcedCase> cases = calibrated::four_cases("slow", truth);
  for (SourcedCase& one : calibrated::four_cases("plain", prior_constants())) {
    cases.push_back(std::move(one));
  }
  for (SourcedCase& one : cases) one.setup.stack.constants = prior_constants();
  return cases;
}

void measure_twice_as_much(SourcedCase& one) {
  for (Measured& measured : one.setup.published.measured) measured.value *= 2;
}

TEST(Judge, source_that_is_left_out_has_no_say_in_its_prediction) {
  std::vector<SourcedCase> cases = two_frameworks();
  const std::vector<JudgedFigure> before = judge(cases);
  measure_twice_as_much(cases[1]);
  const std::vector<JudgedFigure> after = judge(cases);
  ASSERT_EQ(before.size(), 16u);
  ASSERT_EQ(after.size(), 16u);
  for (size_t i = 0; i < after.size(); ++i) {
    const JudgedPrediction& was = of(before[i], LeftOut::kSource);
    const JudgedPrediction& is = of(after[i], LeftOut::kSource);
    ASSERT_TRUE(was.value && is.value) << before[i].error << after[i].error;
    if (after[i].case_index == 1) {
      EXPECT_EQ(*was.value, *is.value);
      // The width of an interval is made of slopes, whose difference of logarithms rounds.
      EXPECT_NEAR(was.low, is.low, 1e-9 * was.low);
      EXPECT_NEAR(was.high, is.high, 1e-9 * was.high);
    } else if (after[i].case_index < 4) {
      EXPECT_NE(*was.value, *is.value) << "its framework hears of it";
    }
  }
}

TEST(Judge, framework_that_is_left_out_has_no_say_in_its_prediction) {
  std::vector<SourcedCase> cases = two_frameworks();
  const std::vector<JudgedFigure> before = judge(cases);
  for (size_t i = 0; i < 4; ++i) measure_twice_as_much(cases[i]);
  const std::vector<JudgedFigure> after = judge(cases);
  for (size_t i = 0; i < after.size(); ++i) {
    const double was = of(before[i], LeftOut::kFramework).value.value();
    const double is = of(after[i], LeftOut::kFramework).value.value();
    if (after[i].case_index < 4) {
      EXPECT_EQ(was, is);
    } else {
      EXPECT_NE(was, is) << "the other framework is all that it is predicted from";
    }
  }
}

// With nothing left out a case is predicted with the constants that ship, whatever a fit says.
TEST(Judge, nothing_left_out_is_what_ships) {
  const std::vector<SourcedCase> cases = two_frameworks();
  for (const JudgedFigure& figure : judge(cases)) {
    const CaseSetup& setup = cases[figure.case_index].setup;
    const CasePrediction shipped = predict_case(setup, setup.stack.constants);
    const auto found =
        std::find_if(shipped.metrics.begin(), shipped.metrics.end(),
                     [&](const MetricPrediction& one) { return one.metric == figure.metric; });
    EXPECT_EQ(of(figure, LeftOut::kNothing).value, found->predicted);
  }
}

// Eight of ten, where the model of frameworks and sources made the numbers itself.
TEST(Judge, figures_near_the_others_are_inside_their_intervals_and_far_ones_are_not) {
  std::vector<SourcedCase> cases = two_frameworks();
  for (const JudgedFigure& figure : judge(cases)) {
    const JudgedPrediction& judged = of(figure, LeftOut::kSource);
    EXPECT_LT(judged.low, *judged.value);
    EXPECT_GT(judged.high, *judged.value);
  }
  for (Measured& measured : cases[3].setup.published.measured) measured.value *= 5;
  for (const JudgedFigure& figure : judge(cases)) {
    if (figure.case_index == 3) EXPECT_FALSE(figure.covered(LeftOut::kSource));
  }
}

TEST(Judge, case_that_cannot_be_predicted_has_its_rows_with_the_reason) {
  std::vector<SourcedCase> cases = two_frameworks();
  cases[2].setup.machine.gpu.matmul.clear();
  for (const JudgedFigure& figure : judge(cases)) {
    EXPECT_EQ(figure.error.empty(), figure.case_index != 2) << figure.error;
    EXPECT_EQ(of(figure, LeftOut::kSource).value.has_value(), figure.case_index != 2);
  }
}

JudgedFigure judged(size_t index, Metric metric, double published, double predicted) {
  JudgedFigure figure{index, metric, published, {}, {}, 0};
  for (JudgedPrediction& one : figure.predicted)
    one = {predicted, 0.9 * predicted, 1.1 * predicted};
  return figure;
}

TEST(ClassOf, every_metric_is_of_the_kind_that_it_measures) {
  for (int i = 0; i < kMetrics; ++i) {
    const auto metric = static_cast<Metric>(i);
    EXPECT_EQ(class_of(metric) == FigureClass::kSpeed, is_time(metric)) << metric_name(metric);
    EXPECT_EQ(class_of(metric) == FigureClass::kSpeed || class_of(metric) == FigureClass::kMemory,
              is_fitted_to(metric))
        << metric_name(metric);
  }
  EXPECT_EQ(class_of(Metric::kMemoryShare), FigureClass::kMemory);
  EXPECT_EQ(class_of(Metric::kLayerStates), FigureClass::kLayerMemory);
  EXPECT_EQ(class_of(Metric::kFits), FigureClass::kVerdict);
}

// Speeds: +25 % (a time of 8 for 10), -20 % and +5 %; one of them is inside its interval.
TEST(Summarise, errors_are_signed_as_speeds_and_failures_count) {
  std::vector<JudgedFigure> figures = {
      judged(0, Metric::kStepTime, 10, 8), judged(1, Metric::kTokensPerS, 10, 8),
      judged(2, Metric::kMfu, 40, 42),     judged(3, Metric::kPeakMemory, 10, 13),
      judged(4, Metric::kFits, 1, 1),      judged(5, Metric::kFits, 1, 0),
      judged(6, Metric::kStepTime, 1, 1)};
  figures.back().predicted[0].value.reset();
  const ErrorSummary speed = summarise(figures, FigureClass::kSpeed, LeftOut::kSource);
  EXPECT_EQ(speed.figures, 3u);
  EXPECT_EQ(speed.failed, 1u);
  EXPECT_NEAR(speed.mean, (25 + 20 + 5) / 3.0, 1e-9);
  EXPECT_NEAR(speed.bias, (25 - 20 + 5) / 3.0, 1e-9);
  EXPECT_NEAR(speed.median, 20, 1e-9);
  EXPECT_NEAR(speed.worst, 25, 1e-9);
  EXPECT_EQ(speed.worst_of, 0u);
  EXPECT_NEAR(speed.coverage, 1 / 3.0, 1e-9);
  figures[1].source = figures[2].source = 7;
  EXPECT_NEAR(summarise(figures, FigureClass::kSpeed, LeftOut::kSource).coverage_by_source, 0.25,
              1e-9)
      << "none of one source, half of the other";
  EXPECT_EQ(summarise(figures, FigureClass::kSpeed, LeftOut::kNothing).failed, 0u);
  const ErrorSummary memory = summarise(figures, FigureClass::kMemory, LeftOut::kSource);
  EXPECT_NEAR(memory.bias, 30, 1e-9);
  EXPECT_NEAR(summarise(figures, FigureClass::kVerdict, LeftOut::kSource).mean, 50, 1e-9);
  EXPECT_EQ(summarise(figures, FigureClass::kLayerMemory, LeftOut::kSource).figures, 0u);
}

// A run that was published as tokens per second and as MFU was measured once.
TEST(Summarise, figures_of_one_runs_speed_count_as_one) {
  std::vector<JudgedFigure> figures = {
      judged(0, Metric::kTokensPerS, 10, 12), judged(0, Metric::kPeakMemory, 10, 13),
      judged(0, Metric::kMfu, 40, 52), judged(1, Metric::kTokensPerS, 100, 95)};
  const ErrorSummary speed = summarise(figures, FigureClass::kSpeed, LeftOut::kSource);
  EXPECT_EQ(speed.figures, 2u);
  EXPECT_NEAR(speed.mean, (25 + 5) / 2.0, 1e-9) << "20 and 30 % of the first";
  EXPECT_NEAR(speed.bias, (25 - 5) / 2.0, 1e-9);
  EXPECT_NEAR(speed.worst, 25, 1e-9);
  EXPECT_NEAR(speed.coverage, 0.5, 1e-9);
  figures[0].predicted[0].value.reset();
  EXPECT_EQ(summarise(figures, FigureClass::kSpeed, LeftOut::kSource).failed, 1u);
}

}  // namespace
}  // namespace ballast
