#include "autotune/complete/setting.h"

#include <utility>

#include "profiles/frameworks/usual_buckets.h"

namespace ballast {

void adopt(Setting& of, Stack stack) {
  if (of.usual_buckets) use_usual_bucket(stack.name, of.plan);
  for (Start& other : of.others) {
    if (other.usual_buckets) use_usual_bucket(stack.name, other.plan);
  }
  of.stack = std::move(stack);
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
