#include "backend/cuda/device_cuda.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>

#include "backend/execute/rank_place.h"
#include "sim/base/error.h"
#include "sim/base/units.h"

namespace ballast {

namespace {

using Part = kernels::cuda::RecordedPart;

std::optional<RankShares> shares_of(const Training& training, const DeviceOptions& options) {
  const int64_t ranks = rank_count(training.plan);
  if (ranks == 1) return std::nullopt;
  if (options.of_rank.ranks == nullptr) {
    throw Error("plan.devices", fmt::format("{} GPUs are {} processes, one for each", ranks, ranks),
                fmt::format("start it with mpirun -n {}", ranks));
  }
  CHECK(options.of_rank.ranks->size() == ranks);
  return std::optional<RankShares>(std::in_place, training.graph, training.plan,
                                   *options.of_rank.ranks);
}

// Checks the training before anything is allocated for it. What does not pass leaves the parts
// whole: the mathematics gives its memory back to the runtime.
std::unique_ptr<CudaRuntime> checked(const Training& training, CudaParts& parts) {
  require(cuda_capabilities(parts.runtime->properties()), training);
  const Bytes needed = training.graph.arenas.size[static_cast<size_t>(Place::kHbm)];
  const Bytes available = parts.runtime->free_memory();
  if (needed > available) {
    throw Error("arena hbm",
                fmt::format("the plan needs {} and {} of the GPU are free", bytes_text(needed),
                            bytes_text(available)),
                "choose a plan that needs less memory, or end what else uses the GPU");
  }
  return std::move(parts.runtime);
}

Bytes batch_bytes(const Plan& plan) {
  return bytes_of(*plan.micro_batch * (plan.sequence_length + 1), DType::kI32);
}

// Of a step and the next one, so that no batch waits for the copy of another.
size_t batches_at_once(const Plan& plan) {
  return 2 * static_cast<size_t>(plan.accumulation()) + 2;
}

ArenaBases bases_of(const CudaMemory& hbm, Arena& dram) {
  ArenaBases bases{};
  bases[static_cast<size_t>(Place::kHbm)] = hbm.data();
  bases[static_cast<size_t>(Place::kDram)] = dram.at(0);
  return bases;
}

CopyKind kind_of_copy(const Op& op) {
  const bool in = std::get<CopyWork>(op.work).direction == CopyDirection::kHostToDevice;
  return in ? CopyKind::kHostToDevice : CopyKind::kDeviceToHost;
}

// Of the step: what the GPU steps so that it can be taken back exactly.
std::vector<OpId> recorded_adams(const Graph& graph) {
  std::vector<OpId> found;
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (op.kind != OpKind::kAdam || kind_of(op.lane) != LaneKind::kCompute) continue;
    if (std::get<BucketWork>(op.work).exact_undo) found.push_back(static_cast<OpId>(i));
  }
  return found;
}

// By bucket, and how many there are in all at the end.
std::vector<int64_t> first_runs(const Graph& graph) {
  std::vector<int64_t> first{0};
  for (const Bucket& bucket : graph.buckets) {
    first.push_back(first.back() + std::ssize(runs_of(graph.modules, bucket)));
  }
  return first;
}

// No step has the mark 0.
uint32_t mark_of(int32_t step) { return static_cast<uint32_t>(step) + 1; }

constexpr size_t index_of(Place place) { return static_cast<size_t>(place); }

}  // namespace

namespace {

Capabilities all_but_fp8(const std::string& described) {
  constexpr DTypes kFloats = {DType::kF32, DType::kBf16, DType::kF16};
  return training_capabilities("cuda", described)
      .carries_out(
          OpKind::kCollective,
          {{{Role::kSource, Role::kDestination, Role::kWeight, Role::kParameterGradient}, kFloats},
           {{Role::kTokens}, {DType::kI32}}},
          {WorkVariant::kSeveralRanks})
      .also(OpKind::kLoss, {{{Role::kStatistics}, {DType::kF32}}})
      .has({PlanFeature::kDataRanks, PlanFeature::kTensorRanks, PlanFeature::kSplitWeights,
            PlanFeature::kRemoteMemory});
}

Capabilities with_fp8(Capabilities all) {
  return all.also(OpKind::kGemm,
                  {{{Role::kCodes, Role::kGradientCodes, Role::kWeightCodes}, {DType::kU8}}},
                  {WorkVariant::kFp8Product});
}

}  // namespace

const Capabilities& cuda_capabilities() {
  static const Capabilities kTable = with_fp8(all_but_fp8("the CUDA device"));
  return kTable;
}

Capabilities cuda_capabilities(const CudaProperties& gpu) {
  Capabilities all =
      all_but_fp8(fmt::format("{} (compute capability {}.{})", gpu.name, gpu.major, gpu.minor));
  if (!gpu.addresses_pinned_memory) all.does_without(WorkVariant::kDirectAccess);
  return gpu.has_fp8() ? with_fp8(std::move(all)) : all;
}

CudaDevice::CudaDevice(const Training& training, const DeviceOptions& options,
                       const ControlState& state, CudaParts parts)
    : model_(training.model),
      plan_(training.plan),
      graph_(training.graph),
      data_(training.data),
      options_(options),
      runtime_(checked(training, parts)),
      capabilities_(cuda_capabilities(runtime_->properties())),
      notes_(std::move(parts.notes)),
      math_(std::move(parts.math)),
      free_before_(parts.free_before),
      hbm_(*runtime_, CudaMemoryKind::kDevice, graph_.arenas.size[index_of(Place::kHbm)],
           "the arena"),
      dram_("dram", graph_.arenas.size[index_of(Place::kDram)], parts.backing_of_dram),
      pin_(*runtime_, dram_.at(0), dram_.size(), "the arena of the CPU"),
      losses_(*runtime_, CudaMemoryKind::kPinned, bytes_of(2 * micro_batches() + 1, DType::kF64),
              "losses"),
      recorded_adams_(recorded_adams(graph_)),
      first_run_(first_runs(graph_)),
      left_(*runtime_, CudaMemoryKind::kPinned,
            recorded_adams_.empty() ? Bytes{} : bytes_of(first_run_.back(), DType::kI32),
            "what records did not hold"),
      arguments_(graph_, {bases_of(hbm_, dram_)}),
      shares_(shares_of(training, options)),
      ranges_(graph_, arguments_, shares()),
      control_(
          plan_.optimizer.sync, plan_.dtype, plan_.accumulation(), options.optimizer, state,
          [this] { return sum_of_partials(); },
          shares_ ? rank_views(*shares_, plan_, options_.of_rank) : RankViews{}),
      updates_({graph_, plan_, ranges_, arguments_, control_}, {Place::kDram},
               options.optimizer_threads),
      ranks_(ranks_of(parts.nccl)),
      order_(graph_, exchanges()),
      lanes_(graph_, *runtime_, options.timed_steps_apart, waits()),
      batches_(*runtime_, {batches_at_once(plan_), batch_bytes(plan_)},
               lanes_.stream(lane_of(0, LaneKind::kCopyIn)), waits()) {
  runtime_->clear(hbm_.data(), hbm_.bytes(), lanes_.stream(lane_of(0, LaneKind::kCompute)));
  drain();
  std::fill_n(left_.data(), left_.bytes().count, std::byte{});
  if (!options.captures) return;
  const auto exchanges = [this](const Op& op) { return ranks_ && ranks_->exchanges(op); };
  segments_.emplace(graph_, *runtime_, lanes_,
                    cuda_segments(graph_, CudaLanes::kEventSteps, exchanges),
                    [this](OpId id, int32_t step, CudaStream stream) {
                      enqueue(graph_.op(id), step, ProgramKind::kStep, stream);
                    });
}

std::optional<CudaRanks> CudaDevice::ranks_of(const std::optional<NcclFunctions>& nccl) {
  if (!shares_) return std::nullopt;
  return std::optional<CudaRanks>(
      std::in_place,
      CudaRanks::Setting{graph_, model_, plan_, ranges_, arguments_, *shares_, *runtime_, *math_},
      nccl);
}

// Those of a repair stand in no order of several lanes (turn_of).
std::vector<OpId> CudaDevice::exchanges() const {
  std::vector<OpId> found;
  for (const Op& op : graph_.repair.ops) {
    CHECK(op.kind != OpKind::kCollective || kind_of(op.lane) == LaneKind::kDataNetwork);
  }
  for (size_t i = 0; ranks_ && i < graph_.step.ops.size(); ++i) {
    if (ranks_->exchanges(graph_.step.ops[i])) found.push_back(static_cast<OpId>(i));
  }
  return found;
}

CudaWait CudaDevice::waits() {
  if (!ranks_) return nullptr;
  return [this](CudaEvent event) { ranks_->wait(event); };
}

CudaDevice::~CudaDevice() {
  try {
    runtime_->bind_thread();
    lanes_.drain();
    if (ranks_) ranks_->close();
    if (segments_) segments_->close();
  } catch (const Error&) {
    // The device has failed, which whoever used it was told.
    if (ranks_) end_without_ranks();
  }
}

// What waits for other ranks ends, and nothing works any more on memory that is freed next.
void CudaDevice::end_without_ranks() {
  try {
    ranks_->fail("it ended");
    lanes_.synchronize_streams();
  } catch (const Error&) {
    // Likewise.
  }
}

void CudaDevice::abandon(const std::string& why) {
  if (ranks_) ranks_->fail(why);
  order_.fail();
}

// A repair's are of one lane, and what runs alone is in the order of whoever runs it.
CollectiveOrder::Turn CudaDevice::turn_of(const Program& program, OpId id) {
  const bool repairs = &program == &graph_.repair;
  if (repairs || runs_alone_) return CollectiveOrder::Turn(nullptr);
  return order_.wait_for(id);
}

void CudaDevice::execute(const Program& program, OpId id, int32_t step) {
  const Op& op = program.ops[static_cast<size_t>(id)];
  CHECK(capabilities_.carry_out(op, graph_));
  const ProgramKind kind = &program == &graph_.repair ? ProgramKind::kRepair : ProgramKind::kStep;
  if (!queues(op.lane)) return work_on_cpu(op, step, kind);
  if (may_be_recorded(program) && segments_->launch(id, step)) return;
  const CollectiveOrder::Turn turn = turn_of(program, id);
  const CudaStream stream = lanes_.begin(program, id, step);
  enqueue(op, step, kind, stream);
  lanes_.end(program, id, step);
}

// What is evaluated, or repairs, runs plain.
bool CudaDevice::may_be_recorded(const Program& program) const {
  return segments_.has_value() && &program == &graph_.step && split_ == Split::kTraining;
}

std::span<const OpId> CudaDevice::handed_over_with(OpId id) const {
  return segments_ ? segments_->behind(id) : std::span<const OpId>{};
}

std::vector<std::string> CudaDevice::notes() const {
  std::vector<std::string> all = notes_;
  const std::vector<std::string> of_math = math_->notes();
  all.insert(all.end(), of_math.begin(), of_math.end());
  return all;
}

void CudaDevice::follow(const Program& program, OpId id, OpId before, int32_t step_of_before) {
  if (may_be_recorded(program) && segments_->waits_by_itself(id)) return;
  lanes_.follow(program, id, before, step_of_before);
}

std::vector<FinishedOperation> CudaDevice::take_finished(LaneId lane) {
  return lanes_.take_finished(lane);
}

void CudaDevice::enqueue(const Op& op, int32_t step, ProgramKind kind, CudaStream stream) {
  switch (op.kind) {
    case OpKind::kLoadBatch:
      return load_batch(op, step);
    case OpKind::kEmbedding:
    case OpKind::kNorm:
    case OpKind::kGemm:
    case OpKind::kAttention:
    case OpKind::kActivation:
      return compute(op, step, stream);
    case OpKind::kLoss:
      return loss(op, step, stream);
    case OpKind::kPack:
      return casts(ranges_.pack(op, step), stream);
    case OpKind::kUnpack:
      return casts(ranges_.unpack(op, step), stream);
    case OpKind::kSumOfSquares:
      return sum_squares(op, step, stream);
    case OpKind::kUndo:
      if (std::get<BucketWork>(op.work).exact_undo) {
        return enqueue_recorded(op, step, {Part::kUndo, control_.undone_constants()}, stream);
      }
      [[fallthrough]];
    case OpKind::kSnapshot:
      return copies(ranges_.snapshot(op, step), CopyKind::kDeviceToDevice, stream);
    case OpKind::kAdam:
      return enqueue_adam(op, step, kind, stream);
    case OpKind::kCopy:
      if (ranks_) ranks_->bring(op, stream);
      return copies(ranges_.copies(op, step), kind_of_copy(op), stream);
    case OpKind::kCollective:
      return ranks_->exchange(op, step, stream);
    case OpKind::kCommit:
      // Judged by the host; its place in the stream is what others follow.
      return finish_recorded(stream);
    default:
      break;  // what the table of capabilities lacks is refused before anything runs
  }
  CHECK(false && "not an operation of one CUDA device");
}

void CudaDevice::compute(const Op& op, int32_t step, CudaStream stream) {
  if (ranks_ && ranks_->exchanges(op)) return ranks_->exchange(op, step, stream);
  math_->module(op, arguments_, step, stream);
}

void CudaDevice::work_on_cpu(const Op& op, int32_t step, ProgramKind kind) {
  switch (op.kind) {
    case OpKind::kCast:
      return updates_.cast(op, step, StepThreads::kPool);
    case OpKind::kDecide:
      collect_losses(plan_.optimizer.sync == SyncMode::kDelay ? step - 1 : step);
      return control_.decide(step);
    case OpKind::kSnapshot:
      return updates_.snapshot(op, step, StepThreads::kPool);
    case OpKind::kAdam:
      return updates_.adam(op, step, kind, StepThreads::kPool);
    case OpKind::kUndo:
      if (std::get<BucketWork>(op.work).exact_undo) {
        return updates_.exact_undo(op, step, StepThreads::kPool);
      }
      return updates_.snapshot(op, step, StepThreads::kPool);
    default:
      break;
  }
  CHECK(false && "not an operation of the CPU");
}

void CudaDevice::sum_squares(const Op& op, int32_t step, CudaStream stream) {
  for (const SumRange& range : ranges_.sums(op, step)) math_->sums(range, stream);
  if (ranks_) ranks_->put_aside(op, step, stream);
}

double CudaDevice::sum_of_partials() {
  return ranks_ ? ranks_->sum_of_all(updates_) : updates_.sum_of_partials().all;
}

void CudaDevice::casts(const std::vector<CastRange>& ranges, CudaStream stream) {
  math_->casts(ranges, stream);
}

void CudaDevice::copies(const std::vector<CopyRange>& ranges, CopyKind kind, CudaStream stream) {
  for (const CopyRange& range : ranges) {
    runtime_->copy({range.to, range.from, {range.bytes}, kind}, stream);
  }
}

void CudaDevice::enqueue_adam(const Op& op, int32_t step, ProgramKind kind, CudaStream stream) {
  const std::vector<StepRange> ranges = ranges_.steps(op, step);
  const std::optional<kernels::AdamConstants> decided = constants_of(control_, step, kind);
  if (!decided) return casts(weights_from_masters(ranges), stream);
  if (arguments_.find(op, Role::kUndoRecord, step).tensor != nullptr) {
    recorded_step_ = step;
    return enqueue_recorded(op, step, {Part::kStep, *decided}, stream);
  }
  for (const StepRange& range : ranges) {
    kernels::AdamConstants constants = *decided;
    if (!range.decays) constants.weight_decay = 0;
    math_->adam(range.arrays, constants, stream);
  }
}

uint32_t* CudaDevice::left_of(const Op& op) const {
  auto* const all = reinterpret_cast<uint32_t*>(left_.data());
  return all + first_run_[static_cast<size_t>(op.label.bucket)];
}

// One record a run, one after another in the bucket's tensor.
void CudaDevice::enqueue_recorded(const Op& op, int32_t step, const RecordedAdam& adam,
                                  CudaStream stream) {
  const std::vector<StepRange> ranges = ranges_.steps(op, step);
  const std::vector<Run>& runs = ranges_.runs(op.label.bucket);
  std::byte* record = arguments_.find(op, Role::kUndoRecord, step).data;
  for (size_t i = 0; i < ranges.size(); ++i) {
    uint32_t* const left = left_of(op) + i;
    kernels::AdamConstants constants = adam.constants;
    if (!ranges[i].decays) constants.weight_decay = 0;
    if (adam.part != Part::kFinish || *left == mark_of(step)) {
      math_->recorded_adam(
          {ranges[i].arrays, constants, reinterpret_cast<uint8_t*>(record), left, mark_of(step)},
          adam.part, stream);
    }
    record += undo_record_bytes(runs[i]).count;
  }
}

void CudaDevice::load_batch(const Op& op, int32_t step) {
  const Argument tokens = arguments_.find(op, Role::kTokens, step);
  const std::span<std::byte> buffer = batches_.take();
  const std::span<int32_t> ids(reinterpret_cast<int32_t*>(buffer.data()),
                               static_cast<size_t>(tokens.tensor->elements));
  const RankPlace place = shares_ ? place_of(plan_, shares_->ranks().rank()) : RankPlace{};
  data_.batch(batch_request(plan_, op, split_, step, static_cast<int>(place.data)), ids);
  check_tokens(ids);
  batches_.send(tokens.data, tokens.tensor->bytes());
}

// The GPU's kernels cannot say that an id is wrong.
void CudaDevice::check_tokens(std::span<const int32_t> tokens) const {
  for (const int32_t id : tokens) {
    if (id >= 0 && id < model_.vocab) continue;
    throw Error("tokens", fmt::format("id {} is outside the vocabulary of {}", id, model_.vocab),
                "tokenise the data for this model");
  }
}

void CudaDevice::loss(const Op& op, int32_t step, CudaStream stream) {
  const int64_t tokens = plan_.tokens_per_micro_batch();
  const bool trains = split_ == Split::kTraining;
  CudaMath::Loss loss;
  loss.gradient_factor = control_.loss_scale(step) /
                         static_cast<double>(tokens * plan_.accumulation() * plan_.replicas());
  if (options_.gradient_factor) loss.gradient_factor *= options_.gradient_factor(step);
  const int64_t place =
      trains ? (step & 1) * micro_batches() + op.label.micro_batch : 2 * micro_batches();
  loss.mean = reinterpret_cast<double*>(losses_.data()) + place;
  math_->loss(op, arguments_, step, loss, stream);
  if (trains) loss_steps_[static_cast<size_t>(step & 1)] = step;
}

// Of a step whose gradients have come, and its losses before them.
void CudaDevice::collect_losses(int32_t step) {
  if (step < 0 || loss_steps_[static_cast<size_t>(step & 1)] != step) return;
  const auto* losses =
      reinterpret_cast<const double*>(losses_.data()) + (step & 1) * micro_batches();
  for (int64_t i = 0; i < micro_batches(); ++i) control_.set_loss(step, i, losses[i]);
}

bool CudaDevice::commit(int32_t step) {
  collect_losses(step - 1);
  const bool accepted = control_.commit(step);
  begins_again_ = !accepted;
  // Judged once: the first commit of a run asks again about the last step of the run before.
  const bool is_recorded = recorded_step_ == step - 1;
  if (is_recorded) recorded_step_.reset();
  if (accepted && is_recorded) {
    // It tells by run whether something was left. The forward behind it keeps the GPU busy.
    lanes_.follow(graph_.step, graph_.commit, recorded_adams_.back(), step - 1);
    unfinished_ = step - 1;
  }
  return accepted;
}

// What the records did not hold is stepped now that nothing will be taken back: as part of the
// commit, which holds the gradients until then.
void CudaDevice::finish_recorded(CudaStream stream) {
  if (!unfinished_) return;
  const int32_t step = *std::exchange(unfinished_, {});
  for (const OpId id : recorded_adams_) {
    enqueue_recorded(graph_.step.ops[static_cast<size_t>(id)], step,
                     {Part::kFinish, control_.undone_constants()}, stream);
  }
}

// The losses of a delayed step are part of its state, which may be asked for next. The last step of
// a run is accepted without a commit on the stream.
void CudaDevice::drain() {
  runtime_->bind_thread();  // of whoever runs the executor, which need not have made the device
  finish_recorded(lanes_.stream(lane_of(0, LaneKind::kCompute)));
  lanes_.drain();
  // Everything before the fence has been handed over, and now is once more.
  if (std::exchange(begins_again_, false)) order_.begin_again();
  for (const int32_t step : loss_steps_) collect_losses(step);
}

void CudaDevice::read(TensorId tensor, int copy, int64_t begin, std::span<std::byte> to) {
  const std::span<std::byte> bytes = arguments_.bytes(tensor, copy);
  CHECK(static_cast<size_t>(begin) + to.size() <= bytes.size());
  if (graph_.tensors[static_cast<size_t>(tensor)].place == Place::kDram) {
    std::memcpy(to.data(), bytes.data() + begin, to.size());
    return;
  }
  runtime_->bind_thread();
  const CudaStream stream = lanes_.stream(lane_of(0, LaneKind::kCopyOut));
  runtime_->copy(
      {to.data(), bytes.data() + begin, {static_cast<int64_t>(to.size())}, CopyKind::kDeviceToHost},
      stream);
  runtime_->synchronize(stream);
}

void CudaDevice::write(TensorId tensor, int copy, int64_t begin, std::span<const std::byte> from) {
  const std::span<std::byte> bytes = arguments_.bytes(tensor, copy);
  CHECK(static_cast<size_t>(begin) + from.size() <= bytes.size());
  if (graph_.tensors[static_cast<size_t>(tensor)].place == Place::kDram) {
    std::memcpy(bytes.data() + begin, from.data(), from.size());
    return;
  }
  runtime_->bind_thread();
  const CudaStream stream = lanes_.stream(lane_of(0, LaneKind::kCopyIn));
  runtime_->copy({bytes.data() + begin,
                  from.data(),
                  {static_cast<int64_t>(from.size())},
                  CopyKind::kHostToDevice},
                 stream);
  runtime_->synchronize(stream);
}

void CudaDevice::spread_weights() {
  ballast::spread_weights(*this, {graph_, ranges_, plan_.dtype, options_.optimizer_threads});
}

void CudaDevice::run_alone(OpId id, int32_t step) {
  runs_alone_ = true;
  execute(graph_.step, id, step);
  drain();
  runs_alone_ = false;
  const LaneId lane = graph_.step.ops[static_cast<size_t>(id)].lane;
  if (queues(lane)) static_cast<void>(take_finished(lane));
}

void CudaDevice::restore_partials(int32_t step) {
  runtime_->bind_thread();
  run_norms(graph_, [&](const Op& op) {
    enqueue(op, step, ProgramKind::kStep, lanes_.stream(op.lane));
    drain();
  });
}

double CudaDevice::evaluate(int64_t batch, int32_t step) {
  split_ = Split::kValidation;
  run_forward(graph_, batch, step, [&](OpId id, int32_t at) { run_alone(id, at); });
  split_ = Split::kTraining;
  return reinterpret_cast<const double*>(losses_.data())[2 * micro_batches()];
}

void CudaDevice::hold(LaneId lane) {
  runtime_->bind_thread();
  math_->hold(lanes_.stream(lane));
}

std::vector<MemoryUse> CudaDevice::memory() {
  runtime_->bind_thread();
  const Bytes taken = free_before_ - runtime_->free_memory();
  return {{Place::kHbm, hbm_.bytes(), taken - math_->library_memory()},
          {Place::kDram, dram_.size(), dram_.resident()}};
}

}  // namespace ballast
