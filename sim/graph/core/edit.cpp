#include "sim/graph/core/edit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace ballast {

std::vector<Op> Insertions::apply(std::vector<Op> ops) {
  std::vector<size_t> order(all_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto comes_first = [&](size_t a, size_t b) { return all_[a].first < all_[b].first; };
  // Most passes go through a program once and give what they insert in its order.
  if (!std::is_sorted(order.begin(), order.end(), comes_first)) {
    std::stable_sort(order.begin(), order.end(), comes_first);
  }
  // From the end on, so that all can stay in their memory: programs are large.
  size_t from = ops.size();
  ops.resize(ops.size() + order.size());
  size_t to = ops.size();
  for (auto next = order.rbegin(); next != order.rend(); ++next) {
    auto& [position, inserted] = all_[*next];
    CHECK(position <= from);
    while (from > position) ops[--to] = std::move(ops[--from]);
    ops[--to] = std::move(inserted);
  }
  all_.clear();
  return ops;
}

size_t ahead_of(const std::vector<Op>& ops, size_t position, int64_t count, size_t least) {
  while (count > 0 && position > least) {
    --position;
    if (kind_of(ops[position].lane) == LaneKind::kCompute) --count;
  }
  return position;
}

size_t first_backward(const std::vector<Op>& ops) {
  const auto found =
      std::find_if(ops.begin(), ops.end(), [](const Op& op) { return is_backward(op.phase); });
  return static_cast<size_t>(found - ops.begin());
}

namespace {

// Where the next bucket ends: before element `end` of a module, which lies on a segment's boundary.
struct Cursor {
  int32_t module = 0;
  int64_t end = 0;
};

// As many whole segments as `room` elements hold, from the end of what is left of a module, one at
// the least where `must` says so. Only the last segment of a module is shorter than the others.
enum class Take : uint8_t { kWhatFits, kOneAtLeast };
int64_t take_segments(int64_t end, int64_t room, Take take) {
  const int64_t tail = end % kSegment == 0 ? std::min(end, kSegment) : end % kSegment;
  if (tail > room) return take == Take::kOneAtLeast ? tail : 0;
  return tail + (std::min(end, room) - tail) / kSegment * kSegment;
}

// Visits (module, begin, count) of the pieces of the bucket that ends at the cursor, the last piece
// first, and moves the cursor to its begin. Returns its elements, none where only modules without
// parameters are left.
template <class Visit>
int64_t cut_bucket(const std::vector<Module>& modules, int64_t most, Cursor& cursor,
                   const Visit& visit) {
  int64_t elements = 0;
  while (cursor.module >= 0) {
    const int64_t count = take_segments(cursor.end, most - elements,
                                        elements == 0 ? Take::kOneAtLeast : Take::kWhatFits);
    if (count == 0 && cursor.end > 0) break;
    cursor.end -= count;
    if (count > 0) visit(cursor.module, cursor.end, count);
    elements += count;
    if (cursor.end > 0) break;
    if (--cursor.module >= 0) cursor.end = modules[static_cast<size_t>(cursor.module)].count;
  }
  return elements;
}

Cursor end_of(const std::vector<Module>& modules) {
  return {static_cast<int32_t>(modules.size()) - 1, modules.empty() ? 0 : modules.back().count};
}

Bucket bucket_before(const std::vector<Module>& modules, int64_t most, Cursor& cursor) {
  Bucket bucket;
  bucket.count =
      cut_bucket(modules, most, cursor, [&](int32_t module, int64_t begin, int64_t count) {
        bucket.begin = modules[static_cast<size_t>(module)].flat_offset + begin;
        bucket.segments += div_ceil(count, kSegment);
        bucket.pieces.push_back({module, begin, count, 0});
      });
  std::reverse(bucket.pieces.begin(), bucket.pieces.end());
  int64_t offset = 0;
  for (Bucket::Piece& piece : bucket.pieces) {
    piece.offset = offset;
    offset += piece.count;
  }
  return bucket;
}

int64_t most_elements(Bytes bucket_bytes) { return bucket_bytes.count / size_of(DType::kF32); }

}  // namespace

void shard_modules(std::vector<Module>& modules, int64_t ranks) {
  int64_t offset = 0;
  for (Module& module : modules) {
    module.count = div_ceil(module.count, sharing_of(module, ranks));
    module.flat_offset = offset;
    offset += module.count;
  }
}

std::vector<Bucket> buckets_of(const std::vector<Module>& modules, const OptimizerPlan& optimizer) {
  const int64_t most = most_elements(optimizer.bucket_bytes);
  std::vector<Bucket> buckets;
  Cursor cursor = end_of(modules);
  while (cursor.module >= 0) {
    Bucket bucket = bucket_before(modules, most, cursor);
    if (bucket.count > 0) buckets.push_back(std::move(bucket));
  }
  const auto total = static_cast<int64_t>(buckets.size());
  const int64_t on_gpu = optimizer.placement == OptimizerPlacement::kGpu
                             ? total
                             : std::min(total, optimizer.gpu_buckets.value());
  for (int64_t i = total - on_gpu; i < total; ++i)
    buckets[static_cast<size_t>(i)].site = Site::kGpu;
  return buckets;
}

std::vector<int32_t> last_modules_of_buckets(const std::vector<Module>& modules,
                                             Bytes bucket_bytes) {
  std::vector<int32_t> last_modules;
  const int64_t most = most_elements(bucket_bytes);
  const int64_t whole = std::max<int64_t>(1, most / kSegment) * kSegment;
  Cursor cursor = end_of(modules);
  while (cursor.module >= 0) {
    int32_t last = -1;
    const int64_t elements =
        cut_bucket(modules, most, cursor,
                   [&](int32_t module, int64_t, int64_t) { last = std::max(last, module); });
    if (elements > 0) last_modules.push_back(last);
    // All that lie within one module at once: of large models they are tens of thousands.
    if (cursor.module < 0 || cursor.end <= whole || cursor.end % kSegment != 0) continue;
    const int64_t inside = (cursor.end - 1) / whole;
    last_modules.insert(last_modules.end(), static_cast<size_t>(inside), cursor.module);
    cursor.end -= inside * whole;
  }
  return last_modules;
}

std::vector<Run> runs_of(const std::vector<Module>& modules, const Bucket& bucket) {
  std::vector<Run> runs;
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Bucket::Piece& piece = bucket.pieces[i];
    // Of a matrix that tensor ranks cut: its parameters are not told apart.
    if (modules[static_cast<size_t>(piece.module)].parameters.empty()) {
      runs.push_back(
          {piece.module, static_cast<int32_t>(i), piece.begin, piece.offset, piece.count, true});
    }
    for (const Parameter& parameter : modules[static_cast<size_t>(piece.module)].parameters) {
      const int64_t begin = std::max(parameter.offset, piece.begin);
      const int64_t end = std::min(parameter.offset + parameter.count(), piece.begin + piece.count);
      if (begin >= end) continue;
      Run* last = runs.empty() ? nullptr : &runs.back();
      if (last != nullptr && last->module == piece.module && last->decays == parameter.is_matrix) {
        last->count += end - begin;
      } else {
        runs.push_back({piece.module, static_cast<int32_t>(i), begin,
                        piece.offset + begin - piece.begin, end - begin, parameter.is_matrix});
      }
    }
  }
  return runs;
}

int64_t whole_count(const Module& module) {
  int64_t count = 0;
  for (const Parameter& parameter : module.parameters) count += parameter.count();
  return std::max(count, module.count);
}

Module whole_module(Module module) {
  module.count = whole_count(module);
  return module;
}

Bytes undo_record_bytes(const Run& run) {
  constexpr int64_t kTile = 4096;
  constexpr int64_t kBytesOfTile = kTile + kTile / 8 + 4;
  return {round_up(div_ceil(run.count, kTile) * kBytesOfTile, 64)};
}

Bytes state_bytes(const Graph& graph, const Bucket& bucket) {
  const auto width = [&](TensorId id) { return size_of(graph.tensor(id).dtype); };
  const bool has_master = graph.tensor(bucket.master).elements > 1;
  return {bucket.count * ((has_master ? width(bucket.master) : 0) + width(bucket.moment1) +
                          width(bucket.moment2))};
}

namespace {

// The records of the runs in a piece. What lies in a rank's share of a module differs from rank to
// rank: there is room for a cut at each of the module's runs.
Bytes records_of(const Graph& graph, const Bucket::Piece& piece) {
  const Module& module = graph.modules[static_cast<size_t>(piece.module)];
  const int64_t whole = whole_count(module);
  const bool shared = whole > module.count;
  Bucket bucket;
  bucket.pieces = {shared ? Bucket::Piece{piece.module, 0, whole, 0} : piece};
  const std::vector<Run> runs = runs_of(graph.modules, bucket);
  Bytes bytes;
  if (!shared) {
    for (const Run& run : runs) bytes += undo_record_bytes(run);
    return bytes;
  }
  if (runs.size() > 1) bytes = undo_record_bytes({.count = 1}) * std::ssize(runs);
  return bytes + undo_record_bytes({.count = piece.count});
}

}  // namespace

Bytes undo_bytes(const Graph& graph, const Bucket& bucket, UndoKind kind) {
  if (kind == UndoKind::kSnapshot) {
    return bytes_of(bucket.count, DType::kF32) +
           bytes_of((kSnapshotArrays - 1) * bucket.count, graph.tensor(bucket.moment1).dtype);
  }
  Bytes bytes;
  for (const Bucket::Piece& piece : bucket.pieces) bytes += records_of(graph, piece);
  return bytes;
}

Bytes undo_bytes_of_share(const Graph& graph, int32_t bucket, UndoKind kind, int64_t ranks) {
  const Bucket& all = graph.bucket(bucket);
  const int64_t share = share_of_bucket(graph, bucket, all.count, ranks);
  if (kind == UndoKind::kSnapshot) {
    // Each array is rounded up by itself.
    return bytes_of(share, DType::kF32) +
           bytes_of((kSnapshotArrays - 1) * share, graph.tensor(all.moment1).dtype);
  }
  // A share cuts through runs: each has tiles of its own, of which the last is not full.
  const Bytes cut = undo_record_bytes({.count = 1}) * std::ssize(runs_of(graph.modules, all));
  return std::min(undo_bytes(graph, all, kind), undo_record_bytes({.count = share}) + cut);
}

void compute_after(const std::vector<TensorId>& tensors, std::vector<Op>& ops) {
  for (Op& first : ops) {
    if (kind_of(first.lane) != LaneKind::kCompute) continue;
    for (const TensorId tensor : tensors) first.accesses.push_back(read(tensor, Role::kScratch));
    return;
  }
}

TensorId add_token(Graph& graph, Tensor like) {
  like.kind = TensorKind::kPartial;
  like.category = Category::kWorkspace;
  like.elements = 1;
  return add_tensor(graph, like);
}

bool is_token(const Tensor& tensor) {
  return tensor.kind == TensorKind::kPartial && tensor.dtype == DType::kU8 && tensor.elements == 1;
}

bool moves_parameters(const Graph& graph, const Op& op) {
  const bool phase = op.phase == Phase::kOptimizer || op.phase == Phase::kFetch;
  if (op.kind != OpKind::kCopy || !phase || holds_norms(graph, op)) return false;
  return std::none_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
    return graph.tensor(access.tensor).kind == TensorKind::kState;
  });
}

bool holds_norms(const Graph& graph, const Op& op) {
  return std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
    return graph.tensor(access.tensor).kind == TensorKind::kNormPartials;
  });
}

bool returns_gradients(const Graph& graph, const StackFacts& facts) {
  return facts.speculative_sending != SpeculativeSending::kTwice && keeps_sum_on_cpu(graph, facts);
}

bool keeps_sum_on_cpu(const Graph& graph, const StackFacts& facts) {
  return facts.stage3_returns_gradients &&
         std::any_of(graph.buckets.begin(), graph.buckets.end(),
                     [](const Bucket& bucket) { return bucket.site == Site::kCpu; });
}

void settle_sending(StackFacts& facts, const Plan& plan) {
  const bool offloads = plan.optimizer.placement != OptimizerPlacement::kGpu;
  const bool speculates = plan.optimizer.sync == SyncMode::kSpeculate;
  // Whoever speculates this way does so in its stage 3, also where one rank has nothing to share.
  const bool is_stage3 = plan.zero_stage == 3 || (speculates && plan.replicas() == 1);
  const bool in_stage3 = offloads && is_stage3;
  const bool below = offloads && !is_stage3;
  if (!in_stage3) facts.stage3_returns_gradients = false;
  if (!below) facts.sent_overflow_bytes = 0;
  if (!in_stage3 || speculates) facts.stage3_sending = Stage3Sending::kAhead;
  if (facts.stage3_sending == Stage3Sending::kCastByHost) facts.sends_wide_gradients = false;
  // A plan that is still to be completed has no micro-batch.
  const bool several = plan.micro_batch && plan.accumulation() > 1;
  const bool twice = facts.speculative_sending == SpeculativeSending::kTwice;
  if (!in_stage3 || !speculates || (twice && several)) {
    facts.speculative_sending = SpeculativeSending::kAsWaiting;
  }
}

void hand_token(Graph& graph, std::vector<Access>& before, std::vector<Access>& after) {
  Tensor byte;
  byte.dtype = DType::kU8;
  const TensorId done = add_token(graph, byte);
  before.push_back(write(done, Role::kScratch));
  after.push_back(read(done, Role::kScratch));
}

Op collective_op(LaneKind lane, const CollectiveWork& work, Phase phase, const Label& label,
                 std::vector<Access> accesses) {
  Op op;
  op.kind = OpKind::kCollective;
  op.phase = phase;
  op.lane = lane_of(0, lane);
  op.label = label;
  op.work = work;
  op.accesses = std::move(accesses);
  return op;
}

namespace {

// Of the buckets in CPU memory, those that are stepped on the GPU, spread evenly.
void choose_streams(Graph& graph, double share) {
  double due = 0;
  for (Bucket& bucket : graph.buckets) {
    if (bucket.site != Site::kCpu) continue;
    due += share;
    if (due < 1 - 1e-9) continue;
    due -= 1;
    bucket.site = Site::kGpu;
    bucket.rest = 0;  // given its tensor below
  }
}

}  // namespace

void add_bucket_state(Graph& graph, const Plan& plan, const StackFacts& facts) {
  const bool pure = pure_16_bit(plan, facts);
  const bool nvme = plan.optimizer.placement == OptimizerPlacement::kNvme;
  if (!nvme) choose_streams(graph, plan.optimizer.stream_share);
  for (size_t i = 0; i < graph.buckets.size(); ++i) {
    Bucket& bucket = graph.buckets[i];
    Tensor tensor;
    tensor.place = bucket.site == Site::kGpu ? Place::kHbm : Place::kDram;
    tensor.elements = bucket.count;
    tensor.label.bucket = static_cast<int32_t>(i);
    if (nvme || bucket.rest >= 0) {
      Tensor rest = tensor;
      rest.kind = TensorKind::kState;
      rest.category = Category::kMaster;
      rest.place = nvme ? Place::kNvme : Place::kDram;
      // In 32-bit values: the master, and both moments as they are stored.
      const int64_t width = size_of(DType::kF32) + 2 * size_of(plan.optimizer.moments);
      rest.elements = bucket.count * width / size_of(DType::kF32);
      bucket.rest = add_tensor(graph, rest);
    }
    tensor.category = Category::kMaster;
    tensor.kind = TensorKind::kMaster;
    // Without a master of its own a bucket steps its weights: a token stands for the state.
    if (pure) tensor.elements = 1;
    bucket.master = add_tensor(graph, tensor);
    tensor.elements = bucket.count;
    tensor.dtype = pure ? plan.dtype : plan.optimizer.moments;
    tensor.category = Category::kMoments;
    tensor.kind = TensorKind::kMoment1;
    bucket.moment1 = add_tensor(graph, tensor);
    tensor.kind = TensorKind::kMoment2;
    bucket.moment2 = add_tensor(graph, tensor);
    if (bucket.site == Site::kCpu && cast_on_cpu(plan)) {
      tensor.category = Category::kWeights;
      tensor.kind = TensorKind::kBucketWeights;
      tensor.dtype = plan.dtype;
      bucket.weights = add_tensor(graph, tensor);
    }
  }
}

std::vector<bool> modules_of_flowing_layers(const std::vector<Module>& modules, double share) {
  std::vector<bool> flowing(modules.size(), false);
  int64_t layers = 0;
  for (const Module& module : modules) layers = std::max(layers, module.layer + 1);
  const auto flowing_layers =
      static_cast<int64_t>(std::llround(share * static_cast<double>(layers)));
  for (size_t i = 0; i < modules.size(); ++i) {
    const int64_t layer = modules[i].layer;
    if (layer < 0 || modules[i].count == 0) continue;
    // Layer l flows where the running count l*share steps up: evenly spread over the depth.
    flowing[i] = (layer + 1) * flowing_layers / layers > layer * flowing_layers / layers;
  }
  return flowing;
}

std::vector<bool> flowing_modules(const Graph& graph, const Plan& plan) {
  std::vector<bool> flowing =
      modules_of_flowing_layers(graph.modules, plan.weights.flow_share.value());
  for (const Bucket& bucket : graph.buckets) {
    if (bucket.site == Site::kCpu) continue;
    for (const Bucket::Piece& piece : bucket.pieces) {
      flowing[static_cast<size_t>(piece.module)] = false;
    }
  }
  return flowing;
}

namespace {

// Calls add(elements, ranks that hold the same) for each part of a bucket; of all modules for -1.
template <class Add>
void for_parts(const Graph& graph, int32_t bucket, int64_t ranks, const Add& add) {
  if (bucket < 0) {
    for (const Module& module : graph.modules) add(module.count, sharing_of(module, ranks));
    return;
  }
  for (const Bucket::Piece& piece : graph.bucket(bucket).pieces) {
    add(piece.count, sharing_of(graph.modules[static_cast<size_t>(piece.module)], ranks));
  }
}

}  // namespace

SharedBucket shared_bucket(const Graph& graph, int32_t bucket, int64_t ranks) {
  // By how many ranks share it: each sort is split by itself, and there are two at the most where
  // a rank's experts are as many in every layer.
  std::vector<std::pair<int64_t, int64_t>> counts;
  SharedBucket result;
  for_parts(graph, bucket, ranks, [&](int64_t count, int64_t sharing) {
    const auto found = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& one) { return one.first == sharing; });
    if (found == counts.end()) {
      counts.emplace_back(sharing, count);
    } else {
      found->second += count;
    }
    result.all += count;
    if (sharing > 1) result.exchanged += count;
  });
  result.is_even = counts.size() == 1 && counts.front().first == ranks;
  for (const auto& [sharing, count] : counts) result.kept += div_ceil(count, sharing);
  return result;
}

int64_t share_of(const SharedBucket& bucket, int64_t elements, int64_t ranks) {
  if (bucket.is_even) return div_ceil(elements, ranks);
  if (elements == bucket.all) return bucket.kept;
  const double share = static_cast<double>(bucket.kept) / static_cast<double>(bucket.all);
  return std::min(elements, static_cast<int64_t>(std::ceil(share * static_cast<double>(elements))));
}

int64_t share_of_bucket(const Graph& graph, int32_t bucket, int64_t elements, int64_t ranks) {
  return share_of(shared_bucket(graph, bucket, ranks), elements, ranks);
}

Bytes exchanged_of(const SharedBucket& bucket, Bytes whole) {
  const double bytes = static_cast<double>(bucket.exchanged) / static_cast<double>(bucket.all) *
                       static_cast<double>(whole.count);
  return {std::max<int64_t>(1, std::llround(bytes))};
}

Bytes exchanged_bytes(const Graph& graph, int32_t bucket, Bytes whole, int64_t ranks) {
  return exchanged_of(shared_bucket(graph, bucket, ranks), whole);
}

RankGroup group_of_bucket(const Graph& graph, int32_t bucket, const RankGroup& group) {
  int64_t least = group.ranks;
  int64_t most = 1;
  for_parts(graph, bucket, group.ranks, [&](int64_t, int64_t sharing) {
    least = std::min(least, sharing);
    most = std::max(most, sharing);
  });
  if (least != most) return group;
  return {most, group.stride * (group.ranks / most)};
}

}  // namespace ballast
