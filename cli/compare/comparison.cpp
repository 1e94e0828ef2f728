#include "cli/compare/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>

#include "autotune/search/search_question.h"
#include "cli/compare/buyers.h"
#include "cli/compare/remarks.h"
#include "cli/text/confidence.h"
#include "cli/text/prediction.h"
#include "cli/text/runs_on.h"
#include "cli/text/tables.h"

namespace ballast {
namespace {

using OrderedJson = nlohmann::ordered_json;

// In the units of value_of().
std::string show_value(double value, Criterion criterion) {
  switch (criterion) {
    case Criterion::kStepTime:
      return show(Duration::from_seconds(value));
    case Criterion::kTokensPerS:
    case Criterion::kTokensPerSPerDevice:
      return show_count(value);
    case Criterion::kMfu:
      return show_percent(100 * value);
    case Criterion::kGpuMemory:
      return show(Bytes{std::llround(value)});
    case Criterion::kCostPerToken:
      return fmt::format("{:.3g}", value);
  }
  return "";
}

// "1.20 to 1.50 s"; empty where nothing is known. All but memory go with the time of the step,
// whose interval is even in logarithms.
std::string show_interval(const CellResult& cell, Criterion criterion) {
  if (!cell.fits || !cell.confidence) return "";
  const double value = value_of(cell, criterion);
  double factor = 1;
  if (criterion == Criterion::kGpuMemory) {
    if (!cell.confidence->gpu_peak) return "";
    factor = static_cast<double>(cell.confidence->gpu_peak->high.count) / value;
  } else {
    if (!cell.confidence->step_time) return "";
    factor = cell.confidence->step_time->high.seconds() / cell.step_time.seconds();
  }
  return between(show_value(value / factor, criterion), show_value(value * factor, criterion));
}

// What a criterion is called for people, and its unit; in the order of Criterion.
struct CriterionWords {
  const char* title;
  const char* unit;
  const char* spoken;  // behind a value that has no unit yet
};
constexpr std::array<CriterionWords, kCriteria> kCriterionWords = {
    {{"time of a step, less is better", "s", ""},
     {"tokens a second, more is better", "tokens/s", " tokens/s"},
     {"tokens a second and device, more is better", "tokens/s", " tokens/s a device"},
     {"MFU, more is better", "1", " MFU"},
     {"GPU memory of the fastest plan, less is better", "bytes", ""},
     {"price of a million tokens, less is better", "price of a million tokens",
      " for a million tokens"}}};
const CriterionWords& words_of(Criterion criterion) {
  return kCriterionWords[static_cast<size_t>(criterion)];
}

// What all cells have in common.
std::string heading(const Comparison& comparison) {
  std::vector<std::string> words;
  for (const auto* axes : {&comparison.grid.row_axes(), &comparison.grid.column_axes()}) {
    for (const Axis& axis : *axes) {
      if (axis.values.size() == 1) words.push_back(axis.name + " " + axis.values.front());
    }
  }
  const std::string title = words_of(comparison.criterion).title;
  return words.empty() ? title : fmt::format("{}: {}", fmt::join(words, ", "), title);
}

// Whether another column of a row may be the best as well.
bool is_too_near(const Comparison& comparison, size_t row) {
  const std::optional<Winner>& best = comparison.best[row];
  if (!best) return false;
  const CellResult& first = comparison.cells[comparison.grid.cell(row, best->column)];
  for (size_t column = 0; column < comparison.grid.columns(); ++column) {
    const CellResult& other = comparison.cells[comparison.grid.cell(row, column)];
    if (column != best->column && are_alike(first, other, comparison.criterion)) return true;
  }
  return false;
}

std::string lead_text(const Comparison& comparison, size_t row) {
  const std::optional<Winner>& best = comparison.best[row];
  if (!best) return "nothing";
  if (!best->lead) return "alone";
  return show_percent(100 * *best->lead) + (is_too_near(comparison, row) ? ", too near" : "");
}

bool knows_intervals(const Comparison& comparison) {
  return std::any_of(comparison.cells.begin(), comparison.cells.end(),
                     [](const CellResult& cell) { return cell.confidence.has_value(); });
}

std::string table_text(const Comparison& comparison) {
  const Grid& grid = comparison.grid;
  std::vector<Table::Column> columns;
  for (const Axis& axis : grid.row_axes()) {
    if (axis.values.size() > 1) columns.push_back({axis.name, !axis.is_sweep()});
  }
  if (columns.empty()) columns.push_back({"", true});
  // A mark of two characters stands behind every number, so that the numbers line up.
  for (size_t i = 0; i < grid.columns(); ++i) columns.push_back({column_name(grid, i) + "  "});
  if (grid.columns() > 1) columns.push_back({"ahead by"});
  const bool intervals = knows_intervals(comparison);
  if (intervals) columns.push_back({grid.columns() > 1 ? "80 % of the best" : "80 %"});
  Table table(columns);
  for (size_t row = 0; row < grid.rows(); ++row) {
    std::vector<std::string> cells;
    const std::vector<size_t> at = grid.row_at(row);
    for (size_t i = 0; i < at.size(); ++i) {
      const Axis& axis = grid.row_axes()[i];
      if (axis.values.size() > 1) cells.push_back(axis.values[at[i]]);
    }
    if (cells.empty()) cells.emplace_back();
    const std::optional<Winner>& best = comparison.best[row];
    for (size_t column = 0; column < grid.columns(); ++column) {
      const CellResult& cell = comparison.cells[grid.cell(row, column)];
      const bool is_best = grid.columns() > 1 && best && best->column == column;
      cells.push_back(cell.fits
                          ? show_value(value_of(cell, comparison.criterion), comparison.criterion) +
                                (is_best ? " *" : "  ")
                          : std::string(to_string(cell.obstacle)) + "  ");
    }
    if (grid.columns() > 1) cells.push_back(lead_text(comparison, row));
    if (intervals) {
      cells.push_back(
          best ? show_interval(comparison.cells[grid.cell(row, best->column)], comparison.criterion)
               : "");
    }
    table.add(std::move(cells));
  }
  return table.text();
}

std::string winner_name(const Comparison& comparison, size_t row) {
  const std::optional<Winner>& best = comparison.best[row];
  return best ? column_name(comparison.grid, best->column) : "nothing that fits";
}

std::string crossings_text(const Comparison& comparison) {
  const Grid& grid = comparison.grid;
  if (grid.columns() == 1) return "";
  std::string text;
  for (const Crossing& crossing : comparison.crossings) {
    const Axis& axis = grid.row_axes()[crossing.axis];
    const auto value = [&](size_t row) { return axis.values[grid.row_at(row)[crossing.axis]]; };
    const std::string others = row_name(grid, crossing.row_before, crossing.axis);
    text += fmt::format("{}between {} {} and {} the best changes from {} to {}\n",
                        others.empty() ? "" : others + ": ", axis.name, value(crossing.row_before),
                        value(crossing.row_after), winner_name(comparison, crossing.row_before),
                        winner_name(comparison, crossing.row_after));
  }
  const bool swept = std::any_of(grid.row_axes().begin(), grid.row_axes().end(),
                                 [](const Axis& axis) { return axis.is_sweep(); });
  if (text.empty() && swept && grid.row_axes().size() > 0) {
    const bool everywhere = std::all_of(
        comparison.best.begin(), comparison.best.end(),
        [&](const auto& best) { return best && best->column == comparison.best.front()->column; });
    if (everywhere) text = "the best is " + winner_name(comparison, 0) + " at every value\n";
  }
  return text;
}

// Where cells of one row that use as many devices train different batches, as those of a strategy
// with other degrees do where nobody names one.
std::optional<std::string> batches_note(const Comparison& comparison) {
  const Grid& grid = comparison.grid;
  const auto is_batch = [](const Axis& axis) { return axis.name == "plan.global_batch"; };
  const std::vector<Axis>& columns = grid.column_axes();
  if (std::any_of(columns.begin(), columns.end(), is_batch)) return std::nullopt;
  for (size_t row = 0; row < grid.rows(); ++row) {
    const Plan* first = nullptr;
    for (size_t column = 0; column < grid.columns(); ++column) {
      const CellResult& cell = comparison.cells[grid.cell(row, column)];
      if (!cell.fits) continue;
      if (first == nullptr) first = &cell.plan;
      if (cell.plan.devices != first->devices || cell.plan.global_batch == first->global_batch) {
        continue;
      }
      return fmt::format(
          "steps of a row train different batches, of {} and of {} sequences: "
          "--global-batch makes them alike",
          first->global_batch, cell.plan.global_batch);
    }
  }
  return std::nullopt;
}

// Every note of the cells once, in their order, behind what is to be noted of all.
std::vector<std::string> notes_of_cells(const Comparison& comparison) {
  std::vector<std::string> notes;
  if (const auto note = batches_note(comparison)) notes.push_back(*note);
  for (const CellResult& cell : comparison.cells) {
    for (const std::string& note : cell.notes) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  return notes;
}

// Whose habits the cells assume, and which plans and verdicts that leaves open.
std::string assumed_text(const Comparison& comparison) {
  const Grid& grid = comparison.grid;
  std::map<std::string, size_t> stacks;
  for (const CellResult& cell : comparison.cells) {
    if (!cell.stack.empty()) ++stacks[cell.stack];
  }
  std::string text;
  for (const auto& [name, count] : stacks) {
    const std::string where = stacks.size() == 1 ? "" : fmt::format("{} cells ", count);
    text += where + stack_text(name) + "\n";
  }
  text += notes_text(notes_of_cells(comparison));
  bool any_near = false;
  for (size_t row = 0; row < grid.rows(); ++row) any_near |= is_too_near(comparison, row);
  if (any_near) {
    text += fmt::format("too near: within {:.1f} % of each other, plans cannot be told apart\n",
                        100 * told_apart_from());
  }
  for (size_t i = 0; i < comparison.cells.size(); ++i) {
    const CellResult& cell = comparison.cells[i];
    if (!is_close(cell.confidence)) continue;
    const std::string where = row_name(grid, i / grid.columns(), std::nullopt);
    text +=
        fmt::format("{}{} is {}\n", column_name(grid, i % grid.columns()),
                    where.empty() ? "" : " at " + where, verdict_text(cell.fits, cell.confidence));
  }
  return text;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::vector<std::string> quoted;
  for (const std::string& field : fields) quoted.push_back(csv_field(field));
  return fmt::format("{}\r\n", fmt::join(quoted, ","));
}

bool is_best(const Comparison& comparison, size_t cell) {
  const size_t columns = comparison.grid.columns();
  const std::optional<Winner>& best = comparison.best[cell / columns];
  return best && best->column == cell % columns;
}

OrderedJson axis_json(const Axis& axis) {
  return {{"name", axis.name}, {"values", axis.values}, {"sweep", axis.is_sweep()}};
}

// The value of every axis, rows first.
OrderedJson place_json(const Grid& grid, size_t cell) {
  OrderedJson json = OrderedJson::object();
  for (const auto* axes : {&grid.row_axes(), &grid.column_axes()}) {
    for (const Axis& axis : *axes) json[axis.name] = grid.value(cell, axis.name);
  }
  return json;
}

OrderedJson provenance_json(const std::array<double, kProvenances>& shares) {
  OrderedJson json = OrderedJson::object();
  for (int p = 0; p < kProvenances; ++p) {
    json[std::string(to_string(static_cast<Provenance>(p)))] = shares[static_cast<size_t>(p)];
  }
  return json;
}

// By place: bytes that tensors need and may take, and who holds how much of them at the peak.
OrderedJson memory_json(const CellResult& cell) {
  OrderedJson memory = OrderedJson::object();
  for (const PlacePeak& peak : cell.peaks) {
    if (peak.arena.count == 0) continue;
    OrderedJson categories = OrderedJson::array();
    for (const Holder& holder : peak.holders) {
      categories.push_back(
          {{"category", to_string(holder.category)}, {"bytes", holder.bytes.count}});
    }
    const Bytes usable = peak.place == Place::kHbm    ? cell.usable_gpu_memory
                         : peak.place == Place::kDram ? cell.usable_cpu_memory
                                                      : Bytes{0};
    memory[std::string(to_string(peak.place))] = {
        {"bytes", peak.arena.count},
        {"usable_bytes", usable.count > 0 ? OrderedJson(usable.count) : OrderedJson(nullptr)},
        {"categories", categories}};
  }
  return memory;
}

// What a search proved of the plan; null where nothing was searched for a proof.
OrderedJson search_json(const CellResult& cell) {
  if (!cell.search) return nullptr;
  return {{"counted", counted(cell.stack, 0)},
          {"considered", cell.search->considered},
          {"simulated", cell.search->simulated},
          {"complete", cell.search->stop == SearchStop::kNone},
          {"stopped_by", cell.search->stop == SearchStop::kNone
                             ? OrderedJson(nullptr)
                             : OrderedJson(to_string(cell.search->stop))},
          {"proven_within", or_null(cell.search->proven_within)},
          {"seconds", cell.search->seconds}};
}

OrderedJson cell_json(const Comparison& comparison, size_t index) {
  const CellResult& cell = comparison.cells[index];
  const auto number = [&](double value) {
    return cell.fits ? OrderedJson(value) : OrderedJson(nullptr);
  };
  OrderedJson json = {{"at", place_json(comparison.grid, index)},
                      {"fits", is_undecided(cell) ? OrderedJson(nullptr) : OrderedJson(cell.fits)},
                      {"best", is_best(comparison, index)},
                      {"obstacle", to_string(cell.obstacle)},
                      {"reason", cell.reason}};
  json["stack"] = cell.stack.empty() ? OrderedJson(nullptr) : OrderedJson(cell.stack);
  json["confidence"] = confidence_json(cell.stack, cell.confidence,
                                       cell.stack.empty() ? 0 : cell.plan.tokens_per_step());
  json["step_time_s"] = number(cell.step_time.seconds());
  json["tokens_per_s"] = number(cell.tokens_per_s);
  json["tokens_per_s_per_device"] = number(cell.tokens_per_s_per_device);
  json["mfu_percent"] = number(100 * cell.mfu);
  json["peak_gpu_bytes"] = number(static_cast<double>(cell.gpu_memory.count));
  json["peak_cpu_bytes"] = number(static_cast<double>(cell.cpu_memory.count));
  json["memory"] = memory_json(cell);
  json["parameters"] = cell.parameters > 0 ? OrderedJson(cell.parameters) : OrderedJson(nullptr);
  json["provenance"] = cell.fits ? provenance_json(cell.provenance) : OrderedJson(nullptr);
  const bool priced = cell.fits && cell.price_per_device_hour > 0;
  json["cost_per_million_tokens"] =
      priced ? OrderedJson(cell.cost_per_million_tokens()) : OrderedJson(nullptr);
  if (comparison.run_tokens) {
    json["run_days"] = number(cell.fits ? cell.days_of_run(*comparison.run_tokens) : 0);
    json["run_cost"] =
        priced ? OrderedJson(cell.cost_of_run(*comparison.run_tokens)) : OrderedJson(nullptr);
  }
  if (asks_as_buyer(comparison)) add_buyers_json(comparison, index, json);
  json["search"] = search_json(cell);
  json["notes"] = cell.notes;
  json["runs_on"] = runs_on_json(cell.runs_on);
  json["plan"] =
      cell.plan.model.empty() ? OrderedJson(nullptr) : OrderedJson::parse(plan_json(cell.plan));
  return json;
}

OrderedJson crossing_json(const Comparison& comparison, const Crossing& crossing) {
  const Grid& grid = comparison.grid;
  const Axis& axis = grid.row_axes()[crossing.axis];
  const auto winner = [&](size_t row) {
    const std::optional<Winner>& best = comparison.best[row];
    return best ? OrderedJson(column_name(grid, best->column)) : OrderedJson(nullptr);
  };
  OrderedJson others = OrderedJson::object();
  const std::vector<size_t> at = grid.row_at(crossing.row_before);
  for (size_t i = 0; i < at.size(); ++i) {
    const Axis& other = grid.row_axes()[i];
    if (i != crossing.axis) others[other.name] = other.values[at[i]];
  }
  return {{"axis", axis.name},
          {"from", axis.numbers[grid.row_at(crossing.row_before)[crossing.axis]]},
          {"to", axis.numbers[grid.row_at(crossing.row_after)[crossing.axis]]},
          {"at", others},
          {"before", winner(crossing.row_before)},
          {"after", winner(crossing.row_after)}};
}

}  // namespace

std::string column_name(const Grid& grid, size_t column) {
  const std::vector<size_t> at = grid.column_at(column);
  std::vector<std::string> words;
  for (size_t i = 0; i < at.size(); ++i) {
    const Axis& axis = grid.column_axes()[i];
    if (axis.values.size() == 1) continue;
    const std::string& value = axis.values[at[i]];
    const bool speaks_for_itself = axis.name == "strategy" || axis.name == "machine" ||
                                   axis.name == "model" || axis.name == kOfferAxis;
    if (speaks_for_itself) {
      words.push_back(value);
    } else if (axis.name == "devices") {
      words.push_back(value + (value == "1" ? " device" : " devices"));
    } else {
      words.push_back(axis.name + " " + value);
    }
  }
  if (!words.empty()) return fmt::format("{}", fmt::join(words, ", "));
  for (size_t i = 0; i < at.size(); ++i) {
    const Axis& axis = grid.column_axes()[i];
    if (axis.name == "strategy") return axis.values.front();
  }
  return "the plan";
}

std::string row_name(const Grid& grid, size_t row, std::optional<size_t> without) {
  const std::vector<size_t> at = grid.row_at(row);
  std::vector<std::string> words;
  for (size_t i = 0; i < at.size(); ++i) {
    const Axis& axis = grid.row_axes()[i];
    if (axis.values.size() > 1 && i != without)
      words.push_back(axis.name + " " + axis.values[at[i]]);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string cell_text(const Grid& grid, size_t index, const CellResult& cell, Criterion criterion) {
  const std::string where = row_name(grid, index / grid.columns(), std::nullopt);
  const std::string unit = words_of(criterion).spoken;
  const std::string said = cell.fits ? show_value(value_of(cell, criterion), criterion) + unit
                                     : std::string(to_string(cell.obstacle));
  return fmt::format("{}{}: {}", column_name(grid, index % grid.columns()),
                     where.empty() ? "" : ", " + where, said);
}

std::string comparison_text(const Comparison& comparison) {
  std::string text = heading(comparison) + "\n\n" + table_text(comparison);
  for (const std::string& part :
       {buyers_text(comparison), ranking_text(comparison), assumed_text(comparison),
        crossings_text(comparison), reasons_text(comparison), searches_text(comparison),
        chosen_text(comparison), running_text(comparison)}) {
    if (!part.empty()) text += "\n" + part;
  }
  if (comparison.interrupted) {
    const auto left = std::count_if(comparison.cells.begin(), comparison.cells.end(), is_undecided);
    text += fmt::format("\ninterrupted: {} of {} cells are not decided\n", left,
                        comparison.cells.size());
  }
  return text;
}

std::string comparison_csv(const Comparison& comparison) {
  const Grid& grid = comparison.grid;
  std::vector<std::string> titles;
  for (const auto* axes : {&grid.row_axes(), &grid.column_axes()}) {
    for (const Axis& axis : *axes) titles.push_back(axis.name);
  }
  const size_t axes = titles.size();
  for (const char* title :
       {"fits", "best", "obstacle", "step_time_s", "tokens_per_s", "tokens_per_s_per_device",
        "mfu_percent", "peak_gpu_bytes", "peak_cpu_bytes", "cost_per_million_tokens", "stack",
        "reason", "fits_probability"}) {
    titles.emplace_back(title);
  }
  if (comparison.run_tokens) titles.insert(titles.end(), {"run_days", "run_cost"});
  for (const char* title : buyers_keys(comparison)) titles.emplace_back(title);
  std::string text = csv_line(titles);
  for (size_t i = 0; i < comparison.cells.size(); ++i) {
    OrderedJson cell = cell_json(comparison, i);
    cell["fits_probability"] = cell["confidence"].is_object()
                                   ? cell["confidence"]["fits_probability"]
                                   : OrderedJson(nullptr);
    std::vector<std::string> fields;
    for (size_t title = 0; title < titles.size(); ++title) {
      const OrderedJson& value = title < axes ? cell["at"][titles[title]] : cell[titles[title]];
      fields.push_back(value.is_string() ? value.get<std::string>()
                       : value.is_null() ? std::string()
                                         : value.dump());
    }
    text += csv_line(fields);
  }
  return text;
}

OrderedJson comparison_json(const Comparison& comparison) {
  const Grid& grid = comparison.grid;
  OrderedJson json = {{"schema", "ballast.comparison/1"},
                      {"metric", to_string(comparison.criterion)},
                      {"unit", words_of(comparison.criterion).unit}};
  json["rows"] = json["columns"] = json["cells"] = OrderedJson::array();
  json["best"] = json["crossings"] = OrderedJson::array();
  if (comparison.run_tokens) json["run_tokens"] = *comparison.run_tokens;
  if (comparison.interrupted) json["interrupted"] = true;
  json["notes"] = notes_of_cells(comparison);
  for (const Axis& axis : grid.row_axes()) json["rows"].push_back(axis_json(axis));
  for (const Axis& axis : grid.column_axes()) json["columns"].push_back(axis_json(axis));
  for (size_t i = 0; i < comparison.cells.size(); ++i) {
    json["cells"].push_back(cell_json(comparison, i));
  }
  for (size_t row = 0; row < grid.rows(); ++row) {
    const std::optional<Winner>& best = comparison.best[row];
    if (!best) {
      json["best"].push_back(nullptr);
      continue;
    }
    json["best"].push_back({{"at", place_json(grid, grid.cell(row, best->column))},
                            {"name", column_name(grid, best->column)},
                            {"lead", best->lead ? OrderedJson(*best->lead) : OrderedJson(nullptr)},
                            {"told_apart", !is_too_near(comparison, row)}});
  }
  for (const Crossing& crossing : comparison.crossings) {
    json["crossings"].push_back(crossing_json(comparison, crossing));
  }
  return json;
}

std::string comparison_title(const OrderedJson& json) {
  std::vector<std::string> alike;
  std::vector<std::string> crossed;
  for (const char* key : {"columns", "rows"}) {
    for (const OrderedJson& axis : json[key]) {
      const std::string name = axis["name"];
      const std::string first = axis["values"].front();
      if (axis["values"].size() > 1) {
        crossed.push_back(name);
      } else if (name == "model" || name == "machine" || name == "strategy" || name == kOfferAxis) {
        alike.push_back(first);
      } else {
        alike.push_back(name + " " + first);
      }
    }
  }
  const std::string by =
      crossed.empty() ? "One plan" : "By " + fmt::format("{}", fmt::join(crossed, " and "));
  return alike.empty() ? by : fmt::format("{}: {}", by, fmt::join(alike, ", "));
}

}  // namespace ballast
