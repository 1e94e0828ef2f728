// The host device: the "GPU" is the threads of its lanes with an arena of their own, the "CPU" the
// optimizer's workers with another; copies between the two are real copies. The stages of a
// pipeline are devices of one process, each with arenas, lanes and threads of its own: a message is
// a copy from the sender's arena into the receiver's. Ranks, of data, tensor and sequence
// parallelism, are devices of their own, each with all stages.
//
// Carries out every kind of operation by the roles of its tensors. Will not do: order operations
// (executor), or judge gradients (update_control).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/disk/state_file.h"
#include "backend/execute/arena.h"
#include "backend/execute/bucket_ranges.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/parameter_slices.h"
#include "backend/execute/rank_exchanges.h"
#include "backend/execute/rank_norms.h"
#include "backend/execute/rank_place.h"
#include "backend/execute/update_control.h"
#include "backend/host/bucket_updates.h"
#include "backend/host/compute_threads.h"
#include "backend/host/disk_state.h"
#include "backend/host/host_modules.h"
#include "backend/train/training_device.h"

namespace ballast {

// All that this device carries out. NVMe is a file of the disk that is named (DiskOptions). Of
// several devices it carries out the stages of a pipeline, spread (sim/graph/schedules/pipeline.h),
// of one rank, which exchanges with the others by a communicator (backend/comm).
const Capabilities& host_capabilities();

class HostDevice : public TrainingDevice {
 public:
  // Arenas begin as zeros. Throws Error where the arenas do not fit, the Adam is unknown here, or
  // the model needs a module that is not written yet.
  HostDevice(const Training& training, const DeviceOptions& options, const ControlState& state);

  void execute(const Program& program, OpId id, int32_t step) override;
  bool commit(int32_t step) override { return control_.commit(step); }

  void abandon(const std::string& why) override;

  UpdateControl& control() override { return control_; }
  const RankShares* shares() const override { return shares_ ? &*shares_ : nullptr; }
  const ParameterSlices* slices() const override { return slices_ ? &*slices_ : nullptr; }
  void read(TensorId tensor, int copy, int64_t begin, std::span<std::byte> to) override;
  Bytes read_at_once(Place place) const override {
    return place == Place::kNvme ? kRequestedRead : kCachedRead;
  }
  void write(TensorId tensor, int copy, int64_t begin, std::span<const std::byte> from) override;
  void spread_weights() override;
  void restore_partials(int32_t step) override;
  double evaluate(int64_t batch, int32_t step) override;
  std::vector<MemoryUse> memory() override;
  std::vector<std::string> notes() const override;

 private:
  void carry_out(const Program& program, const Op& op, int32_t step);
  void load_batch(const Op& op, int32_t step) const;
  void loss(const Op& op, int32_t step);
  StepThreads threads_of(const Op& op) const;
  static void copy(const std::vector<CopyRange>& ranges);
  void undo(const Op& op, int32_t step);
  void exchange(const Op& op, int32_t step);
  void exchange_between_stages(const Op& op, int32_t step);
  void exchange_data(const Op& op, int32_t step);
  void sum_over_copies(const Op& op, int32_t step);
  void sum_squares(const Op& op, int32_t step);
  double sum_of_partials();

  const Plan& plan_;
  const Graph& graph_;
  const TokenSource& data_;
  DeviceOptions options_;
  // By device of the graph: its memory, and the threads of its compute lane.
  struct Stage {
    std::array<std::unique_ptr<Arena>, kPlaces> arenas;
    std::unique_ptr<ComputeThreads> threads;
  };
  static std::vector<Stage> stages_of(const Graph& graph, int compute_threads);
  static std::vector<ArenaBases> bases_of(const std::vector<Stage>& stages);

  std::vector<Stage> stages_;
  OperationArguments arguments_;
  std::optional<RankShares> shares_;  // of one of several ranks
  RankPlace place_;
  Model rank_model_;
  std::optional<RankExchanges> exchanges_;
  std::optional<ExpertExchanges> experts_;  // of one of several that share experts
  std::optional<ParameterSlices> slices_;   // of one of several that split modules
  std::optional<RankNorms> norms_;
  std::optional<SplitNorms> split_norms_;
  HostModules modules_;
  BucketRanges ranges_;
  UpdateControl control_;
  std::unique_ptr<DiskState> disk_;  // where state rests on NVMe
  BucketUpdates updates_;
  Split split_ = Split::kTraining;
  double evaluated_loss_ = 0;
};

}  // namespace ballast
