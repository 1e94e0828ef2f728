#include "cli/compare/buyers.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

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

// The same, and the offer even where there is one alone.
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
    line.push_back("no: " + std::string(to_string(cell.obstacle)));
    return line;
  }
  const bool priced = cell.price_per_device_hour > 0;
  const auto price = [&](double value) { return priced ? show_price(value) : "not said"; };
  line.insert(line.end(), {"yes", show(cell.step_time), show_count(cell.tokens_per_s),
                           price(cell.cost_per_million_tokens())});
  if (comparison.run_tokens) {
    line.push_back(show_count(cell.days_of_run(*comparison.run_tokens)));
    line.push_back(price(cell.cost_of_run(*comparison.run_tokens)));
  }
  return line;
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

std::string buyers_text(const Comparison& comparison) {
  if (!has_offers(comparison.grid) && !comparison.run_tokens) return "";
  std::vector<Table::Column> titles = {
      {"", true}, {"fits", true}, {"step"}, {"tokens/s"}, {"price of 1M tokens"}};
  if (comparison.run_tokens) {
    titles.push_back({fmt::format("days of {}", show_tokens(*comparison.run_tokens))});
    titles.push_back({"price of it"});
  }
  Table table(titles);
  for (size_t i = 0; i < comparison.cells.size(); ++i) {
    table.add(buyers_line(comparison, i));
  }
  return table.text();
}

}  // namespace ballast
