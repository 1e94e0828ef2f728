// The operations of the optimizer, bucket by bucket: what the pass `optimizer` puts in order.
//
//   CPU bucket: pack -> copy out -> [cast] -> [snapshot] -> Adam -> [cast] -> upload -> [unpack]
//   GPU bucket: Adam straight from the modules' gradients into their weights
//
// A framework may cast gradients before they leave (StackFacts::sends_wide_gradients), send them
// out and back before that (StackFacts::stage3_returns_gradients), twice, or with a host that waits
// (Stage3Sending, SpeculativeSending), as DeepSpeed does (@edaa72212,
// runtime/zero/stage_1_and_2.py, copy_grads_in_partition; runtime/zero/stage3.py, partition_grads
// and _offload_grad_partition_at_boundary; runtime/superoffload/superoffload_stage3.py,
// partition_grads; what older versions do otherwise is in profiles/stacks).
//
// Gradients are summed for their norm on the GPU, those of a CPU bucket where they leave from.
//
// Will not do: say where in the program an operation stands (sim/graph/passes/optimizer.cpp).
#pragma once

#include <vector>

#include "sim/graph/core/edit.h"
#include "sim/graph/core/graph.h"

namespace ballast {

class BucketOps {
 public:
  // Adds to the graph the tensors that its buckets need for a step. References must outlive this.
  BucketOps(Graph& graph, const Plan& plan, const StackFacts& facts);

  // Whether ranks must exchange the gradient of a bucket that the GPU steps. (What the CPU steps is
  // exchanged by `shard`, what is gathered layer by layer by `gather`.)
  bool reduces(int32_t b) const;
  // All-reduce (stage 0), or reduce-scatter in place (1) or into this rank's share (2).
  std::vector<Op> reduction(int32_t b);
  // Pack, copy out and norm; of what the GPU steps only the norm.
  std::vector<Op> gradient_out(int32_t b);
  // From the landed gradient to stepped master and, where the CPU casts, 16-bit weights in DRAM.
  std::vector<Op> step_of(int32_t b);
  // What passes of their own do in CPU memory to what was stepped, behind the last step; empty
  // where a framework has none.
  std::vector<Op> return_passes(int32_t b) const;
  // What the other ranks stepped of a GPU bucket; empty where every rank steps all.
  std::vector<Op> gather_of(int32_t b) const;
  // Copies of what was gathered to where weights live, where a framework gathers elsewhere.
  std::vector<Op> unpack_of(int32_t b) const;
  std::vector<Op> upload(int32_t b) { return bring_home(b, tensors(b).arriving); }
  Op decide();
  // Waits for all norms of the step before. What a repair would need is read here, which keeps it
  // alive (and its memory unused by others) from the step that made it.
  Op commit();
  // Undo every bucket, redo it with the decided gradient (nothing where the step is skipped), and
  // bring the weights home again. Redo takes the landed gradient as it is: Adam reads 16-bit too.
  void repair();
  // The verdict on all gradients (kDecision).
  TensorId decision() const { return decision_; }
  // By module: whether its weights flow, and its weights and gradient on the GPU, or -1.
  const std::vector<bool>& flowing() const { return flowing_; }
  const std::vector<TensorId>& module_weights() const { return module_weight_; }
  const std::vector<TensorId>& module_gradients() const { return module_gradient_; }

 private:
  // Tensors of one bucket beside its state; -1 where the plan has no use for one.
  struct BucketTensors {
    TensorId packed = -1, landed = -1, gradient32 = -1, arriving = -1;
    TensorId wide = -1;              // what leaves in 32 bits of what is packed in 16
    TensorId sum = -1, summed = -1;  // of all micro-batches: in CPU memory, and back from there
    TensorId partials_gpu = -1, partials = -1, undo = -1;
    TensorId reduced = -1;      // this rank's share of the gradient, where only that is kept
    TensorId second_copy = -1;  // of the gradient, where that is what is exchanged
    TensorId widened = -1;      // this rank's share of the gradient in 32 bits, for the step
    TensorId gathered = -1;     // weights of all ranks, where they are copied from there
    TensorId codes = -1;        // of the bucket's matrices, where they are kept in 8 bits too
    int64_t stationary = 0;     // elements of the bucket whose weights live on the GPU
    Bytes undo_record;          // what a step that speculates leaves of it
  };

  // Who exchanges what of a bucket: experts that this rank alone has are its own.
  struct Exchange {
    RankGroup group;
    Bytes bytes;
  };
  // `whole`: of the bucket with all that is in it; `all`: who hold the same of what is dense.
  Exchange exchange_of(int32_t b, Bytes whole, const RankGroup& all) const;

  SyncMode sync() const { return plan_.optimizer.sync; }
  const Bucket& bucket(int32_t b) const { return graph_.bucket(b); }
  BucketTensors& tensors(int32_t b) { return bucket_tensors_[static_cast<size_t>(b)]; }
  const BucketTensors& tensors(int32_t b) const { return bucket_tensors_[static_cast<size_t>(b)]; }
  void index_module_tensors();
  void double_weights();
  TensorId in_place(Place place, TensorKind kind, Category category, DType dtype, int64_t elements,
                    int32_t b);
  TensorId dram(TensorKind kind, Category category, DType dtype, int64_t elements, int32_t b) {
    return in_place(Place::kDram, kind, category, dtype, elements, b);
  }
  TensorId hbm(TensorKind kind, Category category, DType dtype, int64_t elements, int32_t b) {
    return in_place(Place::kHbm, kind, category, dtype, elements, b);
  }
  void add_tensors(int32_t b);
  // Those by which gradients leave.
  void add_sent_tensors(BucketTensors& t, int32_t b);
  bool exact_undo() const { return plan_.optimizer.undo == UndoKind::kExact; }
  // Elements of the bucket that 8-bit products multiply; 0 where there are none.
  int64_t elements_in_8_bits(int32_t b) const;
  Op op(OpKind kind, LaneKind lane, int32_t b, Work work, std::vector<Access> accesses) const;
  // On the lane by which gradients leave.
  Op copy_out(int32_t b, Bytes bytes, std::vector<Access> accesses) const;
  void append_modules(std::vector<Access>& accesses, int32_t b, const std::vector<TensorId>& ids,
                      const Access& like) const;
  Access weights_home() const {
    const int8_t other = sync() == SyncMode::kDelay ? 1 : 0;  // of two copies
    return {-1, Role::kDestination, AccessMode::kWrite, other};
  }
  int64_t broadcasts_of(int64_t ranks) const;
  Op group_op(CollectiveKind kind, const RankGroup& group, int32_t b, Bytes bytes,
              std::vector<Access> accesses) const;
  // What reads the bucket's gradient on the GPU.
  void append_gradient(std::vector<Access>& accesses, int32_t b, Role role);
  // Of what the GPU steps: its norm, and what passes of their own do to it before it is stepped.
  std::vector<Op> gradient_stays(int32_t b);
  // Packs it and, where a framework keeps the sum of all micro-batches in CPU memory, sends it
  // there and back, one behind the other on one lane. Returns what holds it on the GPU then.
  TensorId append_packed(std::vector<Op>& ops, int32_t b) const;
  // Of what is packed, cast: out, and once more where a framework sends it twice.
  void append_sent(std::vector<Op>& ops, int32_t b, TensorId cast) const;
  // What the sum in CPU memory costs that no gradient goes to: room.
  void append_unused_sum(std::vector<Access>& accesses, int32_t b) const;
  // The partial sums of its norm to the CPU, which judges them.
  Op partials_out(int32_t b) const;
  // What left before the gradient of `b` and is still held, or -1.
  TensorId sent_before(int32_t b) const;
  Op adam(int32_t b, TensorId gradient, bool decided);
  // From the record that Adam left: reads it and the gradient, and takes the state back.
  Op exact_undo_of(int32_t b);
  Op snapshot(int32_t b, OpKind kind);
  void append_cast_of_weights(std::vector<Op>& ops, int32_t b) const;
  Op cast_of_gradient(int32_t b) const;
  bool host_casts_gradients() const { return facts_.stage3_sending == Stage3Sending::kCastByHost; }
  // A pass of its own in CPU memory that moves so many bytes for each element, on so many percent
  // of the cores (0: all).
  Op cpu_pass(int32_t b, int64_t bytes, int64_t core_percent, const Access& access) const;
  // The loss scale and the clip factor, in a pass of their own.
  Op unscale(int32_t b, TensorId gradient) const;
  // What passes of their own do to gradients before they are reduced.
  Op laid_out(int32_t b);
  // Master and moments between where they rest and where they are stepped.
  enum class Arrival : uint8_t { kIn, kOut };
  Op move_state(int32_t b, Arrival arrival) const;
  // Stationary weights of a CPU bucket, through `staging` where the GPU casts.
  std::vector<Op> bring_home(int32_t b, TensorId staging);
  // The first bucket that returns makes the copy, the last one lets it go.
  Access through_whole_copy();
  void append_partials(std::vector<Access>& accesses);
  DType gradient_type() const;
  DType wire() const;           // of what crosses the link
  DType packed_type() const;    // of gradients as they are packed to leave
  DType gradient_wire() const;  // as they cross the link

  Graph& graph_;
  const Plan& plan_;
  const StackFacts& facts_;
  const bool keeps_sum_;  // CPU memory holds a sum of gradients
  const bool returns_;    // which all of them go to and come back from
  std::vector<bool> flowing_;
  std::vector<TensorId> module_weight_, module_gradient_;  // by module
  std::vector<BucketTensors> bucket_tensors_;
  TensorId decision_ = -1;
  TensorId repair_arriving_ = -1;
  TensorId whole_copy_ = -1;
};

}  // namespace ballast
