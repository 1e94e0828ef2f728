#include "cli/text/validation.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"
#include "sim/base/error.h"
#include "sim/base/median.h"
#include "sim/base/parallel.h"

namespace ballast {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kSchema = "ballast.validation/1";
constexpr const char* kAllFiles = "all";

std::string name_of(const std::string& path) { return std::filesystem::path(path).stem().string(); }

struct ValidationJob {
  std::string file;
  const PublishedEntry* entry = nullptr;
};

struct Outcome {
  std::vector<ValidationRow> rows;
  std::optional<Stack> stack;
};

std::vector<ValidationRow> rows_of(const ValidationJob& job,
                                   const std::vector<MetricPrediction>& metrics,
                                   const std::string& error) {
  std::vector<ValidationRow> rows;
  const PublishedCase& published = *job.entry->published;
  for (const MetricPrediction& metric : metrics) {
    const std::string missing =
        error.empty() && !metric.predicted ? "the prediction lacks this quantity" : error;
    rows.push_back({job.file, published.id, published.machine, published.stack, metric, missing});
  }
  return rows;
}

Outcome run(const ValidationJob& job) {
  Outcome outcome;
  if (!job.entry->published) {
    outcome.rows = {{job.file, job.entry->id, "", "", {}, job.entry->error}};
    return outcome;
  }
  const PublishedCase& published = *job.entry->published;
  std::vector<MetricPrediction> unknown;
  for (const Measured& measured : published.measured) {
    unknown.push_back({measured.metric, measured.value, std::nullopt});
  }
  try {
    const CaseSetup setup = set_up(published);
    outcome.stack = setup.stack;
    const CasePrediction predicted = predict_case(setup, setup.stack.constants);
    outcome.rows = rows_of(job, predicted.metrics, "");
    for (ValidationRow& row : outcome.rows) {
      if (!row.metric.predicted && !predicted.fits) row.error = predicted.reason;
    }
  } catch (const std::exception& error) {
    // Whatever it was, the other cases are still worth their predictions.
    outcome.rows = rows_of(job, unknown, error.what());
  }
  return outcome;
}

double absolute_error(const ValidationRow& row) { return std::abs(row.metric.error_percent()); }

ValidationSummary summary_of(const std::string& file, const std::vector<ValidationRow>& rows) {
  ValidationSummary summary;
  summary.file = file;
  std::vector<double> errors;
  for (const ValidationRow& row : rows) {
    if (!row.error.empty()) {
      ++summary.failed;
      continue;
    }
    ++summary.cases;
    if (row.metric.metric == Metric::kFits) {
      ++summary.fits;
      summary.right += row.metric.right();
      continue;
    }
    errors.push_back(absolute_error(row));
    summary.mean += errors.back();
    if (errors.back() >= summary.worst) {
      summary.worst = errors.back();
      summary.worst_id = row.id;
    }
  }
  if (errors.empty()) return summary;
  summary.mean /= static_cast<double>(errors.size());
  summary.median = median(std::move(errors));
  return summary;
}

OrderedJson row_json(const ValidationRow& row) {
  const bool fits = row.metric.metric == Metric::kFits;
  const bool known = row.error.empty();
  const auto value = [&](double number) {
    return fits ? OrderedJson(number > 0) : OrderedJson(number);
  };
  OrderedJson json = {
      {"file", row.file},
      {"id", row.id},
      {"machine", row.machine},
      {"stack", row.stack},
      {"metric", metric_name(row.metric.metric)},
      {"published", value(row.metric.published)},
      {"predicted", known ? value(*row.metric.predicted) : nullptr},
      {"error_percent", known && !fits ? OrderedJson(row.metric.error_percent()) : nullptr},
      {"right", known && fits ? OrderedJson(row.metric.right()) : nullptr}};
  if (row.machine.empty()) json["metric"] = json["published"] = nullptr;
  if (!known) json["error"] = row.error;
  return json;
}

OrderedJson summary_json(const ValidationSummary& summary) {
  return {{"file", summary.file},
          {"cases", summary.cases},
          {"failed", summary.failed},
          {"mean_error_percent", summary.mean},
          {"median_error_percent", summary.median},
          {"worst_error_percent", summary.worst},
          {"worst_id", summary.worst_id},
          {"fits", summary.fits},
          {"fits_right", summary.right}};
}

OrderedJson stack_constants(const Stack& stack) {
  OrderedJson constants = OrderedJson::object();
  for (int i = 0; i < kStackConstants; ++i) {
    constants[std::string(constant_name(i))] = constant(stack.constants, i);
  }
  OrderedJson sustained = OrderedJson::object();
  for (const auto& [generation, share] : stack.constants.sustained_gemm) {
    sustained[generation] = share;
  }
  return {{"name", stack.name},
          {"constants", constants},
          {"sustained_gemm", sustained},
          {"fitted", stack.fitted},
          {"fitted_on", stack.fitted_on}};
}

std::string number_text(Metric metric, double value) {
  if (metric == Metric::kFits) return value > 0 ? "fits" : "does not";
  return fmt::format("{:.4g}", value);
}

std::string verdict(const ValidationRow& row) {
  if (row.metric.metric == Metric::kFits) return row.metric.right() ? "right" : "wrong";
  return show_signed_percent(row.metric.error_percent());
}

std::string rows_text(const Validation& validation) {
  Table table({{"file", true},
               {"case", true},
               {"quantity", true},
               {"published"},
               {"predicted"},
               {"error"}});
  for (const ValidationRow& row : validation.rows) {
    if (row.machine.empty()) {
      table.add({row.file, row.id, row.error});
      continue;
    }
    std::vector<std::string> cells = {row.file, row.id, std::string(metric_name(row.metric.metric)),
                                      number_text(row.metric.metric, row.metric.published)};
    if (row.error.empty()) {
      cells.push_back(number_text(row.metric.metric, *row.metric.predicted));
      cells.push_back(verdict(row));
    } else {
      cells.push_back(row.error);
    }
    table.add(std::move(cells));
  }
  return table.text();
}

std::string summary_text(const std::vector<ValidationSummary>& summaries) {
  Table table({{"file", true},
               {"quantities"},
               {"failed"},
               {"mean"},
               {"median"},
               {"worst"},
               {"fits right"},
               {"worst case", true}});
  for (const ValidationSummary& one : summaries) {
    const bool errors = one.cases > one.fits;
    const auto percent = [&](double value) { return errors ? show_percent(value) : "-"; };
    table.add({one.file, std::to_string(one.cases), std::to_string(one.failed), percent(one.mean),
               percent(one.median), percent(one.worst),
               one.fits > 0 ? fmt::format("{} of {}", one.right, one.fits) : "-", one.worst_id});
  }
  return table.text();
}

std::string stacks_text(const std::vector<Stack>& stacks) {
  std::string text;
  for (const Stack& stack : stacks) {
    std::vector<std::string> values;
    for (int i = 0; i < kStackConstants; ++i) {
      const std::string name(constant_name(i));
      const bool fitted =
          std::find(stack.fitted.begin(), stack.fitted.end(), name) != stack.fitted.end();
      values.push_back(
          fmt::format("{} {:.3g}{}", name, constant(stack.constants, i), fitted ? "*" : ""));
    }
    text += fmt::format("{}: {}\n", stack.name, fmt::join(values, ", "));
    text += stack.fitted_on.empty()
                ? "  fitted on no case\n"
                : fmt::format("  * fitted on {}\n", fmt::join(stack.fitted_on, ", "));
  }
  return text;
}

}  // namespace

Validation validate(const std::vector<PublishedFile>& files,
                    const std::function<void(double share, const std::string& id)>& progress) {
  std::vector<ValidationJob> jobs;
  for (const PublishedFile& file : files) {
    for (const PublishedEntry& entry : file.entries) jobs.push_back({name_of(file.path), &entry});
  }
  std::vector<Outcome> outcomes(jobs.size());
  parallel_for(
      jobs.size(), hardware_threads(), [&](size_t i) { outcomes[i] = run(jobs[i]); },
      [&](size_t i, size_t finished) {
        const double share = static_cast<double>(finished) / static_cast<double>(jobs.size());
        progress(share, jobs[i].entry->id);
      });
  Validation validation;
  std::map<std::string, Stack> stacks;
  for (Outcome& outcome : outcomes) {
    for (ValidationRow& row : outcome.rows) validation.rows.push_back(std::move(row));
    if (outcome.stack) stacks[outcome.stack->name] = *outcome.stack;
  }
  for (auto& [name, stack] : stacks) validation.stacks.push_back(std::move(stack));
  return validation;
}

std::vector<ValidationSummary> summaries_of(const Validation& validation) {
  std::vector<std::string> files;
  std::map<std::string, std::vector<ValidationRow>> by_file;
  for (const ValidationRow& row : validation.rows) {
    if (!by_file.contains(row.file)) files.push_back(row.file);
    by_file[row.file].push_back(row);
  }
  std::vector<ValidationSummary> summaries;
  for (const std::string& file : files) summaries.push_back(summary_of(file, by_file[file]));
  summaries.push_back(summary_of(kAllFiles, validation.rows));
  return summaries;
}

bool any_failed(const Validation& validation) {
  return std::any_of(validation.rows.begin(), validation.rows.end(),
                     [](const ValidationRow& row) { return !row.error.empty(); });
}

OrderedJson validation_json(const Validation& validation) {
  OrderedJson cases = OrderedJson::array();
  for (const ValidationRow& row : validation.rows) cases.push_back(row_json(row));
  OrderedJson summary = OrderedJson::array();
  std::vector<ValidationSummary> summaries = summaries_of(validation);
  const OrderedJson overall = summary_json(summaries.back());
  summaries.pop_back();
  for (const ValidationSummary& one : summaries) summary.push_back(summary_json(one));
  OrderedJson stacks = OrderedJson::array();
  for (const Stack& stack : validation.stacks) stacks.push_back(stack_constants(stack));
  return {{"schema", kSchema},
          {"cases", cases},
          {"summary", summary},
          {"overall", overall},
          {"stacks", stacks}};
}

std::string validation_text(const Validation& validation) {
  return fmt::format("{}\nabsolute errors:\n{}\nconstants of the stacks:\n{}",
                     rows_text(validation), summary_text(summaries_of(validation)),
                     stacks_text(validation.stacks));
}

}  // namespace ballast
