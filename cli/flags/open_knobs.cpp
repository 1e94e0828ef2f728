#include "cli/flags/open_knobs.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <optional>

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

// Flags of a plan that stand for one key of it.
std::set<std::string> keys_of(const PlanFlags& flags) {
  std::set<std::string> keys;
  const auto add = [&](const auto& value, const char* key) {
    if (value) keys.insert(key);
  };
  const DegreeFlags& degrees = flags.degrees;
  add(degrees.data, "data");
  add(degrees.tensor, "tensor");
  add(degrees.pipeline, "pipeline");
  add(degrees.virtual_pipeline, "virtual_pipeline");
  add(degrees.sequence, "sequence");
  add(degrees.context, "context");
  add(degrees.expert, "expert");
  add(degrees.zero_stage, "zero_stage");
  add(flags.micro_batch, "micro_batch");
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

SearchFreedom::SearchFreedom(const PlanFlags& flags, const FreedomRules& rules)
    : flags_(flags), rules_(rules), named_(keys_of(flags)) {
  keeps_knobs_ = !flags.strategies.empty() || (flags.plan_file && !rules.file_is_start);
  if (flags.strategies.empty()) return;
  for (const std::string& key : load_strategy(flags.strategies.front()).open) {
    open_of_strategy_.insert(key);
  }
}

// Neither the key, nor one below or above it, is named.
bool SearchFreedom::is_open(const std::string& key) const {
  return std::none_of(named_.begin(), named_.end(), [&](const std::string& named) {
    return leads_to(key, named) || leads_to(named, key);
  });
}

bool SearchFreedom::may_choose(const std::string& key) const {
  return is_open(key) && (!keeps_knobs_ || open_of_strategy_.contains(key));
}

Freedom SearchFreedom::knobs() const {
  Freedom freedom;
  // A strategy is about where things are and when they move; how much at once is tuned to a model.
  freedom.micro_batch = is_open("micro_batch");
  freedom.activations = is_open("activations");
  freedom.bucket_bytes = is_open("optimizer.bucket_bytes");
  freedom.gpu_buckets = may_choose("optimizer.gpu_buckets");
  freedom.cast = may_choose("optimizer.cast");
  freedom.sync = may_choose("optimizer.sync");
  freedom.delay = freedom.sync && rules_.delay;
  freedom.undo = may_choose("optimizer.undo");
  freedom.flow_share = may_choose("weights.flow_share");
  freedom.memory_reuse = is_open("memory_reuse");
  return freedom;
}

LayoutFreedom SearchFreedom::layout() const {
  LayoutFreedom freedom;
  const bool named = !flags_.strategies.empty() || flags_.plan_file;
  if (named && !rules_.degrees_of_named) return freedom;
  freedom.tensor = is_open("tensor");
  freedom.pipeline = is_open("pipeline");
  freedom.virtual_pipeline = is_open("virtual_pipeline");
  freedom.sequence = is_open("sequence");
  freedom.context = is_open("context");
  freedom.expert = is_open("expert");
  freedom.tensor_sequence = may_choose("tensor_sequence");
  freedom.zero_stage = may_choose("zero_stage");
  freedom.placement = may_choose("optimizer.placement");
  return freedom;
}

std::vector<Plan> SearchFreedom::layouts(const Model& model, const Plan& plan) const {
  // What runs at hand is one device.
  const LayoutFreedom freedom = plan.machine == kHere ? LayoutFreedom{} : layout();
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
  std::vector<Plan> layouts = layouts_of(model, plan, freedom);
  std::erase_if(layouts, [&](const Plan& one) {
    if (is_illegal(one)) return true;
    const Json after = Json::parse(plan_json(one));
    return std::any_of(named_.begin(), named_.end(), [&](const std::string& key) {
      return !keeps(value_at(after, key), value_at(before, key));
    });
  });
  if (!layouts.empty()) return layouts;
  if (refusal) throw *refusal;
  throw Error("the plans to choose from",
              fmt::format("no layout of {} devices and {} sequences keeps what is named: {}",
                          plan.devices, plan.global_batch, fmt::join(named_, ", ")),
              "name less, or another global batch");
}

}  // namespace ballast
