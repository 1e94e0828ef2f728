// What `compare` says about a grid of cells: as text, as CSV and as JSON.
//
// Will not do: compute cells or decide which is best (autotune/studies/whatif.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "autotune/studies/whatif.h"

namespace ballast {

// The value of the strategy axis where nobody names one and several devices leave a choice.
inline constexpr const char* kChosenStrategy = "chosen";

struct Comparison {
  Grid grid;
  std::vector<CellResult> cells;  // by Grid::cell()
  Criterion criterion{};
  std::vector<std::optional<Winner>> best;  // of every row
  std::vector<Crossing> crossings;
  std::vector<std::optional<Standing>> standings;  // of every cell
  std::optional<double> run_tokens;  // of a whole run, whose days, cost and energy are told
  bool interrupted = false;          // then some cells are not decided
};

// What tells a column from the others: "superoffload, 4 devices".
std::string column_name(const Grid& grid, size_t column);
// "model gpt2, devices 2": the axes of a row that have several values, but for one.
std::string row_name(const Grid& grid, size_t row, std::optional<size_t> without);

// A cell that is done, in a line: "superoffload, model gpt2: 1,234 tokens/s".
std::string cell_text(const Grid& grid, size_t index, const CellResult& cell, Criterion criterion);

// Rows by columns, the best of a row marked; where the best changes; why what does not fit does
// not.
std::string comparison_text(const Comparison& comparison);

// One line a cell with all its numbers, after a line of titles; RFC 4180.
std::string comparison_csv(const Comparison& comparison);

// {"schema", "metric", "unit", "rows", "columns": the axes, "cells", "best": one a row,
// "crossings", "notes": those of all cells}, and "run_tokens" where a run was asked for, whose
// days, cost and energy its cells then have; "interrupted" where it was. A cell has its "memory" by
// place: what is needed, usable, and who holds how much. "fits" of a cell that is not decided is
// null.
nlohmann::ordered_json comparison_json(const Comparison& comparison);

// What `json` compares, as a title.
std::string comparison_title(const nlohmann::ordered_json& json);

}  // namespace ballast
