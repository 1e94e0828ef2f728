#include <cmath>
#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/completion.h"
#include "cli/prediction.h"
#include "cli/report/page.h"
#include "cli/verification.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// More points than this cannot be told apart on a page.
constexpr size_t kMostPoints = 2000;

struct ReportFlags {
  OutputFlags output;
  PlanFlags plan;
  StoreFlag store;
  std::optional<std::string> verify_file;
  std::optional<std::string> metrics_file;
  std::optional<std::string> validation_file;
  std::string out = "report.html";
};

bool parse(Words words, ReportFlags& flags) {
  VerbParser parser("report");
  CLI::App& app = parser.app();
  app.add_option("--verify", flags.verify_file,
                 "What `ballast verify --out` wrote: prediction and measurement; "
                 "without it the plan is predicted")
      ->type_name("FILE");
  app.add_option("--metrics", flags.metrics_file, "What `ballast train --metrics` wrote")
      ->type_name("FILE");
  app.add_option("--validation", flags.validation_file,
                 "What `ballast validate --out` wrote: a page of that, and of no plan")
      ->type_name("FILE");
  app.add_option("--out", flags.out, "Write the page to this file [report.html]")
      ->type_name("FILE");
  parser.add(flags.plan, VerbParser::Lists::kNo);
  parser.add(flags.store);
  parser.add(flags.output, "");
  return parser.parse(words);
}

std::ifstream open_text(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw Error(path, "cannot be read", "check the path");
  }
  return file;
}

OrderedJson read_verify(const std::string& path) {
  std::ifstream file = open_text(path);
  OrderedJson json = OrderedJson::parse(file, nullptr, false);
  if (!json.is_object() || json.value("schema", OrderedJson()) != "ballast.verify/1") {
    throw Error(path, "is not what `ballast verify --out` writes", "give that file");
  }
  for (const char* key : {"model", "machine", "steps", "plan", "predicted", "measured",
                          "error_percent", "prediction", "timelines"}) {
    if (json.contains(key)) continue;
    throw Error(path, fmt::format("key '{}' is missing", key), "run ballast verify --out again");
  }
  return json;
}

OrderedJson read_validation(const std::string& path) {
  std::ifstream file = open_text(path);
  OrderedJson json = OrderedJson::parse(file, nullptr, false);
  if (!json.is_object() || json.value("schema", OrderedJson()) != "ballast.validation/1") {
    throw Error(path, "is not what `ballast validate --out` writes", "give that file");
  }
  for (const char* key : {"cases", "summary", "overall", "stacks"}) {
    if (json.contains(key)) continue;
    throw Error(path, fmt::format("key '{}' is missing", key), "run ballast validate --out again");
  }
  return json;
}

// The metrics with at most kMostPoints lines left; the first and the last are among them.
OrderedJson read_metrics(const std::string& path) {
  std::ifstream file = open_text(path);
  std::vector<OrderedJson> all;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
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

OrderedJson data_of_prediction(const Completed& completed) {
  const Prediction& prediction = completed.prediction;
  return {{"model", completed.of.model.name},
          {"machine", completed.of.machine.description},
          {"plan", OrderedJson::parse(plan_json(completed.of.plan))},
          {"prediction", prediction_json(completed.of, prediction)},
          {"measured", nullptr},
          {"timelines",
           {{"predicted", timeline_json(prediction.graph, prediction.timeline)},
            {"measured", nullptr}}}};
}

OrderedJson data_of_plan(const ReportFlags& flags) {
  Case of = load_case(flags.plan, flags.store);
  const Measurements measurements = measurements_of(of.machine, flags.store);
  return data_of_prediction(complete_case(std::move(of), measurements));
}

std::string text_of(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

OrderedJson data_of(const ReportFlags& flags) {
  if (flags.validation_file) return {{"validation", read_validation(*flags.validation_file)}};
  OrderedJson data = flags.verify_file ? read_verify(*flags.verify_file) : data_of_plan(flags);
  data["metrics"] = flags.metrics_file ? read_metrics(*flags.metrics_file) : OrderedJson::array();
  data["plan_text"] =
      plan_text(parse_plan(data["plan"].dump(), flags.verify_file.value_or("the plan")));
  return data;
}

std::string title_of(const OrderedJson& data) {
  if (data.contains("validation")) return "Ballast against published measurements";
  return fmt::format("{} on {}", text_of(data["model"]), text_of(data["machine"]));
}

}  // namespace

int run_report(Words words) {
  ReportFlags flags;
  if (!parse(words, flags)) return kDone;
  const OrderedJson data = data_of(flags);
  ReportText text;
  text.title = title_of(data);
  text.footer = fmt::format("Ballast {}{}{}, {:%Y-%m-%d %H:%M} UTC", program_version(),
                            program_commit().empty() ? "" : " ", program_commit(),
                            fmt::gmtime(std::time(nullptr)));
  atomic_write(flags.out, report_page(text, data));
  if (flags.output.json) {
    fmt::print("{}\n", data.dump(1));
  } else {
    fmt::print("wrote {}\n", flags.out);
  }
  return kDone;
}

}  // namespace ballast
