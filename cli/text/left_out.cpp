// What predictions are worth where nobody fitted them: the protocol as JSON and text.
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"
#include "cli/text/validation.h"
#include "profiles/load.h"

namespace ballast {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<FigureClass, 4> kClasses = {FigureClass::kSpeed, FigureClass::kMemory,
                                                 FigureClass::kVerdict, FigureClass::kLayerMemory};

std::string_view class_name(FigureClass figure_class) {
  switch (figure_class) {
    case FigureClass::kSpeed:
      return "speed";
    case FigureClass::kMemory:
      return "memory";
    case FigureClass::kVerdict:
      return "verdicts";
    case FigureClass::kLayerMemory:
      return "memory of layers";
  }
  return "";
}

std::string_view heading(LeftOut left_out) {
  switch (left_out) {
    case LeftOut::kSource:
      return "without its source";
    case LeftOut::kFramework:
      return "as the typical framework, without its own";
    case LeftOut::kNothing:
      return "fitted to it too";
  }
  return "";
}

OrderedJson summary_json(const LeftOutValidation& validation, FigureClass figure_class,
                         LeftOut left_out) {
  const ErrorSummary summary = summarise(validation.figures, figure_class, left_out);
  OrderedJson json = {{"quantity", class_name(figure_class)},
                      {"left_out", to_string(left_out)},
                      {"figures", summary.figures},
                      {"failed", summary.failed}};
  if (summary.figures == 0) return json;
  const std::string& worst = validation.cases[summary.worst_of].setup.published.id;
  if (figure_class == FigureClass::kVerdict) {
    json["right_percent"] = 100 - summary.mean;
    return json;
  }
  json["mean_error_percent"] = summary.mean;
  json["bias_percent"] = summary.bias;
  json["median_error_percent"] = summary.median;
  json["worst_error_percent"] = summary.worst;
  json["worst_id"] = worst;
  json["in_interval_percent"] = 100 * summary.coverage;
  json["in_interval_by_source_percent"] = 100 * summary.coverage_by_source;
  return json;
}

OrderedJson figure_json(const LeftOutValidation& validation, const JudgedFigure& figure) {
  const SourcedCase& sourced = validation.cases[figure.case_index];
  OrderedJson json = {{"file", sourced.file},
                      {"id", sourced.setup.published.id},
                      {"source", sourced.source},
                      {"stack", sourced.setup.stack.name},
                      {"metric", metric_name(figure.metric)},
                      {"published", figure.published}};
  for (int i = 0; i < kLeftOuts; ++i) {
    const JudgedPrediction& judged = figure.predicted[static_cast<size_t>(i)];
    const std::string key = "without_" + std::string(to_string(static_cast<LeftOut>(i)));
    if (!judged.value) {
      json[key] = nullptr;
      continue;
    }
    const bool verdict = figure.metric == Metric::kFits;
    json[key] = {{"predicted", *judged.value},
                 {"error_percent", verdict ? OrderedJson(nullptr)
                                           : OrderedJson(signed_error_percent(
                                                 figure.metric, *judged.value, figure.published))},
                 {"low", judged.low},
                 {"high", judged.high}};
  }
  if (!figure.error.empty()) json["error"] = figure.error;
  return json;
}

std::string summary_text(const LeftOutValidation& validation) {
  Table table({{"each case predicted", true},
               {"quantity", true},
               {"figures"},
               {"failed"},
               {"mean"},
               {"bias"},
               {"median"},
               {"worst"},
               {"in interval"},
               {"by source"},
               {"worst case", true}});
  for (int i = 0; i < kLeftOuts; ++i) {
    const auto left_out = static_cast<LeftOut>(i);
    for (const FigureClass figure_class : kClasses) {
      const ErrorSummary summary = summarise(validation.figures, figure_class, left_out);
      if (summary.figures + summary.failed == 0) continue;
      std::vector<std::string> cells = {
          std::string(heading(left_out)), std::string(class_name(figure_class)),
          std::to_string(summary.figures), std::to_string(summary.failed)};
      if (figure_class == FigureClass::kVerdict) {
        cells.push_back(show_percent(100 - summary.mean) + " right");
      } else if (summary.figures > 0) {
        const std::string& worst = validation.cases[summary.worst_of].setup.published.id;
        const bool interval = figure_class != FigureClass::kLayerMemory;
        cells.insert(cells.end(),
                     {show_percent(summary.mean), show_signed_percent(summary.bias),
                      show_percent(summary.median), show_signed_percent(summary.worst),
                      interval ? show_percent(100 * summary.coverage) : "-",
                      interval ? show_percent(100 * summary.coverage_by_source) : "-", worst});
      }
      table.add(std::move(cells));
    }
  }
  return table.text();
}

std::string files_text(const LeftOutValidation& validation) {
  std::map<std::string, std::vector<JudgedFigure>> by_file;
  for (const JudgedFigure& figure : validation.figures) {
    by_file[validation.cases[figure.case_index].file].push_back(figure);
  }
  Table table({{"file", true},
               {"quantity", true},
               {"figures"},
               {"failed"},
               {"mean"},
               {"bias"},
               {"worst"},
               {"in interval"}});
  for (const auto& [file, figures] : by_file) {
    for (const FigureClass figure_class : {FigureClass::kSpeed, FigureClass::kMemory}) {
      const ErrorSummary summary = summarise(figures, figure_class, LeftOut::kSource);
      if (summary.figures + summary.failed == 0) continue;
      table.add({file, std::string(class_name(figure_class)), std::to_string(summary.figures),
                 std::to_string(summary.failed), show_percent(summary.mean),
                 show_signed_percent(summary.bias), show_signed_percent(summary.worst),
                 show_percent(100 * summary.coverage)});
    }
  }
  return table.text();
}

std::vector<std::string> row_cells(const SourcedCase& sourced, const JudgedFigure& figure) {
  std::vector<std::string> cells = {sourced.file, sourced.setup.published.id,
                                    std::string(metric_name(figure.metric))};
  const bool verdict = figure.metric == Metric::kFits;
  const auto number = [&](double value) {
    if (verdict) return std::string(value > 0 ? "fits" : "does not");
    return fmt::format("{:.4g}", value);
  };
  cells.push_back(number(figure.published));
  if (!figure.error.empty()) {
    cells.push_back("failed: " + figure.error);
    return cells;
  }
  const JudgedPrediction& judged = figure.predicted[static_cast<size_t>(LeftOut::kSource)];
  cells.push_back(number(*judged.value));
  cells.push_back(verdict ? fmt::format("{:.0f} %", 100 * judged.low)
                          : fmt::format("{:.4g} to {:.4g}", judged.low, judged.high));
  for (const JudgedPrediction& one : figure.predicted) {
    if (verdict) {
      cells.emplace_back(*one.value == figure.published ? "right" : "wrong");
    } else {
      cells.push_back(
          show_signed_percent(signed_error_percent(figure.metric, *one.value, figure.published)));
    }
  }
  return cells;
}

std::string rows_text(const LeftOutValidation& validation) {
  Table table({{"file", true},
               {"case", true},
               {"quantity", true},
               {"published"},
               {"predicted"},
               {"80 % interval"},
               {"source out"},
               {"framework out"},
               {"fitted"}});
  for (const JudgedFigure& figure : validation.figures) {
    table.add(row_cells(validation.cases[figure.case_index], figure));
  }
  return table.text();
}

}  // namespace

LeftOutValidation validate_left_out(const std::vector<PublishedFile>& files,
                                    const CalibrationProgress& progress) {
  LeftOutValidation validation;
  LoadedCases loaded = load_published_cases(files, {});
  validation.cases = std::move(loaded.cases);
  validation.refused = std::move(loaded.refused);
  validation.figures = judge(validation.cases, load_stack(std::string(kTypicalStack)), progress);
  return validation;
}

OrderedJson left_out_json(const LeftOutValidation& validation) {
  OrderedJson summaries = OrderedJson::array();
  for (int i = 0; i < kLeftOuts; ++i) {
    for (const FigureClass figure_class : kClasses) {
      summaries.push_back(summary_json(validation, figure_class, static_cast<LeftOut>(i)));
    }
  }
  OrderedJson figures = OrderedJson::array();
  for (const JudgedFigure& figure : validation.figures) {
    figures.push_back(figure_json(validation, figure));
  }
  OrderedJson refused = OrderedJson::array();
  for (const Refusal& one : validation.refused) {
    refused.push_back({{"file", one.file}, {"id", one.id}, {"why", one.why}});
  }
  return {{"schema", "ballast.validation/2"},
          {"summary", summaries},
          {"figures", figures},
          {"refused", refused}};
}

std::string left_out_text(const LeftOutValidation& validation) {
  std::string text = rows_text(validation) + "\nBy file, predicted without its source:\n" +
                     files_text(validation) + "\n" + summary_text(validation);
  for (const Refusal& one : validation.refused) {
    text += fmt::format("refused, counts as failed: {}: {}\n", one.id, one.why);
  }
  return text;
}

}  // namespace ballast
