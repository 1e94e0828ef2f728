#include "autotune/complete/open_layouts.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>

#include "autotune/bounds/cell_bound.h"
#include "autotune/complete/way_lists.h"
#include "autotune/search/evaluate.h"
#include "autotune/space/layout.h"
#include "autotune/space/space.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/predict.h"
#include "sim/graph/report/memory.h"

namespace ballast {
namespace {

// Larger micro-batches do not change which layout is promising.
constexpr int64_t kLargestMicroBatch = 8;
// Sequences that a rank works off in a short step, where no knob says how many at once.
constexpr int64_t kSequencesOfShortStep = 8;

// What the stack lets a plan choose that does not name its stage.
bool stack_allows(const Start& start, const Plan& plan, const StackFacts& facts) {
  if (!start.open.has(KnobId::kZeroStage) || plan.replicas() == 1) return true;
  return plan.zero_stage >= facts.least_zero_stage && plan.zero_stage <= facts.most_zero_stage;
}

// The legal layouts of one start; the first refusal where there was one.
std::vector<Plan> layouts_of_start(const Setting& setting, const Start& start,
                                   std::optional<Error>& refusal) {
  std::vector<Plan> layouts;
  for (Plan& plan : layouts_of(setting.model, start.plan, start.open)) {
    const bool keeps_data =
        start.open.has(KnobId::kData) || plan.data == start.plan.data;
    if (!keeps_data || !stack_allows(start, plan, setting.stack.facts)) continue;
    try {
      check(plan, setting.model);
      layouts.push_back(std::move(plan));
    } catch (const Error& error) {
      if (!refusal) refusal = error;
    }
  }
  return layouts;
}

std::vector<int64_t> micro_batches_to_judge_by(const Plan& layout) {
  std::vector<int64_t> sizes = micro_batches_of(layout, OpenKnobs{});
  const int64_t least = sizes.front();
  std::erase_if(sizes, [&](int64_t size) { return size > std::max(least, kLargestMicroBatch); });
  return sizes;
}

ActivationPlan all_kept() {
  ActivationPlan plan;
  plan.fate.fill(ActivationFate::kKeep);
  plan.scores = ActivationFate::kKeep;
  return plan;
}

// Whether another strategy came to the same plan.
bool is_among(const std::vector<OpenLayout>& found, Plan plan) {
  return std::any_of(found.begin(), found.end(), [&](const OpenLayout& one) {
    plan.strategy = one.setting.plan.strategy;
    return plan == one.setting.plan;
  });
}

// Judges the layouts of one start.
class Judge {
 public:
  Judge(const Setting& setting, const Plan& start, const Measurements* measurements)
      : setting_(setting),
        costs_(setting.machine, start, setting.stack, measurements),
        profiles_(setting.model, costs_),
        floors_(costs_) {
    for (int p = 0; p < kPlaces; ++p) {
      usable_[static_cast<size_t>(p)] = usable(setting.machine, static_cast<Place>(p));
    }
  }

  void judge_all(std::vector<Plan> layouts, std::vector<OpenLayout>& found) {
    std::vector<Cells> all;
    std::vector<Plan> plans;
    for (Plan& layout : layouts) {
      all.push_back(cells_of(layout));
      plans.insert(plans.end(), all.back().plans.begin(), all.back().plans.end());
    }
    const int threads = hardware_threads();
    profiles_.prepare(plans, threads);
    const size_t first = found.size();
    for (Plan& layout : layouts) {
      Setting one = {setting_.model, std::move(layout), setting_.machine, setting_.stack};
      found.push_back({std::move(one), {}, {}});
    }
    parallel_for(all.size(), threads, [&](size_t i) { judge(all[i], found[first + i]); });
  }

 private:
  struct Cells {
    std::vector<Plan> plans;  // micro-batches by kinds of activations
    StepFloor floor;
  };

  Cells cells_of(const Plan& layout) {
    const Space space = space_of(setting_.model, layout, OpenKnobs{});
    Cells cells;
    cells.floor = floors_.of(layout, space);
    Plan plan = layout;
    plan.weights.flow_share.reset();
    if (space.flow_share.back() == 0) plan.weights.flow_share = 0;
    std::vector<ActivationPlan> kinds = {all_kept(), activations_of(Recompute::kFull)};
    for (const ActivationPlan& offload : offloads()) kinds.push_back(offload);
    if (layout.activations) kinds = {*layout.activations};
    for (const int64_t size : micro_batches_to_judge_by(layout)) {
      for (const ActivationPlan& kind : kinds) {
        plan.micro_batch = size;
        plan.activations = kind;
        cells.plans.push_back(plan);
      }
    }
    return cells;
  }

  // The fastest cell whose least memory fits; where none does, the one that lacks least.
  void judge(const Cells& cells, OpenLayout& layout) const {
    bool any = false;
    for (const Plan& plan : cells.plans) {
      const Bytes excess = excess_of_cell(plan);
      if (any && excess > layout.excess) continue;
      const Duration time =
          cell_time(setting_.model, plan, profiles_.of(plan), cells.floor, usable_);
      if (any && excess == layout.excess && time >= layout.at_least) continue;
      layout.excess = excess;
      layout.at_least = time;
      any = true;
    }
  }

  Bytes excess_of_cell(const Plan& plan) const {
    std::array<Bytes, kPlaces> needed{};
    for (const PlacePeak& peak :
         cell_memory(setting_.model, plan, profiles_.of(plan), usable_)) {
      needed[static_cast<size_t>(peak.place)] = peak.arena;
    }
    return excess_of(needed, usable_);
  }

  const Setting& setting_;
  const CostModel costs_;
  LayerProfiles profiles_;
  StepFloors floors_;
  Usable usable_{};
};

// Of equals the first is the simplest.
void sort_layouts(std::vector<OpenLayout>& layouts) {
  std::stable_sort(layouts.begin(), layouts.end(), [](const OpenLayout& a, const OpenLayout& b) {
    if (a.excess != b.excess) return a.excess < b.excess;
    return a.at_least < b.at_least;
  });
}

}  // namespace

std::vector<OpenLayout> open_layouts(const Setting& setting, const Measurements* measurements) {
  std::vector<Start> starts = {{setting.plan, setting.open}};
  starts.insert(starts.end(), setting.others.begin(), setting.others.end());
  std::vector<OpenLayout> found;
  std::optional<Error> refusal;
  for (const Start& start : starts) {
    std::vector<Plan> layouts = layouts_of_start(setting, start, refusal);
    std::erase_if(layouts, [&](const Plan& plan) { return is_among(found, plan); });
    if (!layouts.empty()) {
      Judge(setting, start.plan, measurements).judge_all(std::move(layouts), found);
    }
  }
  if (found.empty()) {
    if (refusal) throw *refusal;
    check(setting.plan, setting.model);
    throw Error("the plan",
                fmt::format("no layout of {} devices and {} sequences keeps what is named",
                            setting.plan.devices, setting.plan.global_batch),
                "name less, or another global batch");
  }
  sort_layouts(found);
  return found;
}

std::vector<OpenLayout> judged_layouts(const Setting& like, std::vector<Plan> layouts,
                                       const Measurements* measurements) {
  std::vector<OpenLayout> found;
  Judge(like, like.plan, measurements).judge_all(std::move(layouts), found);
  sort_layouts(found);
  return found;
}

bool is_refuted(const OpenLayout& layout) {
  if (layout.setting.stack.memory_is_planned()) return layout.excess.count > 0;
  const Machine& machine = layout.setting.machine;
  const Bytes smaller = std::min(usable(machine, Place::kHbm), usable(machine, Place::kDram));
  return layout.excess.count > smaller.count / 8;
}

Setting with_short_step(Setting setting) {
  Plan& plan = setting.plan;
  int64_t sequences = std::max<int64_t>(kSequencesOfShortStep, 2 * plan.pipeline);
  if (plan.micro_batch) sequences = *plan.micro_batch * std::max<int64_t>(4, 2 * plan.pipeline);
  plan.global_batch = std::min(plan.global_batch, sequences * plan.data);
  return setting;
}

}  // namespace ballast
