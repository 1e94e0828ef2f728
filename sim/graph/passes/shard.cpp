// Pass `shard`: optimizer state split over the data-parallel ranks (ZeRO stages 1 and 2,
// arXiv 1910.02054). Ranks are symmetric, so the graph is that of one rank: gradients of a bucket
// are reduce-scattered before they leave the GPU (or all-reduced, StackFacts::reduces_whole), every
// rank steps its shard, and weights are all-gathered after they come home. Traffic to the CPU is
// 1/P of the bucket on each rank. What the GPU steps is exchanged by the optimizer pass; here its
// share of the work is taken.
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

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
    case TensorKind::kReduced:
    case TensorKind::kState:
      return true;
    default:
      return false;
  }
}

class Shard {
 public:
  Shard(Graph& graph, const Plan& plan, const StackFacts& facts)
      : graph_(graph),
        sharing_(replica_group(plan)),
        reducing_(reducing_group(plan, facts)),
        copies_(copies_group(plan)),
        reduces_whole_(facts.reduces_whole),
        undo_(plan.optimizer.undo) {}

  void run() {
    for (Tensor& tensor : graph_.tensors) {
      if (!is_sharded(tensor)) continue;
      if (tensor.kind == TensorKind::kUndoRecord) {
        const Bytes bytes = undo_bytes_of_share(graph_, tensor.label.bucket, undo_, sharing_.ranks);
        tensor.elements = div_ceil(bytes.count, size_of(tensor.dtype));
        continue;
      }
      tensor.elements =
          tensor.kind == TensorKind::kState
              ? share_of_state(tensor.label.bucket, tensor.elements)
              : share_of(shared(tensor.label.bucket), tensor.elements, sharing_.ranks);
    }
    graph_.step.ops = rewrite(std::move(graph_.step.ops), Staging::kOfItsOwn);
    graph_.repair.ops = rewrite(std::move(graph_.repair.ops), Staging::kNone);
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      if (graph_.step.ops[i].kind == OpKind::kCommit) graph_.commit = static_cast<OpId>(i);
    }
  }

 private:
  // Where a shard lies between its copy and its gather. A repair has no memory but what is there:
  // the shard is copied to its place among the others.
  enum class Staging : uint8_t { kOfItsOwn, kNone };

  std::vector<Op> rewrite(std::vector<Op> ops, Staging staging) {
    std::vector<Op> result;
    result.reserve(ops.size() + ops.size() / 8);
    for (Op& op : ops) {
      if (moves_state(op)) {
        share_moved(op);
        result.push_back(std::move(op));
        continue;
      }
      if (op.kind == OpKind::kCopy && op.phase != Phase::kOffload && op.phase != Phase::kReload &&
          moves_shard(op)) {
        if (staging == Staging::kNone) {
          copy_home_in_place(std::move(op), result);
        } else {
          shard_copy(std::move(op), result);
        }
        continue;
      }
      auto* work = std::get_if<BucketWork>(&op.work);
      if (work != nullptr && op.kind != OpKind::kPack && op.kind != OpKind::kUnpack) {
        const int32_t bucket = op.label.bucket;
        const bool leaves = op.kind == OpKind::kCast && work->site == Site::kGpu;
        if (leaves) scatter(op, bytes_of(work->elements, work->from), result);
        work->elements = share_of(shared(bucket), work->elements, sharing_.ranks);
        work->moved = {share_of(shared(bucket), work->moved.count, sharing_.ranks)};
        if (op.kind == OpKind::kSumOfSquares) read_shard(op);
      }
      result.push_back(std::move(op));
    }
    return result;
  }

  // State that streams in for its step and out again, from CPU memory or NVMe: no other rank's.
  bool moves_state(const Op& op) const {
    return std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
      return graph_.tensor(access.tensor).kind == TensorKind::kState;
    });
  }

  void share_moved(Op& op) {
    auto* const copy = std::get_if<CopyWork>(&op.work);
    Bytes& bytes = copy != nullptr ? copy->bytes : std::get<IoWork>(op.work).bytes;
    bytes = {share_of_state(op.label.bucket, bytes.count)};
  }

  // Of several arrays as long as the bucket, each of which is shared by itself.
  int64_t share_of_state(int32_t bucket, int64_t whole) {
    const int64_t count = graph_.bucket(bucket).count;
    return div_exact(whole, count) * share_of(shared(bucket), count, sharing_.ranks);
  }

  // Everything but the handful of norms, and sums of gradients that return to be added to: those
  // are this rank's share already, and of it alone.
  bool moves_shard(const Op& op) const {
    if (op.phase == Phase::kOptimizer && kind_of(op.lane) == LaneKind::kCopyIn) return false;
    return !holds_norms(graph_, op);
  }

  // What `op` copies was cast once it was scattered.
  bool was_scattered(const Op& op) const {
    return std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
      return access.role == Role::kSource &&
             graph_.tensor(access.tensor).kind == TensorKind::kReduced;
    });
  }

  static Op collective(CollectiveKind kind, const RankGroup& group, const Op& like, Bytes bytes,
                       std::vector<Access> accesses) {
    const CollectiveWork work{kind, bytes, group.ranks, group.stride};
    return collective_op(LaneKind::kDataNetwork, work, like.phase, like.label, std::move(accesses));
  }

  // Ranks with the same share add up what their groups have.
  Op sum_over_copies(const Op& like, TensorId shard, Bytes bytes) const {
    return collective(CollectiveKind::kAllReduce, copies_, like, bytes,
                      {update(shard, Role::kSource)});
  }

  // A copy home of a repair: into the shard's part of what is gathered then.
  void copy_home_in_place(Op op, std::vector<Op>& result) {
    CopyWork& work = std::get<CopyWork>(op.work);
    CHECK(work.direction == CopyDirection::kHostToDevice);
    const Bytes whole = exchanged_of(shared(op.label.bucket), work.bytes);
    work.bytes = {share_of(shared(op.label.bucket), work.bytes.count, sharing_.ranks)};
    std::vector<Access> gathered;
    for (Access access : op.accesses) {
      if (access.role != Role::kDestination) continue;
      access.mode = AccessMode::kReadWrite;
      gathered.push_back(access);
    }
    Op gather = collective(CollectiveKind::kAllGather, sharing_, op, whole, std::move(gathered));
    result.push_back(std::move(op));
    result.push_back(std::move(gather));
  }

  // Out: reduce-scatter into a shard that is copied. In: a shard is copied, then all-gathered.
  void shard_copy(Op op, std::vector<Op>& result) {
    CopyWork& work = std::get<CopyWork>(op.work);
    const Bytes whole = work.bytes;
    work.bytes = {share_of(shared(op.label.bucket), whole.count, sharing_.ranks)};
    if (work.direction == CopyDirection::kDeviceToHost) {
      if (!was_scattered(op)) scatter(op, whole, result);
      result.push_back(std::move(op));
      return;
    }
    std::vector<Access> far = take(op, Role::kDestination);
    const TensorId shard = staging_of(op, far, TensorKind::kArriving, work.bytes);
    op.accesses.push_back(write(shard, Role::kDestination));
    far.push_back(read(shard, Role::kSource));
    Op gather = collective(CollectiveKind::kAllGather, sharing_, op,
                           exchanged_of(shared(op.label.bucket), whole), std::move(far));
    result.push_back(std::move(op));
    result.push_back(std::move(gather));
  }

  // Before `op`, by which the gradient of a bucket leaves: it reads this rank's share instead.
  void scatter(Op& op, Bytes whole, std::vector<Op>& result) {
    const SharedBucket& bucket = shared(op.label.bucket);
    const Bytes share{share_of(bucket, whole.count, sharing_.ranks)};
    std::vector<Access> far = take(op, Role::kSource);
    const TensorId shard = staging_of(op, far, TensorKind::kPacked, share);
    far.push_back(write(shard, Role::kDestination));
    const CollectiveKind kind =
        reduces_whole_ ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
    result.push_back(collective(kind, reducing_, op, exchanged_of(bucket, whole), std::move(far)));
    if (copies_.ranks > 1 && !reduces_whole_) result.push_back(sum_over_copies(op, shard, share));
    op.accesses.push_back(read(shard, Role::kSource));
    leaving_[op.label.bucket] = shard;
  }

  static std::vector<Access> take(Op& op, Role role) {
    std::vector<Access> taken;
    for (const Access& access : op.accesses) {
      if (access.role == role) taken.push_back(access);
    }
    std::erase_if(op.accesses, [&](const Access& access) { return access.role == role; });
    return taken;
  }

  TensorId staging_of(const Op& op, const std::vector<Access>& far, TensorKind kind, Bytes bytes) {
    Tensor staging = graph_.tensor(far.front().tensor);
    staging.category = Category::kStaging;
    staging.kind = kind;
    staging.copies = 1;
    staging.label = op.label;
    staging.elements = div_ceil(bytes.count, size_of(staging.dtype));
    return add_tensor(graph_, staging);
  }

  // What the CPU steps is summed where it lies before it leaves: what was scattered.
  void read_shard(Op& op) const {
    const auto shard = leaving_.find(op.label.bucket);
    if (shard == leaving_.end()) return;
    for (Access& access : op.accesses) {
      if (access.role == Role::kSource) access.tensor = shard->second;
    }
  }

  // Bucket -1: of all of them.
  const SharedBucket& shared(int32_t bucket) {
    const auto index = static_cast<size_t>(bucket + 1);
    if (shared_.size() <= index) shared_.resize(graph_.buckets.size() + 1);
    std::optional<SharedBucket>& found = shared_[index];
    if (!found) found = shared_bucket(graph_, bucket, sharing_.ranks);
    return *found;
  }

  Graph& graph_;
  RankGroup sharing_;
  RankGroup reducing_;
  RankGroup copies_;  // who have the same share
  bool reduces_whole_;
  UndoKind undo_;
  std::vector<std::optional<SharedBucket>> shared_;  // by bucket and one
  std::map<int32_t, TensorId> leaving_;  // by bucket: this rank's share of its gradient, on the GPU
};

}  // namespace

Graph shard_pass(Graph graph, const Plan& plan, const StackFacts& facts) {
  Shard(graph, plan, facts).run();
  return graph;
}

}  // namespace ballast
