#include "cli/compare/remarks.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <vector>

#include "autotune/search/search_question.h"
#include "autotune/space/layout.h"
#include "cli/text/runs_on.h"
#include "cli/text/tables.h"

namespace ballast {
namespace {

// A line a column, or one for each thing that is said of its cells; of a cell of which `said` gives
// nothing, none.
std::string by_column(const Comparison& comparison,
                      const std::function<std::string(const CellResult&)>& said) {
  const Grid& grid = comparison.grid;
  std::string text;
  for (size_t column = 0; column < grid.columns(); ++column) {
    std::map<std::string, std::vector<size_t>> rows;
    for (size_t row = 0; row < grid.rows(); ++row) {
      const std::string one = said(comparison.cells[grid.cell(row, column)]);
      if (!one.empty()) rows[one].push_back(row);
    }
    for (const auto& [one, of_rows] : rows) {
      const std::string where = rows.size() == 1 ? ""
                                : of_rows.size() == 1
                                    ? " at " + row_name(grid, of_rows.front(), std::nullopt)
                                    : fmt::format(" in {} rows", of_rows.size());
      text += fmt::format("{}{}: {}\n", column_name(grid, column), where, one);
    }
  }
  return text;
}

}  // namespace

bool is_undecided(const CellResult& cell) { return cell.obstacle == Obstacle::kNotDecided; }

std::string reasons_text(const Comparison& comparison) {
  const Grid& grid = comparison.grid;
  struct Group {
    size_t count = 0;
    size_t first = 0;
  };
  std::map<std::pair<size_t, Obstacle>, Group> groups;  // by column
  for (size_t row = 0; row < grid.rows(); ++row) {
    for (size_t column = 0; column < grid.columns(); ++column) {
      const size_t cell = grid.cell(row, column);
      if (comparison.cells[cell].fits || is_undecided(comparison.cells[cell])) continue;
      Group& group = groups[{column, comparison.cells[cell].obstacle}];
      if (group.count++ == 0) group.first = cell;
    }
  }
  std::string text;
  for (const auto& [key, group] : groups) {
    const std::string where = row_name(grid, group.first / grid.columns(), std::nullopt);
    const std::string which = group.count == 1
                                  ? (where.empty() ? "" : " at " + where)
                                  : fmt::format(" in {} rows, first at {}", group.count, where);
    text += fmt::format("{}{}: {}\n", column_name(grid, key.first), which,
                        comparison.cells[group.first].reason);
  }
  return text.empty() ? "" : "what does not fit:\n" + text;
}

std::string chosen_text(const Comparison& comparison) {
  const auto is_chosen = [](const Axis& axis) {
    return axis.name == "strategy" && axis.values.front() == kChosenStrategy;
  };
  const auto& columns = comparison.grid.column_axes();
  const auto& rows = comparison.grid.row_axes();
  if (std::none_of(columns.begin(), columns.end(), is_chosen) &&
      std::none_of(rows.begin(), rows.end(), is_chosen)) {
    return "";
  }
  const std::string text = by_column(comparison, [](const CellResult& cell) -> std::string {
    if (!cell.fits) return "";
    const std::string layout = cell.plan.devices > 1 ? layout_name(cell.plan) : "";
    return cell.plan.strategy + (layout.empty() ? "" : ", " + layout);
  });
  return text.empty() ? "" : "chosen, as no strategy was named:\n" + text;
}

std::string running_text(const Comparison& comparison) {
  const std::string text = by_column(comparison, [](const CellResult& cell) {
    return cell.fits ? runs_on_text(cell.runs_on) : std::string();
  });
  return text.empty() ? "" : "to run it:\n" + text;
}

namespace {

// What a search proved of the plan that it found, or what a ranking stands for.
std::string proof_text(const CellResult& cell) {
  const CellSearch& search = *cell.search;
  if (cell.stack != kBallastStack) {
    return fmt::format("the best of {} {}, of each by a list", search.considered,
                       counted(cell.stack, search.considered));
  }
  const std::optional<double> within = search.proven_within;
  if (!within || *within >= 1) return "nothing proven";
  return fmt::format("no plan is faster by more than {}",
                     show_percent(std::ceil(1000 * *within) / 10));
}

}  // namespace

std::string searches_text(const Comparison& comparison) {
  const std::string text = by_column(comparison, [&](const CellResult& cell) -> std::string {
    if (is_undecided(cell)) return comparison.interrupted ? "" : "not decided: " + cell.reason;
    if (!cell.search) return "";
    if (!cell.fits) return "no plan of those searched fits";
    const std::string proof = proof_text(cell);
    if (cell.search->stop == SearchStop::kNone) return proof;
    return fmt::format("stopped by the {}, {}", to_string(cell.search->stop), proof);
  });
  return text.empty() ? "" : "of what was searched:\n" + text;
}

}  // namespace ballast
