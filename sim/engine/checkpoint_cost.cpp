#include "sim/engine/checkpoint_cost.h"

#include <algorithm>

namespace ballast {

namespace {

// Devices that hold the same part of the state, of which one writes it.
int64_t copies_of(const Plan& plan) {
  const int64_t parts = plan.zero_stage > 0 ? plan.sharing() : plan.expert;
  return std::max<int64_t>(plan.replicas() / parts, 1);
}

}  // namespace

std::optional<CheckpointCost> checkpoint_cost(const Model& model, const Plan& plan,
                                              const Machine& machine) {
  if (plan.checkpoint_period_steps == 0) return std::nullopt;
  const int64_t values = plan.optimizer.sync == SyncMode::kDelay ? 4 : 3;
  CheckpointCost cost;
  cost.period_steps = plan.checkpoint_period_steps;
  cost.total = {parameter_count(model) * values * size_of(DType::kF32)};
  cost.device = {div_ceil(cost.total.count * copies_of(plan), plan.devices)};
  if (!machine.nvme || machine.nvme->write.empty()) return cost;
  const auto bytes = static_cast<double>(cost.device.count);
  cost.time = Duration::from_seconds(bytes / machine.nvme->write.rate_at(bytes));
  cost.time_per_step =
      Duration::from_seconds(cost.time->seconds() / static_cast<double>(cost.period_steps));
  return cost;
}

}  // namespace ballast
