// The linear model of frameworks and sources, held against worlds that are drawn from the model
// itself.
#include "autotune/calibrate/hierarchy.h"

#include <cmath>
#include <gtest/gtest.h>
#include <numbers>
#include <random>

namespace ballast {
namespace {

// Random numbers that are the same with every standard library.
class Draws {
 public:
  explicit Draws(uint64_t seed) : bits_(seed) {}
  double operator()(double spread) {
    const double angle = 2 * std::numbers::pi * uniform();
    return spread * std::sqrt(-2 * std::log(1 - uniform())) * std::cos(angle);
  }
  // Student's t with four degrees of freedom.
  double heavy(double spread) {
    const double squares = -2 * std::log((1 - uniform()) * (1 - uniform()));
    return (*this)(spread) / std::sqrt(squares / 4);
  }

 private:
  double uniform() { return std::ldexp(static_cast<double>(bits_() >> 11), -53); }
  std::mt19937_64 bits_;
};

constexpr double kCenter = 0.1, kWidth = 0.4, kBetween = 0.3, kSource = 0.2, kWithin = 0.1;

// `certainty`: as how many observations the spreads count. Where that is large they stay.
HierarchyPrior prior_of_one_constant(double certainty) {
  HierarchyPrior prior;
  prior.center = Eigen::VectorXd::Constant(1, kCenter);
  prior.width = Eigen::VectorXd::Constant(1, kWidth);
  prior.between = Eigen::VectorXd::Constant(1, kBetween);
  prior.source = {kSource, 2 * kSource, 3 * kSource};
  prior.within = {kWithin, 2 * kWithin, 3 * kWithin};
  prior.figures = certainty;
  return prior;
}
constexpr double kCertain = 1e9;

LinearFigure figure(size_t framework, size_t source, double value, double weight = 1) {
  return {framework, source, FigureKind::kTime, Eigen::VectorXd::Ones(1), value, weight};
}

double square(double value) { return value * value; }

TEST(Hierarchy, without_a_figure_everything_is_as_believed) {
  const HierarchyFit fit = fit_hierarchy({}, {2, 1}, prior_of_one_constant(4));
  for (size_t f = 0; f < 2; ++f) {
    EXPECT_NEAR(fit.constants[f][0], kCenter, 1e-12);
    EXPECT_NEAR(fit.covariances[f](0, 0), square(kWidth) + square(kBetween), 1e-12);
  }
  EXPECT_NEAR(fit.center_covariance(0, 0), square(kWidth), 1e-12);
  EXPECT_NEAR(fit.unseen_covariance()(0, 0), square(kWidth) + square(kBetween), 1e-12);
  EXPECT_DOUBLE_EQ(fit.source[0], kSource);
  EXPECT_DOUBLE_EQ(fit.within[1], 2 * kWithin);
  EXPECT_NEAR(fit.unexplained(FigureKind::kMemory), 2 * fit.unexplained(FigureKind::kTime), 1e-9);
}

// Rows share the effect of their source: their mean keeps all of its variance.
TEST(Hierarchy, twenty_rows_of_one_source_are_no_twenty_witnesses) {
  std::vector<LinearFigure> one_row, one_source, many_sources;
  one_row.push_back(figure(0, 0, 0.5));
  for (size_t i = 0; i < 20; ++i) {
    one_source.push_back(figure(0, 0, 0.5));
    many_sources.push_back(figure(0, i, 0.5));
  }
  const HierarchyPrior prior = prior_of_one_constant(kCertain);
  const HierarchyFit row = fit_hierarchy(one_row, {1, 1}, prior);
  const HierarchyFit one = fit_hierarchy(one_source, {1, 1}, prior);
  const HierarchyFit many = fit_hierarchy(many_sources, {1, 20}, prior);
  EXPECT_LT(row.constants[0][0], one.constants[0][0]);
  EXPECT_LT(one.constants[0][0], many.constants[0][0]);
  EXPECT_NEAR(many.constants[0][0], 0.5, 0.01);
  // Their own variance, a fifth of all, is averaged away, and that of the source stays.
  EXPECT_GT(one.covariances[0](0, 0), 0.6 * row.covariances[0](0, 0));
  EXPECT_GT(one.covariances[0](0, 0), 8 * many.covariances[0](0, 0));
}

// A source that is far off is told apart from its framework: farther off it says no more.
TEST(Hierarchy, source_that_went_wrong_does_not_drag_the_others) {
  const auto with_last_at = [](double value) {
    std::vector<LinearFigure> figures;
    for (size_t i = 0; i < 9; ++i) figures.push_back(figure(0, i, 0.5));
    figures.push_back(figure(0, 9, value));
    return fit_hierarchy(figures, {1, 10}, prior_of_one_constant(kCertain)).constants[0][0];
  };
  EXPECT_GT(with_last_at(1), with_last_at(0.5));
  EXPECT_LT(with_last_at(5), 0.5 + 0.3 * kSource);
  EXPECT_LE(with_last_at(50), with_last_at(5));
}

// Several times of one run share its weight: together they say about what one does.
TEST(Hierarchy, figures_of_half_a_weight_count_as_one_where_they_agree) {
  const auto fitted = [](const std::vector<LinearFigure>& of_the_first) {
    std::vector<LinearFigure> figures = of_the_first;
    figures.push_back(figure(1, 1, -0.2));
    return fit_hierarchy(figures, {2, 2}, prior_of_one_constant(kCertain)).constants[0][0];
  };
  const double one = fitted({figure(0, 0, 0.5)});
  const double halves = fitted({figure(0, 0, 0.5, 0.5), figure(0, 0, 0.5, 0.5)});
  const double two = fitted({figure(0, 0, 0.5), figure(0, 0, 0.5)});
  EXPECT_GT(two, one);
  EXPECT_LT(std::abs(halves - one), 0.5 * (two - one));
}

TEST(Hierarchy, one_case_moves_its_framework_less_than_many_do_and_none_leaves_it_at_the_center) {
  std::vector<LinearFigure> figures = {figure(1, 20, 0.6)};
  for (size_t i = 0; i < 20; ++i) figures.push_back(figure(0, i, 0.6));
  const HierarchyFit fit = fit_hierarchy(figures, {3, 21}, prior_of_one_constant(kCertain));
  const double many = fit.constants[0][0], one = fit.constants[1][0], none = fit.constants[2][0];
  EXPECT_LT(none, one - 0.02);
  EXPECT_LT(one, many - 0.02);
  EXPECT_NEAR(many, 0.6, 0.02);
  EXPECT_NEAR(none, fit.center[0], 1e-9);
  EXPECT_GT(none, kCenter) << "relatives pull the center";
  EXPECT_LT(fit.covariances[0](0, 0), 0.5 * fit.covariances[1](0, 0));
  EXPECT_LT(fit.covariances[1](0, 0), fit.covariances[2](0, 0));
  EXPECT_NEAR(fit.covariances[2](0, 0), fit.unseen_covariance()(0, 0), 1e-6);
}

// A constant that no slope touches is what it was believed to be, as surely.
TEST(Hierarchy, constant_that_no_figure_depends_on_keeps_its_prior) {
  HierarchyPrior prior = prior_of_one_constant(kCertain);
  prior.center = Eigen::Vector2d(kCenter, -1);
  prior.width = Eigen::Vector2d(kWidth, 0.7);
  prior.between = Eigen::Vector2d(kBetween, 0.5);
  LinearFigure only = figure(0, 0, 2);
  only.slope = Eigen::Vector2d(1, 0);
  const HierarchyFit fit = fit_hierarchy({only}, {1, 1}, prior);
  EXPECT_NEAR(fit.constants[0][1], -1, 1e-9);
  EXPECT_NEAR(fit.covariances[0](1, 1), square(0.7) + square(0.5), 1e-6);
  EXPECT_GT(fit.constants[0][0], 1);
}

struct World {
  std::vector<LinearFigure> figures;
  std::vector<Eigen::VectorXd> truth;  // by framework
  size_t sources = 0;
};

struct Spreads {
  double between = 0;
  double source = 0;
  double within = 0;
};

// Every framework has sources of its own, every source as many rows, of slopes that differ.
World drawn_world(Draws& draws, Eigen::Index constants, size_t frameworks, size_t sources,
                  size_t rows, const Spreads& spreads) {
  World world;
  for (size_t f = 0; f < frameworks; ++f) {
    Eigen::VectorXd truth(constants);
    for (double& one : truth) one = kCenter + draws(spreads.between);
    for (size_t s = 0; s < sources; ++s) {
      const double effect = draws.heavy(spreads.source);
      for (size_t r = 0; r < rows; ++r) {
        Eigen::VectorXd slope(constants);
        for (double& one : slope) one = 0.5 + draws(0.5);
        const double value = slope.dot(truth) + effect + draws.heavy(spreads.within);
        world.figures.push_back({f, world.sources, FigureKind::kTime, slope, value, 1});
      }
      ++world.sources;
    }
    world.truth.push_back(truth);
  }
  return world;
}

// Two frameworks that ran on two generations of GPUs tell their own constants from what products
// of either generation fall short of, and one that ran on one of them learns it from the others.
TEST(Hierarchy, what_a_generation_takes_from_all_is_told_from_what_a_framework_does) {
  constexpr double kEffects[] = {0.0, -0.25};
  constexpr double kConstants[] = {0.2, -0.1, 0.3};
  const auto of = [&](size_t framework, size_t generation, size_t source) {
    LinearFigure one = figure(framework, source, kConstants[framework] + kEffects[generation]);
    one.generation = generation;
    one.generation_slope = 1;
    return one;
  };
  std::vector<LinearFigure> figures;
  for (size_t i = 0; i < 12; ++i) {
    figures.push_back(of(0, i % 2, i));
    figures.push_back(of(1, i % 2, 12 + i));
    figures.push_back(of(2, 1, 24 + i));
  }
  HierarchyPrior prior = prior_of_one_constant(kCertain);
  prior.source.fill(0.02);
  prior.within.fill(0.02);
  prior.generation = 0.2;
  prior.generation_center = Eigen::Vector2d::Zero();
  const HierarchyFit fit = fit_hierarchy(figures, {3, 36, 2}, prior);
  EXPECT_NEAR(fit.generations[1] - fit.generations[0], kEffects[1] - kEffects[0], 0.02);
  for (size_t f = 0; f < 3; ++f) {
    EXPECT_NEAR(fit.constants[f][0] + fit.generations[1], kConstants[f] + kEffects[1], 0.02) << f;
    // Together they are known well, each of the two not: how far tables are off at all is open.
    EXPECT_LT(fit.covariances[f](0, 0), square(0.02)) << f;
    EXPECT_NEAR(figures[f].log_error(fit.constants[f], fit.generations), 0, 0.02) << f;
  }
}

// Where no figure depends on a generation, it stays what it was believed to be.
TEST(Hierarchy, generation_that_nothing_ran_on_keeps_its_prior) {
  HierarchyPrior prior = prior_of_one_constant(kCertain);
  prior.generation_center = Eigen::VectorXd::Constant(1, -0.1);
  const HierarchyFit fit = fit_hierarchy({figure(0, 0, 0.6)}, {1, 1, 1}, prior);
  const HierarchyFit without =
      fit_hierarchy({figure(0, 0, 0.6)}, {1, 1}, prior_of_one_constant(kCertain));
  EXPECT_NEAR(fit.generations[0], -0.1, 1e-9);
  EXPECT_NEAR(fit.constants[0][0], without.constants[0][0], 1e-9);
}

TEST(Hierarchy, constants_that_made_the_figures_are_found_again) {
  Draws draws(7);
  const World world = drawn_world(draws, 3, 4, 6, 6, {0.3, 0.02, 0.01});
  HierarchyPrior prior;
  prior.center = Eigen::VectorXd::Constant(3, kCenter);
  prior.width = Eigen::VectorXd::Constant(3, kWidth);
  prior.between = Eigen::VectorXd::Constant(3, kBetween);
  prior.source.fill(0.1);
  prior.within.fill(0.1);
  const HierarchyFit fit = fit_hierarchy(world.figures, {4, world.sources}, prior);
  for (size_t f = 0; f < 4; ++f) {
    EXPECT_LT((fit.constants[f] - world.truth[f]).cwiseAbs().maxCoeff(), 0.03) << f;
  }
}

// From beliefs that are wrong by a factor of three and weigh next to nothing, over five worlds.
TEST(Hierarchy, spreads_that_made_the_figures_are_found_again) {
  const Spreads truth = {0.3, 0.1, 0.05};
  Spreads mean;
  constexpr int kWorlds = 5;
  for (int seed = 0; seed < kWorlds; ++seed) {
    Draws draws(static_cast<uint64_t>(seed));
    const World world = drawn_world(draws, 1, 20, 4, 4, truth);
    HierarchyPrior prior = prior_of_one_constant(0.1);
    prior.between[0] = truth.between / 3;
    prior.source = {truth.source * 3, 0.25, 0.25};
    prior.within = {truth.within * 3, 0.25, 0.25};
    const HierarchyFit fit = fit_hierarchy(world.figures, {20, world.sources}, prior);
    mean.between += fit.between[0] / kWorlds;
    mean.source += fit.source[0] / kWorlds;
    mean.within += fit.within[0] / kWorlds;
    EXPECT_DOUBLE_EQ(fit.source[1], 0.25) << "no figure is of memory";
    EXPECT_DOUBLE_EQ(fit.within[1], 0.25);
  }
  // Of 100, 400 and 1600 numbers: two standard deviations of what so many draws show, and for the
  // last as much again, because effects and rests are taken as known apart from each other.
  EXPECT_NEAR(mean.between, truth.between, 0.14 * truth.between);
  EXPECT_NEAR(mean.source, truth.source, 0.1 * truth.source);
  EXPECT_NEAR(mean.within, truth.within, 0.1 * truth.within);
}

TEST(Hierarchy, unexplained_holds_eight_of_ten_figures_of_new_sources) {
  const HierarchyFit fit = fit_hierarchy({}, {1, 1}, prior_of_one_constant(4));
  const double width = 1.2816 * fit.unexplained(FigureKind::kTime);
  Draws draws(17);
  int inside = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    inside += std::abs(draws.heavy(kSource) + draws.heavy(kWithin)) <= width;
  }
  // Three standard deviations of so many draws, and that a sum of two is no longer quite a t.
  EXPECT_NEAR(static_cast<double>(inside) / kDraws, 0.8, 0.03);
}

// Known spreads: eight of ten intervals of eight tenths hold the truth.
TEST(Hierarchy, covariances_say_how_far_the_constants_are_off) {
  const Spreads spreads = {kBetween, kSource, kWithin};
  Draws draws(13);
  int inside = 0, all = 0;
  for (int world_number = 0; world_number < 60; ++world_number) {
    const World world = drawn_world(draws, 1, 5, 2, 2, spreads);
    HierarchyPrior prior = prior_of_one_constant(kCertain);
    prior.width[0] = 1e-3;  // the center is where the draws have it
    const HierarchyFit fit = fit_hierarchy(world.figures, {5, world.sources}, prior);
    for (size_t f = 0; f < 5; ++f) {
      const double off = std::abs(fit.constants[f][0] - world.truth[f][0]);
      inside += off <= 1.2816 * std::sqrt(fit.covariances[f](0, 0));
      ++all;
    }
  }
  // Three standard deviations of 300 draws.
  EXPECT_NEAR(static_cast<double>(inside) / all, 0.8, 0.07);
}

// By hand: unseen frameworks spread by one, so that variances of 0.2, 0.2, 0.2 and 0.6 make votes
// of 0.8, 0.8, 0.8 and 0.4. Half of 2.8 is reached at the second of 1, 2, 3 and 50; the mean is
// at 14.
TEST(Hierarchy, the_typical_framework_is_the_median_of_those_that_are_known) {
  HierarchyFit fit;
  fit.center = Eigen::VectorXd::Constant(1, 14);
  fit.center_covariance = Eigen::MatrixXd::Constant(1, 1, 0.36);
  fit.between = Eigen::VectorXd::Constant(1, 0.8);
  const auto add = [&](double constant, double variance) {
    fit.constants.push_back(Eigen::VectorXd::Constant(1, constant));
    fit.covariances.push_back(Eigen::MatrixXd::Constant(1, 1, variance));
  };
  EXPECT_DOUBLE_EQ(fit.typical()[0], 14) << "nothing is known";
  add(50, 0.2);
  EXPECT_DOUBLE_EQ(fit.typical()[0], 14) << "less than of one framework";
  add(1, 0.2);
  EXPECT_DOUBLE_EQ(fit.typical()[0], 25.5) << "the middle of two";
  add(3, 0.6);
  add(2, 0.2);
  EXPECT_DOUBLE_EQ(fit.typical()[0], 2 + 1.0 / 3);
  // Who is unseen has no vote, wherever the center put it.
  for (int i = 0; i < 9; ++i) add(100, 1);
  EXPECT_DOUBLE_EQ(fit.typical()[0], 2 + 1.0 / 3);
}

}  // namespace
}  // namespace ballast
