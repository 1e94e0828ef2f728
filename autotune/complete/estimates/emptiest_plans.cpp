#include "autotune/complete/estimates/emptiest_plans.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "autotune/bounds/bound.h"
#include "autotune/bounds/cell_bound.h"
#include "autotune/bounds/layer_costs.h"
#include "autotune/search/evaluate.h"
#include "autotune/search/search_queue.h"
#include "autotune/space/space.h"
#include "sim/base/parallel.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

// Cells whose plans are bounded one by one.
constexpr size_t kMostCells = 16;

// A plan, or a cell, and how full its fullest memory is: needed over usable.
struct Filled {
  double fullness = 0;
  Choice choice;

  bool may_fit() const { return fullness <= 1; }
  bool operator<(const Filled& other) const {
    return std::pair(fullness, choice) < std::pair(other.fullness, other.choice);
  }
};

class EmptiestPlans {
 public:
  EmptiestPlans(const Setting& setting, const CompletionEstimates& known, const Plan& layout)
      : setting_(setting),
        known_(known),
        usable_(usable_of(setting.machine)),
        costs_(setting.machine, layout, Stack{}, nullptr),
        region_{layout,
                std::make_shared<const Space>(space_of(setting.model, layout, OpenKnobs{})),
                0,
                {},
                nullptr} {}

  std::vector<Plan> first(size_t most) {
    const std::vector<Filled> cells = fitting(this->cells(), kMostCells);
    const bool is_pipeline = region_.base.pipeline > 1;
    std::vector<Plan> result;
    for (const Filled& plan :
         fitting(is_pipeline ? plans_of(cells) : bounded_plans_of(cells), most)) {
      result.push_back(plan_of(*region_.space, region_.base, plan.choice));
    }
    return result;
  }

 private:
  // The emptiest of them that may fit, at most so many; or the one that misses by least.
  static std::vector<Filled> fitting(std::vector<Filled> all, size_t most) {
    std::sort(all.begin(), all.end());
    const auto end =
        std::find_if_not(all.begin(), all.end(), [](const Filled& one) { return one.may_fit(); });
    const auto count = static_cast<size_t>(end - all.begin());
    all.resize(std::min(all.size(), std::clamp<size_t>(count, 1, most)));
    return all;
  }

  std::vector<Filled> cells() const {
    std::vector<Filled> cells;
    std::vector<Plan> plans;
    Choice cell;
    const auto sizes = static_cast<int16_t>(region_.space->micro_batch.size());
    const auto fates = static_cast<int16_t>(region_.space->activations.size());
    for (cell.micro_batch = 0; cell.micro_batch < sizes; ++cell.micro_batch) {
      for (cell.activations = 0; cell.activations < fates; ++cell.activations) {
        cells.push_back({0, cell});
        plans.push_back(cell_plan(region_, cell));
      }
    }
    known_.refuse_if_interrupted();
    LayerProfiles layers(setting_.model, costs_);
    layers.prepare(plans, hardware_threads());
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::vector<PlacePeak> least =
          cell_memory(setting_.model, plans[i], layers.of(plans[i]), usable_);
      cells[i].fullness = fullness_of(arenas_of(least), usable_);
    }
    return cells;
  }

  // As full as their cells, which is all that is known of a pipeline's.
  std::vector<Filled> plans_of(const std::vector<Filled>& cells) const {
    std::vector<Filled> plans;
    for (const Filled& cell : cells) {
      for (const Choice& choice : choices_of_cell(*region_.space, region_.base, cell.choice)) {
        plans.push_back({cell.fullness, choice});
      }
    }
    return plans;
  }

  std::vector<Filled> bounded_plans_of(const std::vector<Filled>& cells) const {
    Bounds bounds(setting_.model, region_.base, *region_.space, costs_);
    std::vector<Choice> opened, choices;
    for (const Filled& cell : cells) opened.push_back(cell.choice);
    known_.refuse_if_interrupted();
    Tasks profiles;
    bounds.open(opened, profiles);
    run_all(profiles, hardware_threads());
    std::vector<Filled> plans = plans_of(cells);
    for (const Filled& plan : plans) choices.push_back(plan.choice);
    known_.refuse_if_interrupted();
    profiles.clear();
    bounds.refine(choices, profiles);
    run_all(profiles, hardware_threads());
    for (Filled& plan : plans) {
      const double own = fullness_of(bounds.least_memory(plan.choice), usable_);
      plan.fullness = std::max(plan.fullness, own);
    }
    return plans;
  }

  const Setting& setting_;
  const CompletionEstimates& known_;
  const Usable usable_;
  const CostModel costs_;
  Region region_;
};

}  // namespace

std::vector<Plan> emptiest_plans(const Setting& setting, const CompletionEstimates& known,
                                 size_t most) {
  Plan layout = setting.plan;
  if (layout.pipeline > 1) {
    layout.weights.flow_share = layout.weights.flow_share.value_or(0);
    layout.optimizer.gpu_buckets = layout.optimizer.gpu_buckets.value_or(0);
  }
  return EmptiestPlans(setting, known, layout).first(most);
}

}  // namespace ballast
