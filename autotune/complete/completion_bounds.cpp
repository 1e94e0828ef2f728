#include "autotune/complete/completion_bounds.h"

#include "autotune/bounds/cell_bound.h"
#include "autotune/bounds/layer_costs.h"
#include "autotune/bounds/step_floor.h"
#include "autotune/search/evaluate.h"
#include "autotune/space/space.h"
#include "sim/base/error.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

// Stages that are cut otherwise than Ballast cuts them have other sums.
bool is_cut_alike(const Plan& plan, const StackFacts& facts) {
  return plan.pipeline == 1 || !facts.balances_stages;
}

}  // namespace

std::vector<Duration> least_times(const Setting& setting,
                                  const std::vector<const Completion*>& completions) {
  std::vector<Duration> times(completions.size());
  if (completions.empty()) return times;
  Stack stack = setting.stack;
  stack.facts.attention = {completions.front()->attention};
  const CostModel costs(setting.machine, setting.plan, stack, nullptr);
  LayerProfiles profiles(setting.model, costs);
  StepFloors floors(costs);
  const Usable usable = usable_of(setting.machine);
  for (size_t i = 0; i < completions.size(); ++i) {
    const Plan& plan = completions[i]->plan;
    if (!is_cut_alike(plan, stack.facts)) continue;
    try {
      profiles.prepare({plan}, 1);
      const StepFloor floor = floors.of(plan, space_of(setting.model, plan, OpenKnobs{}));
      times[i] = cell_time(setting.model, plan, profiles.of(plan), floor, usable);
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
  return times;
}

}  // namespace ballast
