// The CUDA device: the lanes of the GPU are streams, those of the CPU threads; the arena of the
// GPU is one allocation, that of the CPU memory pinned for copies.
//
// Threads hand operations over ahead of time: between streams events keep the graph's edges. Only
// what depends on work of the CPU (a step of its buckets, a decision, a commit) is handed over when
// that work is done; nothing else on the GPU waits for it. What the host must know of a step (its
// losses, the norms) comes to pinned memory on the way of the operations that need it.
// Will not do: order operations (executor), compute (cuda_math), or judge gradients
// (update_control).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/cuda/cuda_lanes.h"
#include "backend/cuda/cuda_math.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/cuda_segments.h"
#include "backend/cuda/ranks/collective_order.h"
#include "backend/cuda/ranks/cuda_ranks.h"
#include "backend/cuda/staging_ring.h"
#include "backend/execute/arena.h"
#include "backend/execute/bucket_ranges.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/update_control.h"
#include "backend/host/bucket_updates.h"
#include "backend/train/training_device.h"

namespace ballast {

struct CudaParts {
  std::unique_ptr<CudaRuntime> runtime;
  std::unique_ptr<CudaMath> math;
  Bytes free_before;  // on the GPU, before `math` took its scratch
  // Of one of several ranks: how it exchanges with the others, where they are there.
  std::optional<NcclFunctions> nccl = {};
  std::vector<std::string> notes = {};  // of where it runs; before those of `math`
  // Tests: of plans that no memory here holds, and of which nothing is computed.
  ArenaBacking backing_of_dram = ArenaBacking::kWhole;
};

// All that this device carries out, on a GPU of compute capability 8.9 or newer and on a given one.
// Known also where it is not built.
const Capabilities& cuda_capabilities();
Capabilities cuda_capabilities(const CudaProperties& gpu);

class CudaDevice : public TrainingDevice {
 public:
  // Arenas begin as zeros. Throws Error where they do not fit, the CPU's Adam is unknown here, or
  // the plan or model needs what is not built for CUDA.
  CudaDevice(const Training& training, const DeviceOptions& options, const ControlState& state,
             CudaParts parts);
  ~CudaDevice() override;

  bool queues(LaneId lane) const override { return CudaLanes::queues(lane); }
  void execute(const Program& program, OpId id, int32_t step) override;
  std::span<const OpId> handed_over_with(OpId id) const override;
  void follow(const Program& program, OpId id, OpId before, int32_t step_of_before) override;
  bool commit(int32_t step) override;
  std::vector<FinishedOperation> take_finished(LaneId lane) override;
  void abandon(const std::string& why) override;
  void drain() override;

  UpdateControl& control() override { return control_; }
  const RankShares* shares() const override { return shares_ ? &*shares_ : nullptr; }
  const ParameterSlices* slices() const override { return ranks_ ? ranks_->slices() : nullptr; }
  void read(TensorId tensor, int copy, int64_t begin, std::span<std::byte> to) override;
  void write(TensorId tensor, int copy, int64_t begin, std::span<const std::byte> from) override;
  void spread_weights() override;
  void restore_partials(int32_t step) override;
  void hold(LaneId lane) override;
  double evaluate(int64_t batch, int32_t step) override;
  std::vector<MemoryUse> memory() override;
  std::vector<std::string> notes() const override;

 private:
  using ProgramKind = BucketUpdates::ProgramKind;

  void enqueue(const Op& op, int32_t step, ProgramKind kind, CudaStream stream);
  void compute(const Op& op, int32_t step, CudaStream stream);
  // Of operations of the step that lanes hand over; of others an empty one.
  CollectiveOrder::Turn turn_of(const Program& program, OpId id);
  bool may_be_recorded(const Program& program) const;
  void enqueue_adam(const Op& op, int32_t step, ProgramKind kind, CudaStream stream);
  // A part of the exact Adam of a bucket that the GPU steps; of kFinish, only the runs of which
  // kStep left something.
  struct RecordedAdam {
    kernels::cuda::RecordedPart part{};
    kernels::AdamConstants constants;
  };
  void enqueue_recorded(const Op& op, int32_t step, const RecordedAdam& adam, CudaStream stream);
  uint32_t* left_of(const Op& op) const;  // by run
  void finish_recorded(CudaStream stream);
  void work_on_cpu(const Op& op, int32_t step, ProgramKind kind);
  void load_batch(const Op& op, int32_t step);
  void check_tokens(std::span<const int32_t> tokens) const;
  void loss(const Op& op, int32_t step, CudaStream stream);
  void collect_losses(int32_t step);
  void copies(const std::vector<CopyRange>& ranges, CopyKind kind, CudaStream stream);
  void casts(const std::vector<CastRange>& ranges, CudaStream stream);
  void sum_squares(const Op& op, int32_t step, CudaStream stream);
  double sum_of_partials();
  std::optional<CudaRanks> ranks_of(const std::optional<NcclFunctions>& nccl);
  std::vector<OpId> exchanges() const;
  CudaWait waits();
  void end_without_ranks();
  // Outside a run: one operation, from beginning to end, that no timeline is told of.
  void run_alone(OpId id, int32_t step);
  int64_t micro_batches() const { return plan_.accumulation(); }

  const Model& model_;
  const Plan& plan_;
  const Graph& graph_;
  const TokenSource& data_;
  DeviceOptions options_;
  std::unique_ptr<CudaRuntime> runtime_;
  Capabilities capabilities_;
  std::vector<std::string> notes_;
  std::unique_ptr<CudaMath> math_;
  Bytes free_before_;
  CudaMemory hbm_;
  Arena dram_;
  CudaPin pin_;
  // Mean losses by parity of the step and micro-batch, and one of an evaluation. Kernels write them
  // to the CPU's memory: a copy would queue behind a bucket's on the engine that carries both, and
  // the backward behind the copy.
  CudaMemory losses_;
  std::array<int32_t, 2> loss_steps_{-1, -1};  // whose losses those are, by parity
  // The operations of the exact Adam on the GPU, in program order; by bucket, which of all runs is
  // its first; and by run, the mark of the last step whose records did not hold all of it.
  std::vector<OpId> recorded_adams_;
  std::vector<int64_t> first_run_;
  CudaMemory left_;
  std::optional<int32_t> recorded_step_;  // the last whose exact Adam ran on the GPU
  std::optional<int32_t> unfinished_;     // the one that was accepted and is to be finished
  OperationArguments arguments_;
  std::optional<RankShares> shares_;  // of one of several ranks
  BucketRanges ranges_;
  UpdateControl control_;
  BucketUpdates updates_;
  std::optional<CudaRanks> ranks_;  // likewise
  CollectiveOrder order_;
  bool begins_again_ = false;  // the step that was judged last, in part
  bool runs_alone_ = false;    // what runs now, outside of a run
  CudaLanes lanes_;
  StagingRing batches_;
  std::optional<CudaSegments> segments_;  // where runs of operations are recorded
  Split split_ = Split::kTraining;
};

}  // namespace ballast
