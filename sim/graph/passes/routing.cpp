// How tokens reach experts, in time and number.
//
// Not spread evenly over expert ranks: all ranks wait for the one whose experts are sent most rows,
// so the graph is made that rank's.
//
// Beside computation (StackFacts::expert_overlap): the forward of one micro-batch runs among the
// backward of another, layer by layer, so each exchange has one piece of the other's computation
// to run beside, and what comes after that piece waits for it (Megatron-LM at d98e8a64,
// megatron/core/models/common/model_chunk_schedule_plan.py: combine beside attention, dispatch
// beside the experts' products). Other micro-batches are not told apart here: the piece that an
// exchange runs beside is the next one of its own, which takes as long on average.
#include <algorithm>
#include <cmath>
#include <set>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/decoder/decoder_experts.h"

namespace ballast {

namespace {

// What an even share is multiplied by. A token is sent to as many experts of a rank as it chooses,
// or as the rank has.
double factor_of(const Model& model, const Plan& plan) {
  const int64_t own = div_ceil(model.experts, plan.expert);
  const auto most = static_cast<double>(plan.expert * std::min(own, model.experts_per_token)) /
                    static_cast<double>(model.experts_per_token);
  return std::min(most, static_cast<double>(plan.routing_percent) / 100);
}

class BusiestRank {
 public:
  BusiestRank(Graph& graph, const Model& model, double factor)
      : graph_(graph), model_(model), factor_(factor) {}

  void run() {
    for (Op& op : graph_.step.ops) {
      if (auto* product = std::get_if<GemmWork>(&op.work); product && product->experts > 0) {
        int64_t& rows = op.phase == Phase::kBackwardWeight ? product->k : product->m;
        rows = more(rows, 1);
        for (const Access& access : op.accesses) note(op, access);
      }
      if (kind_of(op.lane) == LaneKind::kExpertNetwork) {
        auto& work = std::get<CollectiveWork>(op.work);
        work.bytes = {more(work.bytes.count, 1)};
      }
      if (op.kind == OpKind::kActivation && op.label.layer >= 0 &&
          model_.has_experts(op.label.layer)) {
        auto& work = std::get<RowWork>(op.work);
        const double share = routed_share();
        work.moved = {more(work.moved.count, share)};
        work.flops.count *= 1 + (factor_ - 1) * share;
      }
    }
    for (const TensorId id : whole_) grow(id, 1);
    for (const TensorId id : partly_) grow(id, routed_share());
  }

 private:
  // Of a layer's feed-forward columns for each token, those of experts that were chosen for it.
  double routed_share() const {
    const auto routed = static_cast<double>(model_.experts_per_token * model_.expert_ffn);
    const auto shared = static_cast<double>(model_.shared_experts > 0 ? model_.shared_ffn() : 0);
    return routed / (routed + shared);
  }

  int64_t more(int64_t count, double share) const {
    return std::llround(static_cast<double>(count) * (1 + (factor_ - 1) * share));
  }

  // Rows that came over the network, and what is made of them; fc1's output and the activation's,
  // and their gradients, hold those of shared experts too.
  void note(const Op& op, const Access& access) {
    const ModuleKind module = op.label.module;
    const bool up = module == ModuleKind::kFc1;
    switch (access.role) {
      case Role::kInput:
      case Role::kInputGradient:
        (up ? whole_ : partly_).insert(access.tensor);
        break;
      case Role::kOutput:
      case Role::kOutputGradient:
        (up ? partly_ : whole_).insert(access.tensor);
        break;
      default:
        break;
    }
  }

  void grow(TensorId id, double share) {
    Tensor& tensor = graph_.tensor(id);
    tensor.elements = more(tensor.elements, share);
  }

  Graph& graph_;
  const Model& model_;
  const double factor_;
  std::set<TensorId> whole_, partly_;
};

}  // namespace

void load_busiest_rank(Graph& graph, const Model& model, const Plan& plan) {
  if (plan.expert == 1 || model.experts == 0) return;
  BusiestRank(graph, model, factor_of(model, plan)).run();
}

Graph expert_overlap_pass(Graph graph) {
  Op* under_way = nullptr;  // exchange that the piece of computation after it runs beside
  Op* due = nullptr;        // exchange whose piece has ended
  for (Op& op : graph.step.ops) {
    if (kind_of(op.lane) == LaneKind::kExpertNetwork) {
      due = under_way;
      under_way = &op;
    } else if (due != nullptr && kind_of(op.lane) == LaneKind::kCompute) {
      hand_token(graph, due->accesses, op.accesses);
      due = nullptr;
    }
  }
  return graph;
}

}  // namespace ballast
