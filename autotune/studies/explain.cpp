#include "autotune/studies/explain.h"

#include <fmt/format.h>

#include "autotune/space/layout.h"

namespace ballast {
namespace {

std::string fates(const ActivationPlan& plan) {
  std::string text;
  for (const ActivationFate fate : {ActivationFate::kRecompute, ActivationFate::kOffload}) {
    std::string names;
    for (int k = 0; k < kModuleKinds; ++k) {
      const auto kind = static_cast<ModuleKind>(k);
      if (!saves_output(kind) || plan.fate[static_cast<size_t>(k)] != fate) continue;
      names += fmt::format(" {}", to_string(kind));
    }
    if (names.empty()) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{}{}", to_string(fate), names);
    if (fate == ActivationFate::kOffload) {
      text += fmt::format(" of {:.0f} % of the layers", 100 * plan.offload_share);
    }
  }
  return text.empty() ? "keep all" : text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> knob_texts(const Plan& plan) {
  const auto number = [](const auto& value) {
    return value ? fmt::format("{}", *value) : std::string("auto");
  };
  return {
      {"layout", layout_name(plan)},
      {"optimizer.placement", std::string(to_string(plan.optimizer.placement))},
      {"micro_batch", number(plan.micro_batch)},
      {"activations", plan.activations ? fates(*plan.activations) : "auto"},
      {"optimizer.bucket_bytes", fmt::format("{}", plan.optimizer.bucket_bytes.count)},
      {"optimizer.gpu_buckets", number(plan.optimizer.gpu_buckets)},
      {"optimizer.cast", std::string(to_string(plan.optimizer.cast))},
      {"optimizer.sync", std::string(to_string(plan.optimizer.sync))},
      {"optimizer.undo", std::string(to_string(plan.optimizer.undo))},
      {"weights.flow_share", number(plan.weights.flow_share)},
      {"memory_reuse", std::string(to_string(plan.memory_reuse.value_or(MemoryReuse::kApart)))}};
}

std::vector<std::string> differing_knobs(const Plan& plan, const Plan& other) {
  const auto mine = knob_texts(plan);
  const auto theirs = knob_texts(other);
  std::vector<std::string> result;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].second == theirs[i].second) continue;
    result.push_back(
        fmt::format("{}: {}, not {}", mine[i].first, mine[i].second, theirs[i].second));
  }
  return result;
}

}  // namespace ballast
