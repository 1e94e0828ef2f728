#include "autotune/calibrate/calibrate.h"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <set>

#include "sim/base/error.h"
#include "sim/base/parallel.h"

namespace ballast {
namespace {

constexpr int kLaunch = 4;
constexpr int kSlack = 5;
constexpr double kMeasurementWidth = 0.05;
// Steps of the derivatives, of the logarithm or of the slack. The launch is a least time of every
// operation, so that a small step would show what few operations at that very time say.
constexpr double kDifference = 0.02;
constexpr double kLaunchDifference = 0.2;
// A constant whose doubling moves no prediction by more than about this share is not seen.
constexpr double kLeastSensitivity = 0.004;
constexpr int kMostIterations = 12;
constexpr int kMostDescents = 6;  // of the damping, in one iteration
constexpr double kConverged = 1e-4;
constexpr int kMostRounds = 3;  // of choosing the open knobs anew

using Vector = Eigen::VectorXd;
using Matrix = Eigen::MatrixXd;

// Shares and the launch are fitted by their logarithm, the slack as it is: it may be zero.
double to_free(int index, double value) { return index == kSlack ? value : std::log(value); }
double from_free(int index, double free) {
  const Prior prior = prior_of(index);
  return std::clamp(index == kSlack ? free : std::exp(free), prior.least, prior.most);
}

StackConstants constants_of(const Vector& free) {
  StackConstants constants;
  for (int i = 0; i < kStackConstants; ++i) set_constant(constants, i, from_free(i, free[i]));
  return constants;
}

Vector free_of(const StackConstants& constants) {
  Vector free(kStackConstants);
  for (int i = 0; i < kStackConstants; ++i) {
    const Prior prior = prior_of(i);
    free[i] = to_free(i, std::clamp(constant(constants, i), prior.least, prior.most));
  }
  return free;
}

// One quantity that constants are fitted to.
struct Target {
  size_t of = 0;  // index of its case
  Metric metric{};
  double published = 0;
  double weight = 0;
};

bool is_fitted_to(Metric metric) { return is_time(metric) || metric == Metric::kPeakMemory; }

// Several times of one case are one observation: they share its weight.
std::vector<Target> targets_of(const std::vector<CaseSetup>& cases) {
  std::vector<Target> targets;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<Measured>& all = cases[i].of.measured;
    const auto times = static_cast<double>(std::count_if(
        all.begin(), all.end(), [](const Measured& one) { return is_time(one.metric); }));
    for (const Measured& one : all) {
      if (!is_fitted_to(one.metric)) continue;
      const double count = is_time(one.metric) ? times : 1;
      targets.push_back({i, one.metric, one.value, 1 / (kMeasurementWidth * std::sqrt(count))});
    }
  }
  return targets;
}

double predicted_of(const CasePrediction& prediction, Metric metric, const std::string& id) {
  for (const MetricPrediction& one : prediction.metrics) {
    if (one.metric == metric && one.predicted) return *one.predicted;
  }
  throw Error(
      "case " + id,
      "cannot be calibrated on: " +
          (prediction.reason.empty() ? "the prediction lacks a quantity of it" : prediction.reason),
      "leave it out");
}

// The cases with their graphs, and the fit.
class Fitter {
 public:
  Fitter(const std::vector<CaseSetup>& cases) : cases_(cases), targets_(targets_of(cases)) {
    used_.assign(cases.size(), true);
    ways_.resize(cases.size());
    for (size_t i = 0; i < cases.size(); ++i) built_.push_back(nullptr);
  }

  const std::vector<Target>& targets() const { return targets_; }

  // Chooses the open knobs of every case, and builds the graphs that changed; true if any did.
  bool choose(const StackConstants& constants) {
    std::vector<char> changed(cases_.size(), 0);
    parallel_for(cases_.size(), hardware_threads(), [&](size_t i) {
      const Way way = way_of(cases_[i], constants);
      if (built_[i] && way.plan == ways_[i].plan && way.attention == ways_[i].attention) return;
      changed[i] = 1;
      ways_[i] = way;
      built_[i] = std::make_unique<BuiltWay>(cases_[i], way);
    });
    return std::any_of(changed.begin(), changed.end(), [](char one) { return one != 0; });
  }

  // Leaves one case out of the fit, or none.
  void leave_out(std::optional<size_t> index) {
    used_.assign(cases_.size(), true);
    if (index) used_[*index] = false;
  }

  // log(predicted / published) of every target, unweighted.
  Vector logs(const StackConstants& constants) {
    Vector logs = Vector::Zero(static_cast<Eigen::Index>(targets_.size()));
    fill(logs, constants, BuiltWay::Ask::kUnlimited);
    return logs;
  }

  // Derivatives of logs() by the free constants. Times do not depend on the slack, so that its
  // column needs no simulation.
  Matrix derivatives(const Vector& free, const Vector& at) {
    Matrix jacobian = Matrix::Zero(at.size(), kStackConstants);
    for (int i = 0; i < kStackConstants; ++i) {
      if (!seen_.empty() && !seen_.contains(i)) continue;
      Vector moved = free;
      // Away from the bound, if there is one.
      const double size = i == kLaunch ? kLaunchDifference : kDifference;
      const bool at_most = free[i] + size > to_free(i, prior_of(i).most);
      const double step = at_most ? -size : size;
      moved[i] += step;
      Vector there = at;
      fill(there, constants_of(moved),
           i == kSlack ? BuiltWay::Ask::kMemory : BuiltWay::Ask::kUnlimited);
      jacobian.col(i) = (there - at) / step;
    }
    return jacobian;
  }

  // Constants that move any target; only they are fitted from then on.
  const std::set<int>& find_seen(const Vector& free) {
    seen_.clear();
    const Matrix jacobian = derivatives(free, logs(constants_of(free)));
    for (int i = 0; i < kStackConstants; ++i) {
      if (jacobian.col(i).cwiseAbs().maxCoeff() > kLeastSensitivity) seen_.insert(i);
    }
    return seen_;
  }

  // Levenberg-Marquardt from `start`. The prior's rows stand below those of the targets.
  Vector fit(const Vector& start) {
    Vector free = start;
    Vector at = logs(constants_of(free));
    double cost = cost_of(at, free);
    double damping = 1e-3;
    for (int iteration = 0; iteration < kMostIterations; ++iteration) {
      const Matrix jacobian = derivatives(free, at);
      const double before = cost;
      for (int descent = 0; descent < kMostDescents; ++descent) {
        const Vector tried = bounded(free + step_of(jacobian, at, free, damping));
        const Vector there = logs(constants_of(tried));
        const double cost_there = cost_of(there, tried);
        if (cost_there < cost) {
          free = tried;
          at = there;
          cost = cost_there;
          damping /= 10;
          break;
        }
        damping *= 10;
      }
      if (before - cost <= kConverged * std::max(before, 1.0)) break;
    }
    return free;
  }

  // As `validate` would predict the case; where that finds no plan that fits, the one that the
  // constants were fitted to.
  CasePrediction predict(size_t index, const StackConstants& constants) {
    CasePrediction prediction = predict_case(cases_[index], constants);
    if (prediction.fits) return prediction;
    return built_[index]->predict(constants, BuiltWay::Ask::kUnlimited);
  }

 private:
  // Where nothing fits this is the way that comes nearest: it was run, whatever our sums say.
  static Way way_of(const CaseSetup& setup, const StackConstants& constants) {
    const std::vector<std::vector<Way>> groups = ways_of(setup);
    const bool one_way = groups.size() == 1 && groups.front().size() == 1;
    return one_way ? groups.front().front() : predict_case(setup, constants).way;
  }

  // kMemory: only the targets of memory are computed, the others left as they are.
  void fill(Vector& logs, const StackConstants& constants, BuiltWay::Ask ask) {
    parallel_for(cases_.size(), hardware_threads(), [&](size_t i) {
      if (!used_[i]) return;
      const auto ask_here = has_times(i) ? ask : BuiltWay::Ask::kMemory;
      const CasePrediction prediction = built_[i]->predict(constants, ask_here);
      for (size_t t = 0; t < targets_.size(); ++t) {
        const Target& target = targets_[t];
        const bool known = !is_time(target.metric) || ask_here != BuiltWay::Ask::kMemory;
        if (target.of != i || !known) continue;
        const double predicted = predicted_of(prediction, target.metric, cases_[i].of.id);
        logs[static_cast<Eigen::Index>(t)] = std::log(predicted / target.published);
      }
    });
  }

  bool has_times(size_t index) const {
    return std::any_of(targets_.begin(), targets_.end(), [&](const Target& target) {
      return target.of == index && is_time(target.metric);
    });
  }

  double weight(Eigen::Index target) const {
    const Target& of = targets_[static_cast<size_t>(target)];
    return used_[of.of] ? of.weight : 0;
  }

  double cost_of(const Vector& at, const Vector& free) const {
    double cost = 0;
    for (Eigen::Index t = 0; t < at.size(); ++t) cost += std::pow(weight(t) * at[t], 2);
    for (int i = 0; i < kStackConstants; ++i) cost += std::pow(distance(i, free), 2);
    return cost;
  }

  // From the prior, in its widths.
  static double distance(int index, const Vector& free) {
    const Prior prior = prior_of(index);
    return (free[index] - to_free(index, prior.value)) / prior.width;
  }

  // (J'J + damping diag(J'J)) step = -J' residuals, targets and priors together.
  Vector step_of(const Matrix& jacobian, const Vector& at, const Vector& free,
                 double damping) const {
    Matrix normal = Matrix::Zero(kStackConstants, kStackConstants);
    Vector gradient = Vector::Zero(kStackConstants);
    for (Eigen::Index t = 0; t < at.size(); ++t) {
      const Vector row = weight(t) * jacobian.row(t).transpose();
      normal += row * row.transpose();
      gradient += row * (weight(t) * at[t]);
    }
    for (int i = 0; i < kStackConstants; ++i) {
      const double width = prior_of(i).width;
      normal(i, i) += 1 / (width * width);
      gradient[i] += distance(i, free) / width;
    }
    normal.diagonal() *= 1 + damping;
    return -normal.ldlt().solve(gradient);
  }

  static Vector bounded(Vector free) { return free_of(constants_of(free)); }

  const std::vector<CaseSetup>& cases_;
  std::vector<Target> targets_;
  std::vector<bool> used_;
  std::vector<Way> ways_;
  std::vector<std::unique_ptr<BuiltWay>> built_;
  std::set<int> seen_;
};

void check_cases(const Stack& stack, const std::vector<CaseSetup>& cases) {
  for (const CaseSetup& setup : cases) {
    if (setup.of.stack != stack.name) {
      throw Error("case " + setup.of.id, "is of the stack " + setup.of.stack,
                  "calibrate one stack at a time");
    }
  }
  if (targets_of(cases).empty()) {
    throw Error("stack " + stack.name, "no case has a time or a memory peak to fit",
                "name cases that have");
  }
}

void append_rows(std::vector<CalibrationRow>& rows, const PublishedCase& of,
                 const CasePrediction& before, const CasePrediction& fit) {
  for (const Measured& one : of.measured) {
    if (!is_fitted_to(one.metric)) continue;
    rows.push_back({of.id, one.metric, one.value, predicted_of(before, one.metric, of.id),
                    predicted_of(fit, one.metric, of.id), std::nullopt});
  }
}

// Every case once left out, starting from the fit of all.
void fill_left_out(Fitter& fitter, const std::vector<CaseSetup>& cases, const Vector& fit,
                   Calibration& result,
                   const std::function<void(const CalibrationProgress&)>& progress) {
  if (cases.size() < 2) return;
  for (size_t i = 0; i < cases.size(); ++i) {
    progress({0.5 + 0.5 * static_cast<double>(i) / static_cast<double>(cases.size()),
              "without " + cases[i].of.id});
    fitter.leave_out(i);
    const StackConstants constants = constants_of(fitter.fit(fit));
    const CasePrediction prediction = fitter.predict(i, constants);
    for (CalibrationRow& row : result.rows) {
      if (row.id != cases[i].of.id) continue;
      for (const MetricPrediction& one : prediction.metrics) {
        if (one.metric == row.metric) row.left_out = one.predicted;
      }
    }
  }
  fitter.leave_out(std::nullopt);
}

}  // namespace

Prior prior_of(int index) {
  static constexpr std::array<Prior, kStackConstants> kPriors = {{
      // Machines hold the best rate of any shape; libraries reach about nine tenths of what the
      // tile model makes of it for the shapes of a model, frameworks down to half of that.
      {0.9, 0.3, 0.3, 1.3},
      // The same for attention kernels, whose rates were measured on good shapes too.
      {0.9, 0.15, 0.3, 1.3},
      // Passes over memory reach four fifths of the data sheet's bandwidth (BabelStream's share on
      // H100 and GH200: profiles/published/hardware.json); separate small kernels to less.
      {0.8, 0.3, 0.3, 1.3},
      // Collectives of a training step share the wires and start late.
      {0.8, 0.15, 0.2, 1.3},
      // Host time of an operation: from a C++ loop (two microseconds) to eager PyTorch with its
      // hooks (a dozen or more); hence so wide.
      {5.0, 0.7, 0.05, 50.0},
      // Caching allocators lose some percent to fragments, and at times a lot.
      {0.05, 0.08, 0.0, 0.5},
  }};
  return kPriors.at(static_cast<size_t>(index));
}

StackConstants prior_constants() {
  StackConstants constants;
  for (int i = 0; i < kStackConstants; ++i) set_constant(constants, i, prior_of(i).value);
  return constants;
}

Calibration calibrate(const Stack& stack, const std::vector<CaseSetup>& cases,
                      const std::function<void(const CalibrationProgress&)>& progress) {
  check_cases(stack, cases);
  Fitter fitter(cases);
  Calibration result;
  result.stack = stack;
  result.stack.fitted_on.clear();
  Vector free = free_of(prior_constants());
  for (int round = 0; round < kMostRounds && fitter.choose(constants_of(free)); ++round) {
    progress({0.1 + 0.4 * round / kMostRounds, fmt::format("round {}", round + 1)});
    const std::set<int>& seen = fitter.find_seen(free);
    if (seen.empty()) {
      throw Error("stack " + stack.name, "no case depends on any constant", "name other cases");
    }
    result.stack.fitted.clear();
    for (const int index : seen) result.stack.fitted.emplace_back(constant_name(index));
    free = fitter.fit(free);
  }
  result.stack.constants = constants_of(free);
  for (size_t i = 0; i < cases.size(); ++i) {
    result.stack.fitted_on.push_back(cases[i].of.id);
    append_rows(result.rows, cases[i].of, fitter.predict(i, stack.constants),
                fitter.predict(i, result.stack.constants));
  }
  fill_left_out(fitter, cases, free, result, progress);
  progress({1, "done"});
  return result;
}

}  // namespace ballast
