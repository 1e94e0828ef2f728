// Plans whose graphs are the same, so that what is known of one is known of the other.
#pragma once

#include "sim/spec/plan.h"

namespace ballast {

// The plan of least ZeRO stage, and of no strategy's name, that has this plan's graph. Stages 1 and
// 2 differ in what the GPU keeps of gradients until it steps: where it steps no bucket, they leave
// it all the same. Of a rank that shares nothing, stage 0 does too.
inline Plan as_built(Plan plan) {
  const bool gpu_steps = plan.optimizer.placement == OptimizerPlacement::kGpu ||
                         plan.optimizer.gpu_buckets.value_or(1) > 0;
  if (plan.zero_stage == 2 && !gpu_steps) plan.zero_stage = 1;
  if (plan.zero_stage == 1 && !gpu_steps && plan.replicas() == 1) plan.zero_stage = 0;
  plan.strategy.clear();
  return plan;
}

}  // namespace ballast
