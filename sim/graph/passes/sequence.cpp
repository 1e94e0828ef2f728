// Pass `sequence`: every sequence split over ranks by token.
//
// Ulysses (arXiv 2309.14509): before attention an all-to-all gives each rank whole sequences of
// some heads, after it another gives it all heads of its tokens back; the same for the gradients.
// Ring attention (arXiv 2310.01889): each rank keeps its queries, and keys and values go round the
// ring beside the computation. In the backward keys, values and their gradients go round. What a
// rank attends for depends on which tokens it has (Plan::context_balance,
// passes/decoder/attention.cpp); where ranks help others, their queries, outputs and gradients are
// sent as well (DistFlashAttn, arXiv 2310.03294).
//
// A framework may exchange keys and values that it has repeated for all heads, and lay out what it
// exchanges in passes of their own (StackFacts::repeats_keys_values, exchange_bytes).
//
// Where sequences pass in parts every part is spread over the ranks. Ulysses exchanges a part's
// keys and values once, after which they wait by heads for the parts after it (FPDT, arXiv
// 2408.16978).
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/spec/ranks/ring.h"

namespace ballast {

namespace {

class SequencePass {
 public:
  SequencePass(Graph& graph, const Plan& plan, const StackFacts& facts)
      : graph_(graph), plan_(plan), facts_(facts) {}

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
      // Of parts heads go round the ring, not tokens.
      const bool heads_first = op.label.subsequence >= 0 && plan_.sequence > 1;
      if (plan_.context > 1 && !heads_first) result.push_back(ring(op));
      if (plan_.sequence > 1) {
        all_to_all(std::move(op), result);
      } else {
        result.push_back(std::move(op));
      }
    }
    graph_.step.ops = std::move(result);
  }

 private:
  // The backward reads what attention saw: heads of whole sequences. So does the forward of keys
  // and values of parts before.
  void rename(Op& op) {
    if (op.kind != OpKind::kAttention) return;
    for (Access& access : op.accesses) {
      if (op.phase != Phase::kBackward && access.role != Role::kKeysValues) continue;
      const auto found = by_head_.find(access.tensor);
      if (found != by_head_.end()) access.tensor = found->second;
    }
  }

  // What is exchanged has the size of the side that has heads.
  Op exchange(TensorId from, TensorId to, const Op& beside) const {
    const Bytes bytes = std::max(graph_.tensor(from).bytes(), graph_.tensor(to).bytes());
    const CollectiveWork work{CollectiveKind::kAllToAll, bytes, plan_.sequence,
                              plan_.tensor * plan_.context};
    return collective_op(LaneKind::kSequenceNetwork, work, beside.phase, beside.label,
                         {read(from, Role::kSource), write(to, Role::kDestination)});
  }

  // Between tokens and what is laid out for the exchange, whose tensor is `laid`.
  Op lay_out(TensorId from, TensorId to, TensorId laid, const Op& beside) const {
    const Tensor& tensor = graph_.tensor(laid);
    BucketWork work = elementwise(tensor.elements, tensor.dtype, tensor.dtype, Site::kGpu);
    work.moved = {tensor.elements * facts_.exchange_bytes};
    Op op = beside;
    op.kind = laid == to ? OpKind::kPack : OpKind::kUnpack;
    op.work = work;
    op.accesses = {read(from, Role::kSource), write(to, Role::kDestination)};
    return op;
  }

  TensorId laid_out_like(TensorId id) {
    Tensor tensor = graph_.tensor(id);
    tensor.kind = TensorKind::kPartial;
    tensor.category = Category::kWorkspace;
    return add_tensor(graph_, tensor);
  }

  void to_heads(TensorId by_token, TensorId by_head, const Op& beside, std::vector<Op>& result) {
    if (facts_.exchange_bytes == 0) {
      result.push_back(exchange(by_token, by_head, beside));
      return;
    }
    const TensorId laid = laid_out_like(by_head);
    result.push_back(lay_out(by_token, laid, laid, beside));
    result.push_back(exchange(laid, by_head, beside));
  }

  void to_tokens(TensorId by_head, TensorId by_token, const Op& beside, std::vector<Op>& result) {
    if (facts_.exchange_bytes == 0) {
      result.push_back(exchange(by_head, by_token, beside));
      return;
    }
    const TensorId laid = laid_out_like(by_head);
    result.push_back(exchange(by_head, laid, beside));
    result.push_back(lay_out(laid, by_token, laid, beside));
  }

  // Of queries, keys and values (of a whole sequence: parts have theirs apart), or of their
  // gradients, as attention has them.
  TensorId by_head_of(TensorId by_token, const Op& attention) {
    Tensor tensor = graph_.tensor(by_token);
    const AttentionWork& work = std::get<AttentionWork>(attention.work);
    const bool of_all = tensor.label.module == ModuleKind::kQkv;
    if (facts_.repeats_keys_values && of_all && attention.label.subsequence < 0) {
      const int64_t queries = plan_.sequence * work.heads * work.head_size;
      tensor.elements = std::max(tensor.elements, 3 * plan_.tokens_per_micro_batch() * queries);
    }
    return add_tensor(graph_, tensor);
  }

  void all_to_all(Op op, std::vector<Op>& result) {
    const bool forward = op.phase == Phase::kForward;
    const Role in = forward ? Role::kInput : Role::kOutputGradient;
    const Role out = forward ? Role::kOutput : Role::kInputGradient;
    std::vector<Op> after;
    const bool divided = op.label.subsequence >= 0;
    for (Access& access : op.accesses) {
      // Keys and values of the part itself; those of parts before were renamed.
      const bool own_pair =
          forward && access.role == Role::kKeysValues && !of_heads_.contains(access.tensor);
      if (access.role == in || own_pair) {
        const TensorId by_token = access.tensor;
        access.tensor = by_head_of(by_token, op);
        if (forward) by_head_[by_token] = access.tensor;
        if (own_pair) of_heads_.insert(access.tensor);
        to_heads(by_token, access.tensor, op, result);
      } else if (access.role == out && writes(access)) {
        const TensorId by_token = access.tensor;
        access.tensor = by_head_of(by_token, op);
        if (forward) by_head_[by_token] = access.tensor;
        to_tokens(access.tensor, by_token, op, after);
      }
    }
    if (divided && plan_.context > 1) result.push_back(ring(op));
    result.push_back(std::move(op));
    for (Op& back : after) result.push_back(std::move(back));
  }

  // Where Ulysses ranks share sequences too, the ring has some heads of all their tokens.
  int64_t tokens_of_a_ring_rank() const { return plan_.tokens_per_micro_batch() * plan_.sequence; }

  // What goes round the ring: keys and values of a rank's tokens; of a part also those of the parts
  // before it that it sees, again for each part.
  struct Round {
    TensorId source = -1;
    int64_t elements = 0;  // of a rank, in one round
    int64_t largest = 0;   // of what is passed on at a time
  };
  Round round_of(const Op& op) const {
    Round round;
    for (const Access& access : op.accesses) {
      if (access.role == Role::kInput && round.source < 0) round.source = access.tensor;
      if (access.role != Role::kKeysValues) continue;
      round.source = access.tensor;  // the part's own comes last
      const int64_t elements = graph_.tensor(access.tensor).elements;
      round.elements += elements;
      round.largest = std::max(round.largest, elements);
    }
    if (round.elements == 0) {
      const AttentionWork& work = std::get<AttentionWork>(op.work);
      round.elements = 2 * tokens_of_a_ring_rank() * work.kv_heads * work.head_size;
      round.largest = round.elements;
    }
    return round;
  }

  // Elements of all rounds of the ring, as its busiest rank gets or gives them, and those for which
  // it has room: what is in use, and what is on its way.
  struct Traffic {
    int64_t moved = 0;
    int64_t room = 0;
  };
  Traffic traffic_of(const Round& round, const Op& op) const {
    const bool forward = op.phase == Phase::kForward;
    const RingRounds rounds = ring_rounds(plan_);
    // Keys and values; in the backward their gradients too.
    const int64_t times = forward ? 1 : 2;
    Traffic traffic{times * (rounds.all - rounds.helped) * round.elements,
                    2 * times * round.largest};
    if (rounds.helped == 0) return traffic;
    const AttentionWork& work = std::get<AttentionWork>(op.work);
    const int64_t rows = tokens_of_a_ring_rank() * work.heads;
    const int64_t queries = rows * work.head_size;  // of a rank; its output has as many
    // A number of 32 bits a row: of the softmax, and in the backward also the sum of the output
    // times its gradient, for which a helper would need the output (FlashAttention-2, arXiv
    // 2307.08691, algorithm 2).
    const int64_t statistics = rows * size_of(DType::kF32) / size_of(work.dtype);
    // Forward: who is helped gets keys and values and the output made for it; its helper gives as
    // much. Backward: a helper gets queries and the gradient of their output, and gradients of its
    // keys and values that a third rank made; whom it helps gives as much.
    traffic.moved += rounds.helped * (round.elements + times * (queries + statistics));
    // Beside these a helper has the queries that it attends for, or the gradient that it makes.
    traffic.room = forward ? 2 * (std::max(round.largest, queries) + queries + statistics)
                           : 2 * (round.largest + 3 * queries + 2 * statistics);
    return traffic;
  }

  // All rounds of the ring as one message beside the attention. Whatever computes next waits for
  // its end, and so for the attention's last piece.
  Op ring(const Op& op) {
    const Round round = round_of(op);
    const Traffic traffic = traffic_of(round, op);
    Tensor arrived = graph_.tensor(round.source);
    arrived.kind = TensorKind::kGathered;
    arrived.category = Category::kWorkspace;
    arrived.elements = traffic.room;
    const TensorId pairs = add_tensor(graph_, arrived);
    next_computation_.wait_for(pairs);
    const DType dtype = std::get<AttentionWork>(op.work).dtype;
    const CollectiveWork message{CollectiveKind::kSendReceive, bytes_of(traffic.moved, dtype),
                                 plan_.context, plan_.tensor};
    return collective_op(LaneKind::kSequenceNetwork, message, op.phase, op.label,
                         {read(round.source, Role::kSource), write(pairs, Role::kDestination)});
  }

  Graph& graph_;
  const Plan& plan_;
  const StackFacts& facts_;
  std::unordered_map<TensorId, TensorId> by_head_;
  std::unordered_set<TensorId> of_heads_;  // keys and values that were exchanged
  NextComputation next_computation_;
};

}  // namespace

Graph sequence_pass(Graph graph, const Plan& plan, const StackFacts& facts) {
  SequencePass(graph, plan, facts).run();
  return graph;
}

}  // namespace ballast
