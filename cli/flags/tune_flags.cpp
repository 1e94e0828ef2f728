#include "cli/flags/tune_flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kPlanGroup = "The plan";
constexpr const char* kObjectiveGroup = "Objective and constraints";
constexpr const char* kStudyGroup = "Studies";
constexpr size_t kMostCounts = 64;

void add_search_flags(VerbParser& parser, TuneFlags& flags) {
  CLI::App& app = parser.app();
  parser.writes(
      app.add_option("--out", flags.plan_out, "Write the best plan to this file [plan.json]")
          ->type_name("FILE"),
      {.otherwise = flags.plan_out, .replaces = "--plan"});
  app.add_option("--deadline", flags.deadline_s,
                 "Take this long for each search, which stops after four fifths of it with the "
                 "best so far, on the device at hand with what is timed before it, and for the "
                 "studies of the best [60]")
      ->check(above_zero())
      ->type_name("SECONDS");
  app.add_option("--top", flags.top, "Plans to print [5]")->check(above_zero())->type_name("COUNT");
  app.add_flag("--allow-delay", flags.allow_delay,
               "Consider updates one step late, which are not exact, as well");
  app.add_flag("--free-degrees", flags.free_degrees,
               "Search the parallel degrees even where a strategy or a plan is named");
  CLI::Option* exhaustive =
      app.add_flag("--exhaustive", flags.exhaustive,
                   "Simulate every plan instead of ruling out by bounds: slow, and exact");
  app.add_option("--tolerance", flags.tolerance_percent,
                 "Stop once no plan can be faster by more than this [0.1; 0: a whole proof]")
      ->check(CLI::Range(0.0, 100.0))
      ->excludes(exhaustive)
      ->type_name("PERCENT");
}

// In place of those that all verbs share.
void add_count_flags(CLI::App& app, TuneFlags& flags) {
  app.remove_option(app.get_option("--devices"));
  app.remove_option(app.get_option("--global-batch"));
  app.add_option("--devices", flags.devices,
                 "GPUs that train together; 8,16,32 or 8..64 (doublings) where the objective "
                 "chooses [1, or all doublings that the machine has]")
      ->type_name("COUNTS")
      ->group(kPlanGroup);
  app.add_option("--global-batch", flags.global_batch,
                 "Sequences of a step, all devices; 64,128 or 64..512 (doublings) where the "
                 "objective chooses [8 a device]")
      ->type_name("COUNTS")
      ->group(kPlanGroup);
}

CLI::Option* add_amount(CLI::App& app, const char* name, std::optional<double>& value,
                        const char* help) {
  return app.add_option(name, value, help)->check(above_zero())->group(kObjectiveGroup);
}

void add_objective_flags(CLI::App& app, TuneFlags& flags) {
  app.add_option("--objective", flags.objective,
                 fmt::format("One of {} [step-time]", fmt::join(objective_names(), ", ")))
      ->type_name("NAME")
      ->group(kObjectiveGroup);
  DeviceRates& rates = flags.request.rates;
  add_amount(app, "--price-per-device-hour", rates.price_per_hour,
             "Price of a device for an hour, in any currency")
      ->type_name("PRICE");
  add_amount(app, "--watts-per-device", rates.watts,
             "Power that a device draws, with its share of the node [power_watts of the machine]")
      ->type_name("WATTS");
  add_amount(app, "--tokens", flags.tokens, "Tokens to train on, for devices-for-deadline")
      ->type_name("TOKENS");
  add_amount(app, "--deadline-days", flags.deadline_days, "Days to train them in")
      ->type_name("DAYS");
  ConstraintFlags& limits = flags.constraints;
  CLI::Option* const gb =
      add_amount(app, "--headroom-gb", limits.headroom_gb, "GPU memory to keep free, 1e9 bytes [0]")
          ->type_name("GB");
  add_amount(app, "--headroom-percent", limits.headroom_percent,
             "The same as a share of the GPU's memory [0]")
      ->check(CLI::Range(0.0, 100.0))
      ->excludes(gb)
      ->type_name("PERCENT");
  app.add_option("--most-devices", limits.most_devices, "Devices that may be used [all]")
      ->check(above_zero())
      ->type_name("COUNT")
      ->group(kObjectiveGroup);
  add_amount(app, "--most-joules-per-token", limits.most_joules_per_token,
             "Energy that a token may take, at the power of a device [any]")
      ->type_name("JOULES");
}

void add_study_flags(CLI::App& app, TuneFlags& flags) {
  CLI::Option* const frontier =
      app.add_flag("--frontier", flags.frontier,
                   "The plans that no other beats in throughput, GPU memory and devices at once")
          ->group(kStudyGroup);
  app.add_option("--frontier-points", flags.frontier_options.most_points,
                 "Searches for it, each number of devices [10]")
      ->check(CLI::Range(1, 10'000))
      ->needs(frontier)
      ->type_name("COUNT")
      ->group(kStudyGroup);
  app.add_option("--frontier-step-percent", flags.frontier_step_percent,
                 "Least difference of memory between its points; 0: every point [20]")
      ->check(CLI::Range(0.0, 99.0))
      ->needs(frontier)
      ->type_name("PERCENT")
      ->group(kStudyGroup);
  app.add_flag("--sensitivity", flags.sensitivity,
               "What each figure of the machine is worth, and from where on another plan wins")
      ->group(kStudyGroup);
  CLI::Option* const ablation =
      app.add_flag("--ablation", flags.ablation, "From a strategy to the best, knob by knob")
          ->group(kStudyGroup);
  app.add_option("--ablation-from", flags.ablation_from, "That strategy [zero-offload]")
      ->needs(ablation)
      ->type_name("NAME")
      ->group(kStudyGroup);
}

// Several of them are only for an objective that can tell them apart.
void check_counts(const TuneFlags& flags) {
  const bool throughput = flags.request.objective == Objective::kTokensPerDevice ||
                          flags.request.objective == Objective::kCostPerToken ||
                          flags.request.objective == Objective::kDevicesForDeadline;
  const size_t batches = parse_counts({"--global-batch", flags.global_batch}).size();
  const std::vector<int64_t> counts = parse_counts({"--devices", flags.devices});
  const size_t devices = counts.size();
  if (batches > 1 && !throughput) {
    throw Error("--global-batch " + flags.global_batch,
                "steps of different batches cannot be compared by " + flags.objective,
                "add --objective tokens-per-device, or name one batch");
  }
  const bool steps = flags.request.objective == Objective::kStepTime && batches == 1;
  if (devices > 1 && !throughput && !steps) {
    throw Error("--devices " + flags.devices,
                "several cannot be compared by " + flags.objective + " of batches that differ",
                "add --objective tokens-per-device, or name one --devices or --global-batch");
  }
  if (flags.loop.plans && (devices > 1 || batches > 1)) {
    throw Error("--measure", "runs plans of one number of devices and one batch",
                "name one --devices and one --global-batch");
  }
  if (flags.loop.plans && devices == 1 && counts.front() > 1) {
    throw Error("--measure", "runs plans of one device",
                "leave out --devices; verify --plan measures one plan of several ranks");
  }
}

// What is of Ballast's own spaces, bounds and runs is refused where another runs the plans.
void check_framework(TuneFlags& flags) {
  if (!flags.stack.name) return;
  flags.framework = load_stack(*flags.stack.name);
  if (*flags.stack.name == kBallastStack) return;
  if (flags.framework.name == kBallastStack) {
    throw Error("--stack " + *flags.stack.name, "has the name of Ballast's own backend",
                "name the file otherwise");
  }
  const Objective objective = flags.request.objective;
  const std::pair<const char*, bool> given[] = {
      {"--measure", flags.loop.plans.has_value()},
      {"--exhaustive", flags.exhaustive},
      {"--tolerance", flags.tolerance_percent.has_value()},
      {"--allow-delay", flags.allow_delay},
      {"--free-degrees", flags.free_degrees},
      {"--plan", flags.plan.plan_file.has_value()},
      {"--objective longest-sequence", objective == Objective::kLongestSequence},
      {"--objective largest-model", objective == Objective::kLargestModel}};
  for (const auto& [name, is_given] : given) {
    if (!is_given) continue;
    throw Error(std::string(name) + " with --stack " + *flags.stack.name,
                "is of plans that Ballast runs itself",
                "leave one of the two out; predict --stack takes --plan, --max-sequence and "
                "--max-model");
  }
}

// Not a number passes the ranges of CLI11.
void check_amounts(const TuneFlags& flags) {
  const std::pair<const char*, std::optional<double>> amounts[] = {
      {"--headroom-percent", flags.constraints.headroom_percent},
      {"--tolerance", flags.tolerance_percent},
      {"--frontier-step-percent", flags.frontier_step_percent}};
  for (const auto& [name, amount] : amounts) {
    if (!amount || std::isfinite(*amount)) continue;
    throw Error(name, "is no finite number", "give one");
  }
}

void check_request(TuneFlags& flags) {
  ObjectiveRequest& request = flags.request;
  request.objective = parse_objective(flags.objective);
  request.most_joules_per_token = flags.constraints.most_joules_per_token;
  const bool deadline = request.objective == Objective::kDevicesForDeadline;
  if (deadline != (flags.tokens && flags.deadline_days) || !flags.tokens != !flags.deadline_days) {
    throw Error("--objective devices-for-deadline", "goes with --tokens and --deadline-days",
                "give all three, or none");
  }
  if (deadline) request.job = Job{*flags.tokens, *flags.deadline_days};
  if (request.objective == Objective::kCostPerToken && !request.rates.price_per_hour) {
    throw Error("--objective cost-per-token", "needs the price of a device",
                "give --price-per-device-hour");
  }
  if (request.rates.watts) flags.watts_source = "--watts-per-device";
  const bool sized = request.objective == Objective::kLongestSequence ||
                     request.objective == Objective::kLargestModel;
  if (sized && (flags.loop.plans || flags.frontier || flags.sensitivity || flags.ablation)) {
    throw Error("--objective " + flags.objective,
                "finds a size; --measure and studies are of one that is known",
                "tune that size in a second call");
  }
  if (flags.ablation) load_strategy(flags.ablation_from);  // known before the search
  if (sized && request.most_joules_per_token) {
    throw Error("--most-joules-per-token", "says nothing about what fits", "leave it out");
  }
}

std::optional<int64_t> one_count(const std::string& text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc{} || at != end || count <= 0) return std::nullopt;
  return count;
}

std::vector<int64_t> doublings(int64_t first, int64_t last) {
  std::vector<int64_t> counts;
  for (int64_t count = first; count < last; count *= 2) counts.push_back(count);
  counts.push_back(last);
  return counts;
}

PlanFlags on_some_machine(PlanFlags plan) {
  if (plan.machines.empty() && !plan.plan_file) plan.machines = {kHere};
  return plan;
}

Machine limited(const TuneFlags& flags, const Machine& machine) {
  const std::optional<Bytes> headroom = headroom_of(flags.constraints, machine);
  return headroom ? with_headroom(machine, *headroom) : machine;
}

// The power of a device, where no flag says it. Throws Error where it is needed and not known.
void note_power(TuneFlags& flags, const Machine& machine) {
  ObjectiveRequest& request = flags.request;
  if (request.rates.watts) return;
  if (machine.power_watts) {
    request.rates.watts = machine.power_watts->value;
    flags.watts_source = fmt::format("{}: {}", machine.name, machine.power_watts->source);
  } else if (request.most_joules_per_token) {
    throw Error("--most-joules-per-token",
                fmt::format("the profile of {} does not know its power", machine.name),
                "give --watts-per-device");
  }
}

}  // namespace

double tolerance_of(const TuneFlags& flags) {
  constexpr double kUsualPercent = 0.1;
  const bool proves = flags.framework.name == kBallastStack && !flags.exhaustive;
  return proves ? flags.tolerance_percent.value_or(kUsualPercent) / 100 : 0;
}

bool parse_tune(Words words, TuneFlags& flags) {
  VerbParser parser("tune");
  parser.add(flags.plan, VerbParser::Lists::kNo);
  CLI::App& app = parser.app();
  add_search_flags(parser, flags);
  add_count_flags(app, flags);
  add_objective_flags(app, flags);
  add_study_flags(app, flags);
  add_loop_flags(parser, flags.loop);
  CLI::Option* const again = app.get_option("--again");
  again->remove_needs(app.get_option("--measure"));
  again->description("Search and run what the store holds already once more");
  parser.add(flags.store);
  parser.add(flags.stack, "ballast");
  parser.add(flags.output, "");
  if (!parser.parse(words)) return false;
  flags.frontier_options.least_step = flags.frontier_step_percent / 100;
  check_amounts(flags);
  check_request(flags);
  check_counts(flags);
  check_framework(flags);
  return true;
}

std::vector<int64_t> parse_counts(const CountText& counts) {
  if (counts.text.empty()) return {};
  const Error bad(counts.flag + " " + counts.text, "is no list of whole numbers above 0",
                  "write 8, or 8,16,32, or 8..64 for the doublings");
  if (const size_t dots = counts.text.find(".."); dots != std::string::npos) {
    const auto first = one_count(counts.text.substr(0, dots));
    const auto last = one_count(counts.text.substr(dots + 2));
    if (!first || !last || *first > *last) throw bad;
    return doublings(*first, *last);
  }
  std::vector<int64_t> values;
  for (size_t begin = 0; begin <= counts.text.size();) {
    const size_t comma = std::min(counts.text.find(',', begin), counts.text.size());
    const auto count = one_count(counts.text.substr(begin, comma - begin));
    if (!count || values.size() == kMostCounts) throw bad;
    values.push_back(*count);
    begin = comma + 1;
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

std::optional<Bytes> headroom_of(const ConstraintFlags& constraints, const Machine& machine) {
  const double all = static_cast<double>(machine.gpu.memory.value.count);
  double bytes = 0;
  if (constraints.headroom_gb) bytes = *constraints.headroom_gb * 1e9;
  if (constraints.headroom_percent) bytes = *constraints.headroom_percent / 100 * all;
  if (bytes == 0) return std::nullopt;
  const Bytes usable = machine.gpu.memory.value - machine.gpu.reserved.value;
  if (bytes >= static_cast<double>(usable.count)) {
    throw Error(constraints.headroom_gb ? "--headroom-gb" : "--headroom-percent",
                fmt::format("{:.4g} GB are all of the {:.4g} GB that {} has for tensors",
                            bytes * 1e-9, usable.gb(), machine.name),
                "keep less free");
  }
  return Bytes{static_cast<int64_t>(bytes)};
}

OpenKnobsOfFlags open_knobs_of(const TuneFlags& flags) {
  return {flags.plan, {true, flags.free_degrees, flags.allow_delay}};
}

Setting case_for(TuneFlags& flags, const CaseSize& size) {
  PlanFlags plan = flags.plan;
  if (size.devices) plan.devices = {*size.devices};
  if (size.global_batch) plan.knobs[KnobId::kGlobalBatch] = *size.global_batch;
  if (flags.loop.plans) {
    Setting setting = load_case_at_hand(plan, flags.store, flags.loop);
    note_power(flags, setting.machine);
    setting.machine = limited(flags, setting.machine);
    return setting;
  }
  Setting setting = load_start(on_some_machine(plan), flags.store, nullptr);
  adopt(setting, flags.framework);
  note_power(flags, setting.machine);
  setting.machine = limited(flags, setting.machine);
  return setting;
}

Setting case_like(const TuneFlags& flags, const Model& like) {
  PlanFlags plan = flags.plan;
  plan.devices = parse_counts({"--devices", flags.devices});
  const std::vector<int64_t> batches = parse_counts({"--global-batch", flags.global_batch});
  if (!batches.empty()) plan.knobs[KnobId::kGlobalBatch] = batches.front();
  Setting setting = load_start(on_some_machine(plan), flags.store, &like);
  setting.machine = limited(flags, setting.machine);
  return setting;
}

}  // namespace ballast
