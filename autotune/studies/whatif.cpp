#include "autotune/studies/whatif.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <exception>
#include <fmt/format.h>

#include "autotune/complete/first_plan.h"
#include "autotune/complete/layouts/ranking.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/base/stop.h"
#include "sim/spec/caveats.h"

namespace ballast {
namespace {

constexpr const char* kRangeForm = "write KEY=FROM..TO:lin:COUNT or KEY=FROM..TO:log:COUNT";

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole_text = error == std::errc{} && end == text.data() + text.size();
  if (!whole_text || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Parts between separators that stand outside of brackets and quotes.
std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == separator && depth == 0 && !quoted) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool is_monotonic(const std::vector<double>& numbers) {
  const auto rises = std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>());
  const auto falls = std::adjacent_find(numbers.begin(), numbers.end(), std::less_equal<>());
  return rises == numbers.end() || falls == numbers.end();
}

struct Range {
  std::string from;
  std::string to;
  bool logarithmic = false;
  int64_t count = 0;
};

bool is_range(const std::string& value) {
  const size_t dots = value.find("..");
  return dots != std::string::npos &&
         number_of(std::string_view(value).substr(0, dots)).has_value();
}

Range parse_range(const std::string& value, const std::string& where) {
  const std::vector<std::string> parts = parts_of(value, ':');
  const size_t dots = value.find("..");
  if (parts.size() != 3 || (parts[1] != "lin" && parts[1] != "log")) {
    throw Error(where, "is not a sweep", kRangeForm);
  }
  Range range{parts[0].substr(0, dots), parts[0].substr(dots + 2), parts[1] == "log", 0};
  const std::string& count = parts[2];
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), range.count);
  if (error != std::errc{} || end != count.data() + count.size()) {
    throw Error(where, "counts its values as '" + count + "'", kRangeForm);
  }
  if (!number_of(range.to)) throw Error(where, "ends at '" + range.to + "'", kRangeForm);
  if (range.count < 2) {
    throw Error(where, "is an empty sweep", "ask for at least 2 values, FROM and TO among them");
  }
  if (range.count > static_cast<int64_t>(kMostCells)) {
    throw Error(where, fmt::format("has {} values", range.count),
                fmt::format("ask for at most {}", kMostCells));
  }
  return range;
}

bool is_whole(double value) { return value == std::floor(value) && std::abs(value) < 1e15; }

std::vector<std::string> values_of(const Range& range, const std::string& where) {
  const double from = *number_of(range.from);
  const double to = *number_of(range.to);
  if (from == to) throw Error(where, "is an empty sweep", "let FROM and TO differ");
  if (range.logarithmic && (from <= 0 || to <= 0)) {
    throw Error(where, "is logarithmic and reaches 0", "begin and end it above 0, or use lin");
  }
  const auto at = [&](int64_t i) {
    const double share = static_cast<double>(i) / static_cast<double>(range.count - 1);
    return range.logarithmic ? from * std::pow(to / from, share) : from + (to - from) * share;
  };
  const double gap = std::min(std::abs(at(1) - from), std::abs(to - at(range.count - 2)));
  const bool whole = is_whole(from) && is_whole(to) && gap >= 1;
  std::vector<std::string> values = {range.from};
  for (int64_t i = 1; i + 1 < range.count; ++i) {
    values.push_back(whole ? fmt::format("{:.0f}", at(i)) : fmt::format("{:.4g}", at(i)));
  }
  values.push_back(range.to);
  return values;
}

size_t product_of(const std::vector<Axis>& axes) {
  size_t product = 1;
  for (const Axis& axis : axes) {
    CHECK(!axis.values.empty());
    product *= axis.values.size();
    if (product > kMostCells) {
      throw Error("compare", fmt::format("there are more than {} cells", kMostCells),
                  "shorten a list or a sweep");
    }
  }
  return product;
}

std::vector<size_t> coordinates(const std::vector<Axis>& axes, size_t index) {
  std::vector<size_t> at(axes.size());
  for (size_t axis = axes.size(); axis-- > 0;) {
    at[axis] = index % axes[axis].values.size();
    index /= axes[axis].values.size();
  }
  return at;
}

// Rows between neighbours along an axis.
size_t stride_of(const std::vector<Axis>& axes, size_t axis) {
  size_t stride = 1;
  for (size_t i = axis + 1; i < axes.size(); ++i) stride *= axes[i].values.size();
  return stride;
}

Obstacle obstacle_of(Place place) {
  switch (place) {
    case Place::kHbm:
      return Obstacle::kGpu;
    case Place::kDram:
      return Obstacle::kCpu;
    case Place::kNvme:
      return Obstacle::kNvme;
  }
  return Obstacle::kIllegal;
}

// The place that a reason not to fit begins with.
Obstacle obstacle_of(const Prediction& prediction, const Plan& plan, const Machine& machine) {
  if (plan.devices > machine.devices) return Obstacle::kDevices;
  for (const PlacePeak& peak : prediction.peaks) {
    const std::vector<PlacePeak> alone = {peak};
    if (!reason_not_to_fit(alone, plan, machine).empty()) return obstacle_of(peak.place);
  }
  return Obstacle::kIllegal;
}

}  // namespace

Axis make_axis(const std::string& name, std::vector<std::string> values) {
  Axis axis{name, std::move(values), {}};
  for (const std::string& value : axis.values) {
    const std::optional<double> number = number_of(value);
    if (number) axis.numbers.push_back(*number);
  }
  const bool ordered = axis.numbers.size() == axis.values.size() && is_monotonic(axis.numbers);
  if (!ordered) axis.numbers.clear();
  return axis;
}

std::optional<Axis> parse_sweep(const std::string& argument) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) return std::nullopt;
  const std::string where = "--set '" + argument + "'";
  const std::string key = argument.substr(0, equals);
  const std::string value = argument.substr(equals + 1);
  if (is_range(value)) return make_axis(key, values_of(parse_range(value, where), where));
  std::vector<std::string> values = parts_of(value, ',');
  if (std::any_of(values.begin(), values.end(), [](const auto& one) { return one.empty(); })) {
    throw Error(where, values.size() == 1 ? "is an empty sweep" : "has an empty value",
                "write KEY=VALUE or KEY=A,B,C");
  }
  if (values.size() == 1) return std::nullopt;
  return make_axis(key, std::move(values));
}

Grid::Grid(std::vector<Axis> rows, std::vector<Axis> columns)
    : row_axes_(std::move(rows)),
      column_axes_(std::move(columns)),
      rows_(product_of(row_axes_)),
      columns_(product_of(column_axes_)) {
  if (cells() > kMostCells) {
    throw Error("compare", fmt::format("there are {} cells", cells()),
                fmt::format("ask for at most {}: shorten a list or a sweep", kMostCells));
  }
}

std::vector<size_t> Grid::row_at(size_t row) const { return coordinates(row_axes_, row); }

std::vector<size_t> Grid::column_at(size_t column) const {
  return coordinates(column_axes_, column);
}

const std::string& Grid::value(size_t cell, std::string_view axis) const {
  const std::vector<size_t> row = row_at(cell / columns_);
  for (size_t i = 0; i < row_axes_.size(); ++i) {
    if (row_axes_[i].name == axis) return row_axes_[i].values[row[i]];
  }
  const std::vector<size_t> column = column_at(cell % columns_);
  for (size_t i = 0; i < column_axes_.size(); ++i) {
    if (column_axes_[i].name == axis) return column_axes_[i].values[column[i]];
  }
  CHECK(false);
}

std::string_view to_string(Obstacle value) {
  constexpr std::array<std::string_view, 7> kNames = {"",        "GPU memory", "CPU memory", "NVMe",
                                                      "devices", "illegal",    "not decided"};
  return kNames[static_cast<size_t>(value)];
}

double CellResult::cost_per_million_tokens() const {
  constexpr double kSecondsAnHour = 3600;
  return price_per_device_hour / kSecondsAnHour / tokens_per_s_per_device * 1e6;
}

double CellResult::days_of_run(double tokens) const {
  constexpr double kSecondsADay = 86400;
  return tokens / tokens_per_s / kSecondsADay;
}

double CellResult::cost_of_run(double tokens) const {
  return cost_per_million_tokens() * tokens / 1e6;
}

std::optional<double> CellResult::joules_of_run(double tokens) const {
  if (!power_watts) return std::nullopt;
  return power_watts->value / tokens_per_s_per_device * tokens;
}

CellResult cell_of(const Prediction& prediction, const Setting& setting,
                   const Measurements& measurements) {
  const Plan& plan = setting.plan;
  const Machine& machine = setting.machine;
  CellResult cell;
  cell.stack = setting.stack.name;
  cell.notes = notes_of(setting.model, plan, setting.stack.facts);
  auto full = nearly_full_note(prediction, machine, setting.stack);
  if (full) cell.notes.push_back(std::move(*full));
  cell.confidence =
      confidence_of(prediction, setting.model, plan, machine, setting.stack, &measurements);
  cell.fits = prediction.fits;
  cell.plan = plan;
  for (const PlacePeak& peak : prediction.peaks) {
    if (peak.place == Place::kHbm) cell.gpu_memory = peak.arena;
    if (peak.place == Place::kDram) cell.cpu_memory = peak.arena;
  }
  cell.peaks = prediction.peaks;
  cell.usable_gpu_memory = machine.gpu.memory.value - machine.gpu.reserved.value;
  cell.usable_cpu_memory = machine.cpu.memory.value - machine.cpu.reserved.value;
  cell.provenance = prediction.provenance;
  cell.power_watts = machine.power_watts;
  if (!cell.fits) {
    cell.reason = prediction.reason;
    cell.obstacle = obstacle_of(prediction, plan, machine);
    return cell;
  }
  cell.step_time = prediction.step_time;
  cell.tokens_per_s = prediction.tokens_per_s;
  cell.tokens_per_s_per_device = prediction.tokens_per_s_per_device;
  cell.mfu = prediction.mfu;
  return cell;
}

CellResult illegal_cell(const std::string& reason) {
  CellResult cell;
  cell.obstacle = Obstacle::kIllegal;
  cell.reason = reason;
  return cell;
}

CellResult undecided_cell(const std::string& reason) {
  CellResult cell;
  cell.obstacle = Obstacle::kNotDecided;
  cell.reason = reason;
  return cell;
}

namespace {

SearchResult search_cell(const Setting& setting, const SearchSpace& space,
                         const Measurements& measurements, const CellSearchLimits& limits) {
  if (setting.stack.name != kBallastStack) {
    RankingOptions options;
    options.ranked = 1;
    options.within = 1;
    options.deadline_s = limits.deadline_s;
    options.interrupted = limits.interrupted;
    return rank_layouts(setting, space.layouts, &measurements, options);
  }
  SearchOptions options;
  options.threads = 1;
  options.ranked = 1;
  options.tolerance = limits.tolerance;
  options.deadline_s = limits.deadline_s;
  options.interrupted = limits.interrupted;
  begin_with_first_plan(setting, space.layouts, &measurements, options);
  return search(setting.model, space, setting.machine, &measurements, options);
}

}  // namespace

CellResult tuned_cell(const Setting& setting, const SearchSpace& space,
                      const Measurements& measurements, const CellSearchLimits& limits) {
  CHECK(!space.layouts.empty());
  const Machine& machine = setting.machine;
  Plan plan = space.layouts.front();
  if (plan.devices > machine.devices) {
    CellResult cell = illegal_cell(
        fmt::format("{} has {} devices, not {}", machine.name, machine.devices, plan.devices));
    cell.obstacle = Obstacle::kDevices;
    return cell;
  }
  const SearchResult found = search_cell(setting, space, measurements, limits);
  if (!found.best && !found.complete()) {
    return undecided_cell(
        fmt::format("its search was stopped by the {} before it found a plan "
                    "that fits; give it longer (--deadline), or name more knobs",
                    to_string(found.stop)));
  }
  if (found.best) {
    plan = found.best->plan;
  } else {
    CHECK(!found.reasons.empty());
    plan = std::min_element(found.reasons.begin(), found.reasons.end(),
                            [](const InfeasibleReason& a, const InfeasibleReason& b) {
                              return a.excess < b.excess;
                            })
               ->example;
  }
  Setting chosen = setting;
  chosen.plan = plan;
  CellResult cell = cell_of(predict(setting.model, plan, machine, setting.stack, &measurements),
                            chosen, measurements);
  cell.search = {found.considered, found.simulated, found.stop, found.proven_within, found.seconds};
  return cell;
}

bool are_alike(const CellResult& one, const CellResult& other, Criterion criterion) {
  if (!one.fits || !other.fits || one.stack != other.stack) return false;
  if (criterion == Criterion::kGpuMemory) return false;
  const double ratio = value_of(one, criterion) / value_of(other, criterion);
  return cannot_be_told_apart(Duration::from_seconds(ratio), Duration::from_seconds(1));
}

std::vector<CellResult> compute_cells(const CellWork& work) {
  std::vector<CellResult> cells(work.count);
  std::vector<std::exception_ptr> errors(work.count);
  const auto interrupted = [&] { return work.interrupted && work.interrupted(); };
  const auto compute = [&](size_t i) {
    try {
      const auto cell = unless_stopped(work.interrupted, [&] {
        stop_point();
        return work.cell(i);
      });
      if (cell) cells[i] = *cell;
    } catch (const Error& error) {
      cells[i] = illegal_cell(error.what());
      errors[i] = std::current_exception();
    }
    // What was cut short may be a worse plan than the cell's, or an Error that says no more.
    if (!interrupted()) return;
    cells[i] = undecided_cell("interrupted");
    errors[i] = nullptr;
  };
  parallel_for(work.count, hardware_threads(), compute, [&](size_t i, size_t finished) {
    const bool decided = cells[i].obstacle != Obstacle::kNotDecided || !interrupted();
    if (work.done && decided) work.done({i, cells[i], finished});
  });
  const bool any_legal = std::any_of(errors.begin(), errors.end(),
                                     [](const std::exception_ptr& error) { return !error; });
  if (!any_legal && !errors.empty()) std::rethrow_exception(errors.front());
  return cells;
}

std::string_view to_string(Criterion value) {
  constexpr std::array<std::string_view, kCriteria> kNames = {
      "step_time", "tokens_per_s", "tokens_per_s_per_device",
      "mfu",       "gpu_memory",   "cost_per_token"};
  return kNames[static_cast<size_t>(value)];
}

bool is_better_low(Criterion value) {
  return value == Criterion::kStepTime || value == Criterion::kGpuMemory ||
         value == Criterion::kCostPerToken;
}

double value_of(const CellResult& cell, Criterion criterion) {
  CHECK(cell.fits);
  switch (criterion) {
    case Criterion::kStepTime:
      return cell.step_time.seconds();
    case Criterion::kTokensPerS:
      return cell.tokens_per_s;
    case Criterion::kTokensPerSPerDevice:
      return cell.tokens_per_s_per_device;
    case Criterion::kMfu:
      return cell.mfu;
    case Criterion::kGpuMemory:
      return static_cast<double>(cell.gpu_memory.count);
    case Criterion::kCostPerToken:
      return cell.cost_per_million_tokens();
  }
  return 0;
}

std::vector<std::optional<Winner>> winners(const Grid& grid, const std::vector<CellResult>& cells,
                                           Criterion criterion) {
  CHECK(cells.size() == grid.cells());
  const bool low = is_better_low(criterion);
  std::vector<std::optional<Winner>> result(grid.rows());
  for (size_t row = 0; row < grid.rows(); ++row) {
    std::vector<std::pair<double, size_t>> fitting;  // smaller is better
    for (size_t column = 0; column < grid.columns(); ++column) {
      const CellResult& cell = cells[grid.cell(row, column)];
      if (!cell.fits) continue;
      const double value = value_of(cell, criterion);
      fitting.emplace_back(low ? value : -value, column);
    }
    if (fitting.empty()) continue;
    std::sort(fitting.begin(), fitting.end());
    Winner winner{fitting[0].second, std::nullopt};
    if (fitting.size() > 1) {
      winner.lead = std::abs(fitting[0].first - fitting[1].first) / std::abs(fitting[1].first);
    }
    result[row] = winner;
  }
  return result;
}

std::vector<Crossing> crossings(const Grid& grid, const std::vector<std::optional<Winner>>& best) {
  CHECK(best.size() == grid.rows());
  std::vector<Crossing> result;
  for (size_t axis = 0; axis < grid.row_axes().size(); ++axis) {
    if (!grid.row_axes()[axis].is_sweep()) continue;
    const size_t stride = stride_of(grid.row_axes(), axis);
    const size_t last = grid.row_axes()[axis].values.size() - 1;
    for (size_t row = 0; row < grid.rows(); ++row) {
      if (grid.row_at(row)[axis] == last) continue;
      const std::optional<Winner>& before = best[row];
      const std::optional<Winner>& after = best[row + stride];
      const bool same =
          before.has_value() == after.has_value() && (!before || before->column == after->column);
      if (!same) result.push_back({axis, row, row + stride});
    }
  }
  return result;
}

}  // namespace ballast
