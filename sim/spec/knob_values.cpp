// What is said of a knob, and of plans by their knobs, whatever its row in the table.
#include <algorithm>
#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/spec/knobs.h"

namespace ballast {

const Knob* find_knob(std::string_view path) {
  const auto found = std::find_if(knobs().begin(), knobs().end(),
                                  [&](const Knob& knob) { return knob.path == path; });
  if (found != knobs().end()) return &*found;
  const Knob& fates = knob_of(KnobId::kFates);
  const size_t dot = fates.object().size();
  if (path.size() <= dot || path[dot] != '.' || !path.starts_with(fates.object())) return nullptr;
  const bool is_fate =
      std::any_of(saving_kinds().begin(), saving_kinds().end(),
                  [&](ModuleKind kind) { return to_string(kind) == path.substr(dot + 1); });
  return is_fate ? &fates : nullptr;
}

KnobValue default_of(const Knob& knob) {
  Plan plan;
  if (knob.object() == "activations") plan.activations.emplace();
  return knob.get(plan);
}

std::string text_of(const Knob& knob, const KnobValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return "auto";
  if (const bool* is_set = std::get_if<bool>(&value)) return *is_set ? "true" : "false";
  if (const int64_t* whole = std::get_if<int64_t>(&value)) {
    return knob.type == KnobType::kChoice ? std::string(knob.name_of(*whole))
                                          : fmt::format("{}", *whole);
  }
  if (const double* share = std::get_if<double>(&value)) return fmt::format("{}", *share);
  if (const std::string* text = std::get_if<std::string>(&value)) return *text;
  const Fates& fates = std::get<Fates>(value);
  std::string text;
  for (const ModuleKind kind : saving_kinds()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(kind),
                        to_string(fates[static_cast<size_t>(kind)]));
  }
  return text;
}

const std::vector<ModuleKind>& saving_kinds() {
  static const std::vector<ModuleKind> kinds = [] {
    std::vector<ModuleKind> all;
    for (int i = 0; i < kModuleKinds; ++i) {
      if (saves_output(static_cast<ModuleKind>(i))) all.push_back(static_cast<ModuleKind>(i));
    }
    return all;
  }();
  return kinds;
}

std::string_view to_string(KnobType type) {
  constexpr std::string_view kNamesOfTypes[] = {"text",  "true or false", "whole number", "bytes",
                                                "share", "choice",        "choices",      "group"};
  return kNamesOfTypes[static_cast<size_t>(type)];
}

std::string_view to_string(KnobGroup group) {
  constexpr std::string_view kNamesOfGroups[kKnobGroups] = {
      "names",     "parallelism", "batch",       "number formats", "weights",
      "optimizer", "memory",      "activations", "checkpoints"};
  return kNamesOfGroups[static_cast<size_t>(group)];
}

KnobSet knobs_of(KnobSearch search) {
  KnobSet set;
  for (const Knob& knob : knobs()) set.set(knob.id, knob.search == search);
  return set;
}

std::string text_of(const KnobSet& set) {
  std::string text;
  for (const Knob& knob : knobs()) {
    if (!set.has(knob.id)) continue;
    if (!text.empty()) text += ", ";
    text += knob.path;
  }
  return text;
}

std::string plan_key(const Plan& plan, const KnobSet& apart) {
  std::string key;
  key.reserve(256);
  for (const Knob& knob : knobs()) {
    if (!apart.has(knob.id)) knob.append_key(key, plan);
  }
  return key;
}

void copy_knobs(Plan& to, const Plan& from, const KnobSet& set) {
  for (const Knob& knob : knobs()) {
    if (!set.has(knob.id)) continue;
    const KnobValue value = knob.get(from);
    // A member of a group that is "auto" has no value to copy.
    const bool is_auto = std::holds_alternative<std::monostate>(value);
    if (!is_auto || knob.may_be_auto) knob.set(to, value);
  }
}

std::vector<const Knob*> differing(const Plan& a, const Plan& b) {
  std::vector<const Knob*> list;
  for (const Knob& knob : knobs()) {
    if (!knob.same(a, b)) list.push_back(&knob);
  }
  return list;
}

}  // namespace ballast
