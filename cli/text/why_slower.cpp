#include "cli/text/why_slower.h"

#include <fmt/format.h>

#include "autotune/studies/explain.h"
#include "autotune/studies/why_slower.h"
#include "cli/text/bottlenecks.h"
#include "cli/text/tables.h"
#include "sim/engine/predict.h"

namespace ballast {

std::string differing_text(const Plan& plan, const Plan& other) {
  return fmt::format("{}", fmt::join(differing_knobs(plan, other), ", "));
}

std::string why_it_loses(const Setting& best, const Setting& other,
                         const Measurements& measurements) {
  const Prediction next =
      predict(other.model, other.plan, other.machine, other.stack, &measurements);
  const SlowerStep slower =
      why_slower(predict(best.model, best.plan, best.machine, best.stack, &measurements), next);
  const std::string percent = show_signed_percent(100 * slower.share);
  const std::string knobs = differing_text(other.plan, best.plan);
  if (slower.is_tie()) {
    return fmt::format("the next-best, with {}, takes no longer ({}): a tie, too close to measure",
                       knobs, percent);
  }
  std::string text = fmt::format("why the next-best loses: with {} a step takes {} more ({})",
                                 knobs, show(slower.longer), percent);
  const PathChange& most = slower.path.front();
  const PathChange& least = slower.path.back();
  if (most.more.ps > 0) {
    text += fmt::format("; its longest path has {} more of {}", show(most.more), most.name);
    if (least.more.ps < 0) {
      text += fmt::format(" and {} less of {}", show(Duration{-least.more.ps}), least.name);
    }
  }
  const auto limits = bottlenecks_of(other, next, measurements, AskLimits::kIfQuick);
  return limits ? text + "; " + limit_text(*limits) : text;
}

}  // namespace ballast
