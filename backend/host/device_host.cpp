#include "backend/host/device_host.h"

#include <cstring>

namespace ballast {

namespace {

std::array<std::unique_ptr<Arena>, kPlaces> arenas_of(const Graph& graph) {
  std::array<std::unique_ptr<Arena>, kPlaces> arenas;
  for (size_t place = 0; place < kPlaces; ++place) {
    const bool on_disk = static_cast<Place>(place) == Place::kNvme;
    arenas[place] = std::make_unique<Arena>(
        std::string(to_string(static_cast<Place>(place))), graph.arenas.size[place],
        on_disk ? ArenaBacking::kFile : ArenaBacking::kWhereTouched);
  }
  return arenas;
}

ArenaBases bases_of(const std::array<std::unique_ptr<Arena>, kPlaces>& arenas) {
  ArenaBases bases;
  for (size_t place = 0; place < kPlaces; ++place) bases[place] = arenas[place]->at(0);
  return bases;
}

const Training& checked(const Training& training) {
  require(host_capabilities(), training);
  return training;
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
          .also(OpKind::kAttention, {{{Role::kWeight, Role::kParameterGradient}, kFloats}})
          .also(OpKind::kGemm, {{{Role::kRouting}, kIds}, {kOfScores, kFloats}})
          .also(OpKind::kActivation, {{{Role::kRouting}, kIds}, {kOfScores, kFloats}})
          .also(OpKind::kLoss, {{{Role::kBalance}, kF64}})
          .carries_out(OpKind::kPermute,
                       {{{Role::kInput, Role::kWeight, Role::kOutput, Role::kResidual,
                          Role::kOutputGradient, Role::kInputGradient},
                         kFloats},
                        {kOfScores, kFloats},
                        {{Role::kRouting}, kIds},
                        {{Role::kBalance}, kF64}})
          .has({ModelFeature::kQkNorm, ModelFeature::kExperts, ModelFeature::kLatentAttention,
                ModelFeature::kAttentionSinks, ModelFeature::kSlidingWindow,
                ModelFeature::kSigmoidRouter, ModelFeature::kClampedSwiGlu});
  return kTable;
}

HostDevice::HostDevice(const Training& training, const DeviceOptions& options,
                       const ControlState& state)
    : plan_(checked(training).plan),
      graph_(training.graph),
      data_(training.data),
      options_(options),
      arenas_(arenas_of(graph_)),
      arguments_(graph_, bases_of(arenas_)),
      threads_(options.compute_threads),
      modules_(training.model, plan_),
      ranges_(graph_, arguments_),
      control_(plan_.optimizer.sync, plan_.dtype, plan_.accumulation(), options.optimizer, state,
               [this] { return updates_.sum_of_partials(); }),
      updates_({graph_, plan_, ranges_, arguments_, control_}, {Place::kHbm, Place::kDram},
               options.optimizer_threads) {}

// Kernels of the "GPU" run on the lane's own thread, and on those that are lent to it.
Crew HostDevice::crew_of(const Op& op) const {
  const bool on_gpu = ranges_.bucket_of(op).site == Site::kGpu;
  return on_gpu ? Crew::kCaller : Crew::kWorkers;
}

void HostDevice::execute(const Sequence& sequence, OpId id, int32_t step) {
  const Op& op = sequence.ops[static_cast<size_t>(id)];
  CHECK(host_capabilities().carry_out(op, graph_));
  const bool computes = kind_of(op.lane) == LaneKind::kCompute;
  const ComputeThreads::Lease lease(computes ? &threads_ : nullptr);
  carry_out(sequence, op, step);
}

void HostDevice::carry_out(const Sequence& sequence, const Op& op, int32_t step) {
  using Program = BucketUpdates::Program;
  switch (op.kind) {
    case OpKind::kLoadBatch:
      return load_batch(op, step);
    case OpKind::kEmbedding:
    case OpKind::kNorm:
    case OpKind::kGemm:
    case OpKind::kAttention:
    case OpKind::kActivation:
    case OpKind::kPermute:
      return modules_.module(op, arguments_, step);
    case OpKind::kLoss:
      return loss(op, step);
    case OpKind::kPack:
      return updates_.casts(ranges_.pack(op, step));
    case OpKind::kUnpack:
      return updates_.casts(ranges_.unpack(op, step));
    case OpKind::kCast:
      return updates_.cast(ranges_.cast(op, step), Crew::kWorkers);
    case OpKind::kSumOfSquares:
      return updates_.sums(op, step, crew_of(op));
    case OpKind::kDecide:
      return control_.decide(step);
    case OpKind::kSnapshot:
      return updates_.snapshot(op, step, crew_of(op));
    case OpKind::kAdam:
      return updates_.adam(
          op, step, &sequence == &graph_.repair ? Program::kRepair : Program::kStep, crew_of(op));
    case OpKind::kUndo:
      return undo(op, step);
    case OpKind::kCopy:
      return copy(ranges_.copies(op, step));
    case OpKind::kIo:
      return copy(ranges_.moves_of_state(op, step));
    case OpKind::kCommit:
    case OpKind::kCollective:
    case OpKind::kScale:
    case OpKind::kBlock:
      break;
  }
  CHECK(false && "not an operation of one host device");
}

void HostDevice::load_batch(const Op& op, int32_t step) const {
  const Argument tokens = arguments_.find(op, Role::kTokens, step);
  data_.batch(
      batch_request(plan_, op, split_, step),
      {reinterpret_cast<int32_t*>(tokens.data), static_cast<size_t>(tokens.tensor->elements)});
}

void HostDevice::loss(const Op& op, int32_t step) {
  double factor = control_.loss_scale(step) /
                  static_cast<double>(plan_.tokens_per_micro_batch() * plan_.accumulation());
  if (options_.gradient_factor) factor *= options_.gradient_factor(step);
  const double mean = modules_.loss(op, arguments_, step, factor);
  if (split_ == Split::kValidation) {
    evaluated_loss_ = mean;
  } else {
    control_.set_loss(step, op.label.micro_batch, mean);
  }
}

void HostDevice::undo(const Op& op, int32_t step) {
  if (std::get<BucketWork>(op.work).exact_undo) return updates_.exact_undo(op, step, crew_of(op));
  updates_.snapshot(op, step, crew_of(op));
}

void HostDevice::copy(const std::vector<CopyRange>& ranges) {
  for (const CopyRange& range : ranges) {
    std::memcpy(range.to, range.from, static_cast<size_t>(range.bytes));
  }
}

void HostDevice::read(TensorId tensor, int copy, int64_t begin, std::span<std::byte> to) {
  const std::span<std::byte> bytes = arguments_.bytes(tensor, copy);
  CHECK(static_cast<size_t>(begin) + to.size() <= bytes.size());
  std::memcpy(to.data(), bytes.data() + begin, to.size());
}

void HostDevice::write(TensorId tensor, int copy, int64_t begin, std::span<const std::byte> from) {
  const std::span<std::byte> bytes = arguments_.bytes(tensor, copy);
  CHECK(static_cast<size_t>(begin) + from.size() <= bytes.size());
  std::memcpy(bytes.data() + begin, from.data(), from.size());
}

void HostDevice::restore_partials(int32_t step) {
  run_norms(graph_, [&](OpId id) { execute(graph_.step, id, step); });
}

void HostDevice::spread_weights() { ballast::spread_weights(*this, graph_, ranges_, plan_.dtype); }

std::vector<MemoryUse> HostDevice::memory() {
  std::vector<MemoryUse> uses;
  for (const Place place : {Place::kHbm, Place::kDram}) {
    const Arena& arena = *arenas_[static_cast<size_t>(place)];
    uses.push_back({place, arena.size(), arena.resident()});
  }
  return uses;
}

double HostDevice::evaluate(int64_t batch, int32_t step) {
  split_ = Split::kValidation;
  run_forward(graph_, batch, step, [&](OpId id, int32_t at) { execute(graph_.step, id, at); });
  split_ = Split::kTraining;
  return evaluated_loss_;
}

}  // namespace ballast
