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

FigureKind kind_of(Metric metric, const Model& model) {
  if (!is_time(metric)) return FigureKind::kMemory;
  return model.experts > 0 ? FigureKind::kExpertTime : FigureKind::kTime;
}

bool has_times(const std::vector<Measured>& measured) {
  return std::any_of(measured.begin(), measured.end(),
                     [](const Measured& one) { return is_time(one.metric); });
}

// Where nothing fits this is the completion that comes nearest: it was run, whatever our sums say.
Completion completion_of(const CaseSetup& setup, const StackConstants& constants) {
  const std::vector<std::vector<Completion>> groups = completions_of_case(setup);
  const bool one_completion = groups.size() == 1 && groups.front().size() == 1;
  return one_completion ? groups.front().front() : predict_case(setup, constants).completion;
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

std::vector<Measured> fitted_metrics(const PublishedCase& published) {
  std::vector<Measured> metrics;
  for (const Measured& one : published.measured) {
    if (is_fitted_to(one.metric)) metrics.push_back(one);
  }
  return metrics;
}

// A case at some constants, and how its errors move with them.
class LinearisedCase {
 public:
  LinearisedCase(const CaseSetup& setup, const std::vector<Measured>& metrics,
                 const StackConstants& constants)
      : id_(setup.published.id),
        metrics_(metrics),
        constants_(constants),
        times_(has_times(metrics)),
        ask_(times_ ? BuiltCompletion::Ask::kUnlimited : BuiltCompletion::Ask::kMemory),
        built_(setup, completion_of(setup, constants)),
        at_(errors(constants)) {}

  // log_error_of() by metric.
  const std::vector<double>& at() const { return at_; }

  // A row by metric, a column by constant.
  Eigen::MatrixXd slopes() {
    const Eigen::VectorXd free = free_of(constants_);
    Eigen::MatrixXd slopes =
        Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(at_.size()), free.size());
    for (int i = 0; i < kStackConstants; ++i) {
      if (!times_ && constant_kind(i) != ConstantKind::kSlack) continue;
      const bool launch = constant_kind(i) == ConstantKind::kMicroseconds;
      const double size = launch ? kLaunchDifference : kDifference;
      // Away from the bound, if there is one.
      const Eigen::VectorXd beyond = free + size * Eigen::VectorXd::Unit(kStackConstants, i);
      const bool at_most = free_of(constants_of(beyond))[i] < beyond[i] - 1e-9;
      Eigen::VectorXd moved = free;
      moved[i] += at_most ? -size : size;
      StackConstants there = constants_of(moved);
      there.sustained_gemm = constants_.sustained_gemm;
      slopes.col(i) = differences(there) / (at_most ? -size : size);
    }
    return slopes;
  }

  Eigen::VectorXd slopes_of_generation(const std::string& generation) {
    if (!times_ || generation.empty()) {
      return Eigen::VectorXd::Zero(static_cast<Eigen::Index>(at_.size()));
    }
    StackConstants there = constants_;
    there.sustained_gemm[generation] =
        constants_.sustained_gemm_of(generation) * std::exp(kDifference);
    return differences(there) / kDifference;
  }

 private:
  std::vector<double> errors(const StackConstants& constants) {
    return log_errors(built_.predict(constants, ask_), id_, metrics_);
  }
  Eigen::VectorXd differences(const StackConstants& constants) {
    const std::vector<double> there = errors(constants);
    Eigen::VectorXd result(static_cast<Eigen::Index>(there.size()));
    for (size_t m = 0; m < there.size(); ++m) {
      result[static_cast<Eigen::Index>(m)] = there[m] - at_[m];
    }
    return result;
  }

  const std::string& id_;
  const std::vector<Measured>& metrics_;
  const StackConstants& constants_;
  const bool times_;
  const BuiltCompletion::Ask ask_;
  BuiltCompletion built_;
  const std::vector<double> at_;
};

}  // namespace

double StackUncertainty::*rest_of(FigureKind kind) {
  if (kind == FigureKind::kMemory) return &StackUncertainty::memory;
  if (kind == FigureKind::kExpertTime) return &StackUncertainty::expert_time;
  return &StackUncertainty::time;
}

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
        if (!entry.published) throw std::runtime_error(entry.error);
        const auto own = std::find_if(stacks.begin(), stacks.end(), [&](const Stack& stack) {
          return stack.name == entry.published->stack;
        });
        CaseSetup setup =
            own == stacks.end() ? set_up(*entry.published) : set_up(*entry.published, *own);
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
    const std::string& generation = one.setup.machine.gpu.kernels.generation;
    if (!generation.empty()) index_in(generations_, generation);
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
  const std::vector<Measured> metrics = fitted_metrics(setup.published);
  if (metrics.empty()) return {};
  LinearisedCase linearised(setup, metrics, constants);
  const Eigen::VectorXd free = free_of(constants);
  const Eigen::MatrixXd slopes = linearised.slopes();
  const std::string& generation = setup.machine.gpu.kernels.generation;
  const Eigen::VectorXd moved = linearised.slopes_of_generation(generation);
  const double effect = std::log(constants.sustained_gemm_of(generation));
  const auto place = std::find(generations_.begin(), generations_.end(), generation);
  std::vector<Figure> figures;
  const auto count = static_cast<double>(std::count_if(
      metrics.begin(), metrics.end(), [](const Measured& one) { return is_time(one.metric); }));
  for (size_t m = 0; m < metrics.size(); ++m) {
    const Metric metric = metrics[m].metric;
    const auto row = static_cast<Eigen::Index>(m);
    LinearFigure linear;
    linear.framework = framework_of_[index];
    linear.source = source_of_[index];
    linear.kind = kind_of(metric, setup.published.model);
    linear.slope = slopes.row(row).transpose();
    linear.weight = is_time(metric) ? 1 / count : 1;
    linear.value = linear.slope.dot(free) - linearised.at()[m];
    if (place != generations_.end()) {
      linear.generation = static_cast<size_t>(place - generations_.begin());
      linear.generation_slope = moved[row];
      linear.value += moved[row] * effect;
    }
    figures.push_back({index, metric, metrics[m].value, std::move(linear)});
  }
  return figures;
}

Eigen::VectorXd effects_of(const StackConstants& constants,
                           const std::vector<std::string>& generations) {
  Eigen::VectorXd effects(static_cast<Eigen::Index>(generations.size()));
  for (size_t g = 0; g < generations.size(); ++g) {
    effects[static_cast<Eigen::Index>(g)] = std::log(constants.sustained_gemm_of(generations[g]));
  }
  return effects;
}

}  // namespace ballast
