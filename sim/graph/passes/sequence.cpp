// Pass `sequence`: every sequence split over ranks by token.
//
// Ulysses (arXiv 2309.14509): before attention an all-to-all gives each rank whole sequences of
// some heads, after it another gives it all heads of its tokens back; the same for the gradients.
// Ring attention (arXiv 2310.01889): each rank keeps its queries, and keys and values go round the
// ring beside the computation; causal work is assumed to be balanced, as Megatron's context
// parallelism does. In the backward keys, values and their gradients go round.
#include <unordered_map>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

class SequencePass {
 public:
  SequencePass(Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {}

  void run() {
    std::vector<Op> result;
    result.reserve(graph_.step.ops.size() * 5 / 4);
    for (Op& op : graph_.step.ops) {
      rename(op);
      next_computation_.meet(op);
      if (op.kind != OpKind::kAttention) {
        result.push_back(std::move(op));
        continue;
      }
      if (plan_.context > 1) result.push_back(ring(op));
      if (plan_.sequence > 1) {
        all_to_all(std::move(op), result);
      } else {
        result.push_back(std::move(op));
      }
    }
    graph_.step.ops = std::move(result);
  }

 private:
  // The backward reads what attention saw: heads of whole sequences.
  void rename(Op& op) {
    if (op.kind != OpKind::kAttention || op.phase != Phase::kBackward) return;
    for (Access& access : op.accesses) {
      const auto found = by_head_.find(access.tensor);
      if (found != by_head_.end()) access.tensor = found->second;
    }
  }

  Op exchange(TensorId from, TensorId to, const Op& beside) const {
    const CollectiveWork work{CollectiveKind::kAllToAll, graph_.tensor(from).bytes(),
                              plan_.sequence, plan_.tensor * plan_.context};
    return collective_op(LaneKind::kSequenceNetwork, work, beside.phase, beside.label,
                         {read(from, Role::kSource), write(to, Role::kDestination)});
  }

  TensorId same_as(TensorId id) { return add_tensor(graph_, graph_.tensor(id)); }

  void all_to_all(Op op, std::vector<Op>& result) {
    const bool forward = op.phase == Phase::kForward;
    const Role in = forward ? Role::kInput : Role::kOutputGradient;
    const Role out = forward ? Role::kOutput : Role::kInputGradient;
    std::vector<Op> after;
    for (Access& access : op.accesses) {
      if (access.role == in) {
        const TensorId by_token = access.tensor;
        access.tensor = same_as(by_token);
        if (forward) by_head_[by_token] = access.tensor;
        result.push_back(exchange(by_token, access.tensor, op));
      } else if (access.role == out && writes(access)) {
        const TensorId by_token = access.tensor;
        access.tensor = same_as(by_token);
        if (forward) by_head_[by_token] = access.tensor;
        after.push_back(exchange(access.tensor, by_token, op));
      }
    }
    result.push_back(std::move(op));
    for (Op& back : after) result.push_back(std::move(back));
  }

  // All rounds of the ring as one message beside the attention. Whatever computes next waits for
  // its end, and so for the attention's last piece.
  Op ring(const Op& op) {
    const bool forward = op.phase == Phase::kForward;
    const AttentionWork& work = std::get<AttentionWork>(op.work);
    const int64_t pair = 2 * plan_.tokens_per_micro_batch() * work.kv_heads * work.head_size;
    TensorId source = -1;
    for (const Access& access : op.accesses) {
      if (access.role == Role::kInput) source = access.tensor;
    }
    Tensor arrived = graph_.tensor(source);
    arrived.kind = TensorKind::kGathered;
    arrived.category = Category::kWorkspace;
    arrived.elements = (forward ? 2 : 4) * pair;  // one pair in use, one on its way
    const TensorId pairs = add_tensor(graph_, arrived);
    next_computation_.wait_for(pairs);
    const int64_t rounds = plan_.context - 1;
    const CollectiveWork message{CollectiveKind::kSendReceive,
                                 bytes_of(rounds * pair * (forward ? 1 : 2), work.dtype),
                                 plan_.context, plan_.tensor};
    return collective_op(LaneKind::kSequenceNetwork, message, op.phase, op.label,
                         {read(source, Role::kSource), write(pairs, Role::kDestination)});
  }

  Graph& graph_;
  const Plan& plan_;
  std::unordered_map<TensorId, TensorId> by_head_;
  NextComputation next_computation_;
};

}  // namespace

Graph sequence_pass(Graph graph, const Plan& plan) {
  SequencePass(graph, plan).run();
  return graph;
}

}  // namespace ballast
