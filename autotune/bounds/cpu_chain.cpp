#include "autotune/bounds/cpu_chain.h"

#include <algorithm>

namespace ballast {

CpuChain::CpuChain(const Model& model, const Plan& plan, const LayerProfile& profile) {
  const int64_t leaving = leaving_layers(plan.activations.value(), model.layers, true);
  int64_t forward = profile.first.forward_ps + profile.last.forward_ps;
  int64_t backward = profile.first.backward_ps + profile.last.backward_ps;
  int64_t parameters = 0;
  for (int64_t i = 0; i < model.layers; ++i) {
    const LayerCost& layer = profile.layer(i, leaving);
    forward += layer.forward_ps;
    backward += layer.backward_ps;
    parameters += layer.parameters.all;
    parameters_up_to_.push_back(parameters);
  }
  switch (plan.optimizer.sync) {
    case SyncMode::kWait:
      before_ps_ = plan.accumulation() * (forward + backward) - forward;
      break;
    case SyncMode::kSpeculate:
      before_ps_ = (plan.accumulation() - 1) * (forward + backward);
      break;
    case SyncMode::kDelay:
      break;
  }
  // Weights that are stepped last may be the first that their layer uses, or those of its end.
  int64_t from_here = forward - profile.first.forward_ps;
  for (int64_t i = 0; i < model.layers; ++i) {
    from_here -= profile.layer(i, leaving).forward_ps;
    forward_from_ps_.push_back(plan.optimizer.sync == SyncMode::kSpeculate ? from_here : 0);
  }
}

int64_t CpuChain::step_ps(int64_t on_cpu, int64_t on_gpu, double adam) const {
  if (on_cpu <= 0) return 0;
  const auto beyond = std::upper_bound(parameters_up_to_.begin(), parameters_up_to_.end(), on_gpu);
  const bool in_layers = beyond != parameters_up_to_.end();
  const auto layer = static_cast<size_t>(beyond - parameters_up_to_.begin());
  return before_ps_ + (in_layers ? forward_from_ps_[layer] : 0) +
         static_cast<int64_t>(static_cast<double>(on_cpu) * adam);
}

int64_t CpuChain::least_on_gpu(double ps, int64_t all, int64_t ranks, double adam) const {
  const auto is_enough = [&](int64_t on_gpu) {
    return static_cast<double>(step_ps(all - on_gpu, on_gpu * ranks, adam)) <= ps;
  };
  int64_t few = 0, enough = all;
  if (is_enough(few)) return few;
  while (enough - few > 1) {
    const int64_t middle = few + (enough - few) / 2;
    (is_enough(middle) ? enough : few) = middle;
  }
  return enough;
}

}  // namespace ballast
