// The CPU's share of the optimizer: casts, gradient norms, snapshots, steps and their undoing on
// buckets in memory that this process can address. The host device runs all of them here, a GPU's
// device those of its CPU buckets.
//
// Will not do: order operations (executor), or decide what a step is worth (update_control).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/execute/bucket_ranges.h"
#include "backend/execute/rank_norms.h"
#include "backend/execute/update_control.h"
#include "kernels/threads.h"
#include "kernels/undo.h"

namespace ballast {

// Who does the work of a call: the pool of the optimizer's threads, or the calling thread with
// those that are lent to it (compute_threads.h).
enum class StepThreads : uint8_t { kPool, kCaller };

// By name of a kernels::Table, "best" being the fastest; null for one that this processor cannot
// run. An Adam of another program, whose rate machines' files know, takes the same step: here as
// the fastest.
const kernels::Table* adam_table(std::string_view name);
bool is_adam_of_another_program(std::string_view name);

class BucketUpdates {
 public:
  struct Setting {
    const Graph& graph;
    const Plan& plan;
    const BucketRanges& ranges;
    const OperationArguments& arguments;
    const UpdateControl& control;
  };
  // What the setting refers to must outlive this. `undo_places`: where tensors lie whose exact undo
  // records this keeps.
  BucketUpdates(const Setting& setting, std::vector<Place> undo_places, int threads);

  const kernels::Table& table() const { return table_; }

  void cast(const Op& op, int32_t step, StepThreads threads);
  // The first `count` values of two gradients of one type: their sum, in both.
  void sum_into_both(const Argument& one, const Argument& other, int64_t count);
  void casts(const std::vector<CastRange>& ranges);  // on the calling thread
  void sums(const Op& op, int32_t step);             // segment by segment, on the calling thread
  void snapshot(const Op& op, int32_t step, StepThreads threads);  // and its undo
  // As kAdam of the step's program (redo false: with the constants of `step`), or of a repair.
  enum class ProgramKind : uint8_t { kStep, kRepair };
  void adam(const Op& op, int32_t step, ProgramKind kind, StepThreads threads);
  void exact_undo(const Op& op, int32_t step, StepThreads threads);

  // Sums of the squares of gradients: the partial sums in DRAM, in the flat order.
  NormSums sum_of_partials() const;

 private:
  // The threads of one device's CPU lanes: stages of a pipeline step at the same time.
  struct Team {
    explicit Team(int threads) : steps(threads, kernels::Pinning::kNone) {}
    kernels::Workers steps;
  };

  kernels::Workers& workers_of(const Op& op) { return teams_[team_at(op)]->steps; }
  static size_t team_at(const Op& op) { return static_cast<size_t>(device_of(op.lane)); }
  void find_partials();
  void find_undo_records(TensorId tensor);
  void step_bf16(const Op& op, const StepRange& range, const kernels::AdamConstants& constants,
                 StepThreads threads);
  void restore_weights(const Op& op, int32_t step) const;

  Setting at_;
  const kernels::Table& table_;
  std::vector<std::unique_ptr<Team>> teams_;  // by device
  // Partial sums in DRAM in the flat order of the model's parameters.
  struct Partials {
    TensorId tensor = -1;
    int64_t first = 0;
    int64_t count = 0;
    bool of_experts = false;
  };
  std::vector<Partials> partials_;
  std::vector<std::vector<kernels::UndoRecord>> undo_;  // by bucket and run, where undo is exact
};

// The constants of an Adam of this program: empty where the update is to be left out.
std::optional<kernels::AdamConstants> constants_of(const UpdateControl& control, int32_t step,
                                                   BucketUpdates::ProgramKind kind);

// The casts that bring masters into the weights that an Adam would have written: an update that is
// left out still owes the GPU's weights, those of a speculative step that was taken back or the
// second copy of a delayed one.
std::vector<CastRange> weights_from_masters(const std::vector<StepRange>& steps);

}  // namespace ballast
