#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "autotune/complete/complete.h"
#include "cli/report/comparison_page.h"
#include "cli/report/origin.h"
#include "cli/text/prediction.h"
#include "cli/text/verification.h"
#include "cli/text/why_slower.h"
#include "cli/tune/choice_progress.h"
#include "profiles/json_depth.h"
#include "sim/base/error.h"
#include "sim/base/files.h"

namespace ballast {
namespace {

// More points than this cannot be told apart on a page.
constexpr size_t kMostPoints = 2000;

struct ReportFlags {
  OutputFlags output;
  PlanFlags plan;
  StoreFlag store;
  StackFlag stack;
  std::optional<std::string> verify_file;
  std::optional<std::string> metrics_file;
  std::optional<std::string> validation_file;
  std::optional<std::string> tune_file;
  std::optional<std::string> compare_file;
  std::string out = "report.html";
  bool bottlenecks = false;
};

bool parse(Words words, ReportFlags& flags) {
  VerbParser parser("report");
  CLI::App& app = parser.app();
  const auto reads = [&](const char* name, std::optional<std::string>& file, const char* help) {
    parser.reads(app.add_option(name, file, help)->type_name("FILE"));
  };
  reads("--verify", flags.verify_file,
        "What `ballast verify --out` wrote: prediction and measurement; "
        "without it the plan is predicted");
  reads("--metrics", flags.metrics_file, "What `ballast train --metrics` wrote");
  reads("--validation", flags.validation_file,
        "What `ballast validate --out` or `--json` wrote, with FILEs or without: a page of that, "
        "and of no plan");
  reads("--tune", flags.tune_file,
        "What `ballast tune --json` printed: a page of the search and of the best plan");
  reads("--compare", flags.compare_file,
        "What `ballast compare --out` wrote: a page of all its cells");
  parser.writes(app.add_option("--out", flags.out, "Write the page to this file [report.html]")
                    ->type_name("FILE"),
                {.otherwise = flags.out});
  app.add_flag(kLimitsFlag, flags.bottlenecks, kLimitsHelp);
  parser.add(flags.plan, VerbParser::Lists::kNo);
  parser.add(flags.store);
  parser.add(flags.stack);
  parser.add(flags.output, "");
  return parser.parse(words);
}

std::ifstream open_text(const std::string& path) {
  refuse_named_pipe(path);
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw Error(path, "cannot be read", "check the path");
  }
  return file;
}

// Discarded where it is no JSON.
OrderedJson read_json(const std::string& path) {
  std::ifstream file = open_text(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  check_depth(text, path);
  return OrderedJson::parse(text, nullptr, false);
}

// What another verb wrote: its schema, the verb with its flags, and the keys that a page needs.
struct Written {
  const char* schema;  // empty where the file names none
  const char* by;
  std::vector<const char*> keys;
};

OrderedJson read_written(const std::string& path, const Written& written) {
  OrderedJson json = read_json(path);
  const std::string command = fmt::format("ballast {}", written.by);
  const bool named = *written.schema != '\0';
  if (!json.is_object() || (named && json.value("schema", OrderedJson()) != written.schema)) {
    throw Error(path, fmt::format("is not what `{}` writes", command), "give that file");
  }
  for (const char* key : written.keys) {
    if (json.contains(key)) continue;
    throw Error(path, fmt::format("key '{}' is missing", key),
                fmt::format("run {} again", command));
  }
  return json;
}

OrderedJson read_verify(const std::string& path) {
  return read_written(path, {"ballast.verify/1",
                             "verify --out",
                             {"model", "machine", "steps", "plan", "predicted", "measured",
                              "error_percent", "prediction", "timelines"}});
}

OrderedJson read_validation(const std::string& path) {
  const Written left_out = {"ballast.validation/2", "validate --out", {"figures", "summary"}};
  const Written fitted = {
      "ballast.validation/1", "validate --out", {"cases", "summary", "overall", "stacks"}};
  const OrderedJson json = read_json(path);
  const bool is_left_out =
      json.is_object() && json.value("schema", OrderedJson()) == left_out.schema;
  return read_written(path, is_left_out ? left_out : fitted);
}

OrderedJson read_comparison(const std::string& path) {
  const Written written = {"ballast.comparison/1",
                           "compare --out",
                           {"metric", "rows", "columns", "cells", "best", "crossings"}};
  OrderedJson json = read_written(path, written);
  const auto refuse = [&](const char* what) {
    throw Error(path, what, "run ballast compare --out again");
  };
  for (const char* key : {"rows", "columns"}) {
    for (const OrderedJson& axis : json[key]) {
      const bool is_axis = axis.is_object() && axis.contains("name") && axis["name"].is_string() &&
                           axis.contains("values") && axis["values"].is_array() &&
                           !axis["values"].empty() && axis["values"].front().is_string();
      if (!is_axis) refuse("has an axis without a name or values");
    }
  }
  for (const OrderedJson& cell : json["cells"]) {
    if (!cell.is_object() || !cell.contains("at") || !cell.contains("plan"))
      refuse("has a cell without 'at' or 'plan'");
  }
  return json;
}

OrderedJson read_tune(const std::string& path) {
  const OrderedJson json =
      read_written(path, {"", "tune --json", {"considered", "simulated", "ranked", "reasons"}});
  for (const OrderedJson& one : json["ranked"]) {
    if (one.is_object() && one.contains("plan") && one.contains("step_time_s")) continue;
    throw Error(path, "ranks something without 'plan' or 'step_time_s'",
                "run ballast tune --json again");
  }
  return json;
}

// The metrics with at most kMostPoints lines left; the first and the last are among them.
OrderedJson read_metrics(const std::string& path) {
  std::ifstream file = open_text(path);
  std::vector<OrderedJson> all;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    check_depth(line, path);
    const OrderedJson entry = OrderedJson::parse(line, nullptr, false);
    const auto number = [&](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_number();
    };
    if (entry.is_object() && entry.value("skipped", OrderedJson()) == true) continue;
    if (!number("step") || !number("loss") || !number("step_time_s")) {
      throw Error(fmt::format("{}, line {}", path, all.size() + 1),
                  "is not a step as `ballast train --metrics` writes it", "give that file");
    }
    all.push_back(
        {{"step", entry["step"]}, {"loss", entry["loss"]}, {"step_time_s", entry["step_time_s"]}});
  }
  OrderedJson kept = OrderedJson::array();
  const size_t stride = std::max<size_t>(1, (all.size() + kMostPoints - 1) / kMostPoints);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % stride == 0 || i + 1 == all.size()) kept.push_back(std::move(all[i]));
  }
  return kept;
}

OrderedJson data_of_prediction(Completed completed, const Measurements& measurements,
                               const ReportFlags& flags) {
  const Predicted predicted =
      judged(std::move(completed.setting), std::move(completed.prediction), measurements,
             flags.bottlenecks ? AskLimits::kAlways : AskLimits::kIfQuick);
  const Prediction& prediction = predicted.prediction;
  return {{"model", predicted.setting.model.name},
          {"machine", predicted.setting.machine.description},
          {"plan", OrderedJson::parse(plan_json(predicted.setting.plan))},
          {"prediction", prediction_json(predicted)},
          {"measured", nullptr},
          {"timelines",
           {{"predicted", timeline_json(prediction.graph, prediction.timeline)},
            {"measured", nullptr}}}};
}

OrderedJson data_of_plan(const ReportFlags& flags) {
  Setting setting = load_case(flags.plan, flags.store);
  adopt(setting, stack_of(flags.stack, setting.machine));
  const Measurements measurements = measurements_of(setting.machine, flags.store);
  return data_of_prediction(complete_in_sight(std::move(setting), &measurements), measurements,
                            flags);
}

std::string text_of(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Where no store is named, that of the verb that wrote the file: it knows the machine 'here'.
StoreFlag store_of(const ReportFlags& flags, const OrderedJson& written) {
  if (flags.store.path || !written.contains("store") || !written["store"].is_string()) {
    return flags.store;
  }
  return {written["store"].get<std::string>()};
}

// The names that a plan gives, unless flags give others (a model's file may have moved).
Setting case_of(const Plan& plan, const ReportFlags& flags, const StoreFlag& store) {
  const PlanFlags& given = flags.plan;
  Setting setting;
  setting.model = load_model(given.models.empty() ? plan.model : given.models.front());
  setting.machine =
      load_machine_or_here(given.machines.empty() ? plan.machine : given.machines.front(), store);
  setting.plan = plan;
  check(setting.plan, setting.model);
  return setting;
}

// Who runs the plans of a search, by name or file; nothing where that is Ballast.
std::optional<std::string> stack_of_tune(const ReportFlags& flags, const OrderedJson& tune) {
  if (flags.stack.name) return flags.stack.name;
  const OrderedJson name = tune.value("stack_named", OrderedJson());
  if (!name.is_string() || name == kBallastStack) return std::nullopt;
  return name.get<std::string>();
}

// The page of a search: what it printed, the knobs in which each plan differs from the best, and,
// where model and machine are still at hand, the prediction of the best.
OrderedJson data_of_tune(const ReportFlags& flags) {
  const std::string& path = *flags.tune_file;
  OrderedJson tune = read_tune(path);
  OrderedJson data = {{"prediction", nullptr}};
  if (tune["ranked"].empty()) {
    data["tune"] = std::move(tune);
    return data;
  }
  const Plan best = parse_plan(tune["ranked"][0]["plan"].dump(), path);
  for (const char* list : {"ranked", "frontier", "measured"}) {
    if (!tune.contains(list) || !tune[list].is_array()) continue;
    for (OrderedJson& one : tune[list]) {
      if (!one.is_object() || !one.contains("plan") || !one["plan"].is_object()) continue;
      one["differs"] = differing_text(parse_plan(one["plan"].dump(), path), best);
    }
  }
  try {
    const StoreFlag store = store_of(flags, tune);
    Setting setting = case_of(best, flags, store);
    if (const auto stack = stack_of_tune(flags, tune)) setting.stack = load_stack(*stack);
    const Measurements measurements = measurements_of(setting.machine, store);
    data = data_of_prediction({setting, predict(setting.model, setting.plan, setting.machine,
                                                setting.stack, &measurements)},
                              measurements, flags);
    if (tune.contains("next_best") && tune["next_best"].is_object()) {
      Setting next = setting;
      next.plan = parse_plan(tune["next_best"].at("plan").dump(), path);
      check(next.plan, next.model);
      data["why"] = why_it_loses(setting, next, measurements);
    }
  } catch (const Error& error) {
    data["missing"] = error.what();
  }
  data["model"] = best.model;
  data["machine"] = best.machine;
  data["plan"] = OrderedJson::parse(plan_json(best));
  data["tune"] = std::move(tune);
  return data;
}

// What a plan of another hand may lack, and all that is told of one rests on.
void require_whole_micro_batches(const Plan& plan, const std::string& path) {
  const int64_t batch = plan.global_batch;
  const int64_t rank = plan.data > 0 ? batch / plan.data : 0;
  const bool whole =
      rank > 0 && batch % plan.data == 0 &&
      (!plan.micro_batch || (*plan.micro_batch > 0 && rank % *plan.micro_batch == 0));
  if (whole) return;
  throw Error(path,
              fmt::format("its plan's {} sequences do not divide over {} ranks and whole "
                          "micro-batches",
                          batch, plan.data),
              "write the file again");
}

OrderedJson data_of(const ReportFlags& flags) {
  if (flags.validation_file) return {{"validation", read_validation(*flags.validation_file)}};
  OrderedJson data = flags.tune_file     ? data_of_tune(flags)
                     : flags.verify_file ? read_verify(*flags.verify_file)
                                         : data_of_plan(flags);
  data["metrics"] = flags.metrics_file ? read_metrics(*flags.metrics_file) : OrderedJson::array();
  if (!data.contains("plan")) return data;
  const Plan plan = parse_plan(data["plan"].dump(), flags.verify_file.value_or("the plan"));
  require_whole_micro_batches(plan, flags.verify_file.value_or("the plan"));
  data["plan_text"] = plan_text(plan);
  const OrderedJson& written = data.contains("tune") ? data["tune"] : data;
  data["machines"] = machines_json({plan.machine}, store_of(flags, written));
  return data;
}

std::string title_of(const OrderedJson& data) {
  if (data.contains("validation")) return "Ballast against published measurements";
  if (!data.contains("model")) {
    const bool decided = data.at("tune").value("complete", true);
    return decided ? "A search in which nothing fits" : "A search that was stopped undecided";
  }
  const char* what = data.contains("tune") ? "The best plan of {} on {}" : "{} on {}";
  return fmt::format(fmt::runtime(what), text_of(data["model"]), text_of(data["machine"]));
}

void check_one_subject(const ReportFlags& flags) {
  const int subjects = flags.verify_file.has_value() + flags.validation_file.has_value() +
                       flags.tune_file.has_value() + flags.compare_file.has_value();
  if (subjects <= 1) return;
  throw Error("report", "a page is of one of --verify, --validation, --tune and --compare",
              "name one of them");
}

int run(const ReportFlags& flags, Words words) {
  PageFile file{flags.out, "", command_line("report", words)};
  OrderedJson data;
  if (flags.compare_file) {
    data = read_comparison(*flags.compare_file);
    write_comparison_page(file, data, flags.store);
  } else {
    data = data_of(flags);
    file.title = title_of(data);
    write_page(file, data);
  }
  if (flags.output.json) {
    fmt::print("{}\n", data.dump(1));
  } else {
    fmt::print("wrote {}\n", flags.out);
  }
  return kDone;
}

}  // namespace

int run_report(Words words) {
  ReportFlags flags;
  if (!parse(words, flags)) return kDone;
  check_one_subject(flags);
  try {
    return run(flags, words);
  } catch (const OrderedJson::exception& error) {
    // A file of ours in which somebody has put another kind of value.
    const std::string path = flags.compare_file.value_or(
        flags.tune_file.value_or(flags.verify_file.value_or(flags.validation_file.value_or("it"))));
    // The library's text begins with its own name of the fault.
    const std::string text = error.what();
    const size_t name = text.starts_with('[') ? text.find("] ") : std::string::npos;
    throw Error(path,
                "holds what no verb of Ballast writes: " +
                    (name == std::string::npos ? text : text.substr(name + 2)),
                "write the file again");
  }
}

}  // namespace ballast
