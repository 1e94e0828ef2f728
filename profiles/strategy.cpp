// Strategy files (schema "ballast.strategy/1"), and the assembly of a plan from all that speaks
// about it. The lists of what is shipped read each file, so a broken one shows at once.
#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/load.h"
#include "profiles/shipped.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kStrategySchema = "ballast.strategy/1";

bool sets(const Json& changes, const std::string& key) { return changes.contains(key); }

std::vector<std::string> read_layout(JsonReader& reader) {
  std::vector<std::string> paths = reader.texts("layout");
  for (const std::string& path : paths) {
    const Knob* knob = find_knob(path);
    if (knob == nullptr || knob->search != KnobSearch::kLayout) {
      reader.fail("layout", "'" + path + "' is not a knob of a layout",
                  "name some of " + text_of(knobs_of(KnobSearch::kLayout)));
    }
  }
  return paths;
}

// Knobs that a search may choose under this strategy; of the layout's it says so in "layout" too.
std::vector<std::string> read_open(JsonReader& reader) {
  std::vector<std::string> paths = reader.texts("open");
  for (const std::string& path : paths) {
    const Knob* knob = find_knob(path);
    if (knob != nullptr && knob->search != KnobSearch::kNone) continue;
    reader.fail(
        "open",
        "'" + path + (knob == nullptr ? "' is not a knob" : "' is not searched by any tune"),
        "name some of " + text_of(knobs_of(KnobSearch::kRank)) + ", " +
            text_of(knobs_of(KnobSearch::kLayout)));
  }
  return paths;
}

// Sets the key of a plan's document at the path of a knob.
void set_key(Json& plan, const Knob& knob, const std::variant<int64_t, std::string>& value) {
  Json& object = knob.object().empty() ? plan : plan[std::string(knob.object())];
  std::visit([&](const auto& given) { object[std::string(knob.key())] = given; }, value);
}

// `data` of a plan that says nothing about it.
int64_t data_ranks(const Plan& plan) {
  const int64_t others = plan.tensor * plan.pipeline * plan.sequence * plan.context;
  if (plan.devices % others != 0) {
    throw Error("--devices",
                fmt::format("{} devices do not divide by tensor {} x pipeline {} x sequence {} x "
                            "context {}",
                            plan.devices, plan.tensor, plan.pipeline, plan.sequence, plan.context),
                fmt::format("use a multiple of {}", others));
  }
  return plan.devices / others;
}

}  // namespace

Strategy parse_strategy(std::string_view text, const std::string& file, const std::string& name) {
  const Json document = parse_json(text, file);
  JsonReader reader(document, file, "");
  reader.choice("schema", {kStrategySchema});
  Strategy strategy;
  strategy.name = name;
  strategy.description = reader.text("description");
  strategy.source = reader.text("source");
  if (reader.has("adam")) strategy.adam = reader.text("adam");
  if (reader.has("open")) strategy.open = read_open(reader);
  if (reader.has("layout")) strategy.layout = read_layout(reader);
  reader.object("plan");
  const Json& changes = reader.raw("plan");
  reader.finish();
  const auto refuse_key = [&](const std::string& key) {
    if (sets(changes, key)) {
      reader.fail("plan." + key, "is not for a strategy to set", "remove it");
    }
  };
  refuse_key("schema");
  for (const Knob& knob : knobs()) {
    if (knob.group == KnobGroup::kNames) refuse_key(std::string(knob.path));
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

std::vector<const Knob*> departures(const Strategy& strategy, const Plan& plan) {
  const Json changes = Json::parse(strategy.plan);
  Json whole = to_json(Plan{});
  merge_plan(whole, changes, strategy.name);
  const Plan said = plan_from_json(whole, strategy.name);
  std::vector<const Knob*> found = differing(said, plan);
  std::erase_if(found, [&](const Knob* knob) {
    const std::string object(knob->object());
    const std::string key(knob->key());
    if (object.empty()) return !changes.contains(key);
    if (!changes.contains(object)) return true;
    const Json& members = changes[object];
    if (!members.is_object()) return false;
    if (knob->type != KnobType::kFates) return !members.contains(key);
    // A file names the fate of each kind of module.
    return std::none_of(saving_kinds().begin(), saving_kinds().end(), [&](ModuleKind kind) {
      return members.contains(std::string(to_string(kind)));
    });
  });
  std::erase_if(found, [&](const Knob* knob) {
    return std::holds_alternative<std::monostate>(knob->get(said));  // left to be chosen
  });
  return found;
}

std::string strategy_json(const Strategy& strategy) {
  return to_text(OrderedJson{{"schema", kStrategySchema},
                             {"description", strategy.description},
                             {"source", strategy.source},
                             {"adam", strategy.adam},
                             {"open", strategy.open},
                             {"layout", strategy.layout},
                             {"plan", OrderedJson::parse(strategy.plan)}});
}

GivenKnobs given_by(const Plan& plan, const KnobSet& set) {
  GivenKnobs given;
  for (const Knob& knob : knobs()) {
    if (!set.has(knob.id)) continue;
    const KnobValue value = knob.get(plan);
    if (knob.type == KnobType::kWhole || knob.type == KnobType::kBytes) {
      given[knob.id] = std::get<int64_t>(value);
    } else {
      given[knob.id] = text_of(knob, value);
    }
  }
  return given;
}

Plan resolve_plan(const PlanRequest& request) {
  Json plan = to_json(request.plan_file ? load_plan(*request.plan_file) : Plan{});
  bool data_is_set = request.knobs.contains(KnobId::kData);
  if (request.strategy) {
    const Strategy strategy = load_strategy(*request.strategy);
    const Json changes = Json::parse(strategy.plan);
    merge_plan(plan, changes, "strategy " + strategy.name);
    plan["strategy"] = strategy.name;
    data_is_set = data_is_set || sets(changes, "data");
  }
  bool resized = false;
  for (const auto& [id, value] : request.knobs) {
    set_key(plan, knob_of(id), value);
    resized = resized || knob_of(id).is_degree;
  }
  Plan result = plan_from_json(plan, "the plan of this command");
  for (const Override& change : request.overrides) {
    result = apply_override(result, change);
    data_is_set = data_is_set || change.key == "data";
    const Knob* knob = find_knob(change.key);
    resized = resized || (knob != nullptr && knob->is_degree);
  }
  if (resized && !data_is_set) result.data = data_ranks(result);
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
