#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "autotune/complete/complete.h"
#include "autotune/studies/whatif.h"
#include "cli/compare/comparison.h"
#include "cli/flags/open_knobs.h"
#include "cli/report/comparison_page.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress.h"
#include "cli/text/runs_on.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// The column where every knob is open.
constexpr const char* kAnyStrategy = "tuned";
// Of a cell's search, as of a search of `tune`.
constexpr double kCellDeadline = 60;

struct CompareFlags {
  OutputFlags output;
  PlanFlags plan;
  StoreFlag store;
  StackFlag stack;
  bool tune = false;
  std::optional<double> deadline_s;  // of a cell's search
  std::optional<std::string> metric;
  std::vector<std::string> prices;
  std::vector<std::string> columns = {"strategy", "machine", "devices", kOfferAxis};
  std::optional<std::string> offers_text;
  std::vector<Offer> offers;  // of that text
  std::optional<std::string> tokens;
  std::optional<std::string> csv;
  std::optional<std::string> html;
};

std::vector<std::string> criterion_names() {
  std::vector<std::string> names;
  for (int i = 0; i < kCriteria; ++i) names.emplace_back(to_string(static_cast<Criterion>(i)));
  return names;
}

// An offer says what three other flags say; a prediction knows the machine by its shipped name.
void read_offers(CompareFlags& flags) {
  if (!flags.offers_text) return;
  const std::pair<const char*, bool> others[] = {
      {"--machine", !flags.plan.machines.empty()},
      {"--devices", !flags.plan.devices.empty()},
      {"--price-per-device-hour", !flags.prices.empty()}};
  for (const auto& [name, given] : others) {
    if (given)
      throw Error("--offer", fmt::format("{} is given too", name), "leave out one of the two");
  }
  flags.offers = parse_offers(*flags.offers_text);
  for (Offer& offer : flags.offers)
    offer.machine = name_meant("--offer", offer.machine, "machines");
}

bool parse(Words words, CompareFlags& flags) {
  VerbParser parser("compare");
  parser.add(flags.plan, VerbParser::Lists::kYes);
  CLI::App& app = parser.app();
  app.footer(
      "A sweep is --set KEY=FROM..TO:lin|log:COUNT or --set KEY=A,B,C.\n"
      "A strategy may set knobs of its own: --strategy superoffload,megatron:tensor=4.");
  app.add_flag("--tune", flags.tune,
               "Search each cell over degrees and knobs that nothing names, instead of filling in "
               "what its strategy leaves open");
  app.add_option("--deadline", flags.deadline_s,
                 "With --tune: stop the search of each cell after this many seconds, with the best "
                 "so far [60]")
      ->check(above_zero())
      ->type_name("SECONDS");
  app.add_option("--offer", flags.offers_text,
                 "Machines with their GPUs and the price of a GPU for an hour: 'alps-gh200-quad x4 "
                 "@ 3.10, dgx-h100-80gb x8 @ 2.40'")
      ->type_name("OFFERS");
  app.add_option("--tokens", flags.tokens,
                 "Of a whole run: also its days, and its cost where there are prices; 15T, 300B")
      ->type_name("COUNT");
  app.add_option("--metric", flags.metric,
                 "What to compare by [tokens_per_s; cost_per_token where every --offer has a "
                 "price]")
      ->check(CLI::IsMember(criterion_names()))
      ->type_name("NAME");
  app.add_option("--price-per-device-hour", flags.prices,
                 "Price of a device for an hour, or MACHINE=PRICE with commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("PRICE");
  app.add_option("--columns", flags.columns,
                 "Axes among which the best is chosen: model, machine, devices, offer, strategy or "
                 "the key of a sweep; the others are rows [strategy,machine,devices,offer]")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("AXES");
  parser.writes(
      app.add_option("--csv", flags.csv, "Write one line a cell to this file")->type_name("FILE"));
  parser.writes(
      app.add_option("--html", flags.html, "Write a page with charts of all cells to this file")
          ->type_name("FILE"));
  parser.add(flags.store);
  parser.add(flags.stack, "typical; ballast on the machine that was measured and with --tune");
  parser.add(flags.output, "Write the JSON to this file too");
  if (!parser.parse(words)) return false;
  read_offers(flags);
  return true;
}

// Whoever names prices asks for the cheapest.
Criterion criterion_of(const CompareFlags& flags) {
  if (!flags.metric) {
    const bool priced =
        !flags.offers.empty() &&
        std::all_of(flags.offers.begin(), flags.offers.end(),
                    [](const Offer& offer) { return offer.price_per_device_hour > 0; });
    return priced ? Criterion::kCostPerToken : Criterion::kTokensPerS;
  }
  const std::vector<std::string> names = criterion_names();
  const auto found = std::find(names.begin(), names.end(), *flags.metric);
  CHECK(found != names.end());
  return static_cast<Criterion>(found - names.begin());
}

// Prices by machine; the one for all others has no name.
std::map<std::string, double> prices_of(const CompareFlags& flags) {
  std::map<std::string, double> prices;
  for (const std::string& text : flags.prices) {
    const size_t equals = text.rfind('=');
    const std::string name = equals == std::string::npos ? "" : text.substr(0, equals);
    const std::string amount = equals == std::string::npos ? text : text.substr(equals + 1);
    double price = 0;
    const auto [end, error] = std::from_chars(amount.data(), amount.data() + amount.size(), price);
    if (error != std::errc{} || end != amount.data() + amount.size() || !(price > 0)) {
      throw Error("--price-per-device-hour '" + text + "'", "is not a price above 0",
                  "write 3.5, or gh200-96gb-480gb=3.5,h100-sxm-80gb=2.5");
    }
    if (name.empty()) {
      prices[name] = price;
      continue;
    }
    const std::string machine = name_meant("--price-per-device-hour", name, "machines");
    const auto& compared = flags.plan.machines;
    if (!compared.empty() &&
        std::find(compared.begin(), compared.end(), machine) == compared.end()) {
      throw Error("--price-per-device-hour '" + text + "'", machine + " is not compared",
                  "name it in --machine, or leave its price out");
    }
    prices[machine] = price;
  }
  return prices;
}

// "megatron:tensor=4:zero_stage=1": a strategy and the knobs that it sets here.
struct Variant {
  std::string strategy;
  std::vector<std::string> settings;  // "plan.tensor=4"
};

Variant variant_of(const std::string& text) {
  Variant variant;
  size_t begin = text.find(':');
  variant.strategy = text.substr(0, begin);
  while (begin != std::string::npos) {
    const size_t end = text.find(':', begin + 1);
    const std::string setting = text.substr(begin + 1, end - begin - 1);
    if (setting.find('=') == std::string::npos) {
      throw Error("--strategy '" + text + "'", "'" + setting + "' has no '='",
                  "write --strategy megatron:tensor=4");
    }
    variant.settings.push_back("plan." + setting);
    begin = end;
  }
  return variant;
}

// Everything that is compared: axes, and what all cells share.
struct ComparisonQuestion {
  std::vector<Axis> axes;
  std::vector<std::string> sweeps;    // the names of those axes that set a key
  std::vector<std::string> settings;  // --set of one value
};

// A name that is not there is bad input, not a cell that does not fit.
void check_names(const CompareFlags& flags) {
  for (const std::string& name : flags.plan.models) load_model(name);
  for (const std::string& name : flags.plan.machines) load_machine_or_here(name, flags.store);
  for (const Offer& offer : flags.offers) load_machine_or_here(offer.machine, flags.store);
  for (const std::string& text : flags.plan.strategies) {
    const Variant variant = variant_of(text);
    load_strategy(variant.strategy);
    for (const Override& change : parse_overrides(variant.settings).plan) {
      apply_override(Plan{}, change);
    }
  }
}

// Where a key and a flag say the same thing, the cells of one would be told by the other's name.
void check_said_once(const CompareFlags& flags) {
  const std::pair<const char*, bool> axes[] = {{"model", !flags.plan.models.empty()},
                                               {"machine", !flags.plan.machines.empty()},
                                               {"strategy", !flags.plan.strategies.empty()},
                                               {"devices", !flags.plan.devices.empty()}};
  const bool offers = !flags.offers.empty();
  for (const std::string& argument : flags.plan.set) {
    for (const auto& [name, given] : axes) {
      const std::string axis = name;
      const bool offered = offers && (axis == "machine" || axis == "devices");
      if (!(given || offered) || !argument.starts_with("plan." + axis + "=")) continue;
      throw Error("--set '" + argument + "'",
                  fmt::format("--{} is given too", given ? axis : kOfferAxis),
                  "leave out one of the two");
    }
  }
}

ComparisonQuestion question_of(const CompareFlags& flags) {
  check_said_once(flags);
  ComparisonQuestion question;
  const auto add = [&](const char* name, const std::vector<std::string>& values) {
    if (!values.empty()) question.axes.push_back(make_axis(name, values));
  };
  std::vector<std::string> devices;
  for (const int64_t count : flags.plan.devices) devices.push_back(std::to_string(count));
  add("model", flags.plan.models);
  for (const std::string& argument : flags.plan.set) {
    std::optional<Axis> sweep = parse_sweep(argument);
    parse_overrides({argument});
    if (!sweep) {
      question.settings.push_back(argument);
      continue;
    }
    const auto& names = question.sweeps;
    if (std::find(names.begin(), names.end(), sweep->name) != names.end()) {
      throw Error("--set '" + argument + "'", "sweeps a key twice", "give its values in one list");
    }
    question.sweeps.push_back(sweep->name);
    question.axes.push_back(*std::move(sweep));
  }
  add("strategy", flags.plan.strategies);
  if (flags.plan.strategies.empty() && !flags.plan.plan_file) {
    const auto several = [](int64_t count) { return count > 1; };
    const auto& counts = flags.plan.devices;
    const bool choice = std::any_of(counts.begin(), counts.end(), several) ||
                        std::any_of(flags.offers.begin(), flags.offers.end(),
                                    [&](const Offer& offer) { return several(offer.devices); });
    add("strategy", {flags.tune ? kAnyStrategy : choice ? kChosenStrategy : "superoffload"});
  }
  add("machine", flags.plan.machines);
  add("devices", devices);
  std::vector<std::string> offers;
  for (const Offer& offer : flags.offers) offers.push_back(offer.name());
  add(kOfferAxis, offers);
  return question;
}

Grid grid_of(const CompareFlags& flags, const ComparisonQuestion& question) {
  std::set<std::string> columns(flags.columns.begin(), flags.columns.end());
  std::vector<Axis> rows;
  std::vector<Axis> chosen;
  std::set<std::string> known = {"model", "machine", "devices", kOfferAxis, "strategy"};
  for (const Axis& axis : question.axes) {
    known.insert(axis.name);
    (columns.count(axis.name) > 0 ? chosen : rows).push_back(axis);
  }
  for (const std::string& name : columns) {
    if (known.count(name) == 0) {
      throw Error("--columns", "there is no axis '" + name + "'",
                  "name model, machine, devices, offer, strategy or the key of a sweep");
    }
  }
  return {std::move(rows), std::move(chosen)};
}

// The offer of a cell; null where none was asked for.
const Offer* offer_of(const CompareFlags& flags, const Grid& grid, size_t cell) {
  if (flags.offers.empty()) return nullptr;
  const auto found = std::find_if(
      flags.offers.begin(), flags.offers.end(),
      [&](const Offer& offer) { return offer.name() == grid.value(cell, kOfferAxis); });
  CHECK(found != flags.offers.end());
  return &*found;
}

// The flags of one cell, as `predict` would get them.
PlanFlags cell_flags(const CompareFlags& flags, const ComparisonQuestion& question,
                     const Grid& grid, size_t cell) {
  PlanFlags one = flags.plan;
  if (!one.models.empty()) one.models = {grid.value(cell, "model")};
  if (!one.machines.empty()) one.machines = {grid.value(cell, "machine")};
  if (!one.devices.empty()) one.devices = {std::stoll(grid.value(cell, "devices"))};
  if (const Offer* offer = offer_of(flags, grid, cell)) {
    one.machines = {offer->machine};
    one.devices = {offer->devices};
  }
  one.set = question.settings;
  for (const std::string& key : question.sweeps) {
    one.set.push_back(key + "=" + grid.value(cell, key));
  }
  if (!one.strategies.empty()) {
    const Variant variant = variant_of(grid.value(cell, "strategy"));
    one.strategies = {variant.strategy};
    one.set.insert(one.set.end(), variant.settings.begin(), variant.settings.end());
  }
  return one;
}

class Comparer {
 public:
  explicit Comparer(const CompareFlags& flags)
      : flags_(flags),
        prices_(prices_of(flags)),
        question_(question_of(flags)),
        grid_(grid_of(flags, question_)) {
    check_names(flags);
    if (flags.deadline_s && !flags.tune) {
      throw Error("--deadline", "is of searches, and cells are not searched", "add --tune");
    }
    if (flags.tokens) parse_tokens(*flags.tokens);
    for (const std::string& name : flags.plan.machines) {
      measurements_[name] = measurements_of(load_machine_or_here(name, flags.store), flags.store);
    }
  }

  // Throws Error where a price is needed and missing.
  void check_prices() const {
    if (criterion_of(flags_) != Criterion::kCostPerToken) return;
    for (const Offer& offer : flags_.offers) {
      if (offer.price_per_device_hour > 0) continue;
      throw Error("--metric cost_per_token", "the offer '" + offer.name() + "' has no price",
                  "write it as " + offer.name() + " @ 2.40");
    }
    if (!flags_.offers.empty()) return;
    const bool all = !flags_.plan.machines.empty() &&
                     std::all_of(flags_.plan.machines.begin(), flags_.plan.machines.end(),
                                 [&](const std::string& name) { return price_of(name) > 0; });
    if (all || prices_.count("") > 0) return;
    throw Error("--metric cost_per_token", "needs the price of every machine",
                "give --price-per-device-hour");
  }

  // Shows each cell as it ends; from when it is interrupted, the others are not decided.
  Comparison run() const {
    check_any_loads();
    const InterruptWatch watch;
    Progress progress("compare");
    const Criterion criterion = criterion_of(flags_);
    const size_t count = grid_.cells();
    size_t finished = 0;
    CellWork work;
    work.count = count;
    work.interrupted = [&] { return watch.interrupted(); };
    work.cell = [&](size_t index) { return cell(index, work.interrupted); };
    work.done = [&](const CellWork::Done& done) {
      finished = done.finished;
      const std::string line = fmt::format("{} of {}: {}", finished, count,
                                           cell_text(grid_, done.index, done.cell, criterion));
      progress.tell(line);
      progress.show(static_cast<double>(finished) / static_cast<double>(count), line);
    };
    Comparison result{grid_, compute_cells(work), criterion, {}, {}, {}, {}, watch.interrupted()};
    if (flags_.tokens) result.run_tokens = parse_tokens(*flags_.tokens);
    result.best = winners(result.grid, result.cells, result.criterion);
    result.crossings = crossings(result.grid, result.best);
    result.standings = standings(result.grid, result.cells);
    progress.finish(fmt::format("{} of {} cells", finished, count));
    return result;
  }

 private:
  // A search checks what it makes of the plan.
  Setting load(const PlanFlags& flags) const {
    return flags_.tune ? load_start(flags, flags_.store, nullptr) : load_case(flags, flags_.store);
  }

  // Flags of which no cell can be made are bad input, told before any work is done. Throws Error.
  void check_any_loads() const {
    for (size_t i = 0; i < grid_.cells(); ++i) {
      try {
        load(cell_flags(flags_, question_, grid_, i));
        return;
      } catch (const Error&) {
        if (i + 1 == grid_.cells()) throw;
      }
    }
  }

  CellResult cell(size_t index, const std::function<bool()>& interrupted) const {
    const PlanFlags flags = cell_flags(flags_, question_, grid_, index);
    const bool any_strategy = flags.strategies.empty() && !flags.plan_file;
    Setting setting = load(flags);
    const bool named = flags_.stack.name.has_value();
    adopt(setting, flags_.tune && !named ? Stack{} : stack_of(flags_.stack, setting.machine));
    const bool of_ballast = setting.stack.name == kBallastStack;
    if (flags_.tune && of_ballast && any_strategy) setting.plan.strategy = kAnyStrategy;
    const auto known = measurements_.find(setting.plan.machine);
    const Measurements measurements = known != measurements_.end()
                                          ? known->second
                                          : measurements_of(setting.machine, flags_.store);
    const Offer* const offer = offer_of(flags_, grid_, index);
    const double price =
        offer != nullptr ? offer->price_per_device_hour : price_of(setting.plan.machine);
    const int64_t parameters = parameter_count(setting.model);
    CellResult result;
    if (flags_.tune) {
      CellSearchLimits limits;
      limits.deadline_s = flags_.deadline_s.value_or(kCellDeadline);
      limits.interrupted = interrupted;
      const SearchSpace space = OpenKnobsOfFlags(flags, {}).space(setting);
      result = tuned_cell(setting, space, measurements, limits);
      if (result.fits) result.runs_on = runs_on(setting.model, result.plan, setting.stack);
    } else {
      const Completed completed = complete(std::move(setting), &measurements, interrupted);
      const Setting& of_cell = completed.setting;
      result = cell_of(completed.prediction, of_cell, measurements);
      result.runs_on = runs_on(of_cell.model, of_cell.plan, of_cell.stack);
    }
    result.price_per_device_hour = price;
    result.parameters = parameters;
    return result;
  }

  double price_of(const std::string& machine) const {
    const auto named = prices_.find(machine);
    if (named != prices_.end()) return named->second;
    const auto all = prices_.find("");
    return all != prices_.end() ? all->second : 0;
  }

  const CompareFlags& flags_;
  std::map<std::string, double> prices_;
  ComparisonQuestion question_;
  Grid grid_;
  std::map<std::string, Measurements> measurements_;
};

}  // namespace

int run_compare(Words words) {
  CompareFlags flags;
  if (!parse(words, flags)) return kDone;
  const Comparer comparer(flags);
  comparer.check_prices();
  const Comparison comparison = comparer.run();
  const std::string command = command_line("compare", words);
  nlohmann::ordered_json data = comparison_json(comparison);
  data["origin"] = origin_json(command);
  const std::string json = data.dump(1) + "\n";
  if (flags.output.out) atomic_write(*flags.output.out, json);
  if (flags.html) write_comparison_page({*flags.html, "", command}, data, flags.store);
  if (flags.csv) atomic_write(*flags.csv, comparison_csv(comparison));
  fmt::print("{}", flags.output.json ? json : comparison_text(comparison));
  const auto any = [&](auto is) {
    return std::any_of(comparison.cells.begin(), comparison.cells.end(), is);
  };
  if (comparison.interrupted) return kUndecided;
  if (any([](const CellResult& cell) { return cell.fits; })) return kDone;
  const bool undecided =
      any([](const CellResult& cell) { return cell.obstacle == Obstacle::kNotDecided; });
  return undecided ? kUndecided : kInfeasible;
}

}  // namespace ballast
