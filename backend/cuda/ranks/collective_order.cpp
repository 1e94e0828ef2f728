#include "backend/cuda/ranks/collective_order.h"

#include <algorithm>

#include "sim/base/error.h"

namespace ballast {

CollectiveOrder::CollectiveOrder(const Graph& graph, const std::vector<OpId>& ops)
    : places_(graph.step.ops.size(), -1) {
  const auto lane = [&](OpId id) { return graph.step.ops[static_cast<size_t>(id)].lane; };
  const bool is_one_lane =
      std::all_of(ops.begin(), ops.end(), [&](OpId id) { return lane(id) == lane(ops.front()); });
  if (is_one_lane) return;
  for (const OpId id : ops) places_[static_cast<size_t>(id)] = count_++;
}

CollectiveOrder::Turn::~Turn() {
  if (order_ == nullptr) return;
  const std::scoped_lock lock(order_->mutex_);
  order_->next_ = (order_->next_ + 1) % order_->count_;
  order_->changed_.notify_all();
}

CollectiveOrder::Turn CollectiveOrder::wait_for(OpId op) {
  const int32_t place = places_[static_cast<size_t>(op)];
  if (place < 0) return Turn(nullptr);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || next_ == place; });
  if (failed_) throw Error("collectives", "this rank has failed", "see its message");
  return Turn(this);
}

void CollectiveOrder::begin_again() {
  const std::scoped_lock lock(mutex_);
  next_ = 0;
}

void CollectiveOrder::fail() {
  const std::scoped_lock lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

}  // namespace ballast
