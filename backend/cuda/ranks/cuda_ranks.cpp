#include "backend/cuda/ranks/cuda_ranks.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_lanes.h"
#include "sim/base/error.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

// What rounding takes at a time.
constexpr int64_t kRoundedAtOnce = int64_t{1} << 20;  // values

bool exchanges_data(const Op& op) {
  return op.kind == OpKind::kCollective && kind_of(op.lane) == LaneKind::kDataNetwork;
}

bool sums_gradients(const Op& op) {
  return exchanges_data(op) && std::get<CollectiveWork>(op.work).kind != CollectiveKind::kAllGather;
}

DType stored_in(const OperationArguments& arguments, const Op& op, int32_t step) {
  const Argument source = arguments.find(op, Role::kSource, step);
  if (source.tensor != nullptr) return source.tensor->dtype;
  return arguments.find(op, Role::kParameterGradient, step).tensor->dtype;
}

// Parts that lie one after another, whoever owns them: of an all-reduce all are everybody's.
std::vector<ValueRun> runs_of_all(std::span<const SummedPart> parts, int64_t size) {
  std::vector<ValueRun> runs;
  for (const SummedPart& part : parts) {
    CHECK(part.from == part.to && !part.adds);
    const bool joins = !runs.empty() && runs.back().values + runs.back().count * size == part.to;
    if (!joins) runs.push_back({part.to, 0});
    runs.back().count += part.count;
  }
  return runs;
}

}  // namespace

CudaRanks::CudaRanks(const Setting& setting, std::optional<NcclFunctions> functions)
    : at_(setting),
      place_(place_of(setting.plan, setting.shares.ranks().rank())),
      functions_(std::move(functions)),
      norms_(setting.shares.are_split()
                 ? std::optional<RankNorms>(std::in_place, setting.graph, setting.arguments,
                                            setting.shares)
                 : std::nullopt),
      slices_(setting.plan.tensor > 1
                  ? std::optional<ParameterSlices>(std::in_place, setting.graph, setting.model,
                                                   setting.plan, setting.shares.ranks())
                  : std::nullopt),
      split_norms_(slices_ ? std::optional<SplitNorms>(std::in_place, setting.graph, setting.shares,
                                                       setting.plan, *slices_)
                           : std::nullopt),
      asides_(asides_of()),
      aside_on_gpu_(setting.runtime, CudaMemoryKind::kDevice, bytes_aside(), "values of norms"),
      aside_on_host_(setting.runtime, CudaMemoryKind::kPinned, bytes_aside(), "values of norms"),
      scratch_(setting.runtime, CudaMemoryKind::kDevice, scratch_of(setting), "sums over ranks"),
      told_(setting.runtime, CudaMemoryKind::kDevice, told_of_loss() * setting.plan.tensor,
            "what ranks tell of logits"),
      norm_scratch_(setting.runtime, CudaMemoryKind::kDevice, norm_scratch(),
                    "gradients of norms") {
  find_alike_aside();
  if (!functions_) return;
  nccl_.emplace(*functions_, at_.runtime, at_.shares.ranks(), groups());
}

// Those of the graph's collectives, and within operations, in one order on every rank.
std::vector<NcclGroup> CudaRanks::groups() const {
  std::vector<NcclGroup> all = nccl_groups_of(at_.graph);
  if (norm_scratch().count > 0) {
    all.push_back({lane_of(0, LaneKind::kCompute), tensor_group(at_.plan)});
  }
  return all;
}

// In the order of the program; a bucket's norm is taken once a step.
CudaRanks::Asides CudaRanks::asides_of() const {
  Asides all;
  int64_t begin = 0;
  for (const Op& op : at_.graph.step.ops) {
    if (op.kind != OpKind::kSumOfSquares || !CudaLanes::queues(op.lane)) continue;
    Aside aside;
    aside.begin = begin;
    aside.format = format_of(stored_in(at_.arguments, op, 0));
    if (norms_) {
      for (const CutRange& range : at_.ranges.cuts(op, 0)) aside.cut += range.count;
    }
    aside.count = aside.cut;
    if (split_norms_)
      aside.alike = split_norms_->alike(at_.ranges.own_segments(op, 0), aside.format);
    for (const SplitNorms::Alike& part : aside.alike) aside.count += part.values.count;
    if (aside.count == 0) continue;
    begin += aside.bytes().count;
    CHECK(all.emplace(op.label.bucket, std::move(aside)).second);
  }
  return all;
}

Bytes CudaRanks::bytes_aside() const {
  int64_t end = 0;
  for (const auto& [bucket, aside] : asides_) {
    end = std::max(end, aside.begin + aside.bytes().count);
  }
  return {end};
}

// What a bucket's operation lists on the GPU lies behind its cut values, one after another.
void CudaRanks::find_alike_aside() {
  for (auto& [bucket, aside] : asides_) {
    const int64_t size = kernels::bytes_of(aside.format);
    const std::byte* next = aside_on_host_.data() + aside.begin + aside.cut * size;
    for (SplitNorms::Alike& part : aside.alike) {
      part.values.values = next;
      next += part.values.count * size;
    }
  }
}

bool CudaRanks::rounds(const Plan& plan, DType stored) {
  return stored == DType::kF32 && gradient_dtype(plan, {}) != DType::kF32;
}

// Sums that are added to something, of one operation side by side; or what is rounded at a time.
Bytes CudaRanks::scratch_of(const Setting& at) {
  int64_t most = 0;
  for (const Op& op : at.graph.step.ops) {
    if (!sums_gradients(op)) continue;
    const DType stored = stored_in(at.arguments, op, 0);
    int64_t added = 0;
    std::vector<SummedPart> parts;
    if (!is_over_copies(at.plan, op)) parts = at.ranges.summed(op, 0, Sort::kDense);
    for (const SummedPart& part : parts) {
      if (part.adds && part.owner == at.shares.rank(Sort::kDense)) added += part.count;
    }
    most = std::max(most, added * size_of(stored));
    if (rounds(at.plan, stored)) {
      most = std::max(most, kRoundedAtOnce * size_of(gradient_dtype(at.plan, {})));
    }
  }
  return {most};
}

bool CudaRanks::exchanges(const Op& op) const {
  return op.kind == OpKind::kCollective || sums_gradient(op);
}

// Of parameters that every rank has whole, where each has some of the tokens.
bool CudaRanks::sums_gradient(const Op& op) const {
  return op.kind == OpKind::kNorm && is_backward(op.phase) && at_.plan.tensor > 1 &&
         at_.plan.tensor_sequence;
}

void CudaRanks::exchange(const Op& op, int32_t step, CudaStream stream) {
  if (sums_gradient(op)) return norm(op, step, stream);
  if (exchanges_data(op)) return exchange_data(op, step, stream);
  CHECK(kind_of(op.lane) == LaneKind::kTensorNetwork);
  if (op.label.module == ModuleKind::kLoss) return exchange_loss(op, step, stream);
  exchange_rows(op, step, stream);
}

// Without the others a sum is this rank's contribution, as LoneRank has it.
void CudaRanks::exchange_rows(const Op& op, int32_t step, CudaStream stream) {
  const CollectiveWork& work = std::get<CollectiveWork>(op.work);
  const NcclGroup group{op.lane, tensor_group(at_.plan)};
  CHECK(work.ranks == group.ranks.ranks && work.stride == group.ranks.stride);
  const Argument from = at_.arguments.find(op, Role::kSource, step);
  const Argument to = at_.arguments.find(op, Role::kDestination, step);
  const kernels::Format stored = format_of(from.tensor->dtype);
  const int64_t elements = to.tensor->elements;
  const bool gathers = work.kind == CollectiveKind::kAllGather;
  const bool scatters = work.kind == CollectiveKind::kReduceScatter;
  CHECK(gathers || scatters || work.kind == CollectiveKind::kAllReduce);
  const int64_t given = gathers    ? elements / at_.plan.tensor
                        : scatters ? elements * at_.plan.tensor
                                   : elements;
  CHECK(from.tensor->elements == given);
  if (!nccl_) {
    const Bytes own = std::min(from.tensor->bytes(), to.tensor->bytes());
    return at_.runtime.copy({to.data, from.data, own, CopyKind::kDeviceToDevice}, stream);
  }
  if (gathers) {
    return nccl_->all_gather(group, from.data, to.data, from.tensor->bytes().count, stream);
  }
  if (scatters) return nccl_->reduce_scatter(group, from.data, to.data, elements, stored, stream);
  nccl_->all_reduce(group, from.data, to.data, elements, stored, stream);
}

Bytes CudaRanks::told_of_loss() const {
  Bytes most;
  for (const Op& op : at_.graph.step.ops) {
    if (op.kind != OpKind::kCollective || op.label.module != ModuleKind::kLoss) continue;
    most = std::max(most, at_.arguments.find(op, Role::kDestination, 0).tensor->bytes());
  }
  return most;
}

void CudaRanks::exchange_loss(const Op& op, int32_t step, CudaStream stream) {
  const int64_t bytes = at_.arguments.find(op, Role::kDestination, step).tensor->bytes().count;
  std::byte* const own = told_.data() + place_.tensor * bytes;
  at_.math.tell_loss(op, at_.arguments, step, own, stream);
  if (nccl_) {
    nccl_->all_gather({op.lane, tensor_group(at_.plan)}, own, told_.data(), bytes, stream);
  } else {
    for (int64_t rank = 0; rank < at_.plan.tensor; ++rank) {
      if (rank == place_.tensor) continue;
      at_.runtime.copy({told_.data() + rank * bytes, own, {bytes}, CopyKind::kDeviceToDevice},
                       stream);
    }
  }
  at_.math.merge_loss(op, at_.arguments, step, told_.data(), stream);
}

// A gradient in fp32, twice: this one's part, and what it is added to.
Bytes CudaRanks::norm_scratch() const {
  int64_t most = 0;
  for (const Op& op : at_.graph.step.ops) {
    if (!sums_gradient(op)) continue;
    most = std::max(most, at_.arguments.find(op, Role::kParameterGradient, 0).tensor->elements);
  }
  return {2 * most * size_of(DType::kF32)};
}

// Added in fp32 and rounded once.
void CudaRanks::norm(const Op& op, int32_t step, CudaStream stream) {
  constexpr kernels::Format kF32 = kernels::Format::kF32;
  const Argument gradient = at_.arguments.find(op, Role::kParameterGradient, step);
  const int64_t count = gradient.tensor->elements;
  const kernels::Format stored = format_of(gradient.tensor->dtype);
  std::byte* const sums = norm_scratch_.data();
  at_.math.norm_apart(op, at_.arguments, step, reinterpret_cast<float*>(sums), stream);
  if (nccl_) {
    nccl_->all_reduce({op.lane, tensor_group(at_.plan)}, sums, sums, count, kF32, stream);
  }
  if (gradient.adds) {
    std::byte* const before = sums + count * size_of(DType::kF32);
    at_.math.cast({gradient.data, stored, before, kF32, count}, stream);
    at_.math.add({before, sums, kF32, count}, stream);
  }
  at_.math.cast({sums, kF32, gradient.data, stored, count}, stream);
}

void CudaRanks::exchange_data(const Op& op, int32_t step, CudaStream stream) {
  if (!nccl_) return;
  if (is_over_copies(at_.plan, op)) return sum_over_copies(op, step, stream);
  const CollectiveWork& work = std::get<CollectiveWork>(op.work);
  const NcclGroup group{op.lane, at_.shares.group(Sort::kDense)};
  CHECK(work.ranks == group.ranks.ranks && work.stride == group.ranks.stride);
  if (work.kind == CollectiveKind::kAllGather) {
    return nccl_->all_gather(group, at_.ranges.gathered(op, step, Sort::kDense), stream);
  }
  const DType stored = stored_in(at_.arguments, op, step);
  const std::vector<SummedPart> parts = at_.ranges.summed(op, step, Sort::kDense);
  if (work.kind == CollectiveKind::kAllReduce) return sum_on_all(group, parts, stored, stream);
  CHECK(work.kind == CollectiveKind::kReduceScatter);
  sum_on_owners(group, parts, stored, stream);
}

bool CudaRanks::is_over_copies(const Plan& plan, const Op& op) {
  const CollectiveWork& work = std::get<CollectiveWork>(op.work);
  const RankGroup copies = copies_group(plan);
  return copies.ranks > 1 && work.ranks == copies.ranks && work.stride == copies.stride;
}

// The sums of this rank's group, each rounded already, and once more with those of the others.
void CudaRanks::sum_over_copies(const Op& op, int32_t step, CudaStream stream) {
  const DType stored = stored_in(at_.arguments, op, step);
  std::vector<ValueRun> runs;
  for (const BucketRanges::ShareRange& range : at_.ranges.shared_by_groups(op, step)) {
    if (range.count > 0) runs.push_back({range.values, range.count});
  }
  nccl_->all_reduce({op.lane, copies_group(at_.plan)}, runs, format_of(stored), stream);
  for (const ValueRun& run : runs) round(run.values, run.count, stored, stream);
}

void CudaRanks::sum_on_all(const NcclGroup& group, std::span<const SummedPart> parts, DType stored,
                           CudaStream stream) {
  const std::vector<ValueRun> runs = runs_of_all(parts, size_of(stored));
  nccl_->all_reduce(group, runs, format_of(stored), stream);
  for (const ValueRun& run : runs) round(run.values, run.count, stored, stream);
}

// NCCL adds to nothing that is there: such a sum goes to the scratch first.
void CudaRanks::sum_on_owners(const NcclGroup& group, std::vector<SummedPart> parts, DType stored,
                              CudaStream stream) {
  struct Addition {
    std::byte* to = nullptr;
    std::byte* sum = nullptr;
    int64_t count = 0;
  };
  std::vector<Addition> additions;
  std::vector<ValueRun> sums;
  std::byte* next = scratch_.data();
  for (SummedPart& part : parts) {
    const bool is_own = part.owner == at_.shares.rank(Sort::kDense);
    if (is_own && part.adds) {
      additions.push_back({part.to, next, part.count});
      part.to = next;
      next += part.count * size_of(stored);
      CHECK(next <= scratch_.data() + scratch_.bytes().count);
    } else if (is_own) {
      sums.push_back({part.to, part.count});
    }
    part.adds = false;
  }
  // What is added is in the scratch, which rounding needs too.
  CHECK(additions.empty() || !rounds(at_.plan, stored));
  nccl_->reduce_scatter(group, parts, format_of(stored), stream);
  for (const Addition& one : additions) {
    at_.math.add({one.sum, one.to, format_of(stored), one.count}, stream);
  }
  for (const ValueRun& run : sums) round(run.values, run.count, stored, stream);
}

void CudaRanks::round(std::byte* values, int64_t count, DType stored, CudaStream stream) {
  if (!rounds(at_.plan, stored)) return;
  const kernels::Format to = format_of(gradient_dtype(at_.plan, {}));
  const int64_t size = size_of(stored);
  for (int64_t begin = 0; begin < count; begin += kRoundedAtOnce) {
    const int64_t some = std::min(kRoundedAtOnce, count - begin);
    std::byte* const at = values + begin * size;
    at_.math.cast({at, format_of(stored), scratch_.data(), to, some}, stream);
    at_.math.cast({scratch_.data(), to, at, format_of(stored), some}, stream);
  }
}

void CudaRanks::put_aside(const Op& op, int32_t step, CudaStream stream) {
  const auto found = asides_.find(op.label.bucket);
  if (found == asides_.end()) return;
  const kernels::Format format = found->second.format;
  std::byte* to = aside_on_gpu_.data() + found->second.begin;
  const auto put = [&](const CutRange& range) {
    const Bytes bytes{range.count * kernels::bytes_of(format)};
    at_.runtime.copy({to, range.values, bytes, CopyKind::kDeviceToDevice}, stream);
    to += bytes.count;
  };
  if (norms_) {
    for (const CutRange& range : at_.ranges.cuts(op, step)) put(range);
  }
  if (!split_norms_) return;
  for (const SplitNorms::Alike& part :
       split_norms_->alike(at_.ranges.own_segments(op, step), format)) {
    put(part.values);
  }
}

void CudaRanks::bring(const Op& op, CudaStream stream) {
  const auto found = asides_.find(op.label.bucket);
  if (found == asides_.end() || !holds_norms(at_.graph, op)) return;
  const Aside& aside = found->second;
  at_.runtime.copy({aside_on_host_.data() + aside.begin, aside_on_gpu_.data() + aside.begin,
                    aside.bytes(), CopyKind::kDeviceToHost},
                   stream);
}

double CudaRanks::sum_of_all(const BucketUpdates& updates) {
  const kernels::Table& table = updates.table();
  for (const auto& [bucket, aside] : asides_) {
    const std::byte* const values = aside_on_host_.data() + aside.begin;
    if (norms_) norms_->keep(bucket, aside.format, {{values, aside.cut}});
    if (split_norms_) split_norms_->keep(bucket, aside.format, aside.alike, table);
  }
  const NormSums sums = norms_ ? norms_->sum_of_all(table) : updates.sum_of_partials();
  return split_norms_ ? split_norms_->sum_of_all(sums, table) : sums.all;
}

void CudaRanks::wait(CudaEvent event) {
  if (nccl_) return nccl_->wait(event);
  at_.runtime.synchronize(event);
}

void CudaRanks::fail(const std::string& why) {
  if (nccl_) return nccl_->fail(why);
  at_.shares.ranks().fail(why);
}

void CudaRanks::close() {
  if (nccl_) nccl_->close();
}

}  // namespace ballast
