#include "cli/text/why_slower.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/studies/why_slower.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"
#include "sim/engine/predict.h"

namespace ballast {
namespace {

std::string without_quotes(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::string knobs_that_differ(const Plan& best, const Plan& other) {
  const OrderedJson mine = OrderedJson::parse(plan_json(best)).flatten();
  const OrderedJson its = OrderedJson::parse(plan_json(other)).flatten();
  std::vector<std::string> texts;
  if (best.activations != other.activations) {
    texts.push_back(fmt::format("activations: {} (not {})", activations_text(other.activations),
                                activations_text(best.activations)));
  }
  for (const auto& item : its.items()) {
    if (item.key().starts_with("/activations")) continue;
    const bool matters =
        item.key() != "/optimizer/undo" || other.optimizer.sync == SyncMode::kSpeculate;
    if (!matters) continue;
    const bool known = mine.contains(item.key());
    if (known && mine[item.key()] == item.value()) continue;
    std::string key = item.key().substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    texts.push_back(fmt::format("{} {} (not {})", key, without_quotes(item.value()),
                                known ? without_quotes(mine[item.key()]) : "set"));
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
