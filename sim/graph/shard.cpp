// Pass `shard`: optimizer state split over the data-parallel ranks (ZeRO stages 1 and 2,
// arXiv 1910.02054). Ranks are symmetric, so the graph is that of one rank: gradients of a bucket
// are reduce-scattered before they leave the GPU, every rank steps its shard, and weights are
// all-gathered after they come home. Traffic to the CPU is 1/P of the bucket on each rank.
#include "sim/graph/build.h"
#include "sim/graph/rewrite.h"

namespace ballast {

namespace {

bool is_sharded(const Tensor& tensor) {
  switch (tensor.kind) {
    case TensorKind::kMaster:
    case TensorKind::kMoment1:
    case TensorKind::kMoment2:
    case TensorKind::kUndoRecord:
    case TensorKind::kBucketGradient:
    case TensorKind::kBucketGradientFp32:
    case TensorKind::kBucketWeights:
      return true;
    default:
      return false;
  }
}

class Shard {
 public:
  Shard(Graph& graph, int64_t ranks) : graph_(graph), ranks_(ranks) {}

  void run() {
    for (Tensor& tensor : graph_.tensors) {
      if (is_sharded(tensor)) tensor.elements = div_ceil(tensor.elements, ranks_);
    }
    graph_.step.ops = rewrite(std::move(graph_.step.ops));
    graph_.repair.ops = rewrite(std::move(graph_.repair.ops));
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      if (graph_.step.ops[i].kind == OpKind::kCommit) graph_.commit = static_cast<OpId>(i);
    }
  }

 private:
  std::vector<Op> rewrite(std::vector<Op> ops) {
    std::vector<Op> result;
    for (Op& op : ops) {
      if (op.kind == OpKind::kCopy && op.phase != Phase::kOffload && op.phase != Phase::kReload &&
          moves_shard(op)) {
        shard_copy(std::move(op), result);
      } else if (auto* work = std::get_if<BucketWork>(&op.work);
                 work != nullptr && op.kind != OpKind::kPack && op.kind != OpKind::kUnpack) {
        work->elements = div_ceil(work->elements, ranks_);
        work->moved = {div_ceil(work->moved.count, ranks_)};
        gpu_bucket(std::move(op), result);
      } else {
        result.push_back(std::move(op));
      }
    }
    return result;
  }

  // Everything but the handful of norms.
  bool moves_shard(const Op& op) const {
    for (const Access& access : op.accesses) {
      if (graph_.tensors[static_cast<size_t>(access.tensor)].kind == TensorKind::kNormPartials) {
        return false;
      }
    }
    return true;
  }

  Op collective(CollectiveKind kind, const Op& like, Bytes bytes,
                std::vector<Access> accesses) const {
    Op op;
    op.kind = OpKind::kCollective;
    op.phase = like.phase;
    op.lane = lane_of(device_of(like.lane), LaneKind::kNetwork);
    op.label = like.label;
    op.work = CollectiveWork{kind, bytes, ranks_};
    op.accesses = std::move(accesses);
    return op;
  }

  // Out: reduce-scatter into a shard that is copied. In: a shard is copied, then all-gathered.
  void shard_copy(Op op, std::vector<Op>& result) {
    CopyWork& work = std::get<CopyWork>(op.work);
    const Bytes whole = work.bytes;
    work.bytes = {div_ceil(whole.count, ranks_)};
    const bool out = work.direction == CopyDirection::kDeviceToHost;
    std::vector<Access> far;
    for (Access& access : op.accesses) {
      if (access.role == (out ? Role::kSource : Role::kDestination)) far.push_back(access);
    }
    std::erase_if(op.accesses, [&](const Access& access) {
      return access.role == (out ? Role::kSource : Role::kDestination);
    });
    Tensor staging = graph_.tensors[static_cast<size_t>(far.front().tensor)];
    staging.category = Category::kStaging;
    staging.kind = out ? TensorKind::kPacked : TensorKind::kArriving;
    staging.copies = 1;
    staging.label = op.label;
    staging.elements = div_ceil(work.bytes.count, size_of(staging.dtype));
    const TensorId shard = add_tensor(graph_, staging);
    if (out) {
      far.push_back(write(shard, Role::kDestination));
      result.push_back(collective(CollectiveKind::kReduceScatter, op, whole, std::move(far)));
      op.accesses.push_back(read(shard, Role::kSource));
      result.push_back(std::move(op));
    } else {
      op.accesses.push_back(write(shard, Role::kDestination));
      far.push_back(read(shard, Role::kSource));
      Op gather = collective(CollectiveKind::kAllGather, op, whole, std::move(far));
      result.push_back(std::move(op));
      result.push_back(std::move(gather));
    }
  }

  // A bucket stepped on the GPU: gradients are reduced in place before its norm, the stepped
  // shard is gathered after its Adam.
  void gpu_bucket(Op op, std::vector<Op>& result) {
    const bool on_gpu = std::get<BucketWork>(op.work).site == Site::kGpu;
    const bool norm = op.kind == OpKind::kSumOfSquares;
    if (!on_gpu || (!norm && op.kind != OpKind::kAdam)) {
      result.push_back(std::move(op));
      return;
    }
    std::vector<Access> shared;
    Bytes bytes;
    for (const Access& access : op.accesses) {
      if (access.role != (norm ? Role::kSource : Role::kDestination)) continue;
      Access in_place = access;
      in_place.mode = AccessMode::kReadWrite;
      shared.push_back(in_place);
    }
    const Bucket& bucket = graph_.buckets[static_cast<size_t>(op.label.bucket)];
    const BucketWork& work = std::get<BucketWork>(op.work);
    bytes = bytes_of(bucket.count, norm ? work.from : work.to);
    Op exchange = collective(norm ? CollectiveKind::kReduceScatter : CollectiveKind::kAllGather, op,
                             bytes, std::move(shared));
    if (norm) result.push_back(std::move(exchange));
    result.push_back(std::move(op));
    if (!norm) result.push_back(std::move(exchange));
  }

  Graph& graph_;
  int64_t ranks_;
};

}  // namespace

Graph shard_pass(Graph graph, const Plan& plan) {
  if (plan.data > 1) Shard(graph, plan.data).run();
  return graph;
}

}  // namespace ballast
