#include "autotune/studies/studied_knobs.h"

#include <algorithm>
#include <fmt/format.h>

#include "autotune/space/layout.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// Coarse ones first: what an ablation takes first of steps that gain as much. Those that are not
// here follow in the order of the table.
constexpr std::string_view kOrder[] = {"layout",
                                       "optimizer.placement",
                                       "micro_batch",
                                       "activations",
                                       "optimizer.bucket_bytes",
                                       "optimizer.gpu_buckets",
                                       "optimizer.cast",
                                       "optimizer.sync",
                                       "optimizer.undo",
                                       "weights.flow_share"};

// Where nothing is said, memory is kept apart.
std::string reuse_text(const Plan& plan) {
  return std::string(to_string(plan.memory_reuse.value_or(MemoryReuse::kApart)));
}

std::string (*special_text(std::string_view name))(const Plan& plan) {
  if (name == "layout") return layout_name;
  if (name == "activations") {
    return [](const Plan& plan) { return activations_text(plan.activations); };
  }
  return name == "memory_reuse" ? reuse_text : nullptr;
}

}  // namespace

std::string activations_text(const std::optional<ActivationPlan>& plan) {
  if (!plan) return "auto";
  std::string text;
  for (const ActivationFate fate : {ActivationFate::kRecompute, ActivationFate::kOffload}) {
    std::vector<std::string_view> names;
    for (const ModuleKind kind : saving_kinds()) {
      if (plan->fate[static_cast<size_t>(kind)] == fate) names.push_back(to_string(kind));
    }
    if (names.empty()) continue;
    if (names.size() == saving_kinds().size()) names = {"all"};
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(fate), fmt::join(names, " "));
    if (fate == ActivationFate::kOffload) {
      text += fmt::format(" of {:.0f} % of the layers", 100 * plan->offload_share);
    }
  }
  return text.empty() ? "keep all" : text;
}

std::string StudiedKnob::text(const Plan& plan) const {
  if (special != nullptr) return special(plan);
  const Knob* knob = find_knob(name);
  CHECK(knob != nullptr);
  return text_of(*knob, knob->get(plan));
}

const std::vector<StudiedKnob>& studied_knobs() {
  static const std::vector<StudiedKnob> all = [] {
    std::vector<StudiedKnob> list;
    for (const std::string_view name : kOrder) list.push_back({name, {}, special_text(name)});
    for (const Knob& knob : knobs()) {
      const bool is_searched = knob.search != KnobSearch::kNone;
      if (knob.studied_with.empty() && !is_searched) continue;
      const std::string_view name = knob.studied_with.empty() ? knob.path : knob.studied_with;
      auto found = std::find_if(list.begin(), list.end(),
                                [&](const StudiedKnob& one) { return one.name == name; });
      if (found == list.end()) found = list.insert(found, {name, {}, special_text(name)});
      found->knobs.add(knob.id);
    }
    return list;
  }();
  return all;
}

}  // namespace ballast
