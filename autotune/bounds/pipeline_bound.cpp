#include "autotune/bounds/pipeline_bound.h"

#include <algorithm>
#include <array>
#include <vector>

#include "autotune/bounds/bound.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {
namespace {

// The least that a schedule with all its chunks can have.
Plan with_few_micro_batches(Plan plan) {
  const int64_t few = std::min(plan.accumulation(), plan.pipeline);
  plan.global_batch = plan.data * plan.micro_batch.value() * few;
  return plan;
}

class PipelineBound {
 public:
  PipelineBound(const Model& model, const Plan& plan, const CostModel& costs)
      : plan_(plan),
        chunks_(plan.pipeline * plan.virtual_pipeline),
        graph_(build(model, with_few_micro_batches(plan))),
        table_(costs_of(graph_, costs)) {
    for (auto& times : block_ps_) times.assign(static_cast<size_t>(chunks_), 0);
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) read_times(graph_.step.ops[i], i, model);
  }

  int64_t step_ps() {
    follow_blocks();
    return follow_optimizer();
  }

 private:
  static size_t index(Direction direction) { return direction == Direction::kForward ? 0 : 1; }

  void read_times(const Op& op, size_t i, const Model& model) {
    const int64_t ps = table_.ops[i].alone.ps;
    if (op.kind == OpKind::kBlock) {
      const Direction direction =
          op.phase == Phase::kForward ? Direction::kForward : Direction::kBackward;
      block_ps_[index(direction)][static_cast<size_t>(chunk_of(op.label.layer, model))] = ps;
    }
    const bool sends = op.kind == OpKind::kCollective && op.phase != Phase::kOptimizer;
    if (sends) send_ps_ = std::max(send_ps_, ps);
  }

  int64_t chunk_of(int64_t first_layer, const Model& model) const {
    int64_t chunk = 0;
    while (first_layer_of(chunk, chunks_, model.layers) < first_layer) ++chunk;
    return chunk;
  }

  size_t at(int64_t chunk, int64_t micro_batch) const {
    return static_cast<size_t>(chunk * plan_.accumulation() + micro_batch);
  }

  // When every block ends, from the start of the first one.
  void follow_blocks() {
    for (auto& ends : end_ps_) {
      ends.assign(static_cast<size_t>(chunks_ * plan_.accumulation()), kUnknown);
    }
    stage_end_ps_.assign(static_cast<size_t>(plan_.pipeline), 0);
    for_turns(plan_, [this](int64_t stage, const Turn& turn) { return run(stage, turn); });
  }

  // False where what the block reads is not there yet.
  bool run(int64_t stage, const Turn& turn) {
    const bool forward = turn.direction == Direction::kForward;
    const int64_t chunk = turn.chunk * plan_.pipeline + stage;
    const int64_t from = forward ? chunk - 1 : chunk + 1;
    int64_t start = stage_end_ps_[static_cast<size_t>(stage)];
    std::vector<int64_t>& ends = end_ps_[index(turn.direction)];
    if (from >= 0 && from < chunks_) {
      const int64_t sent = ends[at(from, turn.micro_batch)];
      if (sent == kUnknown) return false;
      start = std::max(start, sent + send_ps_);
    }
    if (!forward && end_ps_[0][at(chunk, turn.micro_batch)] == kUnknown) return false;
    const int64_t end = start + block_ps_[index(turn.direction)][static_cast<size_t>(chunk)];
    ends[at(chunk, turn.micro_batch)] = end;
    stage_end_ps_[static_cast<size_t>(stage)] = end;
    return true;
  }

  // The optimizer's operations in their order, each after its lane and what it reads, up to where
  // the first chunk's weights are there again.
  int64_t follow_optimizer() const {
    std::vector<int64_t> ready(graph_.tensors.size(), 0);
    std::vector<int64_t> lane(static_cast<size_t>(graph_.lanes), 0);
    for (size_t s = 0; s < stage_end_ps_.size(); ++s) {
      lane[static_cast<size_t>(lane_of(static_cast<int>(s), LaneKind::kCompute))] =
          stage_end_ps_[s];
    }
    TensorId first_weight = -1;
    int64_t chunk = 0;  // of which the weights and gradients come in this order
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      if (tensor.kind == TensorKind::kWeight && first_weight < 0) {
        first_weight = static_cast<TensorId>(t);
      }
      if (tensor.kind != TensorKind::kGradient) continue;
      ready[t] = end_ps_[1][at(chunk++, plan_.accumulation() - 1)];
    }
    CHECK(chunk == chunks_ && first_weight >= 0);
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      const Op& op = graph_.step.ops[i];
      if (op.phase != Phase::kOptimizer) continue;
      int64_t start = lane[static_cast<size_t>(op.lane)];
      for (const Access& access : op.accesses) {
        start = std::max(start, ready[static_cast<size_t>(access.tensor)]);
      }
      const int64_t end = start + table_.ops[i].alone.ps;
      lane[static_cast<size_t>(op.lane)] = end;
      for (const Access& access : op.accesses) {
        if (writes(access)) ready[static_cast<size_t>(access.tensor)] = end;
      }
    }
    return std::max(ready[static_cast<size_t>(first_weight)], stage_end_ps_.front());
  }

  static constexpr int64_t kUnknown = -1;

  const Plan& plan_;
  const int64_t chunks_;
  const Graph graph_;
  const CostTable table_;
  std::array<std::vector<int64_t>, 2> block_ps_;  // by direction and chunk
  int64_t send_ps_ = 0;
  std::array<std::vector<int64_t>, 2> end_ps_;  // by direction, chunk and micro-batch
  std::vector<int64_t> stage_end_ps_;
};

}  // namespace

Duration pipeline_step_bound(const Model& model, const Plan& plan, const CostModel& costs) {
  return lowered(PipelineBound(model, plan, costs).step_ps());
}

}  // namespace ballast
