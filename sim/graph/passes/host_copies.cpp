// Pass `host_copies`: how a framework's copies between CPU and GPU fall short of pinned buckets
// that cross the link beside the computation (arXiv 2509.21271 section 4.5, on casts on the CPU).
// It changes no value of the graph, only how and when copies of state run. Activations that leave
// and return are not touched.
#include <algorithm>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

// Gradients leave, and their sums return, on lanes on which no weights do.
bool moves_gradients(const Op& op) {
  const LaneKind lane = kind_of(op.lane);
  return op.phase == Phase::kOptimizer && (lane == LaneKind::kCopyOut || lane == LaneKind::kCopyIn);
}

// The last that happens to a bucket's gradient before the host, where it waits for it, goes on:
// stages below 3 look it through for infinities when it has left, others wait until it is there,
// and in 32 bits.
bool holds_up_host(const Graph& graph, const Op& op, const StackFacts& facts) {
  if (!waits_for_gradients(facts) || op.phase != Phase::kOptimizer) return false;
  if (facts.sent_overflow_bytes > 0) {
    return op.kind == OpKind::kSumOfSquares && kind_of(op.lane) == LaneKind::kCopyOut;
  }
  if (op.kind != OpKind::kCopy && op.kind != OpKind::kCast) return false;
  return std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
    const TensorKind kind = graph.tensor(access.tensor).kind;
    return access.role == Role::kDestination && access.mode == AccessMode::kWrite &&
           (kind == TensorKind::kBucketGradient || kind == TensorKind::kBucketGradientFp32);
  });
}

// A fetch brings one module; a bucket holds pieces of several.
int64_t tensors_in(const Graph& graph, const Op& op) {
  if (op.label.bucket < 0) return 1;
  const Bucket& bucket = graph.bucket(op.label.bucket);
  return static_cast<int64_t>(bucket.pieces.size());
}

// The computation that follows in the program starts when `op` is done.
void hold_up_computation(Graph& graph, size_t op) {
  std::vector<Op>& ops = graph.step.ops;
  const auto next =
      std::find_if(ops.begin() + static_cast<std::ptrdiff_t>(op) + 1, ops.end(),
                   [](const Op& other) { return kind_of(other.lane) == LaneKind::kCompute; });
  if (next == ops.end()) return;
  hand_token(graph, ops[op].accesses, next->accesses);
}

// Uploads of stepped weights go behind the last step and read what it leaves.
void return_whole(Graph& graph) {
  std::vector<Op>& ops = graph.step.ops;
  TensorId last = -1;
  for (const Op& op : ops) {
    if (op.kind != OpKind::kAdam || kind_of(op.lane) != LaneKind::kCpu) continue;
    last = graph.bucket(op.label.bucket).master;
  }
  if (last < 0) return;
  const auto decide =
      std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::kDecide; });
  // What is gathered, and copied from there, follows what was uploaded.
  const auto uploads = std::stable_partition(decide, ops.end(), [](const Op& op) {
    const bool upload = kind_of(op.lane) == LaneKind::kUpload;
    return !upload && op.kind != OpKind::kCollective && op.kind != OpKind::kUnpack;
  });
  for (auto op = uploads; op != ops.end(); ++op) {
    if (op->kind == OpKind::kCopy) op->accesses.push_back(read(last, Role::kScratch));
  }
}

}  // namespace

Graph host_copies_pass(Graph graph, const Plan& plan, const StackFacts& facts) {
  const bool by_tensor = facts.stage3_copies_by_tensor && plan.zero_stage == 3;
  const bool host_casts = facts.stage3_sending == Stage3Sending::kCastByHost;
  const bool casts_here = cast_on_cpu(plan) && facts.casts_through_pageable;
  const bool any = by_tensor || casts_here || waits_for_gradients(facts);
  for (size_t i = 0; any && i < graph.step.ops.size(); ++i) {
    Op& op = graph.step.ops[i];
    const bool held_up = holds_up_host(graph, op, facts);
    if (moves_parameters(graph, op)) {
      CopyWork& work = std::get<CopyWork>(op.work);
      const bool gradients = (facts.sends_wide_gradients || host_casts) && moves_gradients(op);
      const bool pageable =
          gradients ? host_casts && held_up && facts.casts_through_pageable : casts_here;
      if (by_tensor && (gradients || pageable)) work.calls = tensors_in(graph, op);
      if (pageable) work.host = HostMemory::kPageable;
      if (pageable && by_tensor && !held_up) hold_up_computation(graph, i);
    }
    if (held_up) hold_up_computation(graph, i);
  }
  const bool waits = plan.optimizer.sync == SyncMode::kWait;
  if (facts.returns_weights_whole && waits && plan.zero_stage < 3) return_whole(graph);
  return graph;
}

}  // namespace ballast
