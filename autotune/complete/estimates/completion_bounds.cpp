#include "autotune/complete/estimates/completion_bounds.h"

#include <algorithm>

#include "autotune/bounds/bound.h"
#include "autotune/bounds/layer_costs.h"
#include "autotune/bounds/step_floor.h"
#include "autotune/search/evaluate.h"
#include "autotune/space/space.h"
#include "sim/base/error.h"
#include "sim/engine/cost.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/schedules/schedule.h"

namespace ballast {
namespace {

// Stages that are cut otherwise than Ballast cuts them have other sums.
bool is_cut_alike(const Plan& plan, const StackFacts& facts) {
  return plan.pipeline == 1 || !facts.balances_stages;
}

// What a cell needs at the least, in the bound's own measure of memory.
void judge_memory(const std::vector<PlacePeak>& needed, const Usable& usable,
                  CompletionBound& bound) {
  for (const PlacePeak& peak : needed) {
    const bool is_over = peak.arena > usable[static_cast<size_t>(peak.place)];
    bound.overfills = bound.overfills || is_over;
    if (peak.place == Place::kHbm) bound.overfills_gpu = is_over;
  }
}

}  // namespace

Usable usable_by_tensors(const Machine& machine, const Stack& stack) {
  Usable result = usable_of(machine);
  if (stack.memory_is_planned()) return result;
  Bytes& gpu = result[static_cast<size_t>(Place::kHbm)];
  gpu = Bytes{
      static_cast<int64_t>(static_cast<double>(gpu.count) / (1 + stack.constants.memory_slack))};
  return result;
}

bool memory_bounds_hold(const Stack& stack, const Plan& layout) {
  const StackFacts facts = facts_of(stack.facts, layout);
  const bool smaller_activations =
      facts.loss_chunks > 1 || (facts.fp8_saves_codes && layout.products == ProductFormat::kFp8);
  const bool other_stages =
      layout.pipeline > 1 && (facts.balances_stages || facts.accumulates_on_cpu);
  return !facts.pure_16_bit && !smaller_activations && !other_stages;
}

namespace {

// What adds up on the CPU leaves the GPU as soon as it is made, as a single micro-batch's does.
bool adds_up_on_cpu(const Stack& stack, const Plan& plan) {
  return plan.optimizer.placement != OptimizerPlacement::kGpu &&
         facts_of(stack.facts, plan).accumulates_on_cpu;
}

}  // namespace

std::vector<PlacePeak> least_memory(const Model& model, const Stack& stack, const Plan& plan,
                                    const LayerProfile& profile, const Usable& usable,
                                    Bounded extent) {
  if (!memory_bounds_hold(stack, plan)) return {};
  Plan bounded = plan;
  if (adds_up_on_cpu(stack, plan)) bounded.global_batch = plan.micro_batch.value() * plan.data;
  return cell_memory(model, bounded, profile, usable, extent);
}

namespace {

// A stack that scatters once a step has none of it in most micro-batches, so that it counts for
// nothing. Ballast's graphs exchange shards on a lane of their own: where a profile is made of
// them, a stack that does not overlap these exchanges keeps the compute lane busy with them
// instead.
void exchange_as(const StackFacts& facts, bool of_framework, LayerCost& part) {
  const auto network = static_cast<size_t>(LaneKind::kDataNetwork);
  const auto compute = static_cast<size_t>(LaneKind::kCompute);
  const auto to_compute = [&](const Workload& exchanges) {
    part.work.lane[network] -= exchanges.lane[network];
    part.work.lane[compute] += exchanges.lane[network];
  };
  if (!of_framework && facts.weight_overlap == Overlap::kNone) to_compute(part.gathers);
  if (facts.sums_whole_gradients) {
    part.work.add(part.scatters, -1);
  } else if (!of_framework && facts.gradient_overlap == Overlap::kNone) {
    to_compute(part.scatters);
  }
}

constexpr Bytes kUnlimited{int64_t{1} << 60};

bool exchanges_otherwise(const StackFacts& facts, const Plan& plan) {
  return gathers(plan) &&
         (facts.weight_overlap == Overlap::kNone || facts.gradient_overlap == Overlap::kNone ||
          (facts.sums_whole_gradients && plan.accumulation() > 1));
}

Duration least_time_by(const Model& model, const Stack& stack, const Plan& plan,
                       const LayerProfile& profile, const StepFloor& floor, const Usable& usable,
                       Bounded extent) {
  Usable room = usable;
  Bytes& gpu = room[static_cast<size_t>(Place::kHbm)];
  if (!memory_bounds_hold(stack, plan)) {
    gpu = kUnlimited;  // what takes the place of state and weights is not known
  } else if (adds_up_on_cpu(stack, plan)) {
    gpu += bytes_of(parameter_count(model), plan.dtype);  // no gradients do
  }
  return cell_time(model, plan, profile, floor, room, extent);
}

// Of each stage; of the average one alone where stages are cut otherwise than Ballast cuts them.
std::vector<ParameterCount> parameters_by_stage(const Model& model, const Plan& plan,
                                                const StackFacts& facts,
                                                const LayerProfile& profile) {
  const bool is_known = is_cut_alike(plan, facts);
  const int64_t stages = is_known ? plan.pipeline : 1;
  const int64_t chunks = stages * (is_known ? plan.virtual_pipeline : 1);
  std::vector<ParameterCount> stage(static_cast<size_t>(stages));
  stage.front() += profile.first.parameters;
  stage.back() += profile.last.parameters;
  for (int64_t i = 0; i < model.layers; ++i) {
    const int64_t at = chunk_of_layer(i, chunks, model.layers) % stages;
    stage[static_cast<size_t>(at)] += profile.layer(i, 0).parameters;
  }
  return stage;
}

// What adds up on the CPU leaves in every micro-batch, and where ranks share it is reduced before:
// of the stage with most of it. Nothing is said where the GPU may step a part.
Duration least_time_of_sums(const Model& model, const Stack& stack, const Plan& plan,
                            const LayerProfile& profile, const StepFloor& floor) {
  const StackFacts facts = facts_of(stack.facts, plan);
  const bool leaves = adds_up_on_cpu(stack, plan) && plan.optimizer.gpu_buckets == 0;
  if (!leaves || gathers(plan) || plan.accumulation() == 1) return {};
  const bool shared = plan.zero_stage > 0 && plan.replicas() > 1;
  double longest = 0;
  const std::vector<ParameterCount> stages = parameters_by_stage(model, plan, facts, profile);
  for (const ParameterCount& stage : stages) {
    const auto own = static_cast<double>(shared ? stage.all / plan.replicas() : stage.all);
    const double reduced = shared ? static_cast<double>(stage.dense()) * floor.reduce : 0;
    longest = std::max({longest, own * floor.out, reduced});
  }
  const double each =
      longest * static_cast<double>(stages.size()) / static_cast<double>(plan.pipeline);
  return lowered(static_cast<int64_t>(each * static_cast<double>(plan.accumulation())));
}

// The profile with the exchanges as the stack makes them.
Duration least_time_exchanging(const Model& model, const Stack& stack, const Plan& plan,
                               const LayerProfile& profile, const StepFloor& floor,
                               const Usable& usable, Bounded extent) {
  const StackFacts facts = facts_of(stack.facts, plan);
  if (!exchanges_otherwise(facts, plan)) {
    return least_time_by(model, stack, plan, profile, floor, usable, extent);
  }
  LayerProfile own = profile;
  for (std::vector<LayerCost>* layers : {&own.layers, &own.alike}) {
    for (LayerCost& layer : *layers) exchange_as(facts, profile.of_framework, layer);
  }
  for (LayerCost* end : {&own.first, &own.last}) exchange_as(facts, profile.of_framework, *end);
  return least_time_by(model, stack, plan, own, floor, usable, extent);
}

}  // namespace

Duration least_time(const Model& model, const Stack& stack, const Plan& plan,
                    const LayerProfile& profile, const StepFloor& rates, const Usable& usable,
                    Bounded extent) {
  StepFloor floor = rates;
  // The rates are those of 32-bit state.
  if (facts_of(stack.facts, plan).pure_16_bit) floor.gpu_adam = 0;
  return std::max(least_time_exchanging(model, stack, plan, profile, floor, usable, extent),
                  least_time_of_sums(model, stack, plan, profile, floor));
}

std::vector<CompletionBound> completion_bounds(const Setting& setting,
                                               const std::vector<const Completion*>& completions) {
  std::vector<CompletionBound> bounds(completions.size());
  if (completions.empty()) return bounds;
  Stack stack = setting.stack;
  stack.facts.attention = {completions.front()->attention};
  const CostModel costs(setting.machine, setting.plan, stack, nullptr);
  LayerProfiles profiles(setting.model, costs, stack.facts);
  StepFloors floors(costs);
  const Usable usable = usable_of(setting.machine);
  const Usable by_tensors = usable_by_tensors(setting.machine, setting.stack);
  for (size_t i = 0; i < completions.size(); ++i) {
    const Plan& plan = completions[i]->plan;
    if (!is_cut_alike(plan, stack.facts)) continue;
    try {
      profiles.prepare({plan}, 1);
      const LayerProfile& profile = profiles.of(plan);
      const StepFloor floor = floors.of(plan, space_of(setting.model, plan, OpenKnobs{}));
      bounds[i].at_least =
          least_time(setting.model, setting.stack, plan, profile, floor, usable, Bounded::kPlan);
      judge_memory(
          least_memory(setting.model, setting.stack, plan, profile, by_tensors, Bounded::kPlan),
          by_tensors, bounds[i]);
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
  return bounds;
}

}  // namespace ballast
