// Pass `gather`: weights split over the ranks (ZeRO stage 3, arXiv 1910.02054 section 5.3; FSDP,
// arXiv 2304.11277). What one rank keeps is its shard. Before a unit (a layer, or a module outside
// the layers) is visited its weights are gathered, one unit ahead where the stack overlaps; after
// the visit they are dropped. A backward leaves whole gradients, which are reduce-scattered into
// the rank's shard, in every micro-batch.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/module_index.h"

namespace ballast {

namespace {

// Modules whose weights or gradients go together: all of one layer, one alone, or those whose
// gradients end in one bucket.
struct Unit {
  int16_t layer = -1;
  ModuleKind module = ModuleKind::kEmbedding;  // of a whole layer: not read
  bool whole_layer = false;
  int32_t bucket = -1;
  auto operator<=>(const Unit&) const = default;
};

struct GatherVisit {
  Unit unit;
  bool backward = false;
  size_t first = 0;
  size_t last = 0;
  std::vector<TensorId> weights;    // sharded ones, in order of first use
  std::vector<TensorId> gradients;  // sharded ones
};

class GatherPass {
 public:
  GatherPass(Graph& graph, const Plan& plan, const StackFacts& facts)
      : graph_(graph),
        plan_(plan),
        facts_(facts),
        group_(replica_group(plan)),
        modules_(graph.modules) {}

  void run() {
    if (scatters_by_bucket()) find_buckets();
    find_visits();
    shard();
    for (GatherVisit& visit : visits_) {
      const auto lies_here = [&](TensorId tensor) { return ranks_of(graph_.tensor(tensor)) == 1; };
      std::erase_if(visit.weights, lies_here);
      std::erase_if(visit.gradients, lies_here);
    }
    Insertions insertions;
    for (size_t i = 0; i < visits_.size(); ++i) {
      if (!visits_[i].weights.empty()) gather(i, insertions);
      if (!visits_[i].gradients.empty()) scatter(visits_[i], insertions);
    }
    graph_.step.ops = insertions.apply(std::move(graph_.step.ops));
    if (facts_.live_elements > 0) gathered_ahead();
    graph_.buckets = buckets_of(graph_.modules, plan_.optimizer);
    add_bucket_state(graph_, plan_, facts_);
  }

 private:
  bool scatters_by_bucket() const {
    return facts_.scatters_by_bucket && plan_.optimizer.sync == SyncMode::kSpeculate;
  }

  // By module: the bucket that its gradient ends in, which is the first that wants it.
  void find_buckets() {
    std::vector<Module> shards = graph_.modules;
    shard_modules(shards, group_.ranks);
    bucket_of_.assign(shards.size(), -1);
    const std::vector<Bucket> buckets = buckets_of(shards, plan_.optimizer);
    for (size_t b = buckets.size(); b-- > 0;) {
      for (const Bucket::Piece& piece : buckets[b].pieces) {
        bucket_of_[static_cast<size_t>(piece.module)] = static_cast<int32_t>(b);
      }
    }
  }

  // Gradients are scattered by layer, or by bucket; a framework that works tensor by tensor fetches
  // the weights of a module in a hook of that module.
  Unit unit_of(const Tensor& tensor, Role role) const {
    if (role == Role::kParameterGradient && !bucket_of_.empty()) {
      return {.bucket = bucket_of_[static_cast<size_t>(modules_.of(tensor.label))]};
    }
    const bool alone = role == Role::kWeight && facts_.stage3_copies_by_tensor;
    if (alone || tensor.label.layer < 0)
      return {tensor.label.layer, tensor.label.module, false, -1};
    return {tensor.label.layer, ModuleKind::kEmbedding, true, -1};
  }

  // Of a bucket that of the first gradient which lies in it.
  Label label_of(const GatherVisit& visit) const {
    if (visit.unit.bucket < 0) return {visit.unit.layer, visit.unit.module, -1, -1};
    const Label& first = graph_.tensor(visit.gradients.front()).label;
    return {first.layer, first.module, -1, -1};
  }

  void find_visits() {
    std::map<std::tuple<Unit, int16_t, bool>, size_t> open;
    const std::vector<Op>& ops = graph_.step.ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      for (const Access& access : ops[i].accesses) {
        const bool weight = access.role == Role::kWeight;
        if (!weight && access.role != Role::kParameterGradient) continue;
        const Unit unit = unit_of(graph_.tensor(access.tensor), access.role);
        const bool backward = ops[i].phase != Phase::kForward;
        const auto [found, is_new] =
            open.try_emplace({unit, ops[i].label.micro_batch, backward}, visits_.size());
        if (is_new) visits_.push_back({unit, backward, i, i, {}, {}});
        GatherVisit& visit = visits_[found->second];
        visit.last = i;
        std::vector<TensorId>& list = weight ? visit.weights : visit.gradients;
        if (std::find(list.begin(), list.end(), access.tensor) == list.end()) {
          list.push_back(access.tensor);
        }
      }
    }
  }

  void shard() {
    shard_modules(graph_.modules, group_.ranks);
    for (Tensor& tensor : graph_.tensors) {
      if (tensor.kind != TensorKind::kWeight && tensor.kind != TensorKind::kGradient) continue;
      tensor.elements = div_ceil(tensor.elements, ranks_of(tensor));
    }
  }

  // That share a module's weights, of the module that a tensor belongs to.
  int64_t ranks_of(const Tensor& tensor) const {
    return sharing_of(graph_.module(modules_.of(tensor.label)), group_.ranks);
  }

  TensorId whole_of(TensorId shard, TensorKind kind, Category category) {
    Tensor tensor = graph_.tensor(shard);
    tensor.kind = kind;
    tensor.category = category;
    const Module& module = graph_.module(modules_.of(tensor.label));
    const bool is_known = whole_count(module) > module.count;  // else tensor ranks cut it as well
    tensor.elements = is_known ? whole_count(module) : tensor.elements * ranks_of(tensor);
    return add_tensor(graph_, tensor);
  }

  void rename(const GatherVisit& visit, const std::unordered_map<TensorId, TensorId>& whole,
              Role role) {
    // Recomputed operations of a micro-batch belong to its backward, whose range this is.
    for (size_t i = visit.first; i <= visit.last; ++i) {
      Op& op = graph_.step.ops[i];
      if ((op.phase != Phase::kForward) != visit.backward) continue;
      for (Access& access : op.accesses) {
        if (access.role != role) continue;
        if (const auto found = whole.find(access.tensor); found != whole.end()) {
          access.tensor = found->second;
        }
      }
    }
  }

  void gather(size_t index, Insertions& insertions) {
    const GatherVisit& visit = visits_[index];
    std::unordered_map<TensorId, TensorId> whole;
    std::vector<Access> accesses;
    Bytes bytes;
    for (const TensorId shard : visit.weights) {
      const TensorId here = whole_of(shard, TensorKind::kGathered, Category::kWeights);
      whole.emplace(shard, here);
      accesses.push_back(read(shard, Role::kWeight));
      accesses.push_back(write(here, Role::kDestination));
      bytes += graph_.tensor(here).bytes();
    }
    rename(visit, whole, Role::kWeight);
    const bool ahead = facts_.weight_overlap != Overlap::kNone;
    const size_t position = index > 0 && ahead ? visits_[index - 1].first : visit.first;
    if (ahead) wait_for_computation_before(position, accesses);
    const CollectiveWork work{CollectiveKind::kAllGather, bytes, group_.ranks, group_.stride};
    const Label label{visit.unit.layer, visit.unit.module, -1, -1};
    Op made =
        collective_op(LaneKind::kDataNetwork, work, Phase::kFetch, label, std::move(accesses));
    if (!ahead) made.lane = lane_of(0, LaneKind::kCompute);
    std::optional<Op> joined;
    if (facts_.stage3_copies_by_tensor) {
      joined = join(made, visit, bytes);
    } else if (facts_.gather_bytes > 0) {
      joined = copied_out(made);
    }
    insertions.before(position, std::move(made));
    if (joined) insertions.before(visit.first, *std::move(joined));
  }

  // What has been gathered ahead, as far as it goes: from the first computation to the last.
  void gathered_ahead() {
    std::set<TensorId> shards;
    for (const GatherVisit& visit : visits_) {
      shards.insert(visit.weights.begin(), visit.weights.end());
    }
    int64_t whole = 0;
    for (const TensorId shard : shards) {
      whole += graph_.tensor(shard).elements * ranks_of(graph_.tensor(shard));
    }
    if (whole == 0) return;
    Tensor tensor = graph_.tensor(*shards.begin());
    tensor.kind = TensorKind::kArriving;
    tensor.category = Category::kWeights;
    tensor.elements = std::min(whole, facts_.live_elements);
    const TensorId ahead = add_tensor(graph_, tensor);
    const auto computes = [](const Op& op) { return kind_of(op.lane) == LaneKind::kCompute; };
    std::vector<Op>& ops = graph_.step.ops;
    std::find_if(ops.begin(), ops.end(), computes)
        ->accesses.push_back(write(ahead, Role::kScratch));
    std::find_if(ops.rbegin(), ops.rend(), computes)
        ->accesses.push_back(read(ahead, Role::kScratch));
  }

  // The partitions of every rank arrive side by side, and are concatenated into tensors (DeepSpeed,
  // runtime/zero/partition_parameters.py, AllGatherCoalescedHandle.wait).
  Op join(Op& gather, const GatherVisit& visit, Bytes bytes) {
    Tensor partitions = graph_.tensor(visit.weights.front());
    partitions.kind = TensorKind::kArriving;
    partitions.category = Category::kStaging;
    partitions.elements = bytes.count / size_of(partitions.dtype);
    const TensorId arriving = add_tensor(graph_, partitions);
    Op op = gather;
    op.kind = OpKind::kUnpack;
    op.lane = lane_of(0, LaneKind::kCompute);
    op.work = elementwise(partitions.elements, partitions.dtype, partitions.dtype, Site::kGpu);
    op.accesses = {read(arriving, Role::kSource)};
    const auto destination = [](const Access& access) { return access.role == Role::kDestination; };
    std::copy_if(gather.accesses.begin(), gather.accesses.end(), std::back_inserter(op.accesses),
                 destination);
    std::erase_if(gather.accesses, destination);
    gather.accesses.push_back(write(arriving, Role::kDestination));
    return op;
  }

  // Each tensor's parts, out of what each rank sent (torch/distributed/fsdp/_fully_shard/
  // _fsdp_collectives.py, foreach_all_gather_copy_out): where memory is reused as soon as it is
  // read, the tensors take the place of what arrived.
  Op copied_out(const Op& gather) const {
    Op op = gather;
    op.kind = OpKind::kUnpack;
    op.lane = lane_of(0, LaneKind::kCompute);
    op.accesses.clear();
    int64_t elements = 0;
    DType type = plan_.dtype;
    for (const Access& access : gather.accesses) {
      if (access.role != Role::kDestination) continue;
      op.accesses.push_back(update(access.tensor, Role::kDestination));
      elements += graph_.tensor(access.tensor).elements;
      type = graph_.tensor(access.tensor).dtype;
    }
    BucketWork work = elementwise(elements, type, type, Site::kGpu);
    work.moved = {elements * facts_.gather_bytes};
    op.work = work;
    return op;
  }

  // What passes of their own do to gradients before they are scattered, where they lie.
  Op laid_out(const Op& scatter) const {
    Op op = scatter;
    op.kind = OpKind::kPack;
    op.lane = lane_of(0, LaneKind::kCopyOut);
    op.accesses.clear();
    int64_t elements = 0;
    DType type = plan_.dtype;
    for (const Access& access : scatter.accesses) {
      if (access.role != Role::kSource) continue;
      op.accesses.push_back(update(access.tensor, Role::kSource));
      elements += graph_.tensor(access.tensor).elements;
      type = reduced_type(graph_.tensor(access.tensor));
    }
    BucketWork work = elementwise(elements, type, type, Site::kGpu);
    work.moved = {elements * layout_bytes(facts_)};
    op.work = work;
    return op;
  }

  // Gradients are concatenated by the rank that they go to, and divided by the number of ranks, in
  // two passes (the same, runtime/comm/coalesced_collectives.py, reduce_scatter_coalesced).
  Op pack(Op& scatter, const GatherVisit& visit, Bytes bytes) {
    Tensor partitions = graph_.tensor(visit.gradients.front());
    partitions.kind = TensorKind::kPacked;
    partitions.category = Category::kStaging;
    partitions.elements = bytes.count / size_of(partitions.dtype);
    const TensorId leaving = add_tensor(graph_, partitions);
    Op op = scatter;
    op.kind = OpKind::kPack;
    op.lane = lane_of(0, LaneKind::kCopyOut);
    BucketWork work =
        elementwise(2 * partitions.elements, partitions.dtype, partitions.dtype, Site::kGpu);
    if (layout_bytes(facts_) > 0) work.moved = {partitions.elements * layout_bytes(facts_)};
    op.work = work;
    op.accesses = {write(leaving, Role::kDestination)};
    const auto source = [](const Access& access) { return access.role == Role::kSource; };
    std::copy_if(scatter.accesses.begin(), scatter.accesses.end(), std::back_inserter(op.accesses),
                 source);
    std::erase_if(scatter.accesses, source);
    scatter.accesses.push_back(read(leaving, Role::kSource));
    return op;
  }

  // Lanes are bound by what they touch, not by the order of the program: a token that the last
  // computation before `position` leaves keeps a gather from running further ahead.
  void wait_for_computation_before(size_t position, std::vector<Access>& accesses) {
    for (size_t i = position; i-- > 0;) {
      Op& before = graph_.step.ops[i];
      if (kind_of(before.lane) != LaneKind::kCompute) continue;
      hand_token(graph_, before.accesses, accesses);
      return;
    }
  }

  bool sums_whole() const { return facts_.sums_whole_gradients && plan_.accumulation() > 1; }

  DType reduced_type(const Tensor& gradient) const {
    return facts_.reduction == GradientPrecision::kF32 ? DType::kF32 : gradient.dtype;
  }

  // The whole gradient of a shard: of one micro-batch, or the sum of all so far. Where a framework
  // keeps its shard in 32 bits and reduces in the type of the weights, a backward leaves that type
  // (torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook: the reduced shard is cast).
  TensorId whole_gradient(TensorId shard) {
    if (!sums_whole()) {
      const TensorId whole = whole_of(shard, TensorKind::kFullGradient, Category::kGradients);
      const bool stays_wide =
          facts_.reduction == GradientPrecision::kF32 || plan_.gradients == GradientFormat::kF32;
      if (!stays_wide) graph_.tensor(whole).dtype = plan_.dtype;
      return whole;
    }
    const auto [sum, is_new] = sums_.try_emplace(shard, -1);
    if (is_new) {
      sum->second = whole_of(shard, TensorKind::kFullGradient, Category::kGradients);
      graph_.tensor(sum->second).dtype = reduced_type(graph_.tensor(shard));
    }
    return sum->second;
  }

  void scatter(const GatherVisit& visit, Insertions& insertions) {
    std::unordered_map<TensorId, TensorId> whole;
    std::vector<Access> accesses;
    Bytes bytes;
    const bool last = graph_.step.ops[visit.first].label.micro_batch == plan_.accumulation() - 1;
    for (const TensorId shard : visit.gradients) {
      const TensorId here = whole_gradient(shard);
      whole.emplace(shard, here);
      if (sums_whole() && !last) continue;
      accesses.push_back(read(here, Role::kSource));
      const bool adds = !written_.insert(shard).second;
      accesses.push_back(
          {shard, Role::kParameterGradient, adds ? AccessMode::kReadWrite : AccessMode::kWrite, 0});
      const Tensor& tensor = graph_.tensor(here);
      bytes += bytes_of(tensor.elements, reduced_type(tensor));
    }
    rename(visit, whole, Role::kParameterGradient);
    if (sums_whole() && !last) return;
    // The first writer of this micro-batch overwrites what the one before left behind.
    if (!sums_whole()) overwrite_first(visit, whole);
    if (facts_.reduce_buffer_elements > 0) accesses.push_back(in_buffer());
    const CollectiveWork work{CollectiveKind::kReduceScatter, bytes, group_.ranks, group_.stride};
    Op made = collective_op(LaneKind::kDataNetwork, work, Phase::kOptimizer, label_of(visit),
                            std::move(accesses));
    if (facts_.gradient_overlap == Overlap::kNone) made.lane = lane_of(0, LaneKind::kCompute);
    if (facts_.stage3_copies_by_tensor) {
      insertions.after(visit.last, pack(made, visit, bytes));
    } else if (layout_bytes(facts_) > 0) {
      insertions.after(visit.last, laid_out(made));
    }
    std::optional<Op> summed;
    if (copies_group(plan_).ranks > 1) summed = sum_over_copies(made, visit, bytes);
    insertions.after(visit.last, std::move(made));
    if (summed) insertions.after(visit.last, *std::move(summed));
  }

  // Read before it is written, so that it is there all the time.
  Access in_buffer() {
    if (buffer_ < 0) {
      Tensor tensor;
      tensor.kind = TensorKind::kPacked;
      tensor.category = Category::kStaging;
      tensor.place = Place::kHbm;
      tensor.dtype = plan_.dtype;
      tensor.elements = facts_.reduce_buffer_elements;
      buffer_ = add_tensor(graph_, tensor);
    }
    return update(buffer_, Role::kScratch);
  }

  // Ranks with the same shard add up what their groups have, in every backward (FSDP's hybrid
  // sharding: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce).
  Op sum_over_copies(const Op& scatter, const GatherVisit& visit, Bytes bytes) const {
    const RankGroup copies = copies_group(plan_);
    Op op = scatter;
    op.work = CollectiveWork{CollectiveKind::kAllReduce,
                             {div_ceil(bytes.count, group_.ranks)},
                             copies.ranks,
                             copies.stride};
    op.accesses.clear();
    for (const TensorId shard : visit.gradients) {
      op.accesses.push_back(update(shard, Role::kParameterGradient));
    }
    return op;
  }

  // Of a module with several products each writes a part of its own.
  void overwrite_first(const GatherVisit& visit,
                       const std::unordered_map<TensorId, TensorId>& whole) {
    for (const auto& [shard, here] : whole) {
      std::set<std::pair<ChainPart, bool>> written;
      bool found = false;
      for (size_t i = visit.first; i <= visit.last; ++i) {
        Op& op = graph_.step.ops[i];
        for (Access& access : op.accesses) {
          if (access.tensor != here) continue;
          if (!std::exchange(found, true)) access.mode = AccessMode::kWrite;
          auto* const gemm = std::get_if<GemmWork>(&op.work);
          if (gemm == nullptr) continue;
          if (written.emplace(op.label.part, gemm->experts > 0).second) gemm->accumulate = false;
        }
      }
    }
  }

  Graph& graph_;
  const Plan& plan_;
  const StackFacts& facts_;
  RankGroup group_;
  const ModuleIndex modules_;
  std::vector<int32_t> bucket_of_;   // by module, where gradients are scattered by bucket
  std::vector<GatherVisit> visits_;  // by first use
  std::set<TensorId> written_;
  std::map<TensorId, TensorId> sums_;  // shard -> whole sum of the micro-batches
  TensorId buffer_ = -1;
};

}  // namespace

Graph gather_pass(Graph graph, const Plan& plan, const StackFacts& facts) {
  GatherPass(graph, plan, facts).run();
  return graph;
}

}  // namespace ballast
