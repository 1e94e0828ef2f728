#include "autotune/complete/complete.h"

#include <algorithm>

#include "autotune/complete/feasibility.h"
#include "autotune/complete/way_lists.h"
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

// The reason whose example misses by least, which is the one that a reader can do most about.
const InfeasibleReason& nearest_miss(const std::vector<InfeasibleReason>& reasons) {
  CHECK(!reasons.empty());
  return *std::min_element(
      reasons.begin(), reasons.end(),
      [](const InfeasibleReason& a, const InfeasibleReason& b) { return a.excess < b.excess; });
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
  // The search may end, out of patience, before it meets a plan that fits; one that memory alone
  // was asked of is then better than the nearest that does not.
  const Verdict possible = feasibility(setting);
  return possible.fits ? possible.plan : nearest_miss(found.reasons).example;
}

// As it is, or with memory reused at once where only that fits.
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

}  // namespace

Completed complete(Setting setting, const Measurements* measurements,
                   const std::function<bool()>& interrupted) {
  const bool devices_exist = setting.plan.devices <= setting.machine.devices;
  if (has_auto(setting.plan) && !is_searched(setting.plan, setting.stack)) {
    setting.plan = choose(setting);
  } else if (has_auto(setting.plan) && devices_exist) {
    setting.plan = searched(setting, measurements, interrupted);
  }
  return predict_reusing(std::move(setting), measurements);
}

Plan choose(const Setting& setting) {
  if (setting.plan.devices > setting.machine.devices) return feasibility(setting).plan;
  CaseSetup setup = setup_of(setting);
  CasePrediction best = predict_case(setup, setup.stack.constants);
  if (!best.fits && !setting.plan.activations) {
    for (const ActivationPlan& offload : offloads()) {
      setup.of.plan.activations = offload;
      CasePrediction one = predict_case(setup, setup.stack.constants);
      const bool better = one.fits && (!best.fits || one.step_time < best.step_time);
      if (better) best = std::move(one);
    }
  }
  return best.fits ? best.way.plan : feasibility(setting).plan;
}

}  // namespace ballast
