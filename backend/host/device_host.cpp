#include "backend/host/device_host.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "sim/graph/build.h"
#include "sim/graph/core/stages.h"

namespace ballast {

namespace {

const Training& checked(const Training& training) {
  require(host_capabilities(), training);
  return training;
}

std::optional<RankShares> shares_of(const Training& training, const DeviceOptions& options) {
  const int64_t ranks = rank_count(training.plan);
  if (ranks == 1) return std::nullopt;
  CHECK(options.of_rank.ranks != nullptr && options.of_rank.ranks->size() == ranks);
  return std::optional<RankShares>(std::in_place, training.graph, training.plan,
                                   *options.of_rank.ranks);
}

}  // namespace

const Capabilities& host_capabilities() {
  constexpr DTypes kFloats = {DType::kF32, DType::kBf16, DType::kF16};
  constexpr DTypes kMoments = {DType::kF32, DType::kBf16};
  constexpr DTypes kIds = {DType::kI32};
  constexpr DTypes kF64 = {DType::kF64};
  // A router's scores, and their gradients.
  static constexpr std::initializer_list<Role> kOfScores = {Role::kStatistics, Role::kScratch};
  static constexpr std::initializer_list<Role> kBothMoments = {Role::kMoment1, Role::kMoment2};
  static const Capabilities kTable =
      training_capabilities("host")
          .also(OpKind::kAdam, {{kBothMoments, kMoments}}, {WorkVariant::kExactRestingUndo})
          .also(OpKind::kSnapshot, {{kBothMoments, kMoments}})
          .also(OpKind::kUndo, {{kBothMoments, kMoments}}, {WorkVariant::kExactRestingUndo})
          .carries_out(OpKind::kIo, {{{Role::kSource, Role::kDestination}, kFloats}})
          .carries_out(
              OpKind::kCollective,
              {{{Role::kSource, Role::kDestination, Role::kWeight, Role::kParameterGradient},
                kFloats},
               {{Role::kTokens}, kIds}},
              {WorkVariant::kBetweenStages, WorkVariant::kSeveralRanks})
          .also(OpKind::kAttention,
                {{{Role::kWeight, Role::kParameterGradient, Role::kKeysValues}, kFloats},
                 {{Role::kKeyGradient}, {DType::kF32}}})
          .also(OpKind::kGemm,
                {{{Role::kRouting}, kIds}, {kOfScores, kFloats}, {{Role::kKeysValues}, kFloats}})
          .also(OpKind::kActivation, {{{Role::kRouting}, kIds}, {kOfScores, kFloats}})
          .also(OpKind::kLoss, {{{Role::kBalance}, kF64}, {{Role::kStatistics}, {DType::kF32}}})
          .carries_out(OpKind::kPermute, {{{Role::kInput, Role::kWeight, Role::kOutput,
                                            Role::kOutputGradient, Role::kInputGradient},
                                           kFloats},
                                          {kOfScores, kFloats},
                                          {{Role::kRouting}, kIds},
                                          {{Role::kBalance}, kF64}})
          .carries_out(OpKind::kCombine, {{{Role::kInput, Role::kOutput, Role::kResidual,
                                            Role::kOutputGradient, Role::kInputGradient},
                                           kFloats},
                                          {kOfScores, kFloats},
                                          {{Role::kRouting}, kIds},
                                          {{Role::kBalance}, kF64}})
          .has({ModelFeature::kQkNorm, ModelFeature::kExperts, ModelFeature::kLatentAttention,
                ModelFeature::kAttentionSinks, ModelFeature::kSlidingWindow,
                ModelFeature::kSigmoidRouter, ModelFeature::kClampedSwiGlu})
          .has({PlanFeature::kPipeline, PlanFeature::kSubsequences, PlanFeature::kDataRanks,
                PlanFeature::kSplitWeights, PlanFeature::kTensorRanks, PlanFeature::kSequenceRanks,
                PlanFeature::kContextRanks, PlanFeature::kExpertRanks,
                PlanFeature::kRanksOfPipelines, PlanFeature::kStreamsOfShares,
                PlanFeature::kFlowOfSplitWeights});
  return kTable;
}

HostDevice::HostDevice(const Training& training, const DeviceOptions& options,
                       const ControlState& state)
    : plan_(checked(training).plan),
      graph_(training.graph),
      data_(training.data),
      options_(options),
      stages_(stages_of(graph_, options.compute_threads)),
      arguments_(graph_, bases_of(stages_)),
      shares_(shares_of(training, options)),
      place_(shares_ ? place_of(plan_, shares_->ranks().rank()) : RankPlace{}),
      rank_model_(rank_model(training.model, plan_)),
      modules_(
          rank_model_, training.model.vocab, plan_, place_,
          shares_ ? &exchanges_.emplace(rank_model_, plan_, arguments_, shares_->ranks()) : nullptr,
          plan_.expert > 1 ? &experts_.emplace(rank_model_, plan_, shares_->ranks()) : nullptr),
      ranges_(graph_, arguments_, shares()),
      control_(
          plan_.optimizer.sync, plan_.dtype, plan_.accumulation(), options.optimizer, state,
          [this] { return sum_of_partials(); },
          shares_ ? rank_views(*shares_, plan_, options_.of_rank) : RankViews{}),
      disk_(graph_.arenas.size[static_cast<size_t>(Place::kNvme)].count > 0
                ? std::make_unique<DiskState>(graph_, options.disk)
                : nullptr),
      updates_({graph_, plan_, ranges_, arguments_, control_}, {Place::kHbm, Place::kDram},
               options.optimizer_threads) {
  if (shares_ && shares_->are_split()) norms_.emplace(graph_, arguments_, *shares_);
  if (plan_.tensor == 1 && plan_.expert == 1) return;
  slices_.emplace(graph_, training.model, plan_, shares_->ranks());
  split_norms_.emplace(graph_, *shares_, plan_, *slices_);
}

std::vector<HostDevice::Stage> HostDevice::stages_of(const Graph& graph, int compute_threads) {
  std::vector<Stage> stages(static_cast<size_t>(devices_of(graph)));
  for (size_t s = 0; s < stages.size(); ++s) {
    for (size_t place = 0; place < kPlaces; ++place) {
      const bool on_disk = static_cast<Place>(place) == Place::kNvme;
      std::string name(to_string(static_cast<Place>(place)));
      if (stages.size() > 1) name += fmt::format(" of stage {}", s);
      stages[s].arenas[place] =
          std::make_unique<Arena>(std::move(name), graph.arenas.size[place],
                                  on_disk ? ArenaBacking::kNone : ArenaBacking::kWhereTouched);
    }
    stages[s].threads = std::make_unique<ComputeThreads>(compute_threads);
  }
  return stages;
}

std::vector<ArenaBases> HostDevice::bases_of(const std::vector<Stage>& stages) {
  std::vector<ArenaBases> bases(stages.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    for (size_t place = 0; place < kPlaces; ++place) {
      bases[s][place] = stages[s].arenas[place]->at(0);
    }
  }
  return bases;
}

// Kernels of the "GPU" run on the lane's own thread, and on those that are lent to it.
StepThreads HostDevice::threads_of(const Op& op) const {
  const bool on_gpu = ranges_.bucket_of(op).site == Site::kGpu;
  return on_gpu ? StepThreads::kCaller : StepThreads::kPool;
}

void HostDevice::execute(const Program& program, OpId id, int32_t step) {
  const Op& op = program.ops[static_cast<size_t>(id)];
  CHECK(host_capabilities().carry_out(op, graph_));
  const bool computes = kind_of(op.lane) == LaneKind::kCompute;
  const Stage& stage = stages_[static_cast<size_t>(device_of(op.lane))];
  const ComputeThreads::Lease lease(computes ? stage.threads.get() : nullptr);
  carry_out(program, op, step);
}

void HostDevice::carry_out(const Program& program, const Op& op, int32_t step) {
  using ProgramKind = BucketUpdates::ProgramKind;
  switch (op.kind) {
    case OpKind::kLoadBatch:
      return load_batch(op, step);
    case OpKind::kEmbedding:
    case OpKind::kNorm:
    case OpKind::kGemm:
    case OpKind::kAttention:
    case OpKind::kActivation:
    case OpKind::kPermute:
    case OpKind::kCombine:
      return modules_.module(op, arguments_, step);
    case OpKind::kLoss:
      return loss(op, step);
    case OpKind::kPack:
      return updates_.casts(ranges_.pack(op, step));
    case OpKind::kUnpack:
      return updates_.casts(ranges_.unpack(op, step));
    case OpKind::kCast:
      return updates_.cast(op, step, StepThreads::kPool);
    case OpKind::kSumOfSquares:
      return sum_squares(op, step);
    case OpKind::kDecide:
      return control_.decide(step);
    case OpKind::kSnapshot:
      return updates_.snapshot(op, step, threads_of(op));
    case OpKind::kAdam:
      return updates_.adam(op, step,
                           &program == &graph_.repair ? ProgramKind::kRepair : ProgramKind::kStep,
                           threads_of(op));
    case OpKind::kUndo:
      return undo(op, step);
    case OpKind::kCopy:
      if (disk_ && disk_->is_moved_by(op)) return disk_->move(op, ranges_.copies(op, step));
      return copy(ranges_.copies(op, step));
    case OpKind::kIo:
      return disk_->move(op, ranges_.moves_of_state(op, step));
    case OpKind::kCollective:
      return exchange(op, step);
    case OpKind::kCommit:
    case OpKind::kScale:
    case OpKind::kBlock:
      break;
  }
  CHECK(false && "not an operation of one host device");
}

// Of sequences that ranks share each takes its tokens, and behind each piece of them the one that
// its last is to predict.
void HostDevice::load_batch(const Op& op, int32_t step) const {
  const Argument tokens = arguments_.find(op, Role::kTokens, step);
  const BatchRequest request =
      batch_request(plan_, op, split_, step, static_cast<int>(place_.data));
  const std::span<int32_t> own(reinterpret_cast<int32_t*>(tokens.data),
                               static_cast<size_t>(tokens.tensor->elements));
  const int64_t parts = parts_of_sequences(plan_);
  if (parts == 1) return data_.batch(request, own);
  std::vector<int32_t> whole(static_cast<size_t>(request.sequences * (request.length + 1)));
  data_.batch(request, whole);
  auto to = own.begin();
  for (int64_t i = 0; i < request.sequences; ++i) {
    for (const Subsequence& piece : pieces_of(plan_, place_)) {
      to =
          std::copy_n(whole.begin() + i * (request.length + 1) + piece.begin, piece.length + 1, to);
    }
  }
  CHECK(to == own.end());
}

void HostDevice::loss(const Op& op, int32_t step) {
  double factor =
      control_.loss_scale(step) /
      static_cast<double>(plan_.tokens_per_micro_batch() * plan_.accumulation() * plan_.replicas());
  if (options_.gradient_factor) factor *= options_.gradient_factor(step);
  const double mean = modules_.loss(op, arguments_, step, factor);
  // Of parts of the sequences the last comes first, of pieces of their tokens the first.
  const bool after_part =
      op.label.subsequence >= 0 && op.label.subsequence + 1 < plan_.subsequences;
  const bool adds = after_part || op.label.loss_chunk > 0;
  if (split_ == Split::kValidation) {
    evaluated_loss_ = mean + (adds ? evaluated_loss_ : 0);
  } else {
    control_.set_loss(step, op.label.micro_batch, mean, adds);
  }
}

void HostDevice::undo(const Op& op, int32_t step) {
  if (std::get<BucketWork>(op.work).exact_undo)
    return updates_.exact_undo(op, step, threads_of(op));
  updates_.snapshot(op, step, threads_of(op));
}

void HostDevice::copy(const std::vector<CopyRange>& ranges) {
  for (const CopyRange& range : ranges) {
    std::memcpy(range.to, range.from, static_cast<size_t>(range.bytes));
  }
}

void HostDevice::exchange(const Op& op, int32_t step) {
  switch (kind_of(op.lane)) {
    case LaneKind::kDataNetwork:
      return exchange_data(op, step);
    case LaneKind::kTensorNetwork:
      if (op.label.module == ModuleKind::kLoss) return modules_.loss_sums(op, arguments_, step);
      return exchanges_->tensor(op, step);
    case LaneKind::kSequenceNetwork:
      return exchanges_->sequence(op, step);
    case LaneKind::kExpertNetwork:
      return experts_->exchange(op, arguments_, step);
    default:
      return exchange_between_stages(op, step);
  }
}

// Between stages: a message goes into the receiver's tensor, whole, though of tensor-parallel ranks
// each is counted to send its part to the next node (arXiv 2104.04473, section 4.1); the gradients
// of a matrix that two of them hold are summed in fp32, rounded once, and both have the sum.
void HostDevice::exchange_between_stages(const Op& op, int32_t step) {
  const Argument from = arguments_.find(op, Role::kSource, step);
  const int64_t bytes = std::get<CollectiveWork>(op.work).bytes.count;
  if (from.tensor != nullptr) {
    const Argument to = arguments_.find(op, Role::kDestination, step);
    const int64_t whole = from.tensor->bytes().count;
    CHECK(from.tensor->bytes() == to.tensor->bytes());
    CHECK(whole == bytes || div_ceil(whole, plan_.tensor) == bytes);
    return copy({{from.data, to.data, whole}});
  }
  const std::vector<Argument> gradients = arguments_.all(op, Role::kParameterGradient, step);
  CHECK(gradients.size() == 2);
  updates_.sum_into_both(gradients[0], gradients[1], bytes / size_of(gradients[0].tensor->dtype));
}

// Gradients are summed in fp32 and rounded once to the type that they are stored in on the GPU,
// whatever carries them: so it does not matter where they are stepped. Of a bucket that also holds
// experts these are exchanged by the fewer ranks that have them.
void HostDevice::exchange_data(const Op& op, int32_t step) {
  const CollectiveWork& work = std::get<CollectiveWork>(op.work);
  const RankGroup copies = copies_group(plan_);
  if (copies.ranks > 1 && work.ranks == copies.ranks && work.stride == copies.stride) {
    return sum_over_copies(op, step);
  }
  for (const Sort sort : kSorts) {
    const RankGroup& group = shares_->group(sort);
    if (work.kind != CollectiveKind::kAllGather) {
      const DType stored = arguments_.find(op, Role::kSource, step).tensor->dtype;
      const std::vector<SummedPart> parts = ranges_.summed(op, step, sort);
      if (parts.empty()) continue;
      shares_->ranks().reduce_scatter(channel_of(op.lane), group, parts,
                                      {format_of(stored), format_of(gradient_dtype(plan_, {}))});
    }
    if (work.kind != CollectiveKind::kReduceScatter) {
      const std::vector<GatheredPart> parts = ranges_.gathered(op, step, sort);
      if (!parts.empty()) shares_->ranks().all_gather(channel_of(op.lane), group, parts);
    }
  }
}

// Ranks with the same shares, of which each group has the sum of its own gradients (zero_group).
void HostDevice::sum_over_copies(const Op& op, int32_t step) {
  const Role role = shares_->are_of_modules() ? Role::kParameterGradient : Role::kSource;
  const DType stored = arguments_.find(op, role, step).tensor->dtype;
  for (const BucketRanges::ShareRange& range : ranges_.shared_by_groups(op, step)) {
    shares_->ranks().all_reduce(channel_of(op.lane), copies_group(plan_), range.values, range.count,
                                {format_of(stored), format_of(gradient_dtype(plan_, {}))});
  }
}

void HostDevice::sum_squares(const Op& op, int32_t step) {
  updates_.sums(op, step);
  if (!norms_ && !split_norms_) return;
  const kernels::Format stored = format_of(arguments_.find(op, Role::kSource, step).tensor->dtype);
  if (norms_) norms_->keep(op.label.bucket, stored, ranges_.cuts(op, step));
  if (!split_norms_) return;
  split_norms_->keep(op.label.bucket, stored,
                     split_norms_->alike(ranges_.own_segments(op, step), stored), updates_.table());
}

double HostDevice::sum_of_partials() {
  const NormSums sums = norms_ ? norms_->sum_of_all(updates_.table()) : updates_.sum_of_partials();
  return split_norms_ ? split_norms_->sum_of_all(sums, updates_.table()) : sums.all;
}

void HostDevice::abandon(const std::string& why) {
  if (shares_) shares_->ranks().fail(why);
  if (exchanges_) exchanges_->fail();
}

void HostDevice::read(TensorId tensor, int copy, int64_t begin, std::span<std::byte> to) {
  if (disk_ && disk_->has(tensor)) return disk_->read(tensor, begin, to);
  const std::span<std::byte> bytes = arguments_.bytes(tensor, copy);
  CHECK(static_cast<size_t>(begin) + to.size() <= bytes.size());
  std::memcpy(to.data(), bytes.data() + begin, to.size());
}

void HostDevice::write(TensorId tensor, int copy, int64_t begin, std::span<const std::byte> from) {
  if (disk_ && disk_->has(tensor)) return disk_->write(tensor, begin, from);
  const std::span<std::byte> bytes = arguments_.bytes(tensor, copy);
  CHECK(static_cast<size_t>(begin) + from.size() <= bytes.size());
  std::memcpy(bytes.data() + begin, from.data(), from.size());
}

void HostDevice::restore_partials(int32_t step) {
  run_norms(graph_, [&](const Op& op) { carry_out(graph_.step, op, step); });
}

void HostDevice::spread_weights() {
  ballast::spread_weights(*this, {graph_, ranges_, plan_.dtype, options_.optimizer_threads});
}

// Arenas are as large as the largest stage needs, as a prediction has them: what is told is of the
// stage that takes the most.
std::vector<MemoryUse> HostDevice::memory() {
  std::vector<MemoryUse> uses;
  for (const Place place : {Place::kHbm, Place::kDram}) {
    MemoryUse most{place, {}, {}};
    for (const Stage& stage : stages_) {
      const Arena& arena = *stage.arenas[static_cast<size_t>(place)];
      most.planned = arena.size();
      most.resident = std::max(most.resident, arena.resident());
    }
    if (place == Place::kHbm && experts_) most.resident += experts_->beside();
    uses.push_back(most);
  }
  if (disk_) {
    const Bytes planned = graph_.arenas.size[static_cast<size_t>(Place::kNvme)];
    uses.push_back({Place::kNvme, planned, disk_->taken_by_largest_stage()});
  }
  return uses;
}

std::vector<std::string> HostDevice::notes() const {
  if (!disk_) return {};
  return {disk_->described()};
}

double HostDevice::evaluate(int64_t batch, int32_t step) {
  split_ = Split::kValidation;
  run_forward(graph_, batch, step, [&](OpId id, int32_t at) { execute(graph_.step, id, at); });
  split_ = Split::kTraining;
  const int64_t parts = parts_of_sequences(plan_);
  if (parts == 1) return evaluated_loss_;
  // Every rank has the loss of its tokens.
  const std::vector<double> told = shares_->gather_numbers({&evaluated_loss_, 1});
  double sum = 0;
  for (int64_t i = 0; i < parts; ++i) sum += told[static_cast<size_t>(i * plan_.tensor)];
  return sum / static_cast<double>(parts);
}

}  // namespace ballast
