#include "cli/text/why_slower.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

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

// Seconds of the critical path by kind of operation; waiting is one of them.
std::map<std::string, double> path_of(const Prediction& prediction) {
  std::map<std::string, double> seconds;
  for (const KindTime& kind : prediction.critical_path.by_kind) {
    seconds[name_of(kind)] += kind.time.seconds();
  }
  seconds["waiting"] += prediction.critical_path.waiting.seconds();
  return seconds;
}

struct Change {
  std::string name;
  double seconds = 0;
};

// What the critical path has more (or, negative, less) of, largest first.
std::vector<Change> changes_of(const Prediction& best, const Prediction& other) {
  std::map<std::string, double> difference = path_of(other);
  for (const auto& [name, seconds] : path_of(best)) difference[name] -= seconds;
  std::vector<Change> changes;
  for (const auto& [name, seconds] : difference) changes.push_back({name, seconds});
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.seconds > b.seconds; });
  return changes;
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
  const Prediction first = predict(best.model, best.plan, best.machine, &measurements);
  const Prediction second = predict(other.model, other.plan, other.machine, &measurements);
  const double longer = second.step_time.seconds() - first.step_time.seconds();
  const double percent = 100 * longer / first.step_time.seconds();
  const std::string knobs = knobs_that_differ(best.plan, other.plan);
  // Below this the two differ by nothing that a reader could act on.
  if (longer < 1e-4 * first.step_time.seconds()) {
    return fmt::format("the next-best, with {}, takes no longer ({}): a tie, too close to measure",
                       knobs, show_signed_percent(percent));
  }
  std::string text =
      fmt::format("why the next-best loses: with {} a step takes {} more ({})", knobs,
                  show(Duration::from_seconds(longer)), show_signed_percent(percent));
  const std::vector<Change> changes = changes_of(first, second);
  if (changes.front().seconds <= 0) return text;
  text += fmt::format("; its critical path has {} more of {}",
                      show(Duration::from_seconds(changes.front().seconds)), changes.front().name);
  if (changes.back().seconds < 0) {
    text += fmt::format(" and {} less of {}", show(Duration::from_seconds(-changes.back().seconds)),
                        changes.back().name);
  }
  return text;
}

}  // namespace ballast
