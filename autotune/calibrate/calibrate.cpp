#include "autotune/calibrate/calibrate.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>

#include "autotune/calibrate/priors.h"
#include "autotune/calibrate/unseen.h"
#include "profiles/load.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr int kMostRounds = 8;
constexpr double kConverged = 0.004;  // of the largest move of a coordinate
// A constant is called fitted where cases halved the variance that frameworks have among them.
constexpr double kFittedShare = 0.5;

// As its file has it: what single runs of it did otherwise is no fact of it.
Stack stack_named(const std::vector<SourcedCase>& cases, const std::string& name) {
  const auto found = std::find_if(cases.begin(), cases.end(), [&](const SourcedCase& one) {
    return one.setup.stack.name == name;
  });
  CHECK(found != cases.end());
  Stack stack = found->setup.stack;
  if (found->setup.profile) stack.facts = *found->setup.profile;
  return stack;
}

// The prediction that a log_error_of() tells.
double predicted_of(const Figure& figure, double log_error) {
  return figure.published * std::exp(is_rate(figure.metric) ? -log_error : log_error);
}

// `free` as constants, with what the fit says of generations.
StackConstants fitted_constants(const Eigen::VectorXd& free, const HierarchyFit& fit,
                                const std::vector<std::string>& generations) {
  StackConstants constants = constants_of(free);
  for (size_t g = 0; g < generations.size(); ++g) {
    constants.sustained_gemm[generations[g]] =
        std::exp(fit.generations[static_cast<Eigen::Index>(g)]);
  }
  return constants;
}

std::vector<StackConstants> constants_by_framework(const HierarchyFit& fit,
                                                   const Figures& figures) {
  std::vector<StackConstants> all;
  for (const Eigen::VectorXd& free : fit.constants) {
    all.push_back(fitted_constants(free, fit, figures.generations()));
  }
  return all;
}

double largest_move(const std::vector<StackConstants>& before,
                    const std::vector<StackConstants>& after,
                    const std::vector<std::string>& generations) {
  double most = 0;
  for (size_t f = 0; f < before.size(); ++f) {
    most = std::max(most, (free_of(after[f]) - free_of(before[f])).cwiseAbs().maxCoeff());
    for (const std::string& generation : generations) {
      most = std::max(most, std::abs(std::log(after[f].sustained_gemm_of(generation) /
                                              before[f].sustained_gemm_of(generation))));
    }
  }
  return most;
}

// `typical` with what its facts add: as slow as frameworks are on average, and as uncertain.
Stack as_unseen(Stack typical, const std::vector<SourcedCase>& cases,
                const CalibrationProgress& progress) {
  const std::vector<SourcedCase> same = run_as_typical(cases, typical);
  Figures figures(same);
  figures.linearise(std::vector<StackConstants>(figures.frameworks().size(), typical.constants),
                    [&](double share) { progress(share, "as the typical framework"); });
  return with_misses_of_facts(std::move(typical), figures, std::nullopt);
}

// A family that no case names any more, since each of its frameworks has a profile of its own:
// what they are together, as uncertain as any framework that nobody has measured.
std::vector<Stack> families_of(const Calibration& result,
                               const std::vector<std::string>& generations) {
  std::map<std::string, std::vector<size_t>> members;
  for (size_t f = 0; f < result.stacks.size(); ++f) {
    if (!result.stacks[f].family.empty()) members[result.stacks[f].family].push_back(f);
  }
  for (const Stack& stack : result.stacks) members.erase(stack.name);
  std::vector<Stack> families;
  for (const auto& [name, stacks] : members) {
    Eigen::VectorXd mean = Eigen::VectorXd::Zero(kStackConstants);
    for (const size_t f : stacks) {
      mean += result.fit.constants[f] / static_cast<double>(stacks.size());
    }
    Stack family = fitted_stack(load_stack(name), result.fit, std::nullopt, generations);
    family.constants = fitted_constants(mean, result.fit, generations);
    family.fitted_on.clear();
    for (const size_t f : stacks) {
      const std::vector<std::string>& used = result.stacks[f].fitted_on;
      family.fitted_on.insert(family.fitted_on.end(), used.begin(), used.end());
    }
    families.push_back(std::move(family));
  }
  return families;
}

void fill_rows(const std::vector<SourcedCase>& cases, const Figures& figures, Calibration& result) {
  for (const Figure& figure : figures.all()) {
    const CaseSetup& setup = cases[figure.case_index].setup;
    const size_t framework = figure.linear.framework;
    const double fit =
        figure.linear.log_error(result.fit.constants[framework], result.fit.generations);
    const double before = figure.linear.log_error(
        free_of(setup.stack.constants), effects_of(setup.stack.constants, figures.generations()));
    result.rows.push_back({setup.published.id, setup.stack.name, figure.metric, figure.published,
                           predicted_of(figure, before), predicted_of(figure, fit)});
    std::vector<std::string>& used = result.stacks[framework].fitted_on;
    if (used.empty() || used.back() != setup.published.id) used.push_back(setup.published.id);
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!figures.refusals()[i].empty()) {
      result.refused.push_back({cases[i].file, cases[i].setup.published.id, figures.refusals()[i]});
    }
  }
}

}  // namespace

HierarchyFit fit_without(const Figures& figures, const Without& left_out) {
  std::vector<LinearFigure> used;
  for (const Figure& figure : figures.all()) {
    if (left_out.source == figure.linear.source) continue;
    if (left_out.framework == figure.linear.framework) continue;
    used.push_back(figure.linear);
  }
  return fit_hierarchy(
      used, {figures.frameworks().size(), figures.sources().size(), figures.generations().size()},
      hierarchy_prior(figures.generations()));
}

Stack fitted_stack(Stack stack, const HierarchyFit& fit, std::optional<size_t> framework,
                   const std::vector<std::string>& generations) {
  stack.constants =
      fitted_constants(framework ? fit.constants[*framework] : fit.typical(), fit, generations);
  const Eigen::MatrixXd unseen = fit.unseen_covariance();
  const Eigen::MatrixXd& covariance = framework ? fit.covariances[*framework] : unseen;
  StackUncertainty uncertainty;
  for (Eigen::Index row = 0; row < covariance.rows(); ++row) {
    for (Eigen::Index column = 0; column < covariance.cols(); ++column) {
      uncertainty.covariance.push_back(covariance(row, column));
    }
  }
  for (int i = 0; i < kFigureKinds; ++i) {
    const auto kind = static_cast<FigureKind>(i);
    uncertainty.*rest_of(kind) = fit.unexplained(kind);
  }
  stack.uncertainty = std::move(uncertainty);
  stack.fitted.clear();
  for (int i = 0; i < kStackConstants; ++i) {
    if (covariance(i, i) < kFittedShare * unseen(i, i)) {
      stack.fitted.emplace_back(constant_name(i));
    }
  }
  return stack;
}

Calibration calibrate(const std::vector<SourcedCase>& cases, const Stack& typical,
                      const CalibrationProgress& progress) {
  Figures figures(cases);
  std::vector<StackConstants> constants;
  for (const std::string& name : figures.frameworks()) {
    constants.push_back(stack_named(cases, name).constants);
  }
  Calibration result;
  for (int round = 0; round < kMostRounds; ++round) {
    figures.linearise(constants, [&](double share) {
      progress((round + share) / kMostRounds, fmt::format("round {}", round + 1));
    });
    if (figures.all().empty()) {
      throw Error("calibrate", "no case has a time or a memory peak to fit", "name other cases");
    }
    result.fit = fit_without(figures, {});
    const std::vector<StackConstants> fitted = constants_by_framework(result.fit, figures);
    const double move = largest_move(constants, fitted, figures.generations());
    constants = fitted;
    if (move < kConverged) break;
  }
  for (size_t f = 0; f < figures.frameworks().size(); ++f) {
    const Stack before = stack_named(cases, figures.frameworks()[f]);
    result.stacks.push_back(fitted_stack(before, result.fit, f, figures.generations()));
    result.stacks.back().fitted_on.clear();
  }
  result.typical = as_unseen(fitted_stack(typical, result.fit, std::nullopt, figures.generations()),
                             cases, progress);
  fill_rows(cases, figures, result);
  result.typical.fitted_on.clear();
  for (const Stack& stack : result.stacks) {
    std::copy(stack.fitted_on.begin(), stack.fitted_on.end(),
              std::back_inserter(result.typical.fitted_on));
  }
  for (Stack& family : families_of(result, figures.generations())) {
    result.stacks.push_back(std::move(family));
  }
  progress(1, "done");
  return result;
}

}  // namespace ballast
