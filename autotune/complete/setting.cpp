#include "autotune/complete/setting.h"

#include <utility>

#include "profiles/frameworks/usual_buckets.h"

namespace ballast {

void use_usual_buckets(const Model& model, const Stack& stack, Plan& plan) {
  use_usual_bucket(stack.name, plan);
  // A search of the largest model begins with none.
  if (plan.optimizer.placement == OptimizerPlacement::kGpu || model.layers == 0) return;
  const Bytes values = bytes_of(parameters_in_buckets(plan, model), DType::kF32);
  Bytes& bucket = plan.optimizer.bucket_bytes;
  bucket = OptimizerPlan{}.bucket_bytes;
  while (values.count / bucket.count > kMostBucketsOfRank) bucket = bucket * 2;
}

void adopt(Setting& setting, Stack stack) {
  if (setting.usual_buckets) use_usual_buckets(setting.model, stack, setting.plan);
  for (Start& other : setting.others) {
    if (other.usual_buckets) use_usual_buckets(setting.model, stack, other.plan);
  }
  setting.stack = std::move(stack);
}

bool has_auto(const Plan& plan) {
  return !plan.micro_batch || !plan.activations || !plan.optimizer.gpu_buckets ||
         !plan.weights.flow_share;
}

bool is_searched(const Plan& plan, const Stack& stack) {
  const bool split = plan.tensor * plan.pipeline * plan.sequence * plan.context * plan.expert > 1;
  const bool state_is_shared = plan.zero_stage == 1 || plan.zero_stage == 2;
  return stack.memory_is_planned() && !split && (plan.replicas() == 1 || state_is_shared);
}

}  // namespace ballast
