// The knobs of a plan and the values that tests give each of them, and the plans that they are
// changed in: two of our own and one for every shipped strategy.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "profiles/load.h"
#include "tests/backend/tiny_training.h"

namespace ballast::tiny {

// Values of a knob besides its default, as --set takes them. `with`: what else a value needs so
// that it is the knob that is tried and not an inconsistency.
struct Tried {
  std::string path;
  std::vector<std::string> values;
  std::vector<Override> with{};
};

inline const std::vector<Tried>& tried_knobs() {
  static const std::vector<std::string> kFates = {"recompute", "offload"};
  static const std::vector<Tried> kAll = {
      {"model", {"one", "another"}},
      {"machine", {"one", "another"}},
      {"strategy", {"one", "another"}},
      {"devices", {"2", "4"}, {{"global_batch", "8"}}},
      {"data", {"2", "4"}, {{"global_batch", "8"}}},
      {"tensor", {"2", "4"}},
      {"pipeline", {"2", "4"}},
      {"virtual_pipeline", {"2", "4"}},
      {"sequence", {"2", "4"}},
      {"context", {"2", "4"}},
      {"expert", {"2", "4"}, {{"global_batch", "8"}}},
      {"tensor_sequence", {"true"}},
      {"numa", {"remote"}},
      {"zero_stage", {"0", "1", "3"}},
      {"global_batch", {"2", "8"}},
      {"micro_batch", {"1", "4"}},
      {"sequence_length", {"8", "16"}},
      {"dtype", {"fp16", "fp32"}},
      {"products", {"fp8"}, {{"sequence_length", "16"}}},
      {"weights.flow_share", {"0", "1"}},
      {"weights.look_ahead", {"0", "9"}},
      {"optimizer.placement", {"gpu", "nvme"}},
      {"optimizer.bucket_bytes", {"1", "1048576"}},
      {"optimizer.gpu_buckets", {"0", "3"}},
      {"optimizer.cast", {"cpu"}},
      {"optimizer.sync", {"wait", "delay", "speculate"}},
      {"optimizer.undo", {"exact"}},
      {"optimizer.adam", {"reference", "pt-cpu", "no-such-adam"}},
      {"optimizer.stream_share", {"0.5", "1"}},
      {"optimizer.moments", {"bf16"}},
      {"memory_reuse", {"at-once", "apart"}},
      {"activations.norm1", kFates},
      {"activations.qkv", kFates},
      {"activations.core_attention", kFates},
      {"activations.attention_out", kFates},
      {"activations.norm2", kFates},
      {"activations.fc1", kFates},
      {"activations.activation", kFates},
      {"activations.fc2", kFates},
      {"activations.offload_share", {"0", "0.5"}},
      {"activations.look_ahead", {"0", "9"}},
      {"activations.scores", {"recompute"}},
      {"checkpoint_period_steps", {"5", "7"}}};
  return kAll;
}

// A plan with one knob changed, and all that the value needs besides.
inline Plan with_knob(const Plan& base, const Tried& knob, const std::string& value) {
  const std::set<std::string> degrees = {"data",     "tensor",  "pipeline",
                                         "sequence", "context", "expert"};
  Plan plan = base;
  for (const Override& other : knob.with) plan = apply_override(plan, other);
  plan = apply_override(plan, {knob.path, value});
  if (degrees.contains(knob.path)) plan = apply_override(plan, {"devices", value});
  if (knob.path == "devices" || knob.path == "expert") {
    plan = apply_override(plan, {"data", value});
  }
  return plan;
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
