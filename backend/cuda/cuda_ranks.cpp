#include "backend/cuda/cuda_ranks.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_lanes.h"
#include "sim/base/error.h"

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
  return arguments.find(op, Role::kSource, step).tensor->dtype;
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
      functions_(std::move(functions)),
      cuts_(cuts_of(setting)),
      cuts_on_gpu_(setting.runtime, CudaMemoryKind::kDevice, bytes_of(cuts_), "cut segments"),
      cuts_on_host_(setting.runtime, CudaMemoryKind::kPinned, bytes_of(cuts_), "cut segments"),
      scratch_(setting.runtime, CudaMemoryKind::kDevice, scratch_of(setting), "sums over ranks") {
  if (at_.shares.are_split()) norms_.emplace(at_.graph, at_.arguments, at_.shares);
  if (!functions_) return;
  nccl_.emplace(*functions_, at_.runtime, at_.shares.ranks(), nccl_groups_of(at_.graph));
}

// In the order of the program; a bucket's norm is taken once a step.
CudaRanks::Cuts CudaRanks::cuts_of(const Setting& at) {
  Cuts all;
  if (!at.shares.are_split()) return all;
  for (const Op& op : at.graph.step.ops) {
    if (op.kind != OpKind::kSumOfSquares || !CudaLanes::queues(op.lane)) continue;
    Cut cut;
    cut.begin = bytes_of(all).count;
    cut.format = format_of(stored_in(at.arguments, op, 0));
    for (const CutRange& range : at.ranges.cuts(op, 0)) cut.count += range.count;
    if (cut.count > 0) CHECK(all.emplace(op.label.bucket, cut).second);
  }
  return all;
}

Bytes CudaRanks::bytes_of(const Cuts& cuts) {
  int64_t end = 0;
  for (const auto& [bucket, cut] : cuts) {
    end = std::max(end, cut.begin + cut.count * kernels::bytes_of(cut.format));
  }
  return {end};
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
    int64_t added = 0, longest = 0;
    for (const SummedPart& part : at.ranges.summed(op, 0, Sort::kDense)) {
      longest = std::max(longest, part.count);
      if (part.adds && part.owner == at.shares.rank(Sort::kDense)) added += part.count;
    }
    most = std::max(most, added * size_of(stored));
    if (rounds(at.plan, stored)) {
      most = std::max(most, kRoundedAtOnce * size_of(gradient_dtype(at.plan, {})));
    }
  }
  return {most};
}

void CudaRanks::exchange(const Op& op, int32_t step, CudaStream stream) {
  CHECK(exchanges_data(op));
  if (!nccl_) return;
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

void CudaRanks::put_cuts_aside(const Op& op, int32_t step, CudaStream stream) {
  const auto found = cuts_.find(op.label.bucket);
  if (found == cuts_.end()) return;
  std::byte* to = cuts_on_gpu_.data() + found->second.begin;
  for (const CutRange& range : at_.ranges.cuts(op, step)) {
    const Bytes bytes{range.count * kernels::bytes_of(found->second.format)};
    at_.runtime.copy({to, range.values, bytes, CopyKind::kDeviceToDevice}, stream);
    to += bytes.count;
  }
}

void CudaRanks::bring_cuts(const Op& op, CudaStream stream) {
  const auto found = cuts_.find(op.label.bucket);
  if (found == cuts_.end() || !brings_partials(op)) return;
  const Cut& cut = found->second;
  const Bytes bytes{cut.count * kernels::bytes_of(cut.format)};
  at_.runtime.copy({cuts_on_host_.data() + cut.begin, cuts_on_gpu_.data() + cut.begin, bytes,
                    CopyKind::kDeviceToHost},
                   stream);
}

bool CudaRanks::brings_partials(const Op& op) const {
  return std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
    const Tensor& tensor = at_.graph.tensors[static_cast<size_t>(access.tensor)];
    return tensor.kind == TensorKind::kNormPartials && tensor.place == Place::kDram;
  });
}

void CudaRanks::keep_cuts_of_cpu(const Op& op, int32_t step) {
  if (!norms_) return;
  const DType stored = stored_in(at_.arguments, op, step);
  norms_->keep(op.label.bucket, format_of(stored), at_.ranges.cuts(op, step));
}

NormSums CudaRanks::sum_of_all(const kernels::Table& table) {
  CHECK(norms_.has_value());
  for (const auto& [bucket, cut] : cuts_) {
    norms_->keep(bucket, cut.format, {{cuts_on_host_.data() + cut.begin, cut.count}});
  }
  return norms_->sum_of_all(table);
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
