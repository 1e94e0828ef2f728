#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/complete/complete.h"
#include "cli/terminal/standard_error.h"
#include "cli/text/prediction.h"
#include "cli/tune/choice_progress.h"
#include "profiles/frameworks/frameworks.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

struct ExportFlags {
  OutputFlags output;
  StoreFlag store;
  std::array<std::optional<std::string>, kFrameworks> plans;  // by Framework
};

struct Request {
  Framework framework = Framework::kDeepSpeed;
  std::string plan;
};

bool parse(Words words, ExportFlags& flags) {
  VerbParser parser("export");
  CLI::App& app = parser.app();
  const auto add = [&](Framework framework, const std::string& help) {
    parser.reads(app.add_option("--" + std::string(to_string(framework)),
                                flags.plans[static_cast<size_t>(framework)], help)
                     ->type_name("PLAN"));
  };
  add(Framework::kDeepSpeed, "A plan file as DeepSpeed's JSON configuration");
  add(Framework::kMegatron, "A plan file as Megatron-LM's flags, one a line");
  add(Framework::kTorchtitan, "A plan file as torchtitan's TOML configuration");
  parser.add(flags.store);
  parser.add(flags.output, "Write the configuration to this file instead of the output");
  return parser.parse(words);
}

Request request_of(const ExportFlags& flags) {
  std::optional<Request> request;
  for (int i = 0; i < kFrameworks; ++i) {
    const auto& plan = flags.plans[static_cast<size_t>(i)];
    if (!plan) continue;
    if (request) {
      throw Error("ballast export", "two frameworks are named", "name one of them");
    }
    request = Request{static_cast<Framework>(i), *plan};
  }
  if (request) return *request;
  throw Error("ballast export", "no framework is named",
              "give --deepspeed, --megatron or --torchtitan and a plan file");
}

OrderedJson json_of(const ExportedPlan& exported, const FrameworkFacts& facts) {
  OrderedJson list = OrderedJson::array();
  for (const NotExpressed& one : exported.not_expressed) {
    list.push_back({{"knob", one.knob},
                    {"value", OrderedJson::parse(one.value)},
                    {"instead", OrderedJson::parse(one.instead)},
                    {"reason", one.reason}});
  }
  return {{"framework", facts.name},        {"version", facts.version},    {"source", facts.source},
          {"configuration", exported.text}, {"options", exported.options}, {"not_expressed", list},
          {"notes", exported.notes}};
}

// Knobs that share a reason stand in one line.
std::string remarks_of(const ExportedPlan& exported, const FrameworkFacts& facts) {
  std::string text;
  const auto& list = exported.not_expressed;
  for (size_t i = 0; i < list.size();) {
    std::string knobs;
    const size_t first = i;
    for (; i < list.size() && list[i].reason == list[first].reason; ++i) {
      knobs += fmt::format("{}{} {} (instead {})", i == first ? "" : ", ", list[i].knob,
                           list[i].value, list[i].instead);
    }
    text += fmt::format("not expressed: {}: {}\n", knobs, list[first].reason);
  }
  for (const std::string& note : exported.notes) text += fmt::format("note: {}\n", note);
  return text + fmt::format("options are those of {} {}\n", facts.name, facts.version);
}

}  // namespace

int run_export(Words words) {
  ExportFlags flags;
  if (!parse(words, flags)) return kDone;
  const Request request = request_of(flags);
  PlanFlags plan_flags;
  plan_flags.plan_file = request.plan;
  Setting setting = load_case(plan_flags, flags.store);
  if (has_auto(setting.plan)) {
    const Measurements measurements = measurements_of(setting.machine, flags.store);
    Completed completed = complete_in_sight(setting, &measurements);
    if (!completed.prediction.fits) {
      print_to_stderr("the plan does not fit: {}\n", completed.prediction.reason);
      return kInfeasible;
    }
    setting = std::move(completed.setting);
  }
  const FrameworkFacts facts = framework_facts(request.framework);
  const ExportedPlan exported = export_plan(setting.plan, setting.model, request.framework);
  if (flags.output.out) atomic_write(*flags.output.out, exported.text);
  if (flags.output.json) {
    fmt::print("{}\n", json_of(exported, facts).dump(1));
    return kDone;
  }
  if (!flags.output.out) fmt::print("{}", exported.text);
  std::fflush(stdout);
  print_to_stderr("{}", remarks_of(exported, facts));
  return kDone;
}

}  // namespace ballast
