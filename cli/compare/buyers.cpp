#include "cli/compare/buyers.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/text/confidence.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"

namespace ballast {
namespace {

// "1,234,567" above a thousand, where the cents say nothing; else three digits.
std::string show_price(double value) {
  return value >= 1000 ? show_count(value) : fmt::format("{:.3g}", value);
}

// "15T", as the flag takes it.
std::string show_tokens(double tokens) {
  constexpr auto kUnits = std::to_array<std::pair<double, const char*>>(
      {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}});
  for (const auto& [size, letter] : kUnits) {
    if (tokens >= size) return fmt::format("{:.6g}{}", tokens / size, letter);
  }
  return fmt::format("{:.0f}", tokens);
}

constexpr double kPerMillion = 1e6;

// "1.23 GWh", "456 MWh", "7.89 kWh", "12.3 Wh".
std::string show_energy(double joules) {
  constexpr auto kUnits = std::to_array<std::pair<double, const char*>>(
      {{3.6e12, "GWh"}, {3.6e9, "MWh"}, {3.6e6, "kWh"}});
  for (const auto& [size, unit] : kUnits) {
    if (joules >= size) return fmt::format("{} {}", show_price(joules / size), unit);
  }
  return fmt::format("{:.3g} Wh", joules / 3.6e3);
}

// Of the run that was asked for, else of a million tokens.
double tokens_of_energy(const Comparison& comparison) {
  return comparison.run_tokens.value_or(kPerMillion);
}

// The name of a column, and the offer even where there is one alone.
std::string buyers_name(const Grid& grid, size_t column) {
  const std::vector<size_t> at = grid.column_at(column);
  std::string name = column_name(grid, column);
  for (size_t i = 0; i < at.size(); ++i) {
    const Axis& axis = grid.column_axes()[i];
    if (axis.name == kOfferAxis && axis.values.size() == 1) name = axis.values.front();
  }
  return name;
}

// A line of the table of offers: what a buyer asks of each cell.
std::vector<std::string> buyers_line(const Comparison& comparison, size_t index) {
  const CellResult& cell = comparison.cells[index];
  const size_t columns = comparison.grid.columns();
  const std::string row = row_name(comparison.grid, index / columns, std::nullopt);
  std::vector<std::string> line = {buyers_name(comparison.grid, index % columns) +
                                   (row.empty() ? "" : ", " + row)};
  if (!cell.fits) {
    const std::string why(to_string(cell.obstacle));
    line.push_back(cell.obstacle == Obstacle::kNotDecided ? why : "no: " + why);
    return line;
  }
  const bool priced = cell.price_per_device_hour > 0;
  const auto price = [&](double value) { return priced ? show_price(value) : "not said"; };
  const std::string fits = is_close(cell.confidence)
                               ? fmt::format("close: {:.0f} %", 100 * cell.confidence->fits)
                               : std::string("yes");
  line.insert(line.end(), {fits, show(cell.step_time), show_count(cell.tokens_per_s),
                           price(cell.cost_per_million_tokens())});
  if (comparison.run_tokens) {
    line.push_back(show_count(cell.days_of_run(*comparison.run_tokens)));
    line.push_back(price(cell.cost_of_run(*comparison.run_tokens)));
  }
  const std::optional<double> energy = cell.joules_of_run(tokens_of_energy(comparison));
  line.push_back(energy ? show_energy(*energy) : "not known");
  return line;
}

// Each machine's power with its source, once; what it does not count is in the source.
std::string powers_text(const Comparison& comparison) {
  std::set<std::string> lines;
  for (const CellResult& cell : comparison.cells) {
    if (!cell.fits) continue;
    if (cell.power_watts) {
      lines.insert(fmt::format("  {}: {:g} W a GPU, {}", cell.plan.machine, cell.power_watts->value,
                               cell.power_watts->source));
    } else {
      lines.insert(fmt::format("  {}: not known, its file has no power_watts", cell.plan.machine));
    }
  }
  if (lines.empty()) return "";
  std::string text =
      "energy at most: every GPU at the power of its machine throughout, without what that leaves "
      "out\n";
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// "3.37 (+40.3 %)": a price, and by how much it is another one.
std::string changed_price(double level, double price) {
  if (price == 0) return fmt::format("{:.3g}", level);
  return fmt::format("{:.3g} ({})", level, show_signed_percent(100 * (level / price - 1)));
}

std::string standing_text(const Comparison& comparison, size_t index) {
  const Standing& standing = *comparison.standings[index];
  const size_t columns = comparison.grid.columns();
  const CellResult& cell = comparison.cells[index];
  const std::string name = column_name(comparison.grid, index % columns);
  const std::string rival = column_name(comparison.grid, standing.rival);
  const std::string level = changed_price(standing.level_price, cell.price_per_device_hour);
  const std::string near =
      standing.told_apart
          ? ""
          : fmt::format("; today the two are within {:.1f} %, which nobody can tell apart",
                        100 * told_apart_from());
  if (standing.cheapest) {
    return fmt::format("{} stays the cheapest up to {}, where {} draws level{}", name, level, rival,
                       near);
  }
  return fmt::format("{} draws level with {} at {}{}", name, rival, level, near);
}

}  // namespace

bool has_offers(const Grid& grid) {
  for (const auto* axes : {&grid.row_axes(), &grid.column_axes()}) {
    for (const Axis& axis : *axes) {
      if (axis.name == kOfferAxis) return true;
    }
  }
  return false;
}

bool asks_as_buyer(const Comparison& comparison) {
  return has_offers(comparison.grid) || comparison.run_tokens.has_value();
}

std::string buyers_text(const Comparison& comparison) {
  if (!asks_as_buyer(comparison)) return "";
  std::vector<Table::Column> titles = {
      {"", true}, {"fits", true}, {"step"}, {"tokens/s"}, {"price of 1M tokens"}};
  if (comparison.run_tokens) {
    titles.push_back({fmt::format("days of {}", show_tokens(*comparison.run_tokens))});
    titles.push_back({"price of it"});
  }
  titles.push_back({comparison.run_tokens ? "energy at most" : "energy of them at most"});
  Table table(titles);
  for (size_t i = 0; i < comparison.cells.size(); ++i) {
    table.add(buyers_line(comparison, i));
  }
  return table.text() + powers_text(comparison);
}

std::string ranking_text(const Comparison& comparison) {
  if (!asks_as_buyer(comparison)) return "";
  const Grid& grid = comparison.grid;
  std::string text;
  for (size_t row = 0; row < grid.rows(); ++row) {
    const std::string where = row_name(grid, row, std::nullopt);
    std::string lines;
    for (const bool cheapest : {true, false}) {
      for (size_t column = 0; column < grid.columns(); ++column) {
        const size_t index = grid.cell(row, column);
        const std::optional<Standing>& standing = comparison.standings[index];
        if (!standing || standing->cheapest != cheapest) continue;
        lines += fmt::format("  {}{}\n", where.empty() ? "" : where + ": ",
                             standing_text(comparison, index));
      }
    }
    text += lines;
  }
  return text.empty() ? ""
                      : "what would change the ranking, as prices of a GPU for an hour:\n" + text;
}

std::vector<const char*> buyers_keys(const Comparison& comparison) {
  if (!asks_as_buyer(comparison)) return {};
  std::vector<const char*> keys = {"price_per_device_hour",
                                   "cheapest",
                                   "level_price_per_device_hour",
                                   "level_with",
                                   "told_apart",
                                   "power_watts",
                                   "energy_kwh_per_million_tokens"};
  if (comparison.run_tokens) keys.push_back("run_energy_kwh");
  return keys;
}

void add_buyers_json(const Comparison& comparison, size_t index, nlohmann::ordered_json& json) {
  constexpr double kJoulesAKwh = 3.6e6;
  const CellResult& cell = comparison.cells[index];
  for (const char* key : buyers_keys(comparison)) json[key] = nullptr;
  if (cell.price_per_device_hour > 0) json["price_per_device_hour"] = cell.price_per_device_hour;
  if (const std::optional<Standing>& standing = comparison.standings[index]) {
    json["cheapest"] = standing->cheapest;
    json["level_price_per_device_hour"] = standing->level_price;
    json["level_with"] = column_name(comparison.grid, standing->rival);
    json["told_apart"] = standing->told_apart;
  }
  if (!cell.fits || !cell.power_watts) return;
  json["power_watts"] = cell.power_watts->value;
  json["energy_kwh_per_million_tokens"] = *cell.joules_of_run(kPerMillion) / kJoulesAKwh;
  if (comparison.run_tokens) {
    json["run_energy_kwh"] = *cell.joules_of_run(*comparison.run_tokens) / kJoulesAKwh;
  }
}

}  // namespace ballast
