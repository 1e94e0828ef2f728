// What the passes share: finding accesses, making tensors and inserting operations.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "sim/graph/core/graph.h"

namespace ballast {

inline bool reads(const Access& access) { return access.mode != AccessMode::kWrite; }
inline bool writes(const Access& access) { return access.mode != AccessMode::kRead; }

inline bool is_backward(Phase phase) {
  return phase == Phase::kBackward || phase == Phase::kBackwardInput ||
         phase == Phase::kBackwardWeight;
}

inline TensorId add_tensor(Graph& graph, const Tensor& tensor) {
  graph.tensors.push_back(tensor);
  return static_cast<TensorId>(graph.tensors.size()) - 1;
}

inline Access read(TensorId tensor, Role role) { return {tensor, role, AccessMode::kRead, 0}; }
inline Access write(TensorId tensor, Role role) { return {tensor, role, AccessMode::kWrite, 0}; }
inline Access update(TensorId tensor, Role role) {
  return {tensor, role, AccessMode::kReadWrite, 0};
}

// Operations to insert into a program, by the position that they come before. Operations given
// for the same position keep the order in which they were given.
class Insertions {
 public:
  void before(size_t position, Op op) { all_.emplace_back(position, std::move(op)); }
  void after(size_t position, Op op) { before(position + 1, std::move(op)); }
  // The program with everything inserted; this object is empty afterwards.
  std::vector<Op> apply(std::vector<Op> ops);

 private:
  std::vector<std::pair<size_t, Op>> all_;  // as given
};

// The position that lies `count` compute-lane operations before `position`, not below `least`.
size_t ahead_of(const std::vector<Op>& ops, size_t position, int64_t count, size_t least);

// First operation of a backward, or ops.size().
size_t first_backward(const std::vector<Op>& ops);

// Splits the flat parameter space into buckets from its end, each as many whole segments as fit
// `bucket_bytes` of 32-bit values (at least one); the last `gpu_buckets` of them, or all where the
// optimizer lives there, are stepped on the GPU.
std::vector<Bucket> buckets_of(const std::vector<Module>& modules, const OptimizerPlan& optimizer);

// Of each of those buckets, in their order, the last module (by index) that has a piece in it;
// where nothing else of them is asked: a trillion parameters are millions of pieces.
std::vector<int32_t> last_modules_of_buckets(const std::vector<Module>& modules,
                                             Bytes bucket_bytes);

// Parameters of a bucket that lie side by side and all decay (matrices), or all do not: one call
// of an optimizer kernel.
struct Run {
  int32_t module = 0;
  int32_t piece = 0;         // index into Bucket::pieces
  int64_t module_begin = 0;  // elements from the module's start
  int64_t bucket_begin = 0;  // elements from the bucket's start
  int64_t count = 0;
  bool decays = false;
};
std::vector<Run> runs_of(const std::vector<Module>& modules, const Bucket& bucket);

// All parameters of a module of which a rank has the same share as others (ZeRO stage 3):
// Module::count of it, the last ranks fewer. Its table of parameters is that of the whole.
int64_t whole_count(const Module& module);
// The module as it is before it is shared.
Module whole_module(Module module);

// Bytes of the record from which one run can be undone exactly: for each tile of 4096 parameters a
// code each, a reserve of an eighth of that for escapes, and their length in 4 bytes
// (kernels/undo.h, whose numbers a test holds against these); a multiple of 64.
Bytes undo_record_bytes(const Run& run);

// Master, moments and, where the CPU casts, 16-bit weights of every bucket.
void add_bucket_state(Graph& graph, const Plan& plan, const StackFacts& facts);

// Of master and both moments of a bucket, read or written once.
Bytes state_bytes(const Graph& graph, const Bucket& bucket);

// Values of a plain snapshot: master and both moments.
inline constexpr int64_t kSnapshotArrays = 3;

// Elementwise work over `elements`, reading `from` and writing `to`.
inline BucketWork elementwise(int64_t elements, DType from, DType to, Site site) {
  return {elements, from, to, site, bytes_of(elements, from) + bytes_of(elements, to)};
}

// What a rollback of a bucket needs: a copy of its state, or the bits that its step lost.
Bytes undo_bytes(const Graph& graph, const Bucket& bucket, UndoKind kind);

// Of the largest share that one of `ranks` has of a bucket.
Bytes undo_bytes_of_share(const Graph& graph, int32_t bucket, UndoKind kind, int64_t ranks);

// Makes the first computation of a step wait for these tensors, where nothing that fills them runs
// beside it.
void compute_after(const std::vector<TensorId>& tensors, std::vector<Op>& ops);

// A tensor of one element, in kind and place like another, that stands for "this is done": no edge
// is ever written, so what only has to wait is made to read what the other writes.
TensorId add_token(Graph& graph, Tensor like);

// Of a tensor that no operation reads or writes, but waits for.
bool is_token(const Tensor& tensor);

// Sums a norm, or moves such sums.
bool holds_norms(const Graph& graph, const Op& op);

// A copy of weights or gradients across the link, but not of the state that a streaming optimizer
// moves.
bool moves_parameters(const Graph& graph, const Op& op);

// Whether CPU memory holds a sum of the gradients of all buckets
// (StackFacts::stage3_returns_gradients): not where it steps none of them, for then nothing is
// offloaded.
bool keeps_sum_on_cpu(const Graph& graph, const StackFacts& facts);
// Whether they all go there and back.
bool returns_gradients(const Graph& graph, const StackFacts& facts);

// Makes the operation with the accesses `after` wait for the one with `before`.
void hand_token(Graph& graph, std::vector<Access>& before, std::vector<Access>& after);

// Makes the next computation of a program that is walked operation by operation wait for a tensor.
class NextComputation {
 public:
  void wait_for(TensorId tensor) { tensor_ = tensor; }
  // To be called for every operation, in program order.
  void meet(Op& op) {
    if (tensor_ < 0 || kind_of(op.lane) != LaneKind::kCompute) return;
    op.accesses.push_back(read(tensor_, Role::kScratch));
    tensor_ = -1;
  }

 private:
  TensorId tensor_ = -1;
};

// Of whoever runs a plan: a framework may leave what is offloaded to another.
inline const StackFacts& whose_facts(const StackFacts& facts, const Plan& plan) {
  const bool offloads = plan.optimizer.placement != OptimizerPlacement::kGpu;
  return facts.where_offloaded.facts && offloads ? *facts.where_offloaded.facts : facts;
}

// Leaves of the ways by which gradients leave for the CPU (StackFacts::sends_wide_gradients and
// what follows there) those that this plan takes.
void settle_sending(StackFacts& facts, const Plan& plan);

// Of facts that hold for a plan: the host waits for gradients that leave for the CPU.
inline bool waits_for_gradients(const StackFacts& facts) {
  return facts.sent_overflow_bytes > 0 || facts.stage3_sending != Stage3Sending::kAhead ||
         facts.speculative_sending == SpeculativeSending::kWaited;
}

// The facts that hold for a plan: those of whoever offloads, where it does (which attention was
// settled before), and how gradients are reduced and leave at its stage.
inline StackFacts facts_of(const StackFacts& facts, const Plan& plan) {
  StackFacts own = whose_facts(facts, plan);
  own.attention = facts.attention;
  own.attention_kernel = facts.attention_kernel;
  own.attention_kernel_on = facts.attention_kernel_on;
  if (own.buckets_at_stage_0_alone && (plan.zero_stage > 0 || plan.replicas() == 1)) {
    own.copies_gradients_to_buckets = false;
    own.gradient_overlap = Overlap::kNone;
    own.reduce_bytes = own.wide_reduce_bytes = 0;
  }
  settle_sending(own, plan);
  return own;
}

// What a framework lets a plan of several ranks choose that names no stage: the least and the most.
inline std::pair<int64_t, int64_t> zero_stages_of(const StackFacts& facts, const Plan& plan) {
  const StackFacts& own = whose_facts(facts, plan);
  const bool in_stage3 = own.speculates_in_stage3 && plan.optimizer.sync == SyncMode::kSpeculate;
  return {in_stage3 ? 3 : own.least_zero_stage, own.most_zero_stage};
}

// True where a framework keeps no 32-bit state at all.
inline bool pure_16_bit(const Plan& plan, const StackFacts& facts) {
  return facts.pure_16_bit && plan.dtype != DType::kF32 &&
         plan.optimizer.placement == OptimizerPlacement::kGpu;
}

// How a module's gradient is stored: in 32 bits where the plan asks for that or the framework does
// it anyway. What keeps no 32-bit state has no such gradients either.
inline DType gradient_dtype(const Plan& plan, const StackFacts& facts) {
  const bool wide =
      plan.gradients == GradientFormat::kF32 || facts.gradients == GradientPrecision::kF32;
  return wide && !pure_16_bit(plan, facts) ? DType::kF32 : plan.dtype;
}

// An operation of device 0, in the lane of its communicator.
Op collective_op(LaneKind lane, const CollectiveWork& work, Phase phase, const Label& label,
                 std::vector<Access> accesses);

struct RankGroup {
  int64_t ranks = 1;
  int64_t stride = 1;
};
// The ranks that share the state of the same weights, for collectives of sharded state.
inline RankGroup replica_group(const Plan& plan) { return {plan.sharing(), plan.tensor}; }
// Those that reduce the gradients of the same weights in one collective.
inline RankGroup reducing_group(const Plan& plan, const StackFacts& facts) {
  return facts.reduces_whole ? RankGroup{plan.replicas(), plan.tensor} : replica_group(plan);
}
// Of `ranks` that share state, those that hold the same of this module; its dense parts, where it
// has experts, are counted with them.
inline int64_t sharing_of(const Module& module, int64_t ranks) {
  return std::max<int64_t>(1, ranks / module.expert_ranks);
}
// Bytes that passes of their own move for each element of gradients that is reduced: of those that
// cross the wire as these facts say.
inline int64_t layout_bytes(const StackFacts& facts) {
  const bool wide = facts.reduction == GradientPrecision::kF32;
  return wide ? facts.wide_reduce_bytes : facts.reduce_bytes;
}
// What a rank keeps of each module where `ranks` share its weights (stage 3). Tables of parameters
// stay those of whole modules.
void shard_modules(std::vector<Module>& modules, int64_t ranks);
// What a rank keeps of a tensor that is as long as a bucket, or a multiple of it, shared by
// `ranks`. Bucket -1 here and below: of all of them.
int64_t share_of_bucket(const Graph& graph, int32_t bucket, int64_t elements, int64_t ranks);
// What both of these ask of a bucket, for passes that ask again and again.
struct SharedBucket {
  int64_t all = 0;        // elements
  int64_t kept = 0;       // of them, each sort divided by those that share it
  int64_t exchanged = 0;  // elements that other ranks hold as well
  bool is_even = false;   // all of it is shared by as many ranks
};
SharedBucket shared_bucket(const Graph& graph, int32_t bucket, int64_t ranks);
int64_t share_of(const SharedBucket& bucket, int64_t elements, int64_t ranks);
Bytes exchanged_of(const SharedBucket& bucket, Bytes whole);
// Of `whole`, which is all that is in a bucket, what other ranks hold as well and exchange; a byte
// at least.
Bytes exchanged_bytes(const Graph& graph, int32_t bucket, Bytes whole, int64_t ranks);

// Those of `group`, which hold the same of what is dense, that hold the same of all of a bucket: of
// one with experts alone the fewer ranks that have these experts; where it has both, the group.
RankGroup group_of_bucket(const Graph& graph, int32_t bucket, const RankGroup& group);

// Those that hold the same share of it (Plan::zero_group); one rank where all share.
inline RankGroup copies_group(const Plan& plan) {
  return {plan.replicas() / plan.sharing(), plan.tensor * plan.sharing()};
}

// True where 16-bit copies of CPU-stepped weights are made on the CPU.
inline bool cast_on_cpu(const Plan& plan) {
  return plan.dtype != DType::kF32 && plan.optimizer.cast == CastPlacement::kCpu;
}
inline bool cast_on_gpu(const Plan& plan) {
  return plan.dtype != DType::kF32 && plan.optimizer.cast == CastPlacement::kGpu;
}

// Modules (by index) of the layers that flow where this share of them does: spread evenly over the
// depth.
std::vector<bool> modules_of_flowing_layers(const std::vector<Module>& modules, double share);

// Modules (by index) whose weights live in DRAM and flow in before each use: those of the flowing
// layers whose every bucket is stepped on the CPU.
std::vector<bool> flowing_modules(const Graph& graph, const Plan& plan);

}  // namespace ballast
