#include "autotune/complete/one_layout.h"

#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/complete/fastest_way.h"
#include "autotune/complete/feasibility.h"
#include "autotune/search/search.h"
#include "autotune/space/memory_reuse.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

SearchOptions completing() {
  SearchOptions options;
  options.tolerance = 0.01;
  // Where memory is contended, bounds are too low to prove a best that was found at once.
  options.patience = 256;
  options.estimates = true;
  return options;
}

// The plans that open knobs leave; where none fits, those that reuse memory at once.
SearchResult search_open(const Setting& setting, const Measurements* measurements,
                         const SearchOptions& options) {
  SearchResult result;
  any_reuse_fits(memory_reuses(setting.plan, setting.stack), [&](auto reuse) {
    OpenKnobs open;
    open.set(KnobId::kMemoryReuse, reuse != setting.plan.memory_reuse);
    result = search(setting.model, setting.plan, space_of(setting.model, setting.plan, open),
                    setting.machine, measurements, options);
    return result.best || !result.complete();
  });
  return result;
}

Plan searched(const Setting& setting, const Measurements* measurements,
              const std::function<bool()>& interrupted) {
  SearchOptions options = completing();
  options.interrupted = interrupted;
  const SearchResult found = search_open(setting, measurements, options);
  if (found.best) return found.best->plan;
  if (found.stop == SearchStop::kInterrupt) {
    throw Error("the knobs that are \"auto\"", "the search of them was interrupted", "ask again");
  }
  // The search may end, out of patience, before it meets a plan that fits.
  return feasibility(setting).plan;
}

}  // namespace

Completed predict_reusing(Setting setting, const Measurements* measurements) {
  std::optional<MemoryReuse> kept;
  Prediction prediction;
  Plan& plan = setting.plan;
  bool first = true;
  any_reuse_fits(memory_reuses(plan, setting.stack), [&](auto reuse) {
    plan.memory_reuse = reuse;
    Prediction one = predict(setting.model, plan, setting.machine, setting.stack, measurements);
    const bool fits = one.fits;
    if (first || fits) {
      kept = reuse;
      prediction = std::move(one);
    }
    first = false;
    return fits || plan.devices > setting.machine.devices;
  });
  plan.memory_reuse = kept.value_or(MemoryReuse::kApart);
  return {std::move(setting), std::move(prediction)};
}

Completed complete_layout(Setting setting, const Measurements* measurements,
                          const std::function<bool()>& interrupted) {
  if (has_auto(setting.plan) && !is_searched(setting.plan, setting.stack)) {
    setting.plan = choose(setting);
  } else if (has_auto(setting.plan) && setting.plan.devices <= setting.machine.devices) {
    setting.plan = searched(setting, measurements, interrupted);
  }
  return predict_reusing(std::move(setting), measurements);
}

Plan choose(const Setting& setting) {
  if (setting.plan.devices > setting.machine.devices) return feasibility(setting).plan;
  CompletionEstimates known;
  const std::optional<TimedPlan> best = fastest_way(setting, {true, {}, {}}, known);
  return best ? best->plan : feasibility(setting).plan;
}

}  // namespace ballast
