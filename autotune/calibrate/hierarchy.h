// Hierarchy: constants of many frameworks estimated together, as a linear Gaussian model with
// random effects (Lindley and Smith, 1972; Gelman et al., "Bayesian Data Analysis", 3rd edition,
// chapters 5 and 15).
//
//   value_i = slope_i . theta_f(i) + step_i g_h(i) + u_s(i) + e_i
//   theta_f ~ N(mu, diag(between^2))                   frameworks are relatives
//   mu      ~ N(center, diag(width^2))                 the prior
//   g_h     ~ N(center_h, generation^2)                how far a generation's tables are off
//   u_s     ~ t(0, source^2)   e_i ~ t(0, within^2 / weight_i)
//
// g_h is what all frameworks have in common on a generation of GPUs: what its tables hold was
// measured under another load than another one's. It moves one of the constants there.
// u_s is what all figures of one source have in common and no constant explains (its clocks, its
// way of counting), for each kind of figures apart. So a framework with one case moves a little
// from its relatives and one with twenty from many sources a lot, and twenty rows of one source
// are no twenty witnesses. Both have heavy tails (Student's t with 4 degrees of freedom, as scale
// mixtures of normals: Lange, Little and Taylor, 1989), so that a run that went wrong, or whose
// source leaves out what slowed it, does not drag the constants of the others. The spreads are
// found by expectation maximisation with a prior that keeps them from zero (scaled inverse
// chi-squared).
// Will not do: know what a constant means, predict a case, or linearise one (calibrate).
#pragma once

#include <Eigen/Dense>
#include <array>
#include <cstddef>
#include <vector>

namespace ballast {

// Kinds of figures; each has spreads of its own. Steps of networks with experts are predicted less
// well than others, and are that much poorer witnesses of what a framework's constants are.
enum class FigureKind : unsigned char { kTime, kMemory, kExpertTime };
inline constexpr int kFigureKinds = 3;

struct LinearFigure {
  size_t framework = 0;
  size_t source = 0;
  FigureKind kind{};
  Eigen::VectorXd slope;  // as many as there are constants
  double value = 0;
  double weight = 1;  // above zero: a share, where several figures are one observation
  // Of the generation of GPUs that it was measured on; a slope of zero: of none.
  size_t generation = 0;
  double generation_slope = 0;

  // By how much these constants and effects of generations miss it.
  double log_error(const Eigen::VectorXd& constants, const Eigen::VectorXd& generations) const {
    const double moved =
        generation_slope == 0
            ? 0
            : generation_slope * generations[static_cast<Eigen::Index>(generation)];
    return slope.dot(constants) + moved - value;
  }
};

// What is believed before any figure is seen.
struct HierarchyPrior {
  Eigen::VectorXd center;
  Eigen::VectorXd width;    // of the center
  Eigen::VectorXd between;  // typical distance of a framework from the center
  std::array<double, kFigureKinds> source = {};
  std::array<double, kFigureKinds> within = {};
  double figures = 4;                  // as how many observations each believed spread counts
  Eigen::VectorXd generation_center;   // of the effects of generations
  double generation = 0.05;            // their width; stays, since there are few
  Eigen::Index moved_by_generation{};  // the constant that effects of generations move
};

// How many of each there are; all are counted from zero.
struct HierarchySize {
  size_t frameworks = 0;
  size_t sources = 0;
  size_t generations = 0;
};

struct HierarchyFit {
  Eigen::VectorXd center;             // mean of mu
  Eigen::MatrixXd center_covariance;  // of mu
  Eigen::VectorXd between;
  std::array<double, kFigureKinds> source = {};
  std::array<double, kFigureKinds> within = {};
  Eigen::VectorXd generations;               // means of their effects
  std::vector<Eigen::VectorXd> constants;    // by framework: mean of theta
  std::vector<Eigen::MatrixXd> covariances;  // of theta, moved as on the framework's generation

  // Of a framework that nobody has measured.
  Eigen::MatrixXd unseen_covariance() const;
  // Constants of the typical framework: of each the median of the frameworks', a framework as heavy
  // as the part of the variance of an unseen one that figures took off its own. The center, being a
  // mean of normals, goes after the one framework that lies far from all others. Where figures say
  // less than would make one framework known, it is the center.
  Eigen::VectorXd typical() const;
  // Spread of what no constant explains in one figure of a source that is new: of the normal that
  // has eight tenths of it within the same width.
  double unexplained(FigureKind kind) const;
};

// A framework without figures lies at the center, as far from it as frameworks do. What is left
// open of a framework's constants is told of them as the generation moves them that most of its
// figures are of (of the center: that most of all are of). Requires every slope as long as the
// prior's center.
HierarchyFit fit_hierarchy(const std::vector<LinearFigure>& figures, const HierarchySize& size,
                           const HierarchyPrior& prior);

}  // namespace ballast
