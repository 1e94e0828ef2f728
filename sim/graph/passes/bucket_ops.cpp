#include "sim/graph/passes/bucket_ops.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/module_index.h"

namespace ballast {

BucketOps::BucketOps(Graph& graph, const Plan& plan, const StackFacts& facts)
    : graph_(graph),
      plan_(plan),
      facts_(facts),
      keeps_sum_(keeps_sum_on_cpu(graph, facts)),
      returns_(returns_gradients(graph, facts)),
      flowing_(flowing_modules(graph, plan)),
      module_weight_(graph.modules.size(), -1),
      module_gradient_(graph.modules.size(), -1) {
  index_module_tensors();
  decision_ = dram(TensorKind::kDecision, Category::kWorkspace, DType::kF64, 4, -1);
  if (sync() == SyncMode::kDelay) double_weights();
  for (size_t b = 0; b < graph.buckets.size(); ++b) add_tensors(static_cast<int32_t>(b));
}

DType BucketOps::gradient_type() const { return gradient_dtype(plan_, facts_); }
DType BucketOps::wire() const { return cast_on_gpu(plan_) ? DType::kF32 : plan_.dtype; }
// Rounded to the link's 16 bits, what is summed in 32 would depend on where it is stepped.
DType BucketOps::packed_type() const {
  if (plan_.gradients == GradientFormat::kF32) return DType::kF32;
  const bool cast_later = facts_.sends_wide_gradients || host_casts_gradients();
  return cast_later ? gradient_type() : wire();
}
DType BucketOps::gradient_wire() const {
  return facts_.sends_wide_gradients ? DType::kF32 : packed_type();
}

void BucketOps::index_module_tensors() {
  const ModuleIndex index(graph_.modules);
  for (size_t t = 0; t < graph_.tensors.size(); ++t) {
    const auto& [kind, label] = std::tie(graph_.tensors[t].kind, graph_.tensors[t].label);
    if (kind != TensorKind::kWeight && kind != TensorKind::kGradient) continue;
    auto& slots = kind == TensorKind::kWeight ? module_weight_ : module_gradient_;
    TensorId& slot = slots[static_cast<size_t>(index.of(label))];
    if (slot < 0) slot = static_cast<TensorId>(t);  // later ones are fetched copies
  }
}

void BucketOps::double_weights() {
  for (size_t i = 0; i < graph_.modules.size(); ++i) {
    if (module_weight_[i] >= 0 && !flowing_[i]) {
      graph_.tensor(module_weight_[i]).copies = 2;
    }
  }
}

TensorId BucketOps::in_place(Place place, TensorKind kind, Category category, DType dtype,
                             int64_t elements, int32_t b) {
  Tensor tensor;
  tensor.kind = kind;
  tensor.category = category;
  tensor.place = place;
  tensor.dtype = dtype;
  tensor.elements = elements;
  tensor.label.bucket = b;
  return add_tensor(graph_, tensor);
}

void BucketOps::add_tensors(int32_t b) {
  BucketTensors t;
  const int64_t count = bucket(b).count;
  for (const Bucket::Piece& piece : bucket(b).pieces) {
    if (!flowing_[static_cast<size_t>(piece.module)]) t.stationary += piece.count;
  }
  t.partials =
      dram(TensorKind::kNormPartials, Category::kWorkspace, DType::kF64, bucket(b).segments, b);
  const bool on_gpu = bucket(b).site == Site::kGpu;
  // One byte a value for each of the two layouts that products read.
  const int64_t codes = facts_.fp8_weights == Weights8::kKept ? 2 * elements_in_8_bits(b) : 0;
  if (codes > 0) t.codes = hbm(TensorKind::kCodes, Category::kWeights, DType::kU8, codes, b);
  if (reduces(b) && plan_.zero_stage == 2) {
    t.reduced = hbm(TensorKind::kReduced, Category::kGradients, gradient_type(), count, b);
  }
  if (reduces(b) && plan_.zero_stage > 0 && facts_.copies_gathered_by_tensor) {
    // By NCCL in one piece, and by rank.
    t.gathered = hbm(TensorKind::kArriving, Category::kStaging, plan_.dtype, 2 * count, b);
  }
  const bool together = on_gpu && bucket(b).rest < 0;  // what streams in is stepped alone
  if (together && facts_.widens_gradients && gradient_type() != DType::kF32) {
    t.widened = hbm(TensorKind::kReduced, Category::kGradients, DType::kF32, count, b);
  }
  const bool apart = facts_.adds_gradients_apart && plan_.replicas() > 1;
  if ((plan_.zero_stage == 0 || apart) && on_gpu && facts_.copies_gradients_to_buckets) {
    const DType type = apart ? plan_.dtype : gradient_type();
    t.second_copy = hbm(TensorKind::kPacked, Category::kGradients, type, count, b);
  }
  t.partials_gpu =
      hbm(TensorKind::kNormPartials, Category::kWorkspace, DType::kF64, bucket(b).segments, b);
  add_sent_tensors(t, b);
  if (sync() == SyncMode::kSpeculate && !facts_.undoes_by_arithmetic) {
    t.undo_record = undo_bytes(graph_, bucket(b), plan_.optimizer.undo);
    t.undo =
        in_place(on_gpu ? Place::kHbm : Place::kDram, TensorKind::kUndoRecord, Category::kSnapshot,
                 DType::kF32, div_ceil(t.undo_record.count, size_of(DType::kF32)), b);
  }
  bucket_tensors_.push_back(t);
}

int64_t BucketOps::elements_in_8_bits(int32_t b) const {
  if (plan_.products == ProductFormat::kAsStored) return 0;
  int64_t count = 0;
  for (const Bucket::Piece& piece : bucket(b).pieces) {
    const Module& module = graph_.module(piece.module);
    const bool norm = module.kind == ModuleKind::kNorm1 || module.kind == ModuleKind::kNorm2;
    if (module.layer >= 0 && !norm) count += piece.count;
  }
  return count;
}

Op BucketOps::op(OpKind kind, LaneKind lane, int32_t b, Work work,
                 std::vector<Access> accesses) const {
  Op result;
  result.kind = kind;
  result.phase = Phase::kOptimizer;
  result.lane = lane_of(0, lane);
  result.label.bucket = b;
  result.work = std::move(work);
  result.accesses = std::move(accesses);
  return result;
}

Op BucketOps::copy_out(int32_t b, Bytes bytes, std::vector<Access> accesses) const {
  return op(OpKind::kCopy, LaneKind::kCopyOut, b, CopyWork{bytes, CopyDirection::kDeviceToHost},
            std::move(accesses));
}

void BucketOps::append_modules(std::vector<Access>& accesses, int32_t b,
                               const std::vector<TensorId>& ids, const Access& like) const {
  for (const Bucket::Piece& piece : bucket(b).pieces) {
    const auto module = static_cast<size_t>(piece.module);
    const bool weights = &ids == &module_weight_;
    if (weights && flowing_[module]) continue;
    Access access = like;
    access.tensor = ids[module];
    accesses.push_back(access);
  }
}

bool BucketOps::reduces(int32_t b) const {
  return plan_.replicas() > 1 && plan_.zero_stage < 3 && bucket(b).site == Site::kGpu;
}

Op BucketOps::group_op(CollectiveKind kind, const RankGroup& group, int32_t b, Bytes bytes,
                       std::vector<Access> accesses) const {
  return op(OpKind::kCollective, LaneKind::kDataNetwork, b,
            CollectiveWork{kind, bytes, group.ranks, group.stride}, std::move(accesses));
}

BucketOps::Exchange BucketOps::exchange_of(int32_t b, Bytes whole, const RankGroup& all) const {
  const RankGroup group = group_of_bucket(graph_, b, all);
  if (group.ranks != all.ranks) return {group, whole};
  return {all, exchanged_bytes(graph_, b, whole, all.ranks)};
}

Op BucketOps::adam(int32_t b, TensorId gradient, bool decided) {
  const Bucket& home = bucket(b);
  const bool on_gpu = home.site == Site::kGpu;
  std::vector<Access> accesses = {update(home.master, Role::kMaster),
                                  update(home.moment1, Role::kMoment1),
                                  update(home.moment2, Role::kMoment2)};
  // Gradient read; master and both moments read and written.
  const DType from = on_gpu ? gradient_type() : graph_.tensor(gradient).dtype;
  BucketWork work{home.count, from, DType::kF32, home.site,
                  bytes_of(home.count, from) + state_bytes(graph_, home) * 2};
  if (on_gpu) {
    append_gradient(accesses, b, Role::kGradient);
    const bool apart = tensors(b).widened >= 0 && tensors(b).summed < 0;
    if (apart) accesses.push_back(read(tensors(b).widened, Role::kScratch));
    append_modules(accesses, b, module_weight_, weights_home());
    work.to = plan_.dtype;
    work.moved += bytes_of(home.count, plan_.dtype);
    if (facts_.fp8_weights != Weights8::kEachUse) {
      // Read once more, and written in both layouts.
      const int64_t rounded = elements_in_8_bits(b);
      work.moved += bytes_of(rounded, plan_.dtype) + bytes_of(rounded, DType::kU8) * 2;
    }
    if (tensors(b).codes >= 0) accesses.push_back(update(tensors(b).codes, Role::kCodes));
  } else {
    accesses.push_back(read(gradient, Role::kGradient));
  }
  if (decided) {
    accesses.push_back(read(decision_, Role::kDecision));
  } else if (exact_undo() && tensors(b).undo >= 0) {
    accesses.push_back(write(tensors(b).undo, Role::kUndoRecord));
    work.exact_undo = true;
    work.moved += tensors(b).undo_record;
  }
  return op(OpKind::kAdam, on_gpu ? LaneKind::kCompute : LaneKind::kCpu, b, work,
            std::move(accesses));
}

// Without a record Adam's own arithmetic runs backwards.
Op BucketOps::exact_undo_of(int32_t b) {
  Op undo = adam(b, tensors(b).landed, true);
  undo.kind = OpKind::kUndo;
  std::erase_if(undo.accesses, [](const Access& access) {
    return access.role == Role::kDecision || access.role == Role::kDestination;
  });
  BucketWork& work = std::get<BucketWork>(undo.work);
  work.to = DType::kF32;
  if (tensors(b).undo < 0) return undo;
  undo.accesses.push_back(read(tensors(b).undo, Role::kUndoRecord));
  work.exact_undo = true;
  work.moved += tensors(b).undo_record;
  return undo;
}

Op BucketOps::snapshot(int32_t b, OpKind kind) {
  const Bucket& home = bucket(b);
  const bool on_gpu = home.site == Site::kGpu;
  const bool undo = kind == OpKind::kUndo;
  const int64_t words = undo_bytes(graph_, home, UndoKind::kSnapshot).count / size_of(DType::kF32);
  const auto state = [&](TensorId id, Role role) {
    return undo ? update(id, role) : read(id, role);
  };
  return op(kind, on_gpu ? LaneKind::kCompute : LaneKind::kCpu, b,
            elementwise(words, DType::kF32, DType::kF32, home.site),
            {state(home.master, Role::kMaster), state(home.moment1, Role::kMoment1),
             state(home.moment2, Role::kMoment2),
             undo ? read(tensors(b).undo, Role::kUndoRecord)
                  : write(tensors(b).undo, Role::kUndoRecord)});
}

void BucketOps::append_cast_of_weights(std::vector<Op>& ops, int32_t b) const {
  const Bucket& home = bucket(b);
  if (home.weights < 0) return;
  ops.push_back(op(OpKind::kCast, LaneKind::kCpu, b,
                   elementwise(home.count, DType::kF32, plan_.dtype, Site::kCpu),
                   {read(home.master, Role::kSource), write(home.weights, Role::kDestination)}));
}

Op BucketOps::cast_of_gradient(int32_t b) const {
  const BucketTensors& t = tensors(b);
  return op(OpKind::kCast, LaneKind::kCpu, b,
            elementwise(bucket(b).count, plan_.dtype, DType::kF32, Site::kCpu),
            {read(t.landed, Role::kSource), write(t.gradient32, Role::kDestination)});
}

std::vector<Op> BucketOps::step_of(int32_t b) {
  const BucketTensors& t = tensors(b);
  const bool rests = bucket(b).rest >= 0;
  std::vector<Op> ops;
  if (rests) ops.push_back(move_state(b, Arrival::kIn));
  if (t.gradient32 >= 0 && !host_casts_gradients()) ops.push_back(cast_of_gradient(b));
  if (sync() == SyncMode::kSpeculate && !exact_undo() && t.undo >= 0) {
    ops.push_back(snapshot(b, OpKind::kSnapshot));
  }
  const TensorId gradient = t.gradient32 >= 0 ? t.gradient32 : t.landed;
  const bool decided = sync() != SyncMode::kSpeculate;  // else no clip factor is known yet
  if (facts_.separate_unscale && decided && gradient >= 0) ops.push_back(unscale(b, gradient));
  if (facts_.step_copy_bytes > 0 && !decided && gradient >= 0) {
    ops.push_back(cpu_pass(b, facts_.step_copy_bytes, 0, update(gradient, Role::kGradient)));
  }
  ops.push_back(adam(b, gradient, decided));
  append_cast_of_weights(ops, b);
  if (rests) ops.push_back(move_state(b, Arrival::kOut));
  return ops;
}

Op BucketOps::cpu_pass(int32_t b, int64_t bytes, int64_t core_percent, const Access& access) const {
  const DType type = graph_.tensor(access.tensor).dtype;
  BucketWork work{bucket(b).count, type, type, Site::kCpu, {bucket(b).count * bytes}};
  work.core_percent = core_percent;
  return op(OpKind::kScale, LaneKind::kCpu, b, work, {access});
}

std::vector<Op> BucketOps::return_passes(int32_t b) const {
  if (facts_.return_bytes == 0 || bucket(b).site == Site::kGpu) return {};
  return {cpu_pass(b, facts_.return_bytes, facts_.return_core_percent,
                   update(bucket(b).master, Role::kMaster))};
}

std::vector<Op> BucketOps::gather_of(int32_t b) const {
  std::vector<Op> ops;
  if (!reduces(b) || plan_.zero_stage == 0) return ops;
  std::vector<Access> weights;
  Access whole = weights_home();
  whole.mode = AccessMode::kReadWrite;
  append_modules(weights, b, module_weight_, whole);
  Bytes bytes = bytes_of(bucket(b).count, plan_.dtype);
  if (facts_.fp8_weights == Weights8::kStored) {
    const int64_t narrow = elements_in_8_bits(b);
    bytes = bytes - bytes_of(narrow, plan_.dtype) + bytes_of(narrow, DType::kU8);
  }
  const Exchange exchange = exchange_of(b, bytes, replica_group(plan_));
  if (tensors(b).gathered >= 0) {
    for (Access& access : weights) access.mode = AccessMode::kRead;
    weights.push_back(write(tensors(b).gathered, Role::kDestination));
  }
  const int64_t calls = broadcasts_of(exchange.group.ranks);
  const CollectiveKind kind =
      facts_.broadcasts_shares ? CollectiveKind::kBroadcast : CollectiveKind::kAllGather;
  for (int64_t call = 0; call < calls; ++call) {
    ops.push_back(
        group_op(kind, exchange.group, b, {div_ceil(exchange.bytes.count, calls)}, weights));
  }
  return ops;
}

// Of all buckets together as many as ranks have shares, which are at most as many as there are
// tensors: here a module's weights count as one.
int64_t BucketOps::broadcasts_of(int64_t ranks) const {
  if (!facts_.broadcasts_shares) return 1;
  const auto tensors = std::count_if(graph_.modules.begin(), graph_.modules.end(),
                                     [](const Module& module) { return module.count > 0; });
  const int64_t shares = std::min<int64_t>(ranks, tensors);
  return div_ceil(shares, static_cast<int64_t>(graph_.buckets.size()));
}

std::vector<Op> BucketOps::unpack_of(int32_t b) const {
  if (tensors(b).gathered < 0) return {};
  std::vector<Access> accesses = {read(tensors(b).gathered, Role::kSource)};
  append_modules(accesses, b, module_weight_, weights_home());
  // From one piece to a buffer for each rank, and from there to the tensors: both read and written.
  BucketWork work = elementwise(bucket(b).count, plan_.dtype, plan_.dtype, Site::kGpu);
  work.moved = work.moved * 2;
  // A module that lies in several buckets is copied with its first part. The host takes each rank's
  // slice of it in an operation of its own before it copies there: no kernel, but as many calls.
  int64_t begun = 0;
  for (const Bucket::Piece& piece : bucket(b).pieces) begun += piece.begin == 0 ? 1 : 0;
  work.launches = replica_group(plan_).ranks * (2 * begun + 1);
  return {op(OpKind::kUnpack, LaneKind::kCompute, b, work, std::move(accesses))};
}

Op BucketOps::unscale(int32_t b, TensorId gradient) const {
  const DType type = graph_.tensor(gradient).dtype;
  return op(OpKind::kScale, LaneKind::kCpu, b, elementwise(bucket(b).count, type, type, Site::kCpu),
            {update(gradient, Role::kGradient), read(decision_, Role::kDecision)});
}

Op BucketOps::move_state(int32_t b, Arrival arrival) const {
  const Bucket& home = bucket(b);
  const bool in = arrival == Arrival::kIn;
  const Bytes bytes = state_bytes(graph_, home);
  std::vector<Access> accesses = {in ? read(home.rest, Role::kSource)
                                     : write(home.rest, Role::kDestination)};
  for (const TensorId id : {home.master, home.moment1, home.moment2}) {
    accesses.push_back(in ? write(id, Role::kDestination) : read(id, Role::kSource));
  }
  if (home.site == Site::kCpu) {
    return op(OpKind::kIo, in ? LaneKind::kNvmeRead : LaneKind::kNvmeWrite, b,
              IoWork{bytes, in ? IoDirection::kRead : IoDirection::kWrite}, std::move(accesses));
  }
  return op(OpKind::kCopy, in ? LaneKind::kUpload : LaneKind::kCopyOut, b,
            CopyWork{bytes, in ? CopyDirection::kHostToDevice : CopyDirection::kDeviceToHost},
            std::move(accesses));
}

std::vector<Op> BucketOps::bring_home(int32_t b, TensorId staging) {
  const Bucket& home = bucket(b);
  const int64_t stationary = tensors(b).stationary;
  std::vector<Op> ops;
  if (home.site == Site::kGpu || stationary == 0) return ops;
  std::vector<Access> weights;
  append_modules(weights, b, module_weight_, weights_home());
  const TensorId source = home.weights >= 0 ? home.weights : home.master;
  const CopyWork copy{bytes_of(stationary, wire()), CopyDirection::kHostToDevice};
  if (staging < 0) {
    weights.push_back(read(source, Role::kSource));
    if (facts_.returns_weights_whole) weights.push_back(through_whole_copy());
    ops.push_back(op(OpKind::kCopy, LaneKind::kUpload, b, copy, std::move(weights)));
    return ops;
  }
  ops.push_back(op(OpKind::kCopy, LaneKind::kUpload, b, copy,
                   {read(source, Role::kSource), write(staging, Role::kDestination)}));
  weights.push_back(read(staging, Role::kSource));
  ops.push_back(op(OpKind::kUnpack, LaneKind::kUpload, b,
                   elementwise(stationary, DType::kF32, plan_.dtype, Site::kGpu),
                   std::move(weights)));
  return ops;
}

Access BucketOps::through_whole_copy() {
  const bool first = whole_copy_ < 0;
  if (first) {
    int64_t elements = 0;
    for (const Bucket& all : graph_.buckets) elements += all.site == Site::kCpu ? all.count : 0;
    whole_copy_ = hbm(TensorKind::kReduced, Category::kStaging, DType::kF32, elements, -1);
  }
  return {whole_copy_, Role::kScratch, first ? AccessMode::kWrite : AccessMode::kReadWrite, 0};
}

void BucketOps::append_partials(std::vector<Access>& accesses) {
  for (const BucketTensors& t : bucket_tensors_) {
    accesses.push_back(read(t.partials, Role::kNormPartials));
  }
}

Op BucketOps::decide() {
  std::vector<Access> accesses = {write(decision_, Role::kDecision)};
  append_partials(accesses);
  return op(OpKind::kDecide, LaneKind::kCheck, -1, std::monostate{}, std::move(accesses));
}

Op BucketOps::commit() {
  std::vector<Access> accesses = {write(decision_, Role::kDecision)};
  append_partials(accesses);
  int64_t largest = 0;
  for (size_t i = 0; i < graph_.buckets.size(); ++i) {
    const auto b = static_cast<int32_t>(i);
    const BucketTensors& t = tensors(b);
    if (t.undo >= 0) accesses.push_back(read(t.undo, Role::kUndoRecord));
    if (bucket(b).site == Site::kGpu) {
      append_gradient(accesses, b, Role::kGradient);
    } else {
      accesses.push_back(read(t.landed, Role::kGradient));
      if (bucket(b).weights >= 0) accesses.push_back(read(bucket(b).weights, Role::kSource));
    }
    if (t.arriving >= 0) largest = std::max(largest, t.stationary);
  }
  if (largest > 0) {
    repair_arriving_ =
        hbm(TensorKind::kRepairArriving, Category::kStaging, DType::kF32, largest, -1);
    accesses.push_back(write(repair_arriving_, Role::kScratch));
  }
  Op result = op(OpKind::kCommit, LaneKind::kCompute, -1, std::monostate{}, std::move(accesses));
  result.fence = true;
  return result;
}

void BucketOps::repair() {
  std::vector<Op>& ops = graph_.repair.ops;
  for (size_t i = 0; i < graph_.buckets.size(); ++i) {
    const auto b = static_cast<int32_t>(i);
    const bool recomputed = exact_undo() || tensors(b).undo < 0;
    ops.push_back(recomputed ? exact_undo_of(b) : snapshot(b, OpKind::kUndo));
    ops.push_back(adam(b, tensors(b).landed, true));
    append_cast_of_weights(ops, b);
    const TensorId staging = tensors(b).arriving >= 0 ? repair_arriving_ : -1;
    for (Op& home : bring_home(b, staging)) ops.push_back(std::move(home));
    for (Op& whole : gather_of(b)) ops.push_back(std::move(whole));
  }
}

}  // namespace ballast
