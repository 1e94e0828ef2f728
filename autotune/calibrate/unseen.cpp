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

Stack with_spread_of_facts(Stack typical, const Figures& figures, std::optional<size_t> without) {
  StackUncertainty& uncertainty = typical.uncertainty.value();
  const Eigen::VectorXd at = free_of(typical.constants);
  const Eigen::VectorXd effects = effects_of(typical.constants, figures.generations());
  std::array<std::vector<Miss>, kFigureKinds> misses;
  for (const Figure& figure : figures.all()) {
    const LinearFigure& linear = figure.linear;
    if (linear.framework == without) continue;
    const auto length = static_cast<size_t>(linear.slope.size());
    misses.at(static_cast<size_t>(linear.kind))
        .push_back({linear.framework, linear.log_error(at, effects),
                    explained_variance({linear.slope.data(), length}, uncertainty)});
  }
  for (size_t kind = 0; kind < misses.size(); ++kind) {
    double& spread = uncertainty.*rest_of(static_cast<FigureKind>(kind));
    spread = std::max(spread, covering_spread(misses[kind]));
  }
  // Few frameworks ran networks with experts; none makes those better known than others.
  uncertainty.expert_time = std::max(uncertainty.expert_time, uncertainty.time);
  return typical;
}

}  // namespace ballast
