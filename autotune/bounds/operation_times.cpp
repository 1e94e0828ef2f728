#include "autotune/bounds/operation_times.h"

#include <algorithm>
#include <utility>

#include "autotune/bounds/part_costs.h"
#include "sim/graph/core/edit.h"

namespace ballast {

Prices::Prices(const Plan& plan) : plan_(plan) { graph_.lanes = kLaneKinds; }

void Prices::add(OpKind kind, LaneKind lane, Work work) {
  Op op;
  op.kind = kind;
  op.phase = Phase::kOptimizer;
  op.lane = lane_of(0, lane);
  op.work = std::move(work);
  graph_.step.ops.push_back(std::move(op));
}

void Prices::add_transfer(LaneKind lane, CopyDirection direction, int64_t count, DType type) {
  const Bytes bytes = bytes_of(count, type);
  const bool out = direction == CopyDirection::kDeviceToHost;
  if (!moves_state_by_kernels(plan_.optimizer)) {
    return add(OpKind::kCopy, lane, CopyWork{bytes, direction});
  }
  BucketWork work = elementwise(count, type, out ? type : plan_.dtype, Site::kGpu);
  (out ? work.to_host : work.from_host) = bytes;
  add(out ? OpKind::kPack : OpKind::kUnpack, lane, work);
}

void Prices::add_adam(int64_t count, Site site, bool exact_undo) {
  const Bytes state = optimizer_state(count, plan_.optimizer);
  BucketWork work{count, plan_.dtype, plan_.dtype, site, state * 2 + bytes_of(count, plan_.dtype)};
  work.exact_undo = exact_undo;
  add(OpKind::kAdam, site == Site::kGpu ? LaneKind::kCompute : LaneKind::kCpu, work);
}

void Prices::add_exchange(CollectiveKind kind, int64_t count, bool talks) {
  const RankGroup group = replica_group(plan_);
  Work work;
  if (talks) work = CollectiveWork{kind, bytes_of(count, plan_.dtype), group.ranks, group.stride};
  add(OpKind::kCollective, LaneKind::kDataNetwork, std::move(work));
}

void Prices::price(const CostModel& costs) {
  table_ = costs.table(graph_.step, graph_);
  next_ = 0;
}

int64_t Prices::host_ps(OpKind kind) const {
  const std::vector<Op>& ops = graph_.step.ops;
  const auto found =
      std::find_if(ops.begin(), ops.end(), [&](const Op& op) { return op.kind == kind; });
  CHECK(found != ops.end());
  return table_.ops[static_cast<size_t>(found - ops.begin())].host.ps;
}

}  // namespace ballast
