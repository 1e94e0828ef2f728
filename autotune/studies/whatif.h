// What-if: a grid of cells, each a plan somewhere, with its best column in every row and the places
// along a sweep where another column becomes the best.
//
// An axis is a list of values: models, machines, devices, strategies, or what a sweep sets a key
// to. Rows are what may happen, columns what one may choose: `best` compares the columns of a row,
// `crossings` neighbouring rows.
// Will not do: read files, or print (cli/verbs/compare.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/search/search.h"
#include "autotune/studies/capacity.h"
#include "sim/engine/interval.h"
#include "sim/engine/predict.h"
#include "sim/graph/core/capabilities.h"

namespace ballast {

// --- Axes and their grid ----------------------------------------------------------------------

struct Axis {
  // "model", "machine", "devices", "offer" (the two before with a price), "strategy", or a key.
  std::string name;
  std::vector<std::string> values;  // as they are written; at least one
  // The values as numbers, where all are and they rise or fall throughout; else empty.
  std::vector<double> numbers;

  // Whether it makes sense to ask between which two values something changes.
  bool is_sweep() const { return numbers.size() > 1; }
};

// An axis of these values.
Axis make_axis(const std::string& name, std::vector<std::string> values);

// Cells of one comparison at most; values of one sweep at most.
inline constexpr size_t kMostCells = 10'000;

// "KEY=A,B,C" and "KEY=FROM..TO:lin|log:COUNT": COUNT values from FROM to TO, both included, in
// equal steps or equal ratios. Values between whole ends are whole where they stay at least 1
// apart; else they have four digits. Commas inside brackets or quotes divide nothing. Nothing for
// an argument with one value. Throws Error for a range that is malformed, empty, a single point, or
// logarithmic through 0, and for an empty value.
std::optional<Axis> parse_sweep(const std::string& argument);

// The name of the axis that pairs a machine with a number of devices and a price.
inline constexpr const char* kOfferAxis = "offer";

// What somebody offers: a machine, how many of its devices, and what an hour of one costs.
struct Offer {
  std::string machine;  // a name or a path
  int64_t devices = 0;
  double price_per_device_hour = 0;  // 0: not said
  std::string name() const;          // "alps-gh200-quad x4 @ 3.10", as it may be written again
};
// "MACHINE xGPUS @ PRICE, ...": at least one, each another. PRICE may be left out, and may end in
// "/GPU-h". Throws Error for what is no such list.
std::vector<Offer> parse_offers(const std::string& text);
// "15T", "300B", "1.5M", "2000": a number of tokens above 0. Throws Error for anything else.
double parse_tokens(const std::string& text);

class Grid {
 public:
  // Without rows there is one row, without columns one column. Throws Error for more than
  // kMostCells cells.
  Grid(std::vector<Axis> rows, std::vector<Axis> columns);

  const std::vector<Axis>& row_axes() const { return row_axes_; }
  const std::vector<Axis>& column_axes() const { return column_axes_; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  size_t cells() const { return rows_ * columns_; }
  size_t cell(size_t row, size_t column) const { return row * columns_ + column; }

  // For every row axis the index of its value; the last axis varies fastest.
  std::vector<size_t> row_at(size_t row) const;
  std::vector<size_t> column_at(size_t column) const;
  // The value that an axis has in a cell. Throws nothing; requires that the axis exists.
  const std::string& value(size_t cell, std::string_view axis) const;

 private:
  std::vector<Axis> row_axes_;
  std::vector<Axis> column_axes_;
  size_t rows_ = 1;
  size_t columns_ = 1;
};

// --- Cells ------------------------------------------------------------------------------------

// Why a cell has no number, in a word. Of one that is not decided nobody knows whether it fits: its
// search was stopped before it found a plan, or all work was interrupted before its turn.
enum class Obstacle : uint8_t { kNone, kGpu, kCpu, kNvme, kDevices, kIllegal, kNotDecided };
std::string_view to_string(Obstacle value);  // "GPU memory", ..., "illegal", "not decided"

// What a search says of the plan that it found.
struct CellSearch {
  int64_t considered = 0;  // plans
  int64_t simulated = 0;
  SearchStop stop = SearchStop::kNone;
  std::optional<double> proven_within;  // as SearchResult has it
  double seconds = 0;                   // of wall time
};

struct CellResult {
  bool fits = false;
  Obstacle obstacle = Obstacle::kNone;
  std::string reason;  // why it does not fit, with numbers; else empty
  Plan plan;           // as it was predicted; empty where it is illegal
  Duration step_time;
  double tokens_per_s = 0;
  double tokens_per_s_per_device = 0;
  double mfu = 0;  // 0 to 1
  Bytes gpu_memory;
  Bytes cpu_memory;
  std::vector<PlacePeak> peaks;  // who holds the memory; empty where the plan is illegal
  Bytes usable_gpu_memory;       // what the machine has for tensors
  Bytes usable_cpu_memory;
  // Share of the busy time by where its durations came from, as Prediction has it.
  std::array<double, kProvenances> provenance{};
  int64_t parameters = 0;            // of the model; 0: unknown
  double price_per_device_hour = 0;  // 0: unknown
  // Of its machine: what a device draws at most, and what of its node that counts.
  std::optional<Sourced<double>> power_watts;
  std::optional<CellSearch> search;  // where knobs were searched for a proof
  std::string stack;                 // whose habits were assumed; empty where the plan is illegal
  // How sure the numbers are; absent where the stack was never held against anything.
  std::optional<Confidence> confidence;
  // Where the prediction departs from what the model's configuration says (sim/spec/caveats.h).
  std::vector<std::string> notes;
  // Whether a program that runs plans can run this one; left empty by those that only predict.
  std::vector<DeviceVerdict> runs_on;

  // In units of the price for a million tokens. Requires fits.
  double cost_per_million_tokens() const;
  // Of a whole run over so many tokens: days, and its price in units of the price. Require fits.
  double days_of_run(double tokens) const;
  double cost_of_run(double tokens) const;
  // At most, in joules: every device at power_watts throughout. Nothing where that is not known.
  // Requires fits.
  std::optional<double> joules_of_run(double tokens) const;
};

// What a prediction of setting.plan says.
CellResult cell_of(const Prediction& prediction, const Setting& setting,
                   const Measurements& measurements);
// A plan that cannot be built.
CellResult illegal_cell(const std::string& reason);
// One of which nothing is known.
CellResult undecided_cell(const std::string& reason);
// How far a cell is searched.
struct CellSearchLimits {
  double tolerance = 0.01;           // as in SearchOptions; of Ballast's plans
  std::optional<double> deadline_s;  // with the time of its first plan
  std::function<bool()> interrupted = {};
};
// The fastest plan of a space on setting.machine, as setting.stack runs it: one thread, or as
// rank_layouts() does it of another stack than Ballast's. setting.plan is not read.
CellResult tuned_cell(const Setting& setting, const SearchSpace& space,
                      const Measurements& measurements, const CellSearchLimits& limits);

// Calls `cell` once for every index below `count`, on all cores, and `done` (one thread at a time)
// with a cell that is done and how many are. A cell that throws Error is illegal; if all do, the
// first Error is thrown. From when `interrupted` (asked on any thread) says so, cells are not
// decided: those under way and those that are left, for which `done` is not called.
struct CellWork {
  struct Done {
    size_t index = 0;
    const CellResult& cell;
    size_t finished = 0;
  };
  size_t count = 0;
  std::function<CellResult(size_t)> cell;
  std::function<void(const Done&)> done;
  std::function<bool()> interrupted = {};
};
std::vector<CellResult> compute_cells(const CellWork& work);

// --- Answers ----------------------------------------------------------------------------------

enum class Criterion : uint8_t {
  kStepTime,
  kTokensPerS,
  kTokensPerSPerDevice,
  kMfu,
  kGpuMemory,
  kCostPerToken
};
inline constexpr int kCriteria = 6;
std::string_view to_string(Criterion value);  // "step_time", "tokens_per_s", ...
bool is_better_low(Criterion value);

// Seconds, tokens a second, 0 to 1, bytes, or price of a million tokens. Requires fits.
double value_of(const CellResult& cell, Criterion criterion);

// The best column of a row and how far ahead it is.
struct Winner {
  size_t column = 0;
  // By how much better than the next column that fits, as a share of that one; absent if it is
  // alone.
  std::optional<double> lead;
};
// For every row; nothing where no cell fits. Of equals the first column wins.
std::vector<std::optional<Winner>> winners(const Grid& grid, const std::vector<CellResult>& cells,
                                           Criterion criterion);

// Between two neighbouring values of a sweep the best column changes.
struct Crossing {
  size_t axis = 0;  // of grid.row_axes()
  size_t row_before = 0;
  size_t row_after = 0;
};
// Whether nobody can tell two cells apart by this criterion: their stack is the same, and their
// step times are too near (cannot_be_told_apart). Memory has no such rule: what differs between two
// plans there was counted.
bool are_alike(const CellResult& one, const CellResult& other, Criterion criterion);

// Which price would change the order of a row by price.
struct Standing {
  bool cheapest = false;
  size_t rival = 0;  // the column of the cheapest; of the cheapest itself, of the next
  // The price of a device for an hour at which this column and its rival, whose price stays, cost
  // the same a token: the cheapest stays so up to it, another draws level when it comes down to it.
  double level_price = 0;
  bool told_apart = true;  // from its rival, by are_alike()
};
// For every cell that fits in a row with another that has a price; nothing for the others. One
// without a price has a level price too.
std::vector<std::optional<Standing>> standings(const Grid& grid,
                                               const std::vector<CellResult>& cells);

// Along every row axis that is a sweep, for each combination of the other row axes; also where from
// or up to some value nothing fits.
std::vector<Crossing> crossings(const Grid& grid, const std::vector<std::optional<Winner>>& best);

}  // namespace ballast
