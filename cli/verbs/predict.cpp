#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/complete/complete.h"
#include "autotune/complete/least_changes.h"
#include "autotune/studies/capacity.h"
#include "cli/report/trace.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress.h"
#include "cli/text/goodput.h"
#include "cli/text/least_changes.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"
#include "cli/tune/choice_progress.h"
#include "cli/tune/found_model.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "sim/spec/caveats.h"

namespace ballast {
namespace {

OrderedJson json_of(const Predicted& one, std::optional<Duration> checkpoint_write) {
  if (one.refusal.empty()) return prediction_json(one, checkpoint_write);
  return {{"model", one.setting.model.name},
          {"machine", one.setting.machine.name},
          {"devices", one.setting.plan.devices},
          {"strategy", one.setting.plan.strategy},
          {"stack", one.setting.stack.name},
          {"fits", nullptr},
          {"refusal", one.refusal}};
}

OrderedJson json_of(const std::vector<Predicted>& cases, std::optional<Duration> checkpoint_write) {
  OrderedJson list = OrderedJson::array();
  for (const Predicted& one : cases) list.push_back(json_of(one, checkpoint_write));
  return {{"cases", list}};
}

void write_trace(const std::string& path, const Prediction& prediction) {
  if (!prediction.fits) {
    throw Error("--trace " + path, "the plan does not fit, so there is no timeline",
                "change the plan, or leave --trace out");
  }
  atomic_write(path, chrome_trace({{"predicted", &prediction.graph, &prediction.timeline}}));
}

// What `predict` was asked for.
struct PredictFlags {
  OutputFlags output;
  PlanFlags plan;
  StoreFlag store;
  StackFlag stack;
  std::optional<std::string> trace;
  std::optional<std::string> plan_out;
  bool max_model = false;
  bool max_sequence = false;
  bool bottlenecks = false;
  GoodputFlags goodput;
  int64_t checkpoint_period = 0;
  std::optional<double> checkpoint_write_s;

  std::optional<Duration> checkpoint_write() const {
    if (!checkpoint_write_s) return std::nullopt;
    return Duration::from_seconds(*checkpoint_write_s);
  }
};

// Longer ones overflow the clock where it simulates years of failures.
CLI::Validator up_to_a_week() {
  constexpr double kWeek_s = 7 * 86400;
  return zero_or_more() & CLI::Range(0.0, kWeek_s);
}

void add(CLI::App& app, GoodputFlags& flags) {
  const char* const group = "Weeks of training";
  CLI::Option* rate =
      app.add_option(
             "--failures-per-device-year", flags.failures_per_device_year,
             "What of --days is steps that stay where devices fail so often (one plan only)")
          ->type_name("COUNT")
          ->check(above_zero())
          ->group(group);
  const auto beside = [&](const char* name, auto& value, const char* unit, const char* help,
                          const CLI::Validator& check) {
    app.add_option(name, value, help)->type_name(unit)->check(check)->needs(rate)->group(group);
  };
  beside("--days", flags.days, "DAYS", "How long the training lasts [30]", above_zero());
  beside("--detection-seconds", flags.detection_s, "SECONDS", "Until a failure is noticed [60]",
         up_to_a_week());
  beside("--restart-seconds", flags.restart_s, "SECONDS",
         "Then until the state is loaded and steps go on [300]", up_to_a_week());
  beside("--checkpoint-seconds", flags.checkpoint_s, "SECONDS",
         "For which training rests at a checkpoint [state at the rate of the machine's NVMe]",
         up_to_a_week());
  app.add_flag("--redundant-stages", flags.redundant_stages,
               "Beside it the same where every stage could go on for its successor (Bamboo)")
      ->needs(rate)
      ->group(group);
}

void add(VerbParser& parser, PredictFlags& flags) {
  parser.add(flags.plan, VerbParser::Lists::kYes);
  parser.add(flags.store);
  parser.add(flags.stack);
  parser.add(flags.output, "Write the JSON to this file too");
  CLI::App& app = parser.app();
  parser.writes(
      app.add_option("--trace", flags.trace, "Write the timeline as a Chrome trace (one plan only)")
          ->type_name("FILE"));
  parser.writes(app.add_option("--plan-out", flags.plan_out,
                               "Write the plan with every knob filled in, and beside it the model "
                               "that a search found (one plan only)")
                    ->type_name("FILE"),
                {.replaces = "--plan"});
  app.add_flag(kLimitsFlag, flags.bottlenecks, kLimitsHelp);
  add(app, flags.goodput);
  CLI::Option* period = app.add_option("--checkpoint-period", flags.checkpoint_period,
                                       "Tell what checkpoints cost that are so many steps apart")
                            ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
                            ->type_name("STEPS");
  app.add_option("--checkpoint-write-seconds", flags.checkpoint_write_s,
                 "How long one is written, beside the steps [at the rate of the machine's NVMe]")
      ->check(up_to_a_week())
      ->needs(period)
      ->type_name("SECONDS");
  const char* const searches = "What fits at most";
  CLI::Option* model =
      app.add_flag("--max-model", flags.max_model,
                   "Search the largest GPT that fits, or with --model most layers of that one")
          ->group(searches);
  CLI::Option* sequence =
      app.add_flag("--max-sequence", flags.max_sequence,
                   "Search the longest sequence of --model that fits, in steps of 1024 tokens "
                   "a rank of --sequence and --context, or where degrees are chosen a device "
                   "of a node")
          ->group(searches);
  model->excludes(sequence);
}

struct Report {
  std::string text;
  OrderedJson json;
};

// Writes the JSON to a file or prints it, or else prints the text.
void print(const Report& report, const PredictFlags& flags) {
  const std::string json = report.json.dump(1) + "\n";
  if (flags.output.out) atomic_write(*flags.output.out, json);
  fmt::print("{}", flags.output.json ? json : report.text);
}

std::string size_text(const Model& model) {
  return fmt::format("{:.2f}B parameters, {} layers of {}, {} heads",
                     static_cast<double>(parameter_count(model)) * 1e-9, model.layers, model.hidden,
                     model.heads);
}

OrderedJson size_json(const Model& model) {
  return {{"parameters", parameter_count(model)},
          {"layers", model.layers},
          {"hidden", model.hidden},
          {"heads", model.heads},
          {"ffn", model.ffn},
          {"vocab", model.vocab}};
}

// The first memory that overflows: "gpu", "cpu" or "nvme"; "devices" where there are too few.
std::string binding(const Verdict& verdict, const Machine& machine) {
  const std::vector<Shortfall> missing = shortfalls(verdict.peaks, machine);
  if (missing.empty()) return "devices";
  const Place place = missing.front().place;
  return place == Place::kHbm ? "gpu" : place == Place::kDram ? "cpu" : "nvme";
}

OrderedJson verdict_json(const Verdict& verdict, const Machine& machine) {
  OrderedJson peaks = OrderedJson::object();
  for (const PlacePeak& peak : verdict.peaks) {
    OrderedJson holders = OrderedJson::object();
    for (const Holder& holder : peak.holders) {
      holders[std::string(to_string(holder.category))] = holder.bytes.count;
    }
    peaks[std::string(to_string(peak.place))] = {
        {"needed_bytes", peak.arena.count},
        {"usable_bytes", usable(machine, peak.place).count},
        {"holders", holders}};
  }
  return {{"binds", binding(verdict, machine)}, {"reason", verdict.reason}, {"memory", peaks}};
}

// Fills in the plan, and what `predict` says of it.
Predicted complete_and_predict(Setting setting, const PredictFlags& flags, AskLimits limits,
                               const std::function<bool()>& interrupted = {}) {
  const Measurements measurements = measurements_of(setting.machine, flags.store);
  Completed completed = complete_in_sight(std::move(setting), &measurements, interrupted);
  return judged(std::move(completed.setting), std::move(completed.prediction), measurements,
                limits);
}

AskLimits limits_of_one(const PredictFlags& flags) {
  return flags.bottlenecks ? AskLimits::kAlways : AskLimits::kIfQuick;
}
// The table of a list has no room for them.
AskLimits limits_in_list(const PredictFlags& flags) {
  return flags.output.json || flags.output.out ? limits_of_one(flags) : AskLimits::kNever;
}

// What was found as files, where they were asked for; and what to say of them.
std::string write_plan(Setting& setting, const PredictFlags& flags, OrderedJson& json) {
  if (!flags.plan_out) return "";
  const FoundFiles files =
      write_found(setting, {*flags.plan_out, flags.plan.set, flags.store, flags.stack});
  json["plan"]["model"] = setting.plan.model;
  json["model_file"] = files.model;
  json["predict"] = files.predict;
  return "\n" + text_of(files);
}

int report_nothing(const std::string& what, const Verdict& verdict, const Setting& setting,
                   const PredictFlags& flags) {
  OrderedJson json = {{"fits", false}};
  json.update(verdict_json(verdict, setting.machine));
  const std::vector<std::string> notes = notes_of(setting.model, setting.plan, setting.stack.facts);
  json["notes"] = notes;
  print({what + " does not fit: " + verdict.reason + "\n" + notes_text(notes), std::move(json)},
        flags);
  return kInfeasible;
}

int run_max_model(const PredictFlags& flags) {
  const Family gpt = gpt_family();
  Setting setting = load_start(flags.plan, flags.store, &gpt.like);
  if (!setting.plan.model.empty()) check(setting.plan, setting.model);
  adopt(setting, stack_of(flags.stack, setting.machine));
  const bool named = !setting.plan.model.empty();
  Family family = named ? family_of(setting.model) : gpt;
  family.like.vocab = setting.model.vocab;  // --set model.vocab
  const LargestModel found = largest_model(setting, family);
  if (!found.model) {
    return report_nothing("the smallest model (" + size_text(found.next) + ")", found.next_verdict,
                          setting, flags);
  }
  setting.model = *found.model;
  Predicted predicted = complete_and_predict(std::move(setting), flags, limits_of_one(flags));
  OrderedJson next = size_json(found.next);
  next.update(verdict_json(found.next_verdict, predicted.setting.machine));
  OrderedJson json = {{"max_model", size_json(predicted.setting.model)},
                      {"next", next},
                      {"family", family.source},
                      {"considered", found.considered}};
  json.update(prediction_json(predicted));
  const std::string files = write_plan(predicted.setting, flags, json);
  const std::string text = fmt::format(
      "the largest that fits   {}\nthe next does not       {}: {}\n"
      "of {} models tried, shapes of {}\n\n",
      size_text(predicted.setting.model), size_text(found.next), found.next_verdict.reason,
      found.considered, family.source);
  print({text + prediction_text(predicted) + files, std::move(json)}, flags);
  return kDone;
}

int run_max_sequence(const PredictFlags& flags) {
  Setting setting = load_case(flags.plan, flags.store);
  adopt(setting, stack_of(flags.stack, setting.machine));
  const LongestSequence found = longest_sequence(setting);
  if (found.tokens == 0) {
    return report_nothing(fmt::format("a sequence of {} tokens", found.next_tokens),
                          found.next_verdict, setting, flags);
  }
  const bool turned = found.model.position != setting.model.position;
  setting =
      with_plans(std::move(setting), [&](Plan& plan) { plan.sequence_length = found.tokens; });
  setting.model = found.model;
  Predicted predicted = complete_and_predict(std::move(setting), flags, limits_of_one(flags));
  OrderedJson next = {{"tokens", found.next_tokens}};
  next.update(verdict_json(found.next_verdict, predicted.setting.machine));
  OrderedJson json = {{"max_sequence_length", found.tokens},
                      {"next", next},
                      {"rotary_positions", found.model.position == PositionKind::kRope},
                      {"considered", found.considered}};
  json.update(prediction_json(predicted));
  std::string text =
      fmt::format("the longest that fits   {} tokens\nthe next does not       {} tokens: {}\n",
                  show_count(static_cast<double>(found.tokens)),
                  show_count(static_cast<double>(found.next_tokens)), found.next_verdict.reason);
  if (turned) text += "positions are rotary: the model's learned table is shorter\n";
  const std::string files = write_plan(predicted.setting, flags, json);
  print({text + "\n" + prediction_text(predicted) + files, std::move(json)}, flags);
  return kDone;
}

// The same flags for another number of devices, with the batch that was asked about.
Setting on_devices(const PredictFlags& flags, const Setting& asked, int64_t devices) {
  PlanFlags plan = flags.plan;
  plan.devices = {devices};
  plan.knobs[KnobId::kGlobalBatch] = asked.plan.global_batch;
  Setting setting = load_case(plan, flags.store);
  adopt(setting, asked.stack);
  return setting;
}

// Says what would have to give for a plan that does not fit.
void add_least_changes(const PredictFlags& flags, const Setting& asked, Report& report) {
  const InterruptWatch watch;
  const std::vector<LeastChange> changes = least_changes_in_sight(
      {asked, [&](int64_t devices) { return on_devices(flags, asked, devices); },
       [&] { return watch.interrupted(); }});
  report.text += "\n" + least_changes_text(changes, asked.plan.global_batch);
  report.json["least_changes"] = least_changes_json(changes);
}

// How to ask about more devices than the machine's file has: it may be one node of many.
std::string larger_machine_text(const Setting& setting) {
  if (setting.plan.devices <= setting.machine.devices) return "";
  constexpr int64_t kOfNode = 8;  // as many as a node has most often
  const int64_t node =
      std::min(setting.plan.devices, std::max(kOfNode, setting.machine.devices_per_node));
  const int64_t nodes = (setting.plan.devices + node - 1) / node;
  return fmt::format(
      "to ask about {} of this GPU: ballast machines --new FILE.json --gpu '{}' --gpus {}{}, then "
      "--machine FILE.json\n",
      setting.plan.devices, setting.machine.gpu.name, node,
      nodes == 1 ? "" : fmt::format(" --nodes {} --network 400gbit", nodes));
}

int run_plan(Setting setting, const PredictFlags& flags) {
  adopt(setting, stack_of(flags.stack, setting.machine));
  check(flags.goodput, setting);
  const Setting asked = setting;
  Predicted predicted = complete_and_predict(std::move(setting), flags, limits_of_one(flags));
  if (flags.trace) write_trace(*flags.trace, predicted.prediction);
  Report report{prediction_text(predicted, flags.checkpoint_write()),
                prediction_json(predicted, flags.checkpoint_write())};
  const bool fits = predicted.prediction.fits;
  report.text += larger_machine_text(asked);
  if (const auto weeks = predict_goodput(flags.goodput, predicted)) {
    report.text += "\n" + goodput_text(*weeks);
    report.json["goodput"] = goodput_json(*weeks);
  }
  if (fits) {
    report.text += write_plan(predicted.setting, flags, report.json);
  } else {
    add_least_changes(flags, asked, report);
  }
  print(report, flags);
  return fits ? kDone : kInfeasible;
}

// One of a list: that it is refused does not cost the others.
Predicted predict_or_refuse(Case one, const PredictFlags& flags, const InterruptWatch& watch) {
  Setting& setting = one.setting;
  adopt(setting, stack_of(flags.stack, setting.machine));
  if (!one.refusal.empty()) return {std::move(setting), {}, {}, {}, one.refusal};
  try {
    if (!setting.has_open_layout()) check(setting.plan, setting.model);
    return complete_and_predict(setting, flags, limits_in_list(flags),
                                [&] { return watch.interrupted(); });
  } catch (const Error& error) {
    return {std::move(setting), {}, {}, {}, one_line(error.what())};
  }
}

void check_is_one(const PredictFlags& flags) {
  const auto refuse = [](const std::string& flag) {
    throw Error(flag, "there are several plans",
                "name one model, machine, strategy and number of devices");
  };
  if (flags.trace) refuse("--trace " + *flags.trace);
  if (flags.plan_out) refuse("--plan-out " + *flags.plan_out);
  if (flags.goodput.failures_per_device_year) refuse("--failures-per-device-year");
}

// As they come, in order; Ctrl-C ends the list, and what there is of it is printed.
int run_list(std::vector<Case> cases, const PredictFlags& flags) {
  check_is_one(flags);
  const InterruptWatch watch;
  Progress progress("predict");
  std::vector<Predicted> predicted;
  for (Case& each : cases) {
    const Setting& setting = each.setting;
    const std::string name =
        fmt::format("{} on {} x{}, {}", setting.model.name, setting.machine.name,
                    setting.plan.devices, setting.plan.strategy);
    Predicted one = predict_or_refuse(std::move(each), flags, watch);
    if (watch.interrupted()) break;
    predicted.push_back(std::move(one));
    progress.show(static_cast<double>(predicted.size()) / static_cast<double>(cases.size()),
                  fmt::format("{} of {}: {}", predicted.size(), cases.size(), name));
  }
  const bool whole = predicted.size() == cases.size();
  progress.finish(fmt::format("{} of {}", predicted.size(), cases.size()));
  const bool any_legal = std::any_of(predicted.begin(), predicted.end(),
                                     [](const Predicted& each) { return each.refusal.empty(); });
  // Flags of which no plan can be made are bad input.
  if (whole && !any_legal) {
    throw Error("every plan of the list", predicted.front().refusal, "correct what they share");
  }
  Report report{prediction_table(predicted), json_of(predicted, flags.checkpoint_write())};
  if (!whole) {
    report.text += fmt::format("interrupted: {} of {}\n", predicted.size(), cases.size());
    report.json["interrupted"] = true;
  }
  print(report, flags);
  if (!whole) return kUndecided;
  const bool any = std::any_of(predicted.begin(), predicted.end(),
                               [](const Predicted& each) { return each.prediction.fits; });
  return any ? kDone : kInfeasible;
}

}  // namespace

int run_predict(Words words) {
  VerbParser parser("predict");
  PredictFlags flags;
  add(parser, flags);
  if (!parser.parse(words)) return kDone;
  if (flags.checkpoint_period > 0) {
    const std::string key = "plan.checkpoint_period_steps";
    for (const std::string& change : flags.plan.set) {
      if (!change.starts_with(key + "=")) continue;
      throw Error("--checkpoint-period", "--set " + change + " names it too", "name one of them");
    }
    flags.plan.knobs[KnobId::kCheckpointPeriodSteps] = flags.checkpoint_period;
  }
  const bool searches = flags.max_model || flags.max_sequence;
  if (searches && flags.trace) {
    throw Error("--trace " + *flags.trace, "a search has no timeline of its own",
                "predict what it finds");
  }
  if (searches && flags.goodput.failures_per_device_year) {
    throw Error("--failures-per-device-year", "a search is for a size", "predict what it finds");
  }
  if (flags.max_model) return run_max_model(flags);
  if (flags.max_sequence) return run_max_sequence(flags);
  std::vector<Case> cases = load_cases(flags.plan, flags.store);
  if (cases.size() == 1) return run_plan(std::move(cases.front().setting), flags);
  return run_list(std::move(cases), flags);
}

}  // namespace ballast
