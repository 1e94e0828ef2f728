#include "cli/run/completion.h"

#include <algorithm>

#include "autotune/calibrate/capacity.h"
#include "autotune/search/complete.h"
#include "autotune/space/space.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// The reason whose example misses by least, which is the one that a reader can do most about.
const InfeasibleReason& nearest_miss(const std::vector<InfeasibleReason>& reasons) {
  CHECK(!reasons.empty());
  return *std::min_element(
      reasons.begin(), reasons.end(),
      [](const InfeasibleReason& a, const InfeasibleReason& b) { return a.excess < b.excess; });
}

}  // namespace

Completed complete_case(Case of, const Measurements& measurements) {
  const bool devices_exist = of.plan.devices <= of.machine.devices;
  if (has_auto(of.plan) && !search_completes(of.plan, of.stack)) {
    of.plan = choose({of.model, of.plan, of.machine, of.stack});
  } else if (devices_exist && has_auto(of.plan)) {
    const SearchResult found =
        search_open(of.model, of.plan, of.machine, &measurements, completing());
    of.plan = found.best ? found.best->plan : nearest_miss(found.reasons).example;
  }
  Prediction prediction = predict(of.model, of.plan, of.machine, of.stack, &measurements);
  const bool fixed = of.plan.memory_reuse || of.stack.name != Stack{}.name;
  if (!prediction.fits && devices_exist && !fixed) {
    Plan lean = of.plan;
    lean.memory_reuse = MemoryReuse::kAtOnce;
    Prediction less = predict(of.model, lean, of.machine, of.stack, &measurements);
    if (less.fits) {
      of.plan = lean;
      prediction = std::move(less);
    }
  }
  if (!of.plan.memory_reuse) of.plan.memory_reuse = MemoryReuse::kApart;
  return {std::move(of), std::move(prediction)};
}

}  // namespace ballast
