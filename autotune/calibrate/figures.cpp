#include "autotune/calibrate/figures.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>

#include "autotune/calibrate/priors.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"

namespace ballast {
namespace {

// Steps of the derivatives, in coordinates. What launches cost is hidden by longer operations, so
// that a small step would show what few operations at that very time say.
constexpr double kDifference = 0.02;
constexpr double kLaunchDifference = 0.2;

size_t index_in(std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  names.push_back(name);
  return names.size() - 1;
}

FigureKind kind_of(Metric metric) {
  return is_time(metric) ? FigureKind::kTime : FigureKind::kMemory;
}

bool has_times(const std::vector<Measured>& measured) {
  return std::any_of(measured.begin(), measured.end(),
                     [](const Measured& one) { return is_time(one.metric); });
}

// Where nothing fits this is the way that comes nearest: it was run, whatever our sums say.
Way way_of(const CaseSetup& setup, const StackConstants& constants) {
  const std::vector<std::vector<Way>> groups = ways_of(setup);
  const bool one_way = groups.size() == 1 && groups.front().size() == 1;
  return one_way ? groups.front().front() : predict_case(setup, constants).way;
}

double predicted_of(const CasePrediction& prediction, Metric metric, const std::string& id) {
  for (const MetricPrediction& one : prediction.metrics) {
    if (one.metric == metric && one.predicted) return *one.predicted;
  }
  throw Error(
      "case " + id,
      prediction.reason.empty() ? "the prediction lacks a quantity of it" : prediction.reason,
      "leave it out");
}

// log_error_of() of every figure of a case, in the order of `metrics`.
std::vector<double> log_errors(const CasePrediction& prediction, const std::string& id,
                               const std::vector<Measured>& metrics) {
  std::vector<double> errors;
  for (const Measured& one : metrics) {
    errors.push_back(log_error_of(one.metric, predicted_of(prediction, one.metric, id), one.value));
  }
  return errors;
}

std::vector<Measured> fitted_metrics(const PublishedCase& of) {
  std::vector<Measured> metrics;
  for (const Measured& one : of.measured) {
    if (is_fitted_to(one.metric)) metrics.push_back(one);
  }
  return metrics;
}

}  // namespace

std::string source_key(const std::string& source) {
  const size_t end = source.find_first_of("@,;(");
  std::string text = source.substr(0, end);
  // Words after the name of the publication say where in it a number stands.
  const bool numbered = text.starts_with("arXiv ");
  const size_t begin = numbered ? text.find(' ') + 1 : 0;
  const bool named = numbered || text.substr(0, text.find(' ')).find('/') != std::string::npos;
  if (named) text = text.substr(0, text.find(' ', begin));
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

LoadedCases load_published_cases(const std::vector<PublishedFile>& files,
                                 const std::vector<Stack>& stacks) {
  LoadedCases loaded;
  for (const PublishedFile& file : files) {
    const std::string name = std::filesystem::path(file.path).stem().string();
    for (const PublishedEntry& entry : file.entries) {
      try {
        if (!entry.of) throw std::runtime_error(entry.error);
        const auto own = std::find_if(stacks.begin(), stacks.end(), [&](const Stack& stack) {
          return stack.name == entry.of->stack;
        });
        CaseSetup setup = own == stacks.end()
                              ? set_up(*entry.of)
                              : CaseSetup{*entry.of, load_machine(entry.of->machine), *own};
        loaded.cases.push_back({std::move(setup), source_key(file.source), name});
      } catch (const std::exception& error) {
        loaded.refused.push_back({name, entry.id, error.what()});
      }
    }
  }
  return loaded;
}

bool is_fitted_to(Metric metric) {
  return is_time(metric) || metric == Metric::kPeakMemory || metric == Metric::kMemoryShare;
}

double log_error_of(Metric metric, double predicted, double published) {
  const double error = std::log(predicted / published);
  return is_rate(metric) ? -error : error;
}

Figures::Figures(const std::vector<SourcedCase>& cases) : cases_(cases), refusals_(cases.size()) {
  for (const SourcedCase& one : cases) {
    framework_of_.push_back(index_in(frameworks_, one.setup.stack.name));
    source_of_.push_back(index_in(sources_, one.source));
  }
}

void Figures::linearise(const std::vector<StackConstants>& constants,
                        const std::function<void(double)>& progress) {
  CHECK(constants.size() == frameworks_.size());
  std::vector<std::vector<Figure>> by_case(cases_.size());
  const auto linearise_one = [&](size_t i) {
    refusals_[i].clear();
    try {
      by_case[i] = linearised(i, constants[framework_of_[i]]);
    } catch (const Error& error) {
      refusals_[i] = error.what();
    }
  };
  parallel_for(cases_.size(), hardware_threads(), linearise_one, [&](size_t, size_t finished) {
    progress(static_cast<double>(finished) / static_cast<double>(cases_.size()));
  });
  figures_.clear();
  for (std::vector<Figure>& figures : by_case) {
    std::move(figures.begin(), figures.end(), std::back_inserter(figures_));
  }
}

std::vector<Figure> Figures::linearised(size_t index, const StackConstants& constants) const {
  const CaseSetup& setup = cases_[index].setup;
  const std::vector<Measured> metrics = fitted_metrics(setup.of);
  if (metrics.empty()) return {};
  const bool times = has_times(metrics);
  const auto ask = times ? BuiltWay::Ask::kUnlimited : BuiltWay::Ask::kMemory;
  BuiltWay built(setup, way_of(setup, constants));
  const std::string& id = setup.of.id;
  const std::vector<double> at = log_errors(built.predict(constants, ask), id, metrics);
  const Eigen::VectorXd free = free_of(constants);
  Eigen::MatrixXd slopes = Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(at.size()), free.size());
  for (int i = 0; i < kStackConstants; ++i) {
    const bool slack = constant_kind(i) == ConstantKind::kSlack;
    if (!times && !slack) continue;
    const bool launch = constant_kind(i) == ConstantKind::kMicroseconds;
    const double size = launch ? kLaunchDifference : kDifference;
    // Away from the bound, if there is one.
    const Eigen::VectorXd beyond = free + size * Eigen::VectorXd::Unit(kStackConstants, i);
    const bool at_most = free_of(constants_of(beyond))[i] < beyond[i] - 1e-9;
    Eigen::VectorXd moved = free;
    moved[i] += at_most ? -size : size;
    const std::vector<double> there =
        log_errors(built.predict(constants_of(moved), ask), id, metrics);
    for (size_t m = 0; m < at.size(); ++m) {
      slopes(static_cast<Eigen::Index>(m), i) = (there[m] - at[m]) / (at_most ? -size : size);
    }
  }
  std::vector<Figure> figures;
  const auto count = static_cast<double>(std::count_if(
      metrics.begin(), metrics.end(), [](const Measured& one) { return is_time(one.metric); }));
  for (size_t m = 0; m < metrics.size(); ++m) {
    const Metric metric = metrics[m].metric;
    const Eigen::VectorXd slope = slopes.row(static_cast<Eigen::Index>(m)).transpose();
    const double weight = is_time(metric) ? 1 / count : 1;
    figures.push_back({index,
                       metric,
                       metrics[m].value,
                       {framework_of_[index], source_of_[index], kind_of(metric), slope,
                        slope.dot(free) - at[m], weight}});
  }
  return figures;
}

}  // namespace ballast
