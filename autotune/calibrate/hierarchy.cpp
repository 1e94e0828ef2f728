#include "autotune/calibrate/hierarchy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "sim/base/error.h"

namespace ballast {
namespace {

using Index = Eigen::Index;
using Vector = Eigen::VectorXd;
using Matrix = Eigen::MatrixXd;

constexpr int kMostSpreadRounds = 500;
constexpr double kFreedom = 4;  // degrees, of Student's t
// Frameworks that are known whole, which it takes to have a median.
constexpr double kLeastVotes = 1;
constexpr double kSpreadsConverged = 1e-6;  // relative change of every spread in one round

// Where the unknowns stand in one vector: mu, then each framework's distance from it, then the
// effects of sources, kind by kind, then those of generations.
struct Places {
  Index constants = 0, frameworks = 0, sources = 0, generations = 0;

  Index of_framework(size_t framework) const {
    return constants * (1 + static_cast<Index>(framework));
  }
  Index of_source(size_t source, FigureKind kind) const {
    return constants * (1 + frameworks) + static_cast<Index>(kind) * sources +
           static_cast<Index>(source);
  }
  Index of_generation(size_t generation) const {
    return constants * (1 + frameworks) + kFigureKinds * sources + static_cast<Index>(generation);
  }
  Index size() const { return of_generation(static_cast<size_t>(generations)); }
};

struct Moments {
  Vector mean;
  Matrix covariance;
};

class Estimator {
 public:
  Estimator(const std::vector<LinearFigure>& figures, const Places& places,
            const HierarchyPrior& prior)
      : figures_(figures), places_(places), prior_(prior) {
    fit_.between = prior.between;
    fit_.source = prior.source;
    fit_.within = prior.within;
    figure_trust_.assign(figures.size(), 1);
    source_trust_.assign(static_cast<size_t>(kFigureKinds * places.sources), 1);
  }

  HierarchyFit run() {
    Moments moments = solve();
    for (int round = 0; round < kMostSpreadRounds && !update_spreads(moments); ++round) {
      moments = solve();
    }
    return finish(solve());
  }

 private:
  Vector row_of(const LinearFigure& figure) const {
    CHECK(figure.slope.size() == places_.constants && figure.weight > 0);
    Vector row = Vector::Zero(places_.size());
    row.head(places_.constants) = figure.slope;
    row.segment(places_.of_framework(figure.framework), places_.constants) = figure.slope;
    row[places_.of_source(figure.source, figure.kind)] = 1;
    if (figure.generation_slope != 0) {
      CHECK(static_cast<Index>(figure.generation) < places_.generations);
      row[places_.of_generation(figure.generation)] = figure.generation_slope;
    }
    return row;
  }

  double precision_of(size_t index) const {
    const LinearFigure& figure = figures_[index];
    const double within = fit_.within[static_cast<size_t>(figure.kind)];
    return figure_trust_[index] * figure.weight / (within * within);
  }

  double& trust_of(size_t source, FigureKind kind) {
    return source_trust_[static_cast<size_t>(kind) * static_cast<size_t>(places_.sources) + source];
  }
  double trust_of(size_t source, FigureKind kind) const {
    return source_trust_[static_cast<size_t>(kind) * static_cast<size_t>(places_.sources) + source];
  }

  // Expected precision of a normal in the mixture, of a number whose square is expected to be
  // `squares` times the spread's.
  static double trust(double squares) { return (kFreedom + 1) / (kFreedom + squares); }

  // The posterior of all unknowns for the spreads as they are.
  Moments solve() const {
    Matrix normal = Matrix::Zero(places_.size(), places_.size());
    Vector right = Vector::Zero(places_.size());
    for (Index i = 0; i < places_.constants; ++i) {
      normal(i, i) = 1 / (prior_.width[i] * prior_.width[i]);
      right[i] = prior_.center[i] * normal(i, i);
      for (Index f = 0; f < places_.frameworks; ++f) {
        const Index at = places_.of_framework(static_cast<size_t>(f)) + i;
        normal(at, at) = 1 / (fit_.between[i] * fit_.between[i]);
      }
    }
    for (int kind = 0; kind < kFigureKinds; ++kind) {
      const double spread = fit_.source[static_cast<size_t>(kind)];
      for (Index s = 0; s < places_.sources; ++s) {
        const Index at = places_.of_source(static_cast<size_t>(s), static_cast<FigureKind>(kind));
        normal(at, at) =
            trust_of(static_cast<size_t>(s), static_cast<FigureKind>(kind)) / (spread * spread);
      }
    }
    for (Index g = 0; g < places_.generations; ++g) {
      const Index at = places_.of_generation(static_cast<size_t>(g));
      normal(at, at) = 1 / (prior_.generation * prior_.generation);
      right[at] = prior_.generation_center[g] * normal(at, at);
    }
    for (size_t i = 0; i < figures_.size(); ++i) {
      const Vector row = row_of(figures_[i]);
      normal.selfadjointView<Eigen::Lower>().rankUpdate(row, precision_of(i));
      right += row * (precision_of(i) * figures_[i].value);
    }
    const Matrix full = normal.selfadjointView<Eigen::Lower>();
    const Eigen::LLT<Matrix> factor(full);
    return {factor.solve(right), factor.solve(Matrix::Identity(places_.size(), places_.size()))};
  }

  // The most likely spread of `count` numbers whose squares are expected to sum to `squares`.
  double spread_of(double believed, double squares, double count) const {
    return std::sqrt((prior_.figures * believed * believed + squares) / (prior_.figures + count));
  }

  // One round of expectation maximisation; true if nothing moved any more.
  bool update_spreads(const Moments& moments) {
    const auto square = [&](Index at) {
      return moments.mean[at] * moments.mean[at] + moments.covariance(at, at);
    };
    bool settled = true;
    const auto set = [&](double& spread, double value) {
      settled = settled && std::abs(value - spread) <= kSpreadsConverged * spread;
      spread = value;
    };
    for (Index i = 0; i < places_.constants; ++i) {
      double squares = 0;
      for (Index f = 0; f < places_.frameworks; ++f) {
        squares += square(places_.of_framework(static_cast<size_t>(f)) + i);
      }
      set(fit_.between[i],
          spread_of(prior_.between[i], squares, static_cast<double>(places_.frameworks)));
    }
    for (int k = 0; k < kFigureKinds; ++k) {
      const auto kind = static_cast<FigureKind>(k);
      const auto slot = static_cast<size_t>(k);
      double of_sources = 0;
      double sources = 0;
      for (const size_t source : sources_with(kind)) {
        const double squares = square(places_.of_source(source, kind));
        const double trusted = trust(squares / (fit_.source[slot] * fit_.source[slot]));
        trust_of(source, kind) = trusted;
        of_sources += trusted * squares;
        sources += 1;
      }
      set(fit_.source[slot], spread_of(prior_.source[slot], of_sources, sources));
      double of_figures = 0;
      double count = 0;
      for (size_t i = 0; i < figures_.size(); ++i) {
        const LinearFigure& figure = figures_[i];
        if (figure.kind != kind) continue;
        const Vector row = row_of(figure);
        const double rest = figure.value - row.dot(moments.mean);
        const double squares = figure.weight * (rest * rest + row.dot(moments.covariance * row));
        figure_trust_[i] = trust(squares / (fit_.within[slot] * fit_.within[slot]));
        of_figures += figure_trust_[i] * squares;
        count += figure.weight;
      }
      set(fit_.within[slot], spread_of(prior_.within[slot], of_figures, count));
    }
    return settled;
  }

  std::vector<size_t> sources_with(FigureKind kind) const {
    std::vector<bool> seen(static_cast<size_t>(places_.sources), false);
    for (const LinearFigure& figure : figures_) {
      if (figure.kind == kind) seen[figure.source] = true;
    }
    std::vector<size_t> list;
    for (size_t s = 0; s < seen.size(); ++s) {
      if (seen[s]) list.push_back(s);
    }
    return list;
  }

  HierarchyFit finish(const Moments& moments) {
    const Index n = places_.constants;
    fit_.center = moments.mean.head(n);
    fit_.center_covariance = moved_covariance(moments, std::nullopt);
    fit_.generations = moments.mean.segment(places_.of_generation(0), places_.generations);
    for (size_t f = 0; f < static_cast<size_t>(places_.frameworks); ++f) {
      fit_.constants.emplace_back(fit_.center + moments.mean.segment(places_.of_framework(f), n));
      fit_.covariances.emplace_back(moved_covariance(moments, f));
    }
    return std::move(fit_);
  }

  // Of the constants of a framework (nullopt: of the center) on its own generation.
  Matrix moved_covariance(const Moments& moments, std::optional<size_t> framework) const {
    Matrix sum = Matrix::Zero(places_.constants, places_.size());
    sum.leftCols(places_.constants).setIdentity();
    if (framework) {
      sum.middleCols(places_.of_framework(*framework), places_.constants).setIdentity();
    }
    if (const auto generation = generation_of(framework)) {
      sum(prior_.moved_by_generation, places_.of_generation(*generation)) = 1;
    }
    return sum * moments.covariance * sum.transpose();
  }

  // That most figures of a framework, or of all, are of.
  std::optional<size_t> generation_of(std::optional<size_t> framework) const {
    std::vector<double> weights(static_cast<size_t>(places_.generations), 0);
    for (const LinearFigure& figure : figures_) {
      const bool counts = !framework || figure.framework == *framework;
      if (counts && figure.generation_slope != 0) weights[figure.generation] += figure.weight;
    }
    const auto most = std::max_element(weights.begin(), weights.end());
    if (most == weights.end() || *most == 0) return std::nullopt;
    return static_cast<size_t>(most - weights.begin());
  }

  const std::vector<LinearFigure>& figures_;
  const Places places_;
  const HierarchyPrior& prior_;
  HierarchyFit fit_;
  std::vector<double> figure_trust_;  // by figure: precision of its normal in the mixture
  std::vector<double> source_trust_;  // by kind, then source
};

}  // namespace

Eigen::MatrixXd HierarchyFit::unseen_covariance() const {
  Eigen::MatrixXd covariance = center_covariance;
  covariance.diagonal() += between.cwiseAbs2();
  return covariance;
}

namespace {

// Between the two votes whose middles lie around half of all, in proportion, so that it moves as
// votes do and lies in the middle of two equal ones. `votes`: values in order, and their weights.
double weighted_median(const std::vector<std::pair<double, double>>& votes, double all) {
  double before = 0, middle_before = 0, value_before = votes.front().first;
  for (const auto& [value, weight] : votes) {
    const double middle = before + weight / 2;
    if (middle >= all / 2) {
      const double span = middle - middle_before;
      const double part = span > 0 ? (all / 2 - middle_before) / span : 1;
      return value_before + part * (value - value_before);
    }
    before += weight;
    middle_before = middle;
    value_before = value;
  }
  return votes.back().first;
}

}  // namespace

Eigen::VectorXd HierarchyFit::typical() const {
  const Eigen::MatrixXd unseen = unseen_covariance();
  Vector typical = center;
  for (Index i = 0; i < typical.size(); ++i) {
    std::vector<std::pair<double, double>> votes;  // constant, and how much is known of it
    double all = 0;
    for (size_t f = 0; f < constants.size(); ++f) {
      const double known = 1 - covariances[f](i, i) / unseen(i, i);
      if (known <= 0) continue;
      votes.emplace_back(constants[f][i], known);
      all += known;
    }
    if (all < kLeastVotes) continue;
    std::sort(votes.begin(), votes.end());
    typical[i] = weighted_median(votes, all);
  }
  return typical;
}

double HierarchyFit::unexplained(FigureKind kind) const {
  const double scale =
      std::hypot(source[static_cast<size_t>(kind)], within[static_cast<size_t>(kind)]);
  // Eight tenths of Student's t with 4 degrees of freedom lie within 1.533 of its scale.
  return scale * 1.533 / 1.2816;
}

HierarchyFit fit_hierarchy(const std::vector<LinearFigure>& figures, const HierarchySize& size,
                           const HierarchyPrior& prior) {
  CHECK(prior.center.size() == prior.width.size() && prior.center.size() == prior.between.size());
  CHECK(static_cast<size_t>(prior.generation_center.size()) == size.generations);
  const Places places{prior.center.size(), static_cast<Index>(size.frameworks),
                      static_cast<Index>(size.sources), static_cast<Index>(size.generations)};
  return Estimator(figures, places, prior).run();
}

}  // namespace ballast
