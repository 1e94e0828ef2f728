#include "autotune/studies/explain.h"

#include <fmt/format.h>

#include "autotune/studies/studied_knobs.h"
#include "sim/spec/knobs.h"

namespace ballast {
namespace {

// As a plan file shows it, without quotes, but that many bytes are in MiB.
std::string value_text(const Knob& knob, const Plan& plan) {
  const KnobValue value = knob.get(plan);
  const auto* const count = std::get_if<int64_t>(&value);
  constexpr int64_t kMiB = int64_t{1} << 20;
  if (count != nullptr && knob.path.ends_with("_bytes") && *count >= kMiB) {
    return fmt::format("{:.4g} MiB", static_cast<double>(*count) / static_cast<double>(kMiB));
  }
  std::string text = text_of(knob, value);
  const bool is_share = std::holds_alternative<double>(value);
  if (is_share && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::vector<std::string> differing_knobs(const Plan& plan, const Plan& other) {
  std::vector<std::string> texts;
  if (plan.activations != other.activations) {
    texts.push_back(fmt::format("activations: {} (not {})", activations_text(plan.activations),
                                activations_text(other.activations)));
  }
  for (const Knob* knob : differing(other, plan)) {
    if (knob->group == KnobGroup::kActivations || !knob->matters_to(plan)) continue;
    texts.push_back(fmt::format("{} {} (not {})", knob->path, value_text(*knob, plan),
                                value_text(*knob, other)));
  }
  return texts;
}

}  // namespace ballast
