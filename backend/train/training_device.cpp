#include "backend/train/training_device.h"

#include <algorithm>
#include <set>
#include <utility>

#include "backend/execute/bucket_ranges.h"
#include "backend/host/bucket_updates.h"
#include "kernels/threads.h"
#include "sim/base/error.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

constexpr DTypes kFloats = {DType::kF32, DType::kBf16, DType::kF16};
constexpr DTypes kF32 = {DType::kF32};
constexpr DTypes kF64 = {DType::kF64};
constexpr DTypes kTokenIds = {DType::kI32};

void add_modules(Capabilities& all) {
  all.carries_out(OpKind::kLoadBatch, {{{Role::kTokens}, kTokenIds}})
      .carries_out(
          OpKind::kEmbedding,
          {{{Role::kTokens}, kTokenIds},
           {{Role::kWeight, Role::kOutput, Role::kOutputGradient, Role::kParameterGradient},
            kFloats}})
      .carries_out(OpKind::kNorm,
                   {{{Role::kInput, Role::kWeight, Role::kOutput, Role::kOutputGradient,
                      Role::kInputGradient, Role::kResidualGradient, Role::kParameterGradient},
                     kFloats},
                    {{Role::kStatistics}, kF32}})
      .carries_out(OpKind::kGemm,
                   {{{Role::kInput, Role::kWeight, Role::kResidual, Role::kOutput,
                      Role::kOutputGradient, Role::kInputGradient, Role::kParameterGradient},
                     kFloats}})
      .carries_out(
          OpKind::kAttention,
          {{{Role::kInput, Role::kOutput, Role::kOutputGradient, Role::kInputGradient}, kFloats},
           {{Role::kStatistics}, kF32}})
      .carries_out(
          OpKind::kActivation,
          {{{Role::kInput, Role::kOutput, Role::kOutputGradient, Role::kInputGradient}, kFloats}})
      .carries_out(
          OpKind::kLoss,
          {{{Role::kTokens}, kTokenIds}, {{Role::kOutput}, kFloats}, {{Role::kDecision}, kF64}});
}

// Of state: master and moments in fp32.
void add_updates(Capabilities& all) {
  static constexpr std::initializer_list<Role> kState = {Role::kMaster, Role::kMoment1,
                                                         Role::kMoment2};
  all.carries_out(OpKind::kPack, {{{Role::kSource, Role::kDestination}, kFloats}},
                  {WorkVariant::kDirectAccess})
      .carries_out(OpKind::kUnpack, {{{Role::kSource, Role::kDestination}, kFloats}},
                   {WorkVariant::kDirectAccess})
      .carries_out(OpKind::kCast, {{{Role::kSource, Role::kDestination}, kFloats}})
      .carries_out(OpKind::kSumOfSquares,
                   {{{Role::kSource}, kFloats}, {{Role::kNormPartials}, kF64}})
      .carries_out(OpKind::kDecide, {{{Role::kNormPartials, Role::kDecision}, kF64}})
      .carries_out(OpKind::kCommit, {{{Role::kNormPartials, Role::kDecision}, kF64},
                                     {{Role::kUndoRecord, Role::kScratch}, kF32},
                                     {{Role::kGradient, Role::kSource}, kFloats}})
      .carries_out(OpKind::kSnapshot, {{kState, kF32}, {{Role::kUndoRecord}, kF32}})
      .carries_out(OpKind::kUndo,
                   {{kState, kF32}, {{Role::kUndoRecord}, kF32}, {{Role::kGradient}, kFloats}},
                   {WorkVariant::kExactUndo})
      .carries_out(OpKind::kAdam,
                   {{kState, kF32},
                    {{Role::kUndoRecord}, kF32},
                    {{Role::kGradient, Role::kDestination}, kFloats},
                    {{Role::kDecision}, kF64}},
                   {WorkVariant::kExactUndo})
      .carries_out(OpKind::kCopy, {{{Role::kSource, Role::kDestination}, kFloats | kF64}},
                   {WorkVariant::kStateStream});
}

}  // namespace

Capabilities training_capabilities(const std::string& device, const std::string& described) {
  Capabilities all(device, described);
  add_modules(all);
  add_updates(all);
  all.knows_adams([](std::string_view name) { return adam_table(name) != nullptr; });
  return all;
}

bool is_first_rank(const TrainingDevice& device) {
  return device.shares() == nullptr || device.shares()->ranks().rank() == 0;
}

std::vector<std::vector<MemoryUse>> memory_of_ranks(const TrainingDevice& device,
                                                    const std::vector<MemoryUse>& own) {
  if (device.shares() == nullptr) return {own};
  std::vector<double> resident;
  for (const MemoryUse& use : own) resident.push_back(static_cast<double>(use.resident.count));
  const std::vector<double> told = device.shares()->gather_numbers(resident);
  std::vector<std::vector<MemoryUse>> of_ranks;
  for (size_t i = 0; i < told.size(); ++i) {
    if (i % own.size() == 0) of_ranks.emplace_back(own);
    of_ranks.back()[i % own.size()].resident = {static_cast<int64_t>(told[i])};
  }
  return of_ranks;
}

void require(const Capabilities& capabilities, const Training& training) {
  const auto missing = first_missing(training.graph, training.model, training.plan, capabilities);
  if (missing) throw missing->error();
}

// Of tensor-parallel ranks, which have the same losses, those of the first count.
RankViews rank_views(const RankShares& shares, const Plan& plan, const RankOptions& own) {
  return {[&shares, &plan, &own](const std::vector<double>& losses) {
    std::vector<double> told = losses;
    told.push_back(own.wishes ? own.wishes() : 0);
    const std::vector<double> all = shares.gather_numbers(told);
    std::vector<double> of_all;
    int wishes = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if ((i + 1) % told.size() == 0) {
        wishes |= static_cast<int>(all[i]);
      } else if (i / told.size() % static_cast<size_t>(plan.tensor) == 0) {
        of_all.push_back(all[i]);
      }
    }
    if (wishes != 0 && own.agreed) {
      const auto held = static_cast<double>(own.hold());
      const std::vector<double> begun = shares.gather_numbers({&held, 1});
      own.agreed(static_cast<int32_t>(*std::max_element(begun.begin(), begun.end())), wishes);
    }
    return of_all;
  }};
}

BatchRequest batch_request(const Plan& plan, const Op& op, Split split, int32_t step, int rank) {
  BatchRequest request;
  request.split = split;
  if (split == Split::kTraining) {
    request.step = step;
    request.micro_batch = op.label.micro_batch + rank * plan.accumulation();
  } else {
    // One after another of the same step: the sequences do not depend on a micro-batch's size.
    request.micro_batch = step;
  }
  request.sequences = *plan.micro_batch;
  request.length = plan.sequence_length;
  return request;
}

void read_values(TrainingDevice& device, const StateHome& home, int64_t begin,
                 std::span<float> values) {
  const int64_t first_byte = home.begin + begin * size_of(home.dtype);
  if (home.dtype == DType::kF32) {
    device.read(home.tensor, 0, first_byte, std::as_writable_bytes(values));
    return;
  }
  std::vector<std::byte> stored(values.size() * static_cast<size_t>(size_of(home.dtype)));
  device.read(home.tensor, 0, first_byte, stored);
  kernels::best().cast(stored.data(), format_of(home.dtype), values.data(), kernels::Format::kF32,
                       std::ssize(values));
}

std::vector<float> read_values(TrainingDevice& device, const StateHome& home, int64_t begin,
                               int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  read_values(device, home, begin, values);
  return values;
}

void write_values(TrainingDevice& device, const StateHome& home, int64_t begin,
                  std::span<const float> values) {
  const int64_t size = size_of(home.dtype);
  if (home.dtype == DType::kF32) {
    return device.write(home.tensor, 0, home.begin + begin * size, std::as_bytes(values));
  }
  std::vector<std::byte> stored(values.size() * static_cast<size_t>(size));
  kernels::best().cast(values.data(), kernels::Format::kF32, stored.data(), format_of(home.dtype),
                       std::ssize(values));
  device.write(home.tensor, 0, home.begin + begin * size, stored);
}

namespace {

// Parameters [begin, begin + masters.size()) of a bucket.
struct BucketPart {
  const Bucket& bucket;
  int64_t begin = 0;
  std::span<const float> masters;
};

// By tensor: those that weights flow in from. They may be masters of state that rests on NVMe and
// comes in for its step, which nothing has filled before the first one.
std::vector<bool> fetched_tensors(const Graph& graph) {
  std::vector<bool> fetched(graph.tensors.size(), false);
  for (const Op& op : graph.step.ops) {
    if (op.kind == OpKind::kCollective || op.phase != Phase::kFetch) continue;
    for (const Access& access : op.accesses) {
      if (access.role == Role::kSource) fetched[static_cast<size_t>(access.tensor)] = true;
    }
  }
  return fetched;
}

// Also parts that this rank keeps in CPU memory, by (begin of them in the bucket, in what is kept).
void spread_part(TrainingDevice& device, const Spread& spread, const BucketPart& part,
                 const std::vector<bool>& fetched, const std::vector<SharePart>& kept,
                 std::vector<std::byte>& weights) {
  const int64_t size = size_of(spread.dtype);
  const ElementRange here{part.begin, std::ssize(part.masters)};
  weights.resize(part.masters.size() * static_cast<size_t>(size));
  kernels::best().cast(part.masters.data(), kernels::Format::kF32, weights.data(),
                       format_of(spread.dtype), std::ssize(part.masters));
  const auto bytes_of = [&](const ElementRange& range) {
    return std::span(weights).subspan(static_cast<size_t>((range.begin - part.begin) * size),
                                      static_cast<size_t>(range.count * size));
  };
  for (const SharePart& own : kept) {
    const ElementRange both = overlap(own.range, here);
    if (both.count == 0) continue;
    const int64_t to = own.in_share + both.begin - own.range.begin;
    if (part.bucket.weights >= 0) {
      device.write(part.bucket.weights, 0, to * size, bytes_of(both));
    } else if (part.bucket.rest >= 0 && fetched[static_cast<size_t>(part.bucket.master)]) {
      const auto masters = part.masters.subspan(static_cast<size_t>(both.begin - part.begin),
                                                static_cast<size_t>(both.count));
      device.write(part.bucket.master, 0, to * size_of(DType::kF32), std::as_bytes(masters));
    }
  }
  for (const BucketRanges::SpreadPiece& piece : spread.ranges.spread(part.bucket)) {
    const ElementRange both = overlap({piece.offset, piece.count}, here);
    if (both.count == 0) continue;
    for (int copy = 0; copy < spread.graph.tensors[static_cast<size_t>(piece.weight)].copies;
         ++copy) {
      device.write(piece.weight, copy, (piece.begin + both.begin - piece.offset) * size,
                   bytes_of(both));
    }
  }
}

// Ranks exchange what they have of a bucket, one bucket after another, all in the same order.
void spread_shares(TrainingDevice& device, const Spread& spread) {
  const RankShares& shares = *device.shares();
  const std::vector<bool> fetched = fetched_tensors(spread.graph);
  std::vector<std::byte> weights;
  for (const Bucket& bucket : spread.graph.buckets) {
    const int32_t index = spread.graph.tensor(bucket.master).label.bucket;
    std::vector<SharePart> kept = {{Sort::kDense, 0, {0, bucket.count}, 0}};
    if (shares.are_of_buckets()) {
      kept = shares.parts_of(index);
      std::erase_if(kept, [&](const SharePart& one) { return one.owner != shares.rank(one.sort); });
    }
    std::vector<float> masters(static_cast<size_t>(bucket.count));
    for (const SharePart& own : kept) {
      read_values(device, home_of(spread.graph, bucket, StateArray::kMaster), own.in_share,
                  std::span(masters).subspan(static_cast<size_t>(own.range.begin),
                                             static_cast<size_t>(own.range.count)));
    }
    shares.gather(index, masters);
    spread_part(device, spread, {bucket, 0, masters}, fetched, kept, weights);
  }
}

}  // namespace

void spread_weights(TrainingDevice& device, const Spread& spread) {
  if (device.shares() != nullptr) return spread_shares(device, spread);
  constexpr int64_t kAtOnce = int64_t{1} << 18;  // stays in a cache between its three passes
  std::vector<std::pair<const Bucket*, int64_t>> parts;
  for (const Bucket& bucket : spread.graph.buckets) {
    for (int64_t begin = 0; begin < bucket.count; begin += kAtOnce)
      parts.push_back({&bucket, begin});
  }
  const std::vector<bool> fetched = fetched_tensors(spread.graph);
  kernels::Workers crew(spread.threads, kernels::Pinning::kNone);
  crew.for_tiles(std::ssize(parts), 1, [&](int64_t first, int64_t last) {
    std::vector<std::byte> weights;
    for (int64_t i = first; i < last; ++i) {
      const auto& [bucket, begin] = parts[static_cast<size_t>(i)];
      const std::vector<float> masters =
          read_values(device, home_of(spread.graph, *bucket, StateArray::kMaster), begin,
                      std::min(kAtOnce, bucket->count - begin));
      const std::vector<SharePart> all = {{Sort::kDense, 0, {0, bucket->count}, 0}};
      spread_part(device, spread, {*bucket, begin, masters}, fetched, all, weights);
    }
  });
}

namespace {

// What the first micro-batch's forward operations read.
std::vector<bool> read_by_forward(const Graph& graph) {
  std::vector<bool> used(graph.tensors.size(), false);
  for (const Op& op : graph.step.ops) {
    if (op.phase != Phase::kForward || op.label.micro_batch > 0) continue;
    for (const Access& access : op.accesses) {
      if (reads(access)) used[static_cast<size_t>(access.tensor)] = true;
    }
  }
  return used;
}

// Weights are gathered for each visit, and belong to no micro-batch.
bool serves(const Op& op, const std::vector<bool>& used) {
  if (op.kind != OpKind::kCollective || op.phase != Phase::kFetch) return true;
  return std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
    return access.role == Role::kDestination && used[static_cast<size_t>(access.tensor)];
  });
}

// What a copy took out, or a kernel that packed it into CPU memory, back to where it was.
Op returned(Op op) {
  if (auto* const copy = std::get_if<CopyWork>(&op.work)) {
    copy->direction = CopyDirection::kHostToDevice;
  } else {
    auto& kernel = std::get<BucketWork>(op.work);
    op.kind = OpKind::kUnpack;
    std::swap(kernel.from, kernel.to);
    kernel.from_host = std::exchange(kernel.to_host, Bytes{});
  }
  for (Access& access : op.accesses) {
    const bool source = access.role == Role::kSource;
    if (source || access.role == Role::kDestination) {
      access =
          source ? write(access.tensor, Role::kDestination) : read(access.tensor, Role::kSource);
    }
  }
  return op;
}

bool takes_out(const Op& op) {
  const auto* kernel = std::get_if<BucketWork>(&op.work);
  return op.kind == OpKind::kCopy || (op.kind == OpKind::kPack && kernel->to_host.count > 0);
}

}  // namespace

void run_forward(const Graph& graph, int64_t batch, int32_t step,
                 const std::function<void(OpId id, int32_t step)>& run) {
  const std::vector<bool> used = read_by_forward(graph);
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    const bool forward = op.phase == Phase::kForward || op.phase == Phase::kFetch;
    if (!forward || op.label.micro_batch > 0 || !serves(op, used)) continue;
    const bool loads = op.kind == OpKind::kLoadBatch;
    run(static_cast<OpId>(i), loads ? static_cast<int32_t>(batch) : step);
  }
}

void run_norms(const Graph& graph, const std::function<void(const Op& op)>& run) {
  std::set<TensorId> summed;
  for (const Op& op : graph.step.ops) {
    if (op.kind != OpKind::kSumOfSquares) continue;
    for (const Access& access : op.accesses) {
      if (access.mode == AccessMode::kRead) summed.insert(access.tensor);
    }
  }
  const auto took_out = [&](const Op& op) {
    return takes_out(op) &&
           std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
             return access.role == Role::kSource && summed.contains(access.tensor);
           });
  };
  for (const Op& op : graph.step.ops) {
    const bool brings_sums = op.kind == OpKind::kCopy && holds_norms(graph, op);
    if (op.kind == OpKind::kSumOfSquares || brings_sums) run(op);
    if (took_out(op)) run(returned(op));
  }
}

}  // namespace ballast
