#include "autotune/bucket_bound.h"

#include <algorithm>
#include <limits>

#include "sim/graph/rewrite.h"

namespace ballast {
namespace {

Op bucket_op(OpKind kind, LaneKind lane, Work work) {
  Op op;
  op.kind = kind;
  op.phase = Phase::kOptimizer;
  op.lane = lane_of(0, lane);
  op.work = std::move(work);
  return op;
}

// Adam on the GPU and on the CPU, and copies out and in, in 16 and in 32 bits.
constexpr size_t kOpsABucket = 6;
void append_ops(int64_t count, const Plan& plan, std::vector<Op>& ops) {
  const Bytes state = bytes_of(count, DType::kF32) + bytes_of(2 * count, plan.optimizer.moments);
  const Bytes moved = state * 2 + bytes_of(count, plan.dtype);
  const auto adam = [&](Site site) { return BucketWork{count, plan.dtype, plan.dtype, site, moved}; };
  ops.push_back(bucket_op(OpKind::kAdam, LaneKind::kCompute, adam(Site::kGpu)));
  ops.push_back(bucket_op(OpKind::kAdam, LaneKind::kCpu, adam(Site::kCpu)));
  for (const DType type : {plan.dtype, DType::kF32}) {
    const Bytes bytes = bytes_of(count, type);
    ops.push_back(bucket_op(OpKind::kCopy, LaneKind::kCopyOut,
                            CopyWork{bytes, CopyDirection::kDeviceToHost}));
    ops.push_back(bucket_op(OpKind::kCopy, LaneKind::kUpload,
                            CopyWork{bytes, CopyDirection::kHostToDevice}));
  }
}

}  // namespace

BucketBound::BucketBound(const std::vector<Module>& modules, const Plan& base,
                         const BucketChoice& bucket, const CostModel& costs)
    : base_(base), choice_(bucket) {
  OptimizerPlan plan = base.optimizer;
  plan.bucket_bytes = bucket.bytes;
  plan.gpu_buckets = 0;
  buckets_ = buckets_of(modules, plan);
  const bool splits = base.zero_stage > 0 && !gathers(base);
  Graph graph;
  graph.lanes = kLaneKinds;
  times_.resize(buckets_.size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    times_[b].elements = splits ? buckets_[b].count / base.replicas() : buckets_[b].count;
    append_ops(times_[b].elements, base, graph.step.ops);
  }
  const CostTable table = costs.table(graph.step, graph);
  for (size_t b = 0; b < buckets_.size() && !costs.is_measured(); ++b) {
    const OpCost* op = &table.ops[b * kOpsABucket];
    Times& t = times_[b];
    t.adam_gpu = op[0].alone.ps;
    t.adam_cpu = op[1].alone.ps;
    t.out16 = op[2].alone.ps;
    t.in16 = op[3].alone.ps;
    t.out32 = op[4].alone.ps;
    t.in32 = op[5].alone.ps;
  }
  for (size_t i = 0; i < bucket.gpu_buckets.size(); ++i) {
    int64_t gpu = 0, cpu = 0, elements = 0;
    const size_t border = on_cpu(i);
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (b < border) {
        cpu += times_[b].adam_cpu;
      } else {
        gpu += times_[b].adam_gpu;
        elements += times_[b].elements;
      }
    }
    adam_.gpu_ps.push_back(gpu);
    adam_.cpu_ps.push_back(cpu);
    adam_.gpu_state.push_back(bytes_of(elements, DType::kF32) +
                              bytes_of(2 * elements, plan.moments));
  }
}

// How many buckets the CPU steps: those before the last ones.
size_t BucketBound::on_cpu(size_t index) const {
  if (base_.optimizer.placement == OptimizerPlacement::kGpu) return 0;
  const auto on_gpu = static_cast<size_t>(choice_.gpu_buckets[index]);
  return buckets_.size() - std::min(on_gpu, buckets_.size());
}

TailBound BucketBound::tails(const ForwardBackwardProfile& compute, CastPlacement cast) const {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::min() / 2;
  const size_t count = buckets_.size();
  const bool wide = cast == CastPlacement::kGpu || base_.dtype == DType::kF32;
  const int64_t computed = compute.work.lane[static_cast<size_t>(LaneKind::kCompute)];
  // The longest of the first buckets: entry b is of those before bucket b.
  std::vector<int64_t> stay(count + 1, 0), flow(count + 1, 0), wait(count + 1, kNever);
  int64_t stepped = 0;  // Adam of the buckets before
  for (size_t b = 0; b < count; ++b) {
    const Times& t = times_[b];
    int64_t ready = 0, first = std::numeric_limits<int64_t>::max();
    for (const Bucket::Piece& piece : buckets_[b].pieces) {
      const auto m = static_cast<size_t>(piece.module);
      ready = std::max(ready, compute.gradient_ready_ps[m]);
      if (compute.first_use_ps[m] >= 0) first = std::min(first, compute.first_use_ps[m]);
    }
    const bool used = first != std::numeric_limits<int64_t>::max();
    const int64_t tail = used ? ready + (wide ? t.out32 : t.out16) + t.adam_cpu - first : 0;
    const int64_t home = wide ? t.in32 : t.in16;
    stay[b + 1] = std::max(stay[b], tail + home);
    flow[b + 1] = std::max(flow[b], tail);
    wait[b + 1] = std::max(wait[b], used ? -first - stepped : kNever);
    stepped += t.adam_cpu;
  }
  TailBound bound;
  for (size_t i = 0; i < choice_.gpu_buckets.size(); ++i) {
    const size_t border = on_cpu(i);
    bound.speculate_ps.push_back(stay[border]);
    bound.speculate_flowing_ps.push_back(flow[border]);
    const int64_t all = computed + adam_.cpu_ps[i];
    bound.wait_ps.push_back(border > 0 ? std::max(flow[border], all + wait[border]) : 0);
  }
  return bound;
}

}  // namespace ballast
