#include "autotune/calibrate/protocol.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "autotune/calibrate/priors.h"
#include "autotune/calibrate/unseen.h"
#include "sim/base/error.h"
#include "sim/base/median.h"
#include "sim/base/parallel.h"
#include "sim/engine/interval.h"

namespace ballast {
namespace {

// Standard deviation of log(predicted / measured) of a figure under this stack.
double spread_of(const Figure& figure, const StackUncertainty& uncertainty) {
  const Eigen::VectorXd& slope = figure.linear.slope;
  const double explained =
      explained_variance({slope.data(), static_cast<size_t>(slope.size())}, uncertainty);
  const double rest = uncertainty.*rest_of(figure.linear.kind);
  return std::sqrt(explained + rest * rest);
}

class Judge {
 public:
  Judge(const std::vector<SourcedCase>& cases, const Stack& typical,
        const CalibrationProgress& progress)
      : cases_(cases),
        typical_(typical),
        progress_(progress),
        figures_(cases),
        typical_cases_(run_as_typical(cases, typical)),
        typical_figures_(typical_cases_) {}

  std::vector<JudgedFigure> run() {
    std::vector<StackConstants> constants(figures_.frameworks().size());
    for (size_t i = 0; i < cases_.size(); ++i) {
      constants[figures_.framework_of(i)] = cases_[i].setup.stack.constants;
    }
    figures_.linearise(constants, [&](double share) { progress_(0.4 * share, "linearising"); });
    typical_figures_.linearise(
        std::vector<StackConstants>(constants.size(), typical_.constants),
        [&](double share) { progress_(0.4 + 0.2 * share, "as the typical framework"); });
    for (size_t s = 0; s < figures_.sources().size(); ++s) {
      without_source_.push_back(fit_without(figures_, {.source = s, .framework = {}}));
    }
    for (size_t f = 0; f < figures_.frameworks().size(); ++f) {
      without_framework_.push_back(fit_without(figures_, {.source = {}, .framework = f}));
    }
    std::vector<std::vector<JudgedFigure>> by_case(cases_.size());
    parallel_for(
        cases_.size(), hardware_threads(), [&](size_t i) { by_case[i] = judged(i); },
        [&](size_t i, size_t finished) {
          const double share = static_cast<double>(finished) / static_cast<double>(cases_.size());
          progress_(0.6 + 0.4 * share, cases_[i].setup.published.id);
        });
    std::vector<JudgedFigure> all;
    for (auto& rows : by_case) std::move(rows.begin(), rows.end(), std::back_inserter(all));
    return all;
  }

 private:
  // How the case is predicted with something left out.
  CaseSetup setup_without(size_t index, LeftOut left_out) const {
    CaseSetup setup = cases_[index].setup;
    const size_t framework = figures_.framework_of(index);
    if (left_out == LeftOut::kSource) {
      const HierarchyFit& fit = without_source_[figures_.source_of(index)];
      setup.stack = fitted_stack(setup.stack, fit, framework, figures_.generations());
    } else if (left_out == LeftOut::kFramework) {
      const Stack center = fitted_stack(typical_, without_framework_[framework], std::nullopt,
                                        figures_.generations());
      return as_run_by(std::move(setup), with_misses_of_facts(center, typical_figures_, framework));
    }
    return setup;
  }

  std::vector<JudgedFigure> judged(size_t index) const {
    const PublishedCase& published = cases_[index].setup.published;
    std::vector<JudgedFigure> rows;
    for (const Measured& one : published.measured) {
      rows.push_back({index, one.metric, one.value, {}, {}, figures_.source_of(index)});
    }
    for (int i = 0; i < kLeftOuts; ++i) {
      const CaseSetup setup = setup_without(index, static_cast<LeftOut>(i));
      try {
        fill(rows, static_cast<LeftOut>(i), setup, predict_case(setup, setup.stack.constants));
      } catch (const std::exception& error) {
        // Whatever it was, the other cases are still worth their predictions.
        for (JudgedFigure& row : rows) row.error = error.what();
      }
    }
    return rows;
  }

  void fill(std::vector<JudgedFigure>& rows, LeftOut left_out, const CaseSetup& setup,
            const CasePrediction& prediction) const {
    const auto slot = static_cast<size_t>(left_out);
    for (size_t m = 0; m < rows.size(); ++m) {
      JudgedFigure& row = rows[m];
      JudgedPrediction& judged = row.predicted[slot];
      judged.value = prediction.metrics[m].predicted;
      if (!judged.value) {
        row.error = prediction.fits ? "the prediction lacks this quantity" : prediction.reason;
        continue;
      }
      if (!setup.stack.uncertainty) continue;
      if (row.metric == Metric::kFits) {
        judged.low = judged.high =
            probability_to_fit(prediction.peaks, setup.machine, *setup.stack.uncertainty);
        continue;
      }
      const Figures& figures = left_out == LeftOut::kFramework ? typical_figures_ : figures_;
      const auto figure =
          std::find_if(figures.all().begin(), figures.all().end(), [&](const Figure& one) {
            return one.case_index == row.case_index && one.metric == row.metric;
          });
      if (figure == figures.all().end()) continue;
      const double factor = std::exp(kIntervalWidth * spread_of(*figure, *setup.stack.uncertainty));
      judged.low = *judged.value / factor;
      judged.high = *judged.value * factor;
    }
  }

  const std::vector<SourcedCase>& cases_;
  const Stack& typical_;
  const CalibrationProgress& progress_;
  Figures figures_;
  std::vector<SourcedCase> typical_cases_;  // as the typical framework would have run them
  Figures typical_figures_;
  std::vector<HierarchyFit> without_source_;
  std::vector<HierarchyFit> without_framework_;
};

}  // namespace

std::string_view to_string(LeftOut value) {
  static constexpr std::array<std::string_view, kLeftOuts> kNames = {"source", "framework",
                                                                     "nothing"};
  return kNames.at(static_cast<size_t>(value));
}

bool JudgedFigure::covered(LeftOut left_out) const {
  const JudgedPrediction& judged = predicted[static_cast<size_t>(left_out)];
  return judged.low <= published && published <= judged.high;
}

std::vector<JudgedFigure> judge(const std::vector<SourcedCase>& cases, const Stack& typical,
                                const CalibrationProgress& progress) {
  return Judge(cases, typical, progress).run();
}

FigureClass class_of(Metric metric) {
  if (is_time(metric)) return FigureClass::kSpeed;
  if (metric == Metric::kFits) return FigureClass::kVerdict;
  return is_fitted_to(metric) ? FigureClass::kMemory : FigureClass::kLayerMemory;
}

double signed_error_percent(Metric metric, double predicted, double published) {
  const bool inverse = metric == Metric::kStepTime;
  return 100 * ((inverse ? published / predicted : predicted / published) - 1);
}

namespace {

// What is counted once: a figure, or all figures of one run's speed, which say the same.
struct Counted {
  size_t case_index = 0, source = 0;
  double error = 0;    // signed, percent; the mean of its figures
  double covered = 0;  // share of them
  double figures = 0;

  void add(double one_error, bool is_covered) {
    error = (error * figures + one_error) / (figures + 1);
    covered = (covered * figures + (is_covered ? 1 : 0)) / (figures + 1);
    ++figures;
  }
};

// A verdict is right or wrong: its error is 0 or 100 percent.
double error_of(const JudgedFigure& figure, double predicted) {
  if (figure.metric == Metric::kFits) return predicted == figure.published ? 0 : 100;
  return signed_error_percent(figure.metric, predicted, figure.published);
}

std::vector<Counted> counted(const std::vector<JudgedFigure>& figures, FigureClass figure_class,
                             LeftOut left_out) {
  std::vector<Counted> all;
  for (const JudgedFigure& figure : figures) {
    const std::optional<double>& value = figure.predicted[static_cast<size_t>(left_out)].value;
    if (class_of(figure.metric) != figure_class || !value) continue;
    const bool is_same_run = figure_class == FigureClass::kSpeed && !all.empty() &&
                             all.back().case_index == figure.case_index;
    if (!is_same_run) all.push_back({figure.case_index, figure.source});
    const bool covers = figure_class != FigureClass::kVerdict && figure.covered(left_out);
    all.back().add(error_of(figure, *value), covers);
  }
  return all;
}

size_t failed(const std::vector<JudgedFigure>& figures, FigureClass figure_class,
              LeftOut left_out) {
  return static_cast<size_t>(
      std::count_if(figures.begin(), figures.end(), [&](const JudgedFigure& figure) {
        return class_of(figure.metric) == figure_class &&
               !figure.predicted[static_cast<size_t>(left_out)].value;
      }));
}

}  // namespace

ErrorSummary summarise(const std::vector<JudgedFigure>& figures, FigureClass figure_class,
                       LeftOut left_out) {
  ErrorSummary summary;
  summary.failed = failed(figures, figure_class, left_out);
  const std::vector<Counted> all = counted(figures, figure_class, left_out);
  summary.figures = all.size();
  if (all.empty()) return summary;
  std::vector<double> errors;
  std::map<size_t, std::pair<double, double>> by_source;  // inside, and all
  for (const Counted& one : all) {
    errors.push_back(std::abs(one.error));
    summary.bias += one.error;
    summary.mean += std::abs(one.error);
    summary.coverage += one.covered;
    by_source[one.source].first += one.covered;
    by_source[one.source].second += 1;
    if (std::abs(one.error) < std::abs(summary.worst)) continue;
    summary.worst = one.error;
    summary.worst_of = one.case_index;
  }
  const auto count = static_cast<double>(all.size());
  summary.bias /= count;
  summary.mean /= count;
  summary.coverage /= count;
  for (const auto& [source, counts] : by_source) {
    summary.coverage_by_source +=
        counts.first / counts.second / static_cast<double>(by_source.size());
  }
  summary.median = median(std::move(errors));
  return summary;
}

}  // namespace ballast
