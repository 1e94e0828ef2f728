// Strategy files (schema "ballast.strategy/1"), and the assembly of a plan from all that speaks
// about it. The lists of what is shipped read each file, so a broken one shows at once.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/convert.h"
#include "profiles/json_reader.h"
#include "profiles/load.h"
#include "profiles/shipped.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kSchema = "ballast.strategy/1";

bool sets(const Json& changes, const std::string& key) { return changes.contains(key); }

}  // namespace

Strategy parse_strategy(std::string_view text, const std::string& file, const std::string& name) {
  const Json document = parse_json(text, file);
  JsonReader reader(document, file, "");
  reader.choice("schema", {kSchema});
  Strategy strategy;
  strategy.name = name;
  strategy.description = reader.text("description");
  strategy.source = reader.text("source");
  reader.object("plan");
  const Json& changes = reader.raw("plan");
  reader.finish();
  for (const char* key : {"schema", "model", "machine", "strategy"}) {
    if (sets(changes, key)) {
      reader.fail(std::string("plan.") + key, "is not for a strategy to set", "remove it");
    }
  }
  Json plan = to_json(Plan{});
  merge_plan(plan, changes, file + ": plan");
  plan_from_json(plan, file + ": plan");
  strategy.plan = changes.dump();
  return strategy;
}

Strategy load_strategy(const std::string& name_or_path) {
  const Found found = find_file(name_or_path, "strategies");
  return parse_strategy(read_text_file(found.path), found.path, found.name);
}

std::string strategy_json(const Strategy& strategy) {
  return to_text(OrderedJson{{"schema", kSchema},
                             {"name", strategy.name},
                             {"description", strategy.description},
                             {"source", strategy.source},
                             {"plan", OrderedJson::parse(strategy.plan)}});
}

Plan resolve_plan(const PlanRequest& request) {
  Json plan = to_json(request.plan_file ? load_plan(*request.plan_file) : Plan{});
  bool data_is_set = request.plan_file.has_value() && !request.devices;
  if (request.strategy) {
    const Strategy strategy = load_strategy(*request.strategy);
    const Json changes = Json::parse(strategy.plan);
    merge_plan(plan, changes, "strategy " + strategy.name);
    plan["strategy"] = strategy.name;
    data_is_set = data_is_set || sets(changes, "data");
  }
  const auto set = [&](const char* key, const auto& flag) {
    if (flag) plan[key] = *flag;
  };
  set("model", request.model);
  set("machine", request.machine);
  set("devices", request.devices);
  set("sequence_length", request.sequence_length);
  set("global_batch", request.global_batch);
  set("micro_batch", request.micro_batch);
  set("dtype", request.dtype);
  if (request.devices && !data_is_set) plan["data"] = *request.devices;
  Plan result = plan_from_json(plan, "the plan of this command");
  for (const Override& change : request.overrides) result = apply_override(result, change);
  return result;
}

std::vector<Shipped> shipped_machines() {
  std::vector<Shipped> list;
  for (const std::string& name : shipped_names("machines")) {
    list.push_back({name, load_machine(name).description});
  }
  return list;
}

std::vector<Shipped> shipped_models() {
  std::vector<Shipped> list;
  for (const std::string& name : shipped_names("models")) {
    const Model model = load_model(name);
    list.push_back(
        {name, fmt::format("{}, {:.3g}B parameters, {} layers of {}, {} positions",
                           model.architecture, static_cast<double>(parameter_count(model)) * 1e-9,
                           model.layers, model.hidden, model.max_positions)});
  }
  return list;
}

std::vector<Shipped> shipped_strategies() {
  std::vector<Shipped> list;
  for (const std::string& name : shipped_names("strategies")) {
    list.push_back({name, load_strategy(name).description});
  }
  return list;
}

}  // namespace ballast
