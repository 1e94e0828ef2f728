// What becomes of keys and values where sequences pass in parts.
#pragma once

#include "sim/spec/plan.h"

namespace ballast {

// Whether those of all parts are on the GPU from their forward to their backward: neither made
// again nor away meanwhile. By offload_per_mflop what is offloaded but them leaves.
inline bool keys_values_stay(const ActivationPlan& plan) {
  const ActivationFate qkv = plan.fate[static_cast<size_t>(ModuleKind::kQkv)];
  return qkv == ActivationFate::kKeep ||
         (qkv == ActivationFate::kOffload && plan.offload_per_mflop > 0);
}

}  // namespace ballast
