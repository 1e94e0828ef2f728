#include "autotune/search/shared_spaces.h"

#include <fmt/format.h>
#include <map>
#include <string>

#include "autotune/bounds/part_costs.h"
#include "sim/base/parallel.h"
#include "sim/spec/knobs.h"

namespace ballast {
namespace {

// Everything of a layout that its space depends on: of degrees and stage only what follows here.
std::string space_key(const Plan& plan) {
  static const KnobSet apart = {KnobId::kPipeline, KnobId::kVirtualPipeline, KnobId::kSequence,
                                KnobId::kContext,  KnobId::kTensorSequence,  KnobId::kZeroStage};
  const int64_t shards = gathers(plan) ? plan.replicas() : 1;
  const int64_t round = plan.virtual_pipeline > 1 ? plan.pipeline : 1;
  return plan_key(plan, apart) + fmt::format("{} {} {}", shards, round, plan.pipeline > 1);
}

}  // namespace

std::vector<SharedSpace> shared_spaces(const Model& model, const std::vector<Plan>& layouts,
                                       const OpenKnobs& open, int threads,
                                       const std::function<bool()>& interrupted) {
  const auto must_stop = [&] { return interrupted && interrupted(); };
  std::map<std::string, SharedSpace> spaces;
  std::vector<const SharedSpace*> of_layouts;
  Tasks tasks;
  for (const Plan& layout : layouts) {
    if (must_stop()) return {};
    const auto [found, is_new] = spaces.try_emplace(space_key(layout));
    of_layouts.push_back(&found->second);
    if (!is_new) continue;
    tasks.push_back([&, &shared = found->second] {
      if (must_stop()) return;
      shared.space = std::make_shared<const Space>(space_of(model, layout, open));
      shared.cell_size = static_cast<int64_t>(choices_of_cell(*shared.space, layout, {}).size());
    });
  }
  run_all(tasks, threads);
  if (must_stop()) return {};
  std::vector<SharedSpace> result;
  result.reserve(layouts.size());
  for (const SharedSpace* shared : of_layouts) result.push_back(*shared);
  return result;
}

}  // namespace ballast
