#include "cli/flags/open_knobs.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <optional>

#include "autotune/complete/layouts/open_layouts.h"
#include "cli/flags/inputs.h"
#include "profiles/load.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

// Whether one path is the other's, or leads to it: "weights" and "weights.flow_share".
bool leads_to(const std::string& path, const std::string& key) {
  return key == path || key.starts_with(path + ".");
}

// Keys of a plan that flags and --set name, of those that a layout may change.
std::set<std::string> keys_of(const PlanFlags& flags) {
  std::set<std::string> keys;
  for (const auto& [id, value] : flags.knobs) {
    const Knob& knob = knob_of(id);
    if (knob.search != KnobSearch::kNone || id == KnobId::kData) keys.emplace(knob.path);
  }
  for (const Override& change : parse_overrides(flags.set).plan) keys.insert(change.key);
  return keys;
}

// Null where a plan is written without this key.
Json value_at(const Json& plan, const std::string& key) {
  const size_t dot = key.find('.');
  const auto found = plan.is_object() ? plan.find(key.substr(0, dot)) : plan.end();
  if (found == plan.end()) return nullptr;
  return dot == std::string::npos ? *found : value_at(*found, key.substr(dot + 1));
}

// Whether a layout says what was named; what was named "auto" is its to say.
bool keeps(const Json& value, const Json& named) {
  if (named == "auto") return true;
  if (!named.is_object()) return value == named;
  if (!value.is_object()) return false;
  return std::all_of(named.items().begin(), named.items().end(), [&](const auto& item) {
    return value.contains(item.key()) && keeps(value[item.key()], item.value());
  });
}

}  // namespace

OpenKnobsOfFlags::OpenKnobsOfFlags(const PlanFlags& flags, const OpenRules& rules)
    : flags_(flags), rules_(rules), named_(keys_of(flags)) {
  keeps_knobs_ = !flags.strategies.empty() || (flags.plan_file && !rules.file_is_start);
  if (flags.strategies.empty()) return;
  const Strategy strategy = load_strategy(flags.strategies.front());
  open_of_strategy_.insert(strategy.open.begin(), strategy.open.end());
  open_of_strategy_.insert(strategy.layout.begin(), strategy.layout.end());
}

bool OpenKnobsOfFlags::is_open(const Knob& knob) const {
  const std::string path(knob.path);
  // Neither the knob, nor one below or above it, is named.
  const bool is_named = std::any_of(named_.begin(), named_.end(), [&](const std::string& named) {
    return leads_to(path, named) || leads_to(named, path);
  });
  if (is_named || knob.search == KnobSearch::kNone) return false;
  // Parts change what a plan is, so that a search tries them where a strategy is about them.
  const bool of_parts = knob.id == KnobId::kSubsequences || knob.id == KnobId::kMultiplex;
  if (of_parts && !open_of_strategy_.contains(path)) return false;
  const bool any_named = !flags_.strategies.empty() || flags_.plan_file;
  if (knob.search == KnobSearch::kLayout && any_named && !rules_.degrees_of_named) {
    // Its users choose the degrees that a strategy leaves open; a plan file has chosen.
    return !flags_.plan_file && open_of_strategy_.contains(path);
  }
  return knob.tuned_under_strategy || !keeps_knobs_ || open_of_strategy_.contains(path);
}

OpenKnobs OpenKnobsOfFlags::knobs() const {
  OpenKnobs open;
  for (const Knob& knob : ballast::knobs()) open.set(knob.id, is_open(knob));
  open.delay = open.has(KnobId::kSync) && rules_.delay;
  return open;
}

std::vector<Plan> OpenKnobsOfFlags::layouts(const Setting& setting) const {
  const Model& model = setting.model;
  const Plan& plan = setting.plan;
  // What runs at hand is one device.
  const KnobSet open = plan.machine == kHere ? KnobSet{} : knobs();
  std::optional<Error> refusal;
  const auto is_illegal = [&](const Plan& one) {
    try {
      check(one, model);
      return false;
    } catch (const Error& error) {
      if (!refusal) refusal = error;
      return true;
    }
  };
  const Json before = Json::parse(plan_json(plan));
  std::vector<Plan> layouts = layouts_of(model, plan, open);
  std::erase_if(layouts, [&](const Plan& one) {
    if (is_illegal(one)) return true;
    if (named_.empty()) return false;  // to write plans down takes as long as all else here
    const Json after = Json::parse(plan_json(one));
    return std::any_of(named_.begin(), named_.end(), [&](const std::string& key) {
      return !keeps(value_at(after, key), value_at(before, key));
    });
  });
  if (setting.usual_buckets) {
    for (Plan& one : layouts) use_usual_buckets(model, setting.stack, one);
  }
  if (!layouts.empty()) return layouts;
  if (refusal) throw *refusal;
  throw Error("the plans to choose from",
              fmt::format("no layout of {} devices and {} sequences keeps what is named: {}",
                          plan.devices, plan.global_batch, fmt::join(named_, ", ")),
              "name less, or another global batch");
}

SearchSpace OpenKnobsOfFlags::space(const Setting& setting) const {
  if (setting.stack.name != kBallastStack) return {legal_layouts_of_all(setting), {}};
  return {layouts(setting), knobs()};
}

}  // namespace ballast
