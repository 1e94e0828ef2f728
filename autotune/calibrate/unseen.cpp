#include "autotune/calibrate/unseen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "autotune/calibrate/priors.h"
#include "sim/engine/interval.h"

namespace ballast {
namespace {

constexpr double kInside = 0.8;  // of what an interval promises

// Of the unexplained rest alone, so that `miss` lies just inside.
double spread_needed(const Miss& miss) {
  const double whole = miss.log_error / kIntervalWidth;
  return std::sqrt(std::max(0.0, whole * whole - miss.explained));
}

}  // namespace

std::vector<SourcedCase> run_as_typical(const std::vector<SourcedCase>& cases,
                                        const Stack& typical) {
  std::vector<SourcedCase> same;
  for (const SourcedCase& one : cases) {
    Stack stack = typical;
    stack.name = one.setup.stack.name;
    same.push_back({as_run_by(one.setup, std::move(stack)), one.source, one.file});
  }
  return same;
}

double covering_spread(const std::vector<Miss>& misses) {
  std::map<size_t, double> count;
  for (const Miss& miss : misses) count[miss.framework] += 1;
  if (count.empty()) return 0;
  std::vector<std::pair<double, double>> needed;  // spread, and the weight of who needs it
  for (const Miss& miss : misses) {
    needed.emplace_back(spread_needed(miss), 1 / count.at(miss.framework));
  }
  std::sort(needed.begin(), needed.end());
  const auto frameworks = static_cast<double>(count.size());
  double weight = 0;
  for (const auto& [spread, share] : needed) {
    weight += share;
    if (weight >= kInside * frameworks - 1e-9) return spread;
  }
  return needed.back().first;
}

namespace {

// Figures of frameworks other than `without`, by their kind, as these constants miss them.
class Misses {
 public:
  Misses(const Stack& typical, const Figures& figures, std::optional<size_t> without) {
    const Eigen::VectorXd at = free_of(typical.constants);
    const Eigen::VectorXd effects = effects_of(typical.constants, figures.generations());
    for (const Figure& figure : figures.all()) {
      const LinearFigure& linear = figure.linear;
      if (linear.framework == without) continue;
      const auto length = static_cast<size_t>(linear.slope.size());
      of_kind_.at(static_cast<size_t>(linear.kind))
          .push_back({linear.framework, linear.log_error(at, effects),
                      explained_variance({linear.slope.data(), length}, *typical.uncertainty)});
    }
  }

  const std::vector<Miss>& of(FigureKind kind) const {
    return of_kind_.at(static_cast<size_t>(kind));
  }

 private:
  std::array<std::vector<Miss>, kFigureKinds> of_kind_;
};

// All that takes time takes exp(`by`) times as long.
StackConstants slowed(StackConstants constants, double by) {
  for (int i = 0; i < kStackConstants; ++i) {
    const ConstantKind kind = constant_kind(i);
    if (kind == ConstantKind::kSlack || constant(constants, i) <= 0) continue;
    const double sign = kind == ConstantKind::kShare ? -1 : 1;
    const double moved = coordinate(constants, i) + sign * by;
    set_coordinate(constants, i, std::min(moved, std::log(most_of_constant(i))));
  }
  return constants;
}

}  // namespace

double mean_miss(const std::vector<Miss>& misses) {
  std::map<size_t, std::pair<double, double>> by_framework;  // sum and count
  for (const Miss& miss : misses) {
    by_framework[miss.framework].first += miss.log_error;
    by_framework[miss.framework].second += 1;
  }
  double sum = 0;
  for (const auto& [framework, of_it] : by_framework) sum += of_it.first / of_it.second;
  return by_framework.empty() ? 0 : sum / static_cast<double>(by_framework.size());
}

Stack with_misses_of_facts(Stack typical, const Figures& figures, std::optional<size_t> without) {
  const Misses before(typical, figures, without);
  std::vector<Miss> times = before.of(FigureKind::kTime);
  const std::vector<Miss>& of_experts = before.of(FigureKind::kExpertTime);
  times.insert(times.end(), of_experts.begin(), of_experts.end());
  typical.constants = slowed(typical.constants, -mean_miss(times));
  const Misses misses(typical, figures, without);
  StackUncertainty& uncertainty = typical.uncertainty.value();
  for (int i = 0; i < kFigureKinds; ++i) {
    const auto kind = static_cast<FigureKind>(i);
    double& spread = uncertainty.*rest_of(kind);
    spread = std::max(spread, covering_spread(misses.of(kind)));
  }
  // Few frameworks ran networks with experts; none makes those better known than others.
  uncertainty.expert_time = std::max(uncertainty.expert_time, uncertainty.time);
  return typical;
}

}  // namespace ballast
