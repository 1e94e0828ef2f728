// Plans that tests train: three of our own, one for every shipped strategy, and each of them with
// any knob of the table (sim/spec/knobs.h) at other values of its domain.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "profiles/load.h"
#include "sim/spec/knobs.h"
#include "tests/backend/tiny_training.h"
#include "tests/spec/knob_values.h"

namespace ballast::tiny {

// Those of other_values(), and the ends of the range of a number; every name of an Adam that this
// machine's kernels have; of the fates each kind of module by itself.
inline std::vector<KnobValue> tried_values(const Knob& knob, const Plan& base) {
  const KnobValue now = knob.get(base);
  std::vector<KnobValue> values;
  if (knob.type == KnobType::kGroup) return {true};  // with the defaults of its members
  if (knob.type == KnobType::kFates) {
    for (const ModuleKind kind : saving_kinds()) {
      for (const int64_t choice : knob.choices) {
        Fates fates = std::get<Fates>(now);
        fates[static_cast<size_t>(kind)] = static_cast<ActivationFate>(choice);
        if (KnobValue(fates) != now) values.emplace_back(fates);
      }
    }
    return values;
  }
  values = knob_tests::other_values(knob, now);
  if (knob.type == KnobType::kWhole || knob.type == KnobType::kBytes) {
    for (const int64_t end : {knob.least, knob.most}) {
      const KnobValue value = end;
      const bool is_new = std::find(values.begin(), values.end(), value) == values.end();
      if (is_new && value != now && value != default_of(knob)) values.push_back(value);
    }
  }
  if (knob.id == KnobId::kAdam) {
    for (const kernels::Table* table : kernels::available()) {
      values.emplace_back(std::string(table->name));
    }
  }
  return values;
}

// `base` with one knob at another value, and with what that value needs besides, so that the knob
// is tried and not an inconsistency: as many devices as its degrees multiply to, sequences for all
// of them, and tokens that fp8 can multiply.
inline Plan with_value(const Plan& base, const Knob& knob, const KnobValue& value) {
  Plan plan = base;
  if (knob.type == KnobType::kGroup) knob.set(plan, {});
  knob.set(plan, value);
  if (knob.id == KnobId::kDevices) plan.data = plan.devices;
  if (knob.id == KnobId::kExpert) plan.data = plan.expert;
  if (knob.is_degree || knob.id == KnobId::kData || knob.id == KnobId::kExpert) {
    plan.devices = plan.replicas() * plan.tensor * plan.pipeline;
    plan.global_batch = base.global_batch * plan.data;
  }
  if (plan.products == ProductFormat::kFp8) plan.sequence_length = 16;
  return plan;
}

// Visits `base` with every value of every knob; `what` names both, for messages.
inline void for_every_change(
    const Plan& base,
    const std::function<void(const Knob& knob, const Plan& plan, const std::string& what)>& visit) {
  for (const Knob& knob : knobs()) {
    for (const KnobValue& value : tried_values(knob, base)) {
      visit(knob, with_value(base, knob, value),
            std::string(knob.path) + "=" + text_of(knob, value));
    }
  }
}

// Weights stay, one bucket after another waits for all of them.
inline Plan waiting_plan() {
  Plan plan = wait_plan();
  plan.optimizer.bucket_bytes = {2 * kSegment * 4};
  plan.optimizer.gpu_buckets = 1;
  plan.memory_reuse = MemoryReuse::kApart;
  return plan;
}

// Half of the weights flow, activations leave and return, buckets step as they land.
inline Plan speculating_plan() {
  Plan plan = waiting_plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.weights.flow_share = 0.5;
  plan.activations = all_activations(ActivationFate::kOffload);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm2)] = ActivationFate::kRecompute;
  return plan;
}

// The same in two stages, which share the gradient of a tied embedding.
inline Plan pipelined_plan() {
  Plan plan = speculating_plan();
  plan.pipeline = plan.devices = 2;
  return plan;
}

// As shipped, but for what a strategy leaves to be chosen.
inline Plan plan_of_strategy(const std::string& strategy, int64_t bucket_bytes) {
  PlanRequest request;
  request.strategy = strategy;
  Plan plan = resolve_plan(request);
  const Plan tiny_plan = wait_plan();
  plan.global_batch = tiny_plan.global_batch;
  plan.micro_batch = tiny_plan.micro_batch;
  plan.sequence_length = tiny_plan.sequence_length;
  plan.optimizer.bucket_bytes = {bucket_bytes};
  if (!plan.weights.flow_share) plan.weights.flow_share = 0.5;
  if (!plan.optimizer.gpu_buckets) plan.optimizer.gpu_buckets = 1;
  if (!plan.activations) plan.activations = ActivationPlan{};
  return plan;
}

}  // namespace ballast::tiny
