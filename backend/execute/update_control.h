// UpdateControl: decides what each step's gradients are worth (accept, clip, skip) and with which
// constants Adam runs; the one place where waiting and speculating must come to the same answer.
//
// wait:       decide(t) judges the gradients of step t before any Adam of it runs.
// delay:      decide(t) judges those of step t-1.
// speculate:  Adam of step t runs at once, as if nothing had to be clipped or skipped; commit(t+1)
//             judges afterwards and says whether the guess was right.
//
// Thread safety: calls for one step are ordered by the graph's edges, as the executor keeps them;
// only take_records may be called from any thread at any time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/train/training_schedule.h"
#include "kernels/kernels.h"
#include "sim/spec/dtype.h"
#include "sim/spec/plan.h"

namespace ballast {

struct OptimizerOptions {
  LearningRateSchedule learning_rate;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  // of matrices; vectors do not decay
  double clip_norm = 1.0;     // of all gradients together; 0: never clip
};

// What became of one step, once it is final.
struct StepRecord {
  int32_t step = 0;
  double loss = 0;  // nats per token, mean over the step
  double gradient_norm =
      0;  // before clipping, loss scale taken out; not finite where it overflowed
  double learning_rate = 0;
  double loss_scale = 1;
  bool clipped = false;
  bool skipped = false;  // gradients were not finite
  bool rolled_back = false;
};

// All that a checkpoint must keep of it.
struct ControlState {
  int64_t optimizer_steps = 0;  // updates applied: Adam's t
  LossScale loss_scale;
  // delay: the gradients of the last step, which wait to be applied.
  struct PendingGradient {
    double loss_scale = 1;
    double loss = 0;
  };
  std::optional<PendingGradient> pending_gradient;
};

// What the ranks of a plan know together. By default this one is alone.
struct RankViews {
  // The losses of a step's micro-batches on this rank -> those of all ranks, in their order. Every
  // rank calls, once for each time that the others do.
  std::function<std::vector<double>(const std::vector<double>& losses)> losses;
};

class UpdateControl {
 public:
  // partial_sums returns the sums of squares of all segments in the flat order of the parameters.
  UpdateControl(SyncMode sync, DType dtype, int64_t micro_batches, OptimizerOptions options,
                ControlState state, std::function<double()> sum_of_partials, RankViews views = {});

  // Factor on the loss of step `step`, as far as it is known or guessed; 1 unless fp16.
  double loss_scale(int32_t step) const;
  // adds: to what is set, where a micro-batch's loss comes in parts.
  void set_loss(int32_t step, int64_t micro_batch, double mean_loss, bool adds = false);

  void decide(int32_t step);
  bool commit(int32_t step);
  // delay, at the end of a run: judges the gradients of the last step, which wait, as the decide of
  // `next_step` would, and keeps none. The constants of the Adam that applies them; empty where
  // none wait or they are to be left out.
  std::optional<kernels::AdamConstants> settle(int32_t next_step);

  // Constants for the Adam of this step's program; empty where the update is to be left out.
  std::optional<kernels::AdamConstants> constants(int32_t step) const;
  // The same for the redo after commit(step + 1) returned false.
  std::optional<kernels::AdamConstants> redo_constants() const { return redo_; }
  // Those of the speculative Adam that is to be undone.
  const kernels::AdamConstants& undone_constants() const { return undone_; }

  // Of several ranks every one asks at once.
  ControlState state() const;
  // Records that became final since the last call, in order.
  std::vector<StepRecord> take_records();

 private:
  struct Pending {
    int32_t step = 0;
    double loss_scale = 1;
    kernels::AdamConstants constants;
  };
  struct Verdict {
    bool finite = true;
    double factor = 1;  // 1, or clip_norm / norm
  };

  Verdict judge(int32_t step, double loss_scale);
  void decide_on(int32_t judged, double loss_scale);
  double mean_loss(int32_t step) const;
  kernels::AdamConstants constants_for(int32_t step, double gradient_scale) const;
  double scale_if_good() const;

  SyncMode sync_;
  bool scales_loss_;
  OptimizerOptions options_;
  ControlState state_;
  std::function<double()> sum_of_partials_;
  RankViews views_;
  std::array<std::vector<double>, 2> losses_;  // by parity of the step
  std::optional<kernels::AdamConstants> decided_;
  std::optional<kernels::AdamConstants> redo_;
  kernels::AdamConstants undone_;
  std::optional<Pending> pending_;  // speculate: the step that has not been judged yet
  int32_t delayed_step_ = 0;        // delay: the step whose gradients are pending
  mutable std::mutex records_mutex_;
  std::vector<StepRecord> records_;
};

}  // namespace ballast
