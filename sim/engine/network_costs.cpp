// The part of the cost model that says what collectives take from what runs beside them: wires,
// the memory's bandwidth, and multiprocessors; and what products that run as persistent kernels
// lose where anything holds multiprocessors.
#include "sim/engine/collective.h"
#include "sim/engine/cost.h"

namespace ballast {

WireShares CostModel::wire_shares() const {
  return {constants_.node_collective, constants_.network_collective};
}

void CostModel::add_collective_demands(const Op& op, const CollectiveWork& work,
                                       OpCost& cost) const {
  const CollectiveTime result = collective_time(work, machine_, wire_shares());
  if (result.wires == Wires::kNone) return;
  demand(cost, result.wires == Wires::kNetwork ? network_ : node_,
         per_second(result.sent, cost.alone));
  const auto& crossing = machine_.link.network_share;
  if (result.wires == Wires::kNetwork && crossing) {
    const double sent = crossing->value * per_second(result.sent, cost.alone);
    demand(cost, kHostToDevice, sent);
    demand(cost, kDeviceToHost, sent);
    demand(cost, kLinkTotal, 2 * sent);
  }
  // What is sent is read, what arrives is written.
  demand(cost, kHbm, 2 * per_second(result.passed, cost.alone));
  // Its channels are blocks that stay on their multiprocessors until it is done. What overlaps the
  // ranks of a product tells it how many to leave (Transformer Engine's user buffers,
  // common/comm_gemm_overlap: num_math_sms).
  const bool is_left_room = kind_of(op.lane) == LaneKind::kTensorNetwork;
  hold_multiprocessors(multiprocessor_share(work, result.wires, machine_), is_left_room, cost);
}

void CostModel::hold_multiprocessors(double share, bool is_left_room, OpCost& cost) const {
  if (share <= 0) return;
  const auto hold = [&](int32_t capacity, double amount) {
    demand(cost, capacity, amount);
    cost.demands[static_cast<size_t>(cost.demand_count) - 1].held = true;
  };
  hold(kMultiprocessors, share);
  if (product_blocks_ >= 0 && !is_left_room) hold(product_blocks_, 1);
}

// A collective holds the whole capacity, of which kLeastShare is left however many hold it. A
// product asks for kLeastShare / kept, so it runs at `kept` whenever anything is held, and at its
// full speed otherwise.
void CostModel::add_product_blocks() {
  const auto& tables = machine_.gpu.kernels.model;
  if (!tables || !tables->tables().product_beside_collective) return;
  product_blocks_ = static_cast<int32_t>(capacities_.size());
  capacities_.push_back({"product blocks", 1, true});
}

void CostModel::add_product_demands(OpCost& cost) const {
  if (product_blocks_ < 0) return;
  const double kept = machine_.gpu.kernels.model->tables().product_beside_collective->share;
  demand(cost, product_blocks_, kLeastShare / kept);
}

}  // namespace ballast
