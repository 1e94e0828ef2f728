#include "autotune/search/search_queue.h"

namespace ballast {

Plan cell_plan(const Region& region, const Choice& cell) {
  Plan plan = region.base;
  const Space& space = *region.space;
  plan.micro_batch = space.micro_batch[static_cast<size_t>(cell.micro_batch)];
  plan.activations = space.activations[static_cast<size_t>(cell.activations)].plan;
  plan.weights.flow_share.reset();
  if (space.flow_share.back() == 0) plan.weights.flow_share = 0;
  return plan;
}

Plan node_plan(const Region& region, const Choice& node) {
  Plan plan = cell_plan(region, node);
  plan.activations->fate.fill(ActivationFate::kKeep);
  plan.activations->offload_share = 1;
  plan.activations->scores = ActivationFate::kKeep;
  return plan;
}

}  // namespace ballast
