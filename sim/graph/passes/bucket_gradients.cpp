// The half of BucketOps by which gradients are reduced, summed for their norm, and leave.
#include <utility>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/bucket_ops.h"

namespace ballast {

void BucketOps::add_sent_tensors(BucketTensors& t, int32_t b) {
  const bool on_gpu = bucket(b).site == Site::kGpu;
  const int64_t count = bucket(b).count;
  if (keeps_sum_) {
    t.sum = dram(TensorKind::kBucketGradient, Category::kGradients, gradient_type(), count, b);
  }
  if (returns_) {
    // What the GPU steps is there until the step, which may be undone.
    const auto back = on_gpu ? TensorKind::kReduced : TensorKind::kArriving;
    t.summed = hbm(back, Category::kStaging, gradient_type(), count, b);
  }
  if (!on_gpu || returns_) {
    t.packed = hbm(TensorKind::kPacked, Category::kStaging, packed_type(), count, b);
  }
  if (!on_gpu) {
    if (packed_type() != gradient_wire()) {
      t.wide = hbm(TensorKind::kReduced, Category::kStaging, gradient_wire(), count, b);
    }
    t.landed = dram(TensorKind::kBucketGradient, Category::kGradients, gradient_wire(), count, b);
    if (gradient_wire() != DType::kF32) {
      const auto kind = TensorKind::kBucketGradientFp32;
      t.gradient32 = dram(kind, Category::kWorkspace, DType::kF32, count, b);
    }
    if (cast_on_gpu(plan_) && t.stationary > 0) {
      t.arriving = hbm(TensorKind::kArriving, Category::kStaging, DType::kF32, t.stationary, b);
    }
  }
}

std::vector<Op> BucketOps::reduction(int32_t b) {
  const BucketTensors& t = tensors(b);
  std::vector<Access> accesses;
  const Access gradient = t.reduced >= 0 ? read(-1, Role::kSource) : update(-1, Role::kSource);
  append_modules(accesses, b, module_gradient_, gradient);
  if (t.reduced >= 0) accesses.push_back(write(t.reduced, Role::kDestination));
  const bool whole = plan_.zero_stage == 0 || facts_.reduces_whole;
  const RankGroup ranks = reducing_group(plan_, facts_);
  const CollectiveKind kind = whole ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
  const bool wide = facts_.reduction == GradientPrecision::kF32;
  const auto [group, bytes] =
      exchange_of(b, bytes_of(bucket(b).count, wide ? DType::kF32 : gradient_type()), ranks);
  std::vector<Access> share;
  if (t.reduced >= 0) {
    share.push_back(update(t.reduced, Role::kSource));
  } else {
    share = accesses;
  }
  std::vector<Op> made;
  if (layout_bytes(facts_) > 0) made.push_back(laid_out(b));
  made.push_back(group_op(kind, group, b, bytes, std::move(accesses)));
  const RankGroup copies = copies_group(plan_);
  if (copies.ranks > 1 && ranks.ranks < plan_.replicas()) {
    made.push_back(group_op(CollectiveKind::kAllReduce, copies, b,
                            {div_ceil(bytes.count, group.ranks)}, std::move(share)));
  }
  for (Op& each : made) {
    if (facts_.gradient_overlap == Overlap::kNone) each.lane = lane_of(0, LaneKind::kCompute);
  }
  return made;
}

// An update, so that the collective waits for it.
Op BucketOps::laid_out(int32_t b) {
  std::vector<Access> sources;
  append_modules(sources, b, module_gradient_, update(-1, Role::kSource));
  BucketWork work = elementwise(bucket(b).count, gradient_type(), gradient_type(), Site::kGpu);
  work.moved = {bucket(b).count * layout_bytes(facts_)};
  return op(OpKind::kPack, LaneKind::kCopyOut, b, work, std::move(sources));
}

void BucketOps::append_gradient(std::vector<Access>& accesses, int32_t b, Role role) {
  const BucketTensors& t = tensors(b);
  // What came back is widened, and no step reads it as it came.
  const TensorId apart = t.summed < 0 ? t.reduced : t.widened >= 0 ? t.widened : t.summed;
  if (apart >= 0) {
    accesses.push_back(read(apart, role));
  } else {
    append_modules(accesses, b, module_gradient_, read(-1, role));
  }
}

Op BucketOps::partials_out(int32_t b) const {
  const BucketTensors& t = tensors(b);
  return copy_out(b, bytes_of(bucket(b).segments, DType::kF64),
                  {read(t.partials_gpu, Role::kSource), write(t.partials, Role::kDestination)});
}

TensorId BucketOps::append_packed(std::vector<Op>& ops, int32_t b) const {
  const BucketTensors& t = tensors(b);
  std::vector<Access> accesses;
  append_modules(accesses, b, module_gradient_, read(-1, Role::kSource));
  accesses.push_back(write(t.packed, Role::kDestination));
  const BucketWork work = elementwise(bucket(b).count, gradient_type(), packed_type(), Site::kGpu);
  ops.push_back(op(OpKind::kPack, LaneKind::kCopyOut, b, work, std::move(accesses)));
  if (!returns_) return t.packed;
  const Bytes bytes = graph_.tensor(t.summed).bytes();
  // It is there all the time.
  accesses = {read(t.packed, Role::kSource), update(t.sum, Role::kDestination)};
  ops.push_back(copy_out(b, bytes, std::move(accesses)));
  Op back = copy_out(b, bytes, {read(t.sum, Role::kSource), write(t.summed, Role::kDestination)});
  std::get<CopyWork>(back.work).direction = CopyDirection::kHostToDevice;
  ops.push_back(std::move(back));
  return t.summed;
}

std::vector<Op> BucketOps::gradient_stays(int32_t b) {
  const BucketTensors& t = tensors(b);
  const int64_t count = bucket(b).count;
  std::vector<Op> ops;
  std::vector<Access> sources;
  if (returns_) {
    sources.push_back(read(append_packed(ops, b), Role::kSource));
  } else {
    append_gradient(sources, b, Role::kSource);
  }
  if (t.second_copy >= 0) sources.push_back(update(t.second_copy, Role::kScratch));
  const bool kept = keeps_sum_ && facts_.keeps_gradient_buffer;
  if (t.widened >= 0) {
    sources.push_back(kept ? update(t.widened, Role::kDestination)
                           : write(t.widened, Role::kDestination));
  }
  sources.push_back(write(t.partials_gpu, Role::kNormPartials));
  const DType type = gradient_type();
  const bool split = plan_.zero_stage == 3;
  int64_t passes = split ? facts_.stage3_step_bytes : facts_.step_bytes;
  if (plan_.dtype == DType::kF16) {
    passes += split ? facts_.stage3_overflow_bytes : facts_.overflow_bytes;
  }
  const Bytes moved = passes > 0 ? Bytes{count * passes} : bytes_of(count, type);
  BucketWork norm{count, type, DType::kF64, Site::kGpu, moved};
  ops.push_back(op(OpKind::kSumOfSquares, LaneKind::kCompute, b, norm, std::move(sources)));
  ops.push_back(partials_out(b));
  append_unused_sum(ops.back().accesses, b);
  return ops;
}

void BucketOps::append_unused_sum(std::vector<Access>& accesses, int32_t b) const {
  if (keeps_sum_ && !returns_) accesses.push_back(update(tensors(b).sum, Role::kScratch));
}

void BucketOps::append_sent(std::vector<Op>& ops, int32_t b, TensorId cast) const {
  const BucketTensors& t = tensors(b);
  const Bytes bytes = bytes_of(bucket(b).count, gradient_wire());
  ops.push_back(
      copy_out(b, bytes, {read(cast, Role::kSource), write(t.landed, Role::kDestination)}));
  const TensorId held = sent_before(b);
  if (held >= 0) ops.back().accesses.push_back(read(held, Role::kScratch));
  append_unused_sum(ops.back().accesses, b);
  if (facts_.speculative_sending != SpeculativeSending::kTwice) return;
  ops.push_back(
      copy_out(b, bytes, {read(cast, Role::kSource), update(t.landed, Role::kDestination)}));
}

std::vector<Op> BucketOps::gradient_out(int32_t b) {
  if (bucket(b).site == Site::kGpu) return gradient_stays(b);
  const BucketTensors& t = tensors(b);
  const int64_t count = bucket(b).count;
  const DType packed = packed_type();
  std::vector<Op> ops;
  const TensorId whole = append_packed(ops, b);
  if (t.wide >= 0) {
    ops.push_back(op(OpKind::kCast, LaneKind::kCopyOut, b,
                     elementwise(count, packed, gradient_wire(), Site::kGpu),
                     {read(whole, Role::kSource), write(t.wide, Role::kDestination)}));
  }
  append_sent(ops, b, t.wide >= 0 ? t.wide : whole);
  if (t.gradient32 >= 0 && host_casts_gradients()) ops.push_back(cast_of_gradient(b));
  // Summed where it lies, so that the CPU's memory is left to the steps.
  const int64_t summed = facts_.sent_norm_bytes > 0 ? facts_.sent_norm_bytes : size_of(packed);
  const int64_t passes = summed + facts_.sent_overflow_bytes;
  BucketWork norm{count, packed, DType::kF64, Site::kGpu, Bytes{count * passes}};
  ops.push_back(op(OpKind::kSumOfSquares, LaneKind::kCopyOut, b, norm,
                   {read(whole, Role::kSource), write(t.partials_gpu, Role::kNormPartials)}));
  ops.push_back(partials_out(b));
  return ops;
}

// Buckets leave in their order, and the first of a step follows the last of the step before.
TensorId BucketOps::sent_before(int32_t b) const {
  if (!facts_.holds_sent_gradients || sync() != SyncMode::kSpeculate) return -1;
  const auto buckets = static_cast<int32_t>(graph_.buckets.size());
  for (int32_t back = 1; back < buckets; ++back) {
    const int32_t before = (b - back + buckets) % buckets;
    if (bucket(before).site == Site::kCpu) return tensors(before).packed;
  }
  return -1;
}

}  // namespace ballast
