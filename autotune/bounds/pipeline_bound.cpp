#include "autotune/bounds/pipeline_bound.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "autotune/bounds/bound.h"
#include "sim/engine/predict.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {
namespace {

// The least that a schedule with all its chunks can have.
int64_t few_micro_batches(const Plan& plan) { return std::min(plan.accumulation(), plan.pipeline); }

class PipelineBound {
 public:
  PipelineBound(const Model& model, const Plan& plan, const CostModel& costs)
      : PipelineBound(model, plan, costs,
                      build_folded(model, plan, StackFacts{}, few_micro_batches(plan))) {}

  PipelineBound(const Model& model, const Plan& plan, const CostModel& costs, FoldedPipeline built)
      : plan_(plan),
        chunks_(plan.pipeline * plan.virtual_pipeline),
        layers_(model.layers),
        folded_(built.even_so_short),
        graph_(std::move(built.graph)),
        table_(costs_of(graph_, costs)) {
    block_ps_.assign(static_cast<size_t>(chunks_ * 2 * plan.subsequences), 0);
    recompute_ps_ = block_ps_;
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) read_times(graph_.step.ops[i], i, costs);
  }

  int64_t step_ps() {
    follow_blocks();
    // A step that does not wait runs beside the next forward.
    if (plan_.optimizer.sync != SyncMode::kWait) return stage_end_ps_.front();
    return follow_optimizer();
  }

 private:
  static size_t index(Direction direction) { return direction == Direction::kForward ? 0 : 1; }

  void read_times(const Op& op, size_t i, const CostModel& costs) {
    const int64_t ps = table_.ops[i].alone.ps;
    if (op.kind == OpKind::kBlock) {
      const Direction direction =
          op.phase == Phase::kForward ? Direction::kForward : Direction::kBackward;
      const int64_t part = std::max<int64_t>(0, op.label.subsequence);
      const size_t turn = turn_at(chunk_of(op.label, device_of(op.lane)), {direction, 0, 0, part});
      int64_t& block = block_ps_[turn];
      if (folded_) {
        block = ps;
      } else if (block == 0) {
        block = computed_in(std::get<BlockWork>(op.work), costs, recompute_ps_[turn]);
      }
    }
    const bool sends = op.kind == OpKind::kCollective && op.phase != Phase::kOptimizer;
    if (sends) send_ps_ = std::max(send_ps_, ps);
  }

  // Of a spread turn only what its stage computes is sure to come one after another; and what a
  // backward recomputes before its first gradient need not wait for the message (`recompute_ps`).
  int64_t computed_in(const BlockWork& work, const CostModel& costs, int64_t& recompute_ps) const {
    const Program& block = graph_.blocks[static_cast<size_t>(work.block)];
    const CostTable table = costs.table_of_block(block);
    int64_t ps = 0;
    bool recomputes = true;
    for (size_t i = 0; i < block.ops.size(); ++i) {
      if (kind_of(block.ops[i].lane) != LaneKind::kCompute) continue;
      recomputes = recomputes && block.ops[i].phase == Phase::kRecompute;
      if (recomputes) recompute_ps += table.ops[i].alone.ps;
      ps += table.ops[i].alone.ps;
    }
    return ps;
  }

  // Of what lies outside of the layers the first chunk has the embedding, the last one the rest.
  int64_t chunk_of(const Label& label, int device) const {
    if (label.layer >= 0) return chunk_of_layer(label.layer, chunks_, layers_);
    return device == 0 ? 0 : chunks_ - 1;
  }

  // Of a chunk of the pipeline and all micro-batches.
  size_t turn_at(int64_t chunk, const Turn& turn) const {
    return static_cast<size_t>(chunk * 2 * plan_.subsequences) + place_of(turn, plan_.subsequences);
  }
  size_t at(int64_t chunk, const Turn& turn) const {
    return static_cast<size_t>(
        (chunk * plan_.accumulation() + turn.micro_batch) * plan_.subsequences + turn.part);
  }

  // When every block ends, from the start of the first one.
  void follow_blocks() {
    for (auto& ends : end_ps_) {
      ends.assign(static_cast<size_t>(chunks_ * plan_.accumulation() * plan_.subsequences),
                  kUnknown);
    }
    stage_end_ps_.assign(static_cast<size_t>(plan_.pipeline), 0);
    for_turns(plan_, [this](int64_t stage, const Turn& turn) { return run(stage, turn); });
  }

  // False where what the block reads is not there yet.
  bool run(int64_t stage, const Turn& turn) {
    const bool forward = turn.direction == Direction::kForward;
    const int64_t chunk = turn.chunk * plan_.pipeline + stage;
    const int64_t from = forward ? chunk - 1 : chunk + 1;
    const int64_t block_ps = block_ps_[turn_at(chunk, turn)];
    int64_t end = stage_end_ps_[static_cast<size_t>(stage)] + block_ps;
    std::vector<int64_t>& ends = end_ps_[index(turn.direction)];
    if (from >= 0 && from < chunks_) {
      const int64_t sent = ends[at(from, turn)];
      if (sent == kUnknown) return false;
      const int64_t before = forward ? 0 : recompute_ps_[turn_at(chunk, turn)];
      end = std::max(end, sent + send_ps_ + block_ps - before);
    }
    if (!forward && end_ps_[0][at(chunk, turn)] == kUnknown) return false;
    ends[at(chunk, turn)] = end;
    stage_end_ps_[static_cast<size_t>(stage)] = end;
    return true;
  }

  // The optimizer's operations in their order, each after its lane and what it reads, up to where
  // the first chunk can begin again. What the compute lane does between its turns may
  // fill a gap between them, so that only what follows the last one is sure to come after it.
  int64_t follow_optimizer() const {
    std::vector<int64_t> ready(graph_.tensors.size(), 0);
    std::vector<int64_t> lane(static_cast<size_t>(graph_.lanes), 0);
    std::vector<bool> is_first(graph_.tensors.size(), false);  // weights of the first chunk
    const Turn last{Direction::kBackward, 0, plan_.accumulation() - 1, 0};
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      if (tensor.kind != TensorKind::kWeight && tensor.kind != TensorKind::kGradient) continue;
      const int64_t chunk = chunk_of(tensor.label, tensor.device);
      is_first[t] = tensor.kind == TensorKind::kWeight && chunk == 0;
      if (tensor.kind != TensorKind::kGradient) continue;
      ready[t] = end_ps_[1][at(chunk, last)];
      // Of a spread turn gradients leave one after another, the first of them at once.
      if (!folded_) ready[t] -= block_ps_[turn_at(chunk, last)];
    }
    std::vector<size_t> last_turn(static_cast<size_t>(graph_.lanes), 0);
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      const Op& op = graph_.step.ops[i];
      if (op.kind == OpKind::kBlock) last_turn[static_cast<size_t>(op.lane)] = i;
    }
    // When the first chunk's weights are there again: the first of them, and all.
    std::optional<int64_t> first_home;
    int64_t all_home = 0;
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      const Op& op = graph_.step.ops[i];
      if (op.phase != Phase::kOptimizer) continue;
      const auto on = static_cast<size_t>(op.lane);
      const bool computes = kind_of(op.lane) == LaneKind::kCompute;
      const bool between = computes && i < last_turn[on];
      int64_t start = between ? 0 : lane[on];
      if (computes && !between) {
        start = std::max(start, stage_end_ps_[static_cast<size_t>(device_of(op.lane))]);
      }
      for (const Access& access : op.accesses) {
        if (reads(access)) start = std::max(start, ready[static_cast<size_t>(access.tensor)]);
      }
      const int64_t end = start + table_.ops[i].alone.ps;
      if (!between) lane[on] = end;
      for (const Access& access : op.accesses) {
        if (!writes(access)) continue;
        ready[static_cast<size_t>(access.tensor)] = end;
        if (!is_first[static_cast<size_t>(access.tensor)]) continue;
        first_home = std::min(first_home.value_or(end), end);
        all_home = std::max(all_home, end);
      }
    }
    if (!first_home) return stage_end_ps_.front();
    // A folded forward begins with all weights. A spread one begins with its first ones, whichever
    // they are, and cannot end before all are there: from its end to its end is a step as well.
    const int64_t first_turn = block_ps_[turn_at(0, {Direction::kForward, 0, 0, 0})];
    const int64_t next = folded_ ? all_home : std::max(*first_home, all_home - first_turn);
    return std::max(next, stage_end_ps_.front());
  }

  static constexpr int64_t kUnknown = -1;

  const Plan& plan_;
  const int64_t chunks_;
  const int64_t layers_;
  const bool folded_;
  const Graph graph_;
  const CostTable table_;
  std::vector<int64_t> block_ps_;      // by chunk and turn
  std::vector<int64_t> recompute_ps_;  // the same: what a spread backward begins with
  int64_t send_ps_ = 0;
  std::array<std::vector<int64_t>, 2> end_ps_;  // by direction; chunk, micro-batch and part
  std::vector<int64_t> stage_end_ps_;
};

}  // namespace

bool is_worth_bounding(const Plan& plan) {
  return plan.subsequences == 1 || plan.accumulation() > plan.pipeline;
}

Duration pipeline_step_bound(const Model& model, const Plan& plan, const CostModel& costs) {
  return lowered(PipelineBound(model, plan, costs).step_ps());
}

}  // namespace ballast
