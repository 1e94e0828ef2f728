#include "autotune/complete/layouts/open_layouts.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <optional>

#include "autotune/bounds/cell_bound.h"
#include "autotune/complete/completion_lists.h"
#include "autotune/complete/estimates/completion_bounds.h"
#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/search/evaluate.h"
#include "autotune/space/layout.h"
#include "autotune/space/space.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/predict.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/report/memory.h"

namespace ballast {
namespace {

// Larger micro-batches do not change which layout is promising.
constexpr int64_t kLargestMicroBatch = 8;
// Layouts whose layers are profiled between two looks at whether anybody interrupts.
constexpr size_t kProfiledAtOnce = 32;
// Sequences that a rank works off in a short step, where no knob says how many at once.
constexpr int64_t kSequencesOfShortStep = 8;

// What the stack lets a plan choose that does not name its stage.
bool stack_allows(const Start& start, const Plan& plan, const StackFacts& facts) {
  if (!start.open.has(KnobId::kZeroStage) || plan.replicas() == 1) return true;
  const auto [least, most] = zero_stages_of(facts, plan);
  return plan.zero_stage >= least && plan.zero_stage <= most;
}

// Why a layout is none: it has another value of a knob than somebody named.
std::optional<Error> refusal_of_named(const Start& start, const Plan& layout) {
  for (const Knob& knob : knobs()) {
    if (!start.named.has(knob.id) || knob.same(start.plan, layout)) continue;
    const std::string named = text_of(knob, knob.get(start.plan));
    return Error(fmt::format("plan.{}", knob.path),
                 fmt::format("no layout that is left keeps {}; one has {}", named,
                             text_of(knob, knob.get(layout))),
                 "name another value, or other degrees");
  }
  return std::nullopt;
}

// The legal layouts of one start; the first refusal where there was one.
std::vector<Plan> layouts_of_start(const Setting& setting, const Start& start,
                                   std::optional<Error>& refusal) {
  std::vector<Plan> layouts;
  for (Plan& plan : layouts_of(setting.model, start.plan, start.open, start.named)) {
    const bool keeps_data = start.open.has(KnobId::kData) || plan.data == start.plan.data;
    if (!keeps_data || !stack_allows(start, plan, setting.stack.facts)) continue;
    if (const std::optional<Error> changed = refusal_of_named(start, plan)) {
      if (!refusal) refusal = changed;
      continue;
    }
    if (start.usual_buckets) use_usual_buckets(setting.model, setting.stack, plan);
    try {
      check(plan, setting.model);
      layouts.push_back(std::move(plan));
    } catch (const Error& error) {
      if (!refusal) refusal = error;
    }
  }
  return layouts;
}

std::vector<Start> starts_of(const Setting& setting) {
  std::vector<Start> starts = {{setting.plan, setting.open, setting.usual_buckets, setting.named}};
  starts.insert(starts.end(), setting.others.begin(), setting.others.end());
  return starts;
}

// Whether two plans differ in the name of their strategy at most.
bool are_one(const Plan& one, Plan other) {
  other.strategy = one.strategy;
  return one == other;
}

// Of a setting of which no layout is legal.
[[noreturn]] void refuse_layouts(const Setting& setting, const std::optional<Error>& refusal) {
  if (refusal) throw *refusal;
  check(setting.plan, setting.model);
  throw Error("the plan",
              fmt::format("no layout of {} devices and {} sequences keeps what is named",
                          setting.plan.devices, setting.plan.global_batch),
              "name less, or another global batch");
}

struct StartLayouts {
  Start start;
  std::vector<Plan> layouts;  // at least one, none of which another start has too
};

std::vector<StartLayouts> layouts_of_starts(const Setting& setting) {
  std::vector<StartLayouts> all;
  std::optional<Error> refusal;
  for (Start& start : starts_of(setting)) {
    std::vector<Plan> layouts = layouts_of_start(setting, start, refusal);
    std::erase_if(layouts, [&](const Plan& plan) {
      return std::any_of(all.begin(), all.end(), [&](const StartLayouts& before) {
        return std::any_of(before.layouts.begin(), before.layouts.end(),
                           [&](const Plan& one) { return are_one(one, plan); });
      });
    });
    if (!layouts.empty()) all.push_back({std::move(start), std::move(layouts)});
  }
  if (all.empty()) refuse_layouts(setting, refusal);
  return all;
}

// Those that need least memory, and a large one, which is fast where there is room.
std::vector<int64_t> micro_batches_to_judge_by(const Plan& layout) {
  std::vector<int64_t> sizes = micro_batches_of(layout, OpenKnobs{});
  const int64_t least = sizes.front();
  std::erase_if(sizes, [&](int64_t size) { return size > std::max(least, kLargestMicroBatch); });
  if (sizes.size() > 2) sizes = {sizes.front(), sizes.back()};
  const int64_t leanest = lean_micro_batches(layout).back();
  if (leanest > sizes.back()) sizes.push_back(leanest);
  return sizes;
}

// Of equals the first is the simplest. A layout is kilobytes and there are thousands: each is moved
// once.
void sort_layouts(std::vector<OpenLayout>& layouts) {
  std::vector<size_t> order(layouts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (layouts[a].excess != layouts[b].excess) return layouts[a].excess < layouts[b].excess;
    return layouts[a].at_least < layouts[b].at_least;
  });
  std::vector<OpenLayout> sorted;
  sorted.reserve(layouts.size());
  for (const size_t i : order) sorted.push_back(std::move(layouts[i]));
  layouts = std::move(sorted);
}

}  // namespace

// Judges the layouts of one start.
class LayoutBounds::Judge {
 public:
  // `of` must outlive this object. `known` may be null: who interrupts it is heard between blocks
  // of layouts.
  Judge(const Setting& setting, const Plan& start, std::vector<Plan> layouts,
        const Measurements* measurements, LayerProfiles* layers, const CompletionEstimates* known)
      : of_(setting),
        costs_(setting.machine, start, setting.stack, measurements),
        own_profiles_(setting.model, costs_, setting.stack.facts),
        profiles_(layers != nullptr ? *layers : own_profiles_),
        floors_(costs_) {
    std::vector<Plan> plans;
    for (size_t i = 0; i < layouts.size(); ++i) {
      layouts_.push_back(cells_of(std::move(layouts[i])));
      plans.insert(plans.end(), layouts_.back().plans.begin(), layouts_.back().plans.end());
      if ((i + 1) % kProfiledAtOnce != 0 && i + 1 < layouts.size()) continue;
      if (known != nullptr) known->refuse_if_interrupted();
      profiles_.prepare(plans, hardware_threads());
      plans.clear();
    }
    const Usable usable = usable_by_tensors(setting.machine, setting.stack);
    parallel_for(layouts_.size(), hardware_threads(),
                 [&](size_t i) { layouts_[i].asked_excess = excess_of(layouts_[i], usable); });
  }

  void judge_all(const Machine& machine, std::vector<OpenLayout>& found) const {
    const Usable usable = usable_by_tensors(machine, of_.stack);
    const size_t first = found.size();
    for (const Cells& one : layouts_) {
      found.push_back({{of_.model, one.layout, machine, of_.stack}, {}, {}, one.asked_excess, {}});
    }
    parallel_for(layouts_.size(), hardware_threads(),
                 [&](size_t i) { judge(layouts_[i], usable, found[first + i]); });
  }

 private:
  struct Cells {
    Plan layout;
    std::vector<Plan> plans;  // micro-batches by kinds of activations
    StepFloor floor;
    Bytes asked_excess;
  };

  Cells cells_of(Plan layout) {
    const Space space = space_of(of_.model, layout, OpenKnobs{});
    Cells cells;
    cells.floor = floors_.of(layout, space);
    Plan plan = layout;
    plan.weights.flow_share.reset();
    if (space.flow_share.back() == 0) plan.weights.flow_share = 0;
    std::vector<ActivationPlan> kinds = {all_kept(), activations_of(Recompute::kFull),
                                         offloads().front()};
    // What needs least where a stage holds keys and values of all parts: recomputing these keeps
    // what they are made of as well.
    if (layout.pipeline > 1 && layout.subsequences > 1) kinds.push_back(all_away());
    if (layout.activations) kinds = {*layout.activations};
    for (const int64_t size : micro_batches_to_judge_by(layout)) {
      for (const ActivationPlan& kind : kinds) {
        plan.micro_batch = size;
        plan.activations = kind;
        cells.plans.push_back(plan);
      }
    }
    cells.layout = std::move(layout);
    return cells;
  }

  // The fastest cell whose least memory fits; where none does, the one that lacks least.
  void judge(const Cells& cells, const Usable& usable, OpenLayout& layout) const {
    bool any = false;
    for (const Plan& plan : cells.plans) {
      const std::array<Bytes, kPlaces> needed = least_memory(plan, usable);
      const double fullness = fullness_of(needed, usable);
      layout.fullness = any ? std::min(layout.fullness, fullness) : fullness;
      const Bytes excess = ballast::excess_of(needed, usable);
      if (excess.count > 0 && memory_bounds_hold(of_.stack, plan)) {
        layout.refuted.emplace_back(*plan.micro_batch, *plan.activations);
      }
      if (any && excess > layout.excess) continue;
      const Duration time =
          least_time(of_.model, of_.stack, plan, profiles_.of(plan), cells.floor, usable);
      if (any && excess == layout.excess && time >= layout.at_least) continue;
      layout.excess = excess;
      layout.at_least = time;
      any = true;
    }
  }

  Bytes excess_of(const Cells& cells, const Usable& usable) const {
    Bytes least = ballast::excess_of(least_memory(cells.plans.front(), usable), usable);
    for (const Plan& plan : cells.plans) {
      least = std::min(least, ballast::excess_of(least_memory(plan, usable), usable));
    }
    return least;
  }

  std::array<Bytes, kPlaces> least_memory(const Plan& plan, const Usable& usable) const {
    const std::vector<PlacePeak> least =
        ballast::least_memory(of_.model, of_.stack, plan, profiles_.of(plan), usable);
    // What is not known is taken for what Ballast's graphs need.
    return arenas_of(least.empty() ? cell_memory(of_.model, plan, profiles_.of(plan), usable)
                                   : least);
  }

  const Setting& of_;
  const CostModel costs_;
  LayerProfiles own_profiles_;
  LayerProfiles& profiles_;
  StepFloors floors_;
  std::vector<Cells> layouts_;
};

LayoutBounds::LayoutBounds(Setting setting, const Measurements* measurements)
    : LayoutBounds(std::move(setting), measurements, nullptr) {}

LayoutBounds::LayoutBounds(Setting setting, CompletionEstimates& known)
    : LayoutBounds(std::move(setting), nullptr, &known) {}

LayoutBounds::LayoutBounds(Setting setting, const Measurements* measurements,
                           CompletionEstimates* known)
    : setting_(std::make_unique<const Setting>(std::move(setting))) {
  for (StartLayouts& of_start : layouts_of_starts(*setting_)) {
    const Plan& start = of_start.start.plan;
    LayerProfiles* const layers = known != nullptr ? &known->layers_of(*setting_, start) : nullptr;
    judges_.push_back(std::make_unique<Judge>(*setting_, start, std::move(of_start.layouts),
                                              measurements, layers, known));
  }
}

LayoutBounds::LayoutBounds(Setting like, std::vector<Plan> layouts,
                           const Measurements* measurements, LayerProfiles* layers)
    : setting_(std::make_unique<const Setting>(std::move(like))) {
  judges_.push_back(std::make_unique<Judge>(*setting_, setting_->plan, std::move(layouts),
                                            measurements, layers, nullptr));
}

LayoutBounds::~LayoutBounds() = default;
LayoutBounds::LayoutBounds(LayoutBounds&&) noexcept = default;
LayoutBounds& LayoutBounds::operator=(LayoutBounds&&) noexcept = default;

std::vector<OpenLayout> LayoutBounds::on(const Machine& machine) const {
  std::vector<OpenLayout> found = in_their_order(machine);
  sort_layouts(found);
  return found;
}

std::vector<OpenLayout> LayoutBounds::in_their_order(const Machine& machine) const {
  std::vector<OpenLayout> found;
  for (const auto& judge : judges_) judge->judge_all(machine, found);
  return found;
}

std::vector<Plan> legal_layouts(const Setting& setting) {
  std::optional<Error> refusal;
  std::vector<Plan> layouts = layouts_of_start(setting, starts_of(setting).front(), refusal);
  if (layouts.empty()) refuse_layouts(setting, refusal);
  return layouts;
}

std::vector<Plan> legal_layouts_of_all(const Setting& setting) {
  std::vector<Plan> all;
  for (StartLayouts& of_start : layouts_of_starts(setting)) {
    for (Plan& layout : of_start.layouts) all.push_back(std::move(layout));
  }
  return all;
}

std::vector<OpenLayout> open_layouts(const Setting& setting, const Measurements* measurements) {
  return LayoutBounds(setting, measurements).on(setting.machine);
}

namespace {

// The layouts of one strategy, judged block by block, so that a deadline is seen between two of
// them; in steps through the list, so that what was seen by then is of every kind.
class JudgedByBlocks {
 public:
  // `layers` may be null.
  JudgedByBlocks(Setting like, std::vector<Plan> layouts, const Measurements* measurements,
                 LayerProfiles* layers)
      : like_(std::move(like)),
        all_(std::move(layouts)),
        measurements_(measurements),
        costs_(like_.machine, like_.plan, like_.stack, measurements),
        own_layers_(like_.model, costs_, like_.stack.facts),
        layers_(layers != nullptr ? *layers : own_layers_),
        judged_(all_.size()) {}

  size_t blocks() const { return (all_.size() + kBlock - 1) / kBlock; }

  void judge(size_t block) {
    std::vector<size_t> places;
    for (size_t i = block; i < all_.size(); i += blocks()) places.push_back(i);
    std::vector<Plan> plans;
    for (const size_t place : places) plans.push_back(all_[place]);
    const LayoutBounds bounds(like_, std::move(plans), measurements_, &layers_);
    std::vector<OpenLayout> found = bounds.in_their_order(like_.machine);
    for (size_t i = 0; i < places.size(); ++i) judged_[places[i]] = std::move(found[i]);
  }

  // In their order.
  void move_judged_to(std::vector<OpenLayout>& seen) {
    for (std::optional<OpenLayout>& one : judged_) {
      if (one) seen.push_back(*std::move(one));
    }
  }

 private:
  static constexpr size_t kBlock = 64;
  const Setting like_;
  const std::vector<Plan> all_;
  const Measurements* const measurements_;
  const CostModel costs_;
  LayerProfiles own_layers_;
  LayerProfiles& layers_;
  std::vector<std::optional<OpenLayout>> judged_;
};

}  // namespace

std::vector<OpenLayout> judged_layouts(const Setting& like, const std::vector<Plan>& layouts,
                                       const Measurements* measurements,
                                       const std::function<bool()>& interrupted,
                                       LayerProfiles* layers) {
  std::vector<std::unique_ptr<JudgedByBlocks>> strategies;
  size_t most_blocks = 0;
  for (auto begin = layouts.begin(); begin != layouts.end();) {
    const auto end = std::find_if(begin, layouts.end(),
                                  [&](const Plan& one) { return one.strategy != begin->strategy; });
    Setting of_strategy = like;
    if (begin != layouts.begin()) of_strategy.plan = *begin;
    strategies.push_back(std::make_unique<JudgedByBlocks>(
        std::move(of_strategy), std::vector<Plan>(begin, end), measurements, layers));
    most_blocks = std::max(most_blocks, strategies.back()->blocks());
    begin = end;
  }
  for (size_t block = 0; block < most_blocks; ++block) {
    if (block > 0 && interrupted && interrupted()) break;
    for (const auto& strategy : strategies) {
      if (block < strategy->blocks()) strategy->judge(block);
    }
  }
  std::vector<OpenLayout> seen;
  for (const auto& strategy : strategies) strategy->move_judged_to(seen);
  sort_layouts(seen);
  return seen;
}

bool is_refuted(const OpenLayout& layout) {
  return memory_bounds_hold(layout.setting.stack, layout.setting.plan) && layout.excess.count > 0;
}

Setting with_short_step(Setting setting) {
  Plan& plan = setting.plan;
  const int64_t all = plan.global_batch / plan.data;
  int64_t sequences = std::max<int64_t>(kSequencesOfShortStep, 2 * plan.pipeline);
  if (plan.micro_batch) sequences = *plan.micro_batch * std::max<int64_t>(4, 2 * plan.pipeline);
  sequences = std::min(sequences, all);
  // A micro-batch that is chosen of them is to divide those of the whole step.
  while (!plan.micro_batch && all % sequences != 0) ++sequences;
  plan.global_batch = sequences * plan.data;
  return setting;
}

}  // namespace ballast
