#include "cli/text/why_slower.h"

#include <fmt/format.h>

#include "autotune/studies/why_slower.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"
#include "sim/engine/predict.h"
#include "sim/spec/knobs.h"

namespace ballast {
namespace {

// As a plan file shows it, without quotes.
std::string value_text(const Knob& knob, const Plan& plan) {
  const KnobValue value = knob.get(plan);
  std::string text = text_of(knob, value);
  const bool is_share = std::holds_alternative<double>(value);
  if (is_share && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string knobs_that_differ(const Plan& best, const Plan& other) {
  std::vector<std::string> texts;
  if (best.activations != other.activations) {
    texts.push_back(fmt::format("activations: {} (not {})", activations_text(other.activations),
                                activations_text(best.activations)));
  }
  for (const Knob* knob : differing(best, other)) {
    if (knob->group == KnobGroup::kActivations || !knob->matters_to(other)) continue;
    texts.push_back(fmt::format("{} {} (not {})", knob->path, value_text(*knob, other),
                                value_text(*knob, best)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string why_it_loses(const Case& best, const Case& other, const Measurements& measurements) {
  const SlowerStep slower =
      why_slower(predict(best.model, best.plan, best.machine, &measurements),
                 predict(other.model, other.plan, other.machine, &measurements));
  const std::string percent = show_signed_percent(100 * slower.share);
  const std::string knobs = knobs_that_differ(best.plan, other.plan);
  if (slower.is_tie()) {
    return fmt::format("the next-best, with {}, takes no longer ({}): a tie, too close to measure",
                       knobs, percent);
  }
  std::string text = fmt::format("why the next-best loses: with {} a step takes {} more ({})",
                                 knobs, show(slower.longer), percent);
  const PathChange& most = slower.path.front();
  const PathChange& least = slower.path.back();
  if (most.more.ps <= 0) return text;
  text += fmt::format("; its critical path has {} more of {}", show(most.more), most.name);
  if (least.more.ps < 0) {
    text += fmt::format(" and {} less of {}", show(Duration{-least.more.ps}), least.name);
  }
  return text;
}

}  // namespace ballast
