// Our plan JSON, schema "ballast.plan/1": every knob of the table in sim/spec/knobs.h, by its path.
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/load.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "sim/spec/knobs.h"

namespace ballast {
namespace {

constexpr const char* kPlanSchema = "ballast.plan/1";
constexpr const char* kOpen = "auto";
constexpr NumberRange kPlanShare{0, 1};

std::vector<std::string> choices_of(const Knob& knob) {
  std::vector<std::string> names;
  for (const int64_t choice : knob.choices) names.emplace_back(knob.name_of(choice));
  return names;
}

int64_t read_choice(JsonReader& reader, const std::string& key, const Knob& knob) {
  return knob.choices[reader.choice(key, choices_of(knob))];
}

Fates read_fates(JsonReader& reader, const Knob& knob) {
  Fates fates{};
  for (const ModuleKind kind : saving_kinds()) {
    fates[static_cast<size_t>(kind)] =
        static_cast<ActivationFate>(read_choice(reader, std::string(to_string(kind)), knob));
  }
  return fates;
}

KnobValue read_value(JsonReader& reader, const Knob& knob) {
  const std::string key(knob.key());
  if (knob.type == KnobType::kFates) return read_fates(reader, knob);
  if (knob.may_be_auto && reader.raw(key) == kOpen) return {};
  switch (knob.type) {
    case KnobType::kText:
      return reader.text(key);
    case KnobType::kBool:
      return reader.boolean(key);
    case KnobType::kWhole:
    case KnobType::kBytes:
      return reader.whole(key, {knob.least, knob.most});
    case KnobType::kShare:
      return reader.number(key, kPlanShare);
    case KnobType::kChoice:
      return read_choice(reader, key, knob);
    case KnobType::kFates:
      break;
    case KnobType::kGroup:
      return true;
  }
  CHECK(false);
}

void write_value(OrderedJson& object, const Knob& knob, const KnobValue& value) {
  if (const Fates* fates = std::get_if<Fates>(&value)) {
    for (const ModuleKind kind : saving_kinds()) {
      object[std::string(to_string(kind))] = to_string((*fates)[static_cast<size_t>(kind)]);
    }
    return;
  }
  OrderedJson& out = object[std::string(knob.key())];
  if (knob.type == KnobType::kChoice || std::holds_alternative<std::monostate>(value)) {
    out = text_of(knob, value);
  } else {
    std::visit(
        [&](const auto& held) {
          using Held = std::decay_t<decltype(held)>;
          if constexpr (!std::is_same_v<Held, std::monostate> && !std::is_same_v<Held, Fates>) {
            out = held;
          }
        },
        value);
  }
}

// Turns the short form of a group of knobs into what is merged key by key.
Json expanded(const std::string& key, const Json& change) {
  if (key == "weights" && change.is_string()) {
    if (change == "stationary") return {{"flow_share", 0.0}};
    if (change == "flow") return {{"flow_share", 1.0}};
    if (change == kOpen) return {{"flow_share", kOpen}};
  }
  if (key == "activations" && change.is_string() && change != kOpen) {
    Json all = Json::object();
    for (const ModuleKind kind : saving_kinds()) all[std::string(to_string(kind))] = change;
    // The layer's input is what recomputing it starts from.
    if (change == "recompute") all["fc2"] = "keep";
    return all;
  }
  return change;
}

}  // namespace

Plan plan_from_json(const Json& document, const std::string& source) {
  JsonReader reader(document, source, "");
  reader.choice("schema", {kPlanSchema});
  Plan plan;
  std::optional<JsonReader> part;  // the object whose knobs are being read
  std::string_view name;           // of it
  for (const Knob& knob : knobs()) {
    if (knob.object() != name) {
      if (part) part->finish();
      part.reset();
      name = knob.object();
      // A group that is "auto" has no members to read.
      const bool is_auto =
          !name.empty() && reader.raw(std::string(name)) == kOpen && find_knob(name) != nullptr;
      if (!name.empty() && !is_auto) part = reader.object(std::string(name));
    }
    if (!name.empty() && !part) continue;
    JsonReader& from = part ? *part : reader;
    if (knob.may_be_absent && !from.has(std::string(knob.key()))) continue;
    knob.set(plan, read_value(from, knob));
  }
  if (part) part->finish();
  reader.finish();
  return plan;
}

OrderedJson to_json(const Plan& plan) {
  OrderedJson out = {{"schema", kPlanSchema}};
  for (const Knob& knob : knobs()) {
    const KnobValue value = knob.get(plan);
    const bool is_auto = std::holds_alternative<std::monostate>(value);
    // Its members, which follow, make the object of a group that has a value.
    if (knob.type == KnobType::kGroup && !is_auto) continue;
    if (knob.object().empty()) {
      write_value(out, knob, value);
      continue;
    }
    OrderedJson& object = out[std::string(knob.object())];
    if (object != kOpen) write_value(object, knob, value);
  }
  return out;
}

void merge_plan(Json& plan, const Json& changes, const std::string& source) {
  // Reading every key that exists makes finish() refuse the others, with the nearest.
  const auto merge_object = [&](Json& target, const Json& change, const std::string& path,
                                const auto& self) -> void {
    JsonReader reader(change, source, path);
    for (const auto& item : target.items()) reader.has(item.key());
    reader.finish();
    for (const auto& item : change.items()) {
      const Json value = path.empty() ? expanded(item.key(), item.value()) : item.value();
      Json& old = target[item.key()];
      if (item.key() == "activations" && value.is_object() && !old.is_object()) {
        Plan defaults;
        defaults.activations.emplace();
        old = Json(to_json(defaults))[item.key()];
      }
      if (old.is_object() && value.is_object()) {
        self(old, value, path.empty() ? item.key() : path + "." + item.key(), self);
      } else {
        old = value;
      }
    }
  };
  merge_object(plan, changes, "", merge_object);
}

Plan parse_plan(std::string_view text, const std::string& source) {
  return plan_from_json(parse_json(text, source), source);
}

Plan load_plan(const std::string& path) { return parse_plan(read_text_file(path), path); }

std::string plan_json(const Plan& plan) { return to_text(to_json(plan)); }

void save_plan(const Plan& plan, const std::string& path) {
  atomic_write(path, plan_json(plan) + "\n");
}

}  // namespace ballast
