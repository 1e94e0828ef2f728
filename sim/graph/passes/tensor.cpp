// Pass `tensor`: the collectives of tensor parallelism (Megatron, arXiv 1909.08053, section 3).
// The plain graph is that of one rank already, with its share of every matrix; here partial sums
// are made whole.
//
//   column parallel (qkv, fc1, head)      backward: gradients of the input are partial sums
//   row parallel (attention_out, fc2)     forward: outputs are partial sums; so is the embedding's
//
// A partial sum is all-reduced. With Plan::tensor_sequence it is reduce-scattered by token instead,
// and what a product reads is all-gathered before it, in the backward once more (arXiv 2205.05198,
// section 4.2.2). Gradients of norms, tiny, are not exchanged here.
//
// Experts are cut like the other matrices, or, where the framework keeps them whole
// (StackFacts::keeps_experts_whole), dealt out: each tensor-parallel rank sends the tokens of its
// norms, and has 1/t of the experts that t ranks would have cut among them.
#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

bool is_column(ModuleKind kind) {
  return kind == ModuleKind::kQkv || kind == ModuleKind::kFc1 || kind == ModuleKind::kHead;
}
bool is_row(ModuleKind kind) {
  return kind == ModuleKind::kAttentionOut || kind == ModuleKind::kFc2;
}

// Which every rank makes whole, of the tokens that its norms have.
bool makes_latent(const Op& op) {
  return op.label.part == ChainPart::kQueryDown || op.label.part == ChainPart::kKeyDown;
}

// Where they are dealt out: ranks that have the same tokens would send each several times.
bool keeps_experts_whole(const Plan& plan, const StackFacts& facts) {
  return facts.keeps_experts_whole && plan.expert > 1 && plan.tensor_sequence;
}

// Of routed experts, not of shared ones.
bool is_product_of_experts(const Op& op) {
  const auto* const work = std::get_if<GemmWork>(&op.work);
  return work != nullptr && work->experts > 0;
}

// Rewrites layers of experts that are cut by columns into those of whole ones: as many products'
// FLOPs and weights, of 1/t of the rows and all columns, and an exchange among t times the ranks.
class WholeExperts {
 public:
  WholeExperts(Graph& graph, const Model& model, const Plan& plan)
      : graph_(graph),
        ranks_(plan.tensor),
        // Of one row for each expert of a token, as wide as the model.
        rows_(plan.tokens_per_micro_batch() * model.experts_per_token * model.hidden) {}

  void run() {
    for (Op& op : graph_.step.ops) {
      if (is_product_of_experts(op)) {
        deal(std::get<GemmWork>(op.work), op);
      } else if (kind_of(op.lane) == LaneKind::kExpertNetwork) {
        CollectiveWork& work = std::get<CollectiveWork>(op.work);
        work = {work.kind, part(work.bytes), work.ranks * ranks_, 1, work.once};
      } else if (op.kind == OpKind::kPermute || op.kind == OpKind::kCombine) {
        RowWork& work = std::get<RowWork>(op.work);
        work.rows = div_ceil(work.rows, ranks_);
        work.moved = part(work.moved);
        work.flops = {work.flops.count / static_cast<double>(ranks_)};
      } else {
        continue;
      }
      for (const Access& access : op.accesses) {
        if (graph_.tensor(access.tensor).elements == rows_) sent_.insert(access.tensor);
      }
    }
    for (const TensorId id : sent_) {
      graph_.tensor(id).elements = div_ceil(graph_.tensor(id).elements, ranks_);
    }
  }

 private:
  Bytes part(Bytes bytes) const { return {div_ceil(bytes.count, ranks_)}; }

  // The first product's outputs are columns of an expert, the second's inputs.
  void deal(GemmWork& work, const Op& op) const {
    const bool first = op.label.module == ModuleKind::kFc1;
    int64_t& rows = op.phase == Phase::kBackwardWeight ? work.k : work.m;
    int64_t& columns = op.phase == Phase::kBackwardWeight  ? (first ? work.m : work.n)
                       : op.phase == Phase::kBackwardInput ? (first ? work.k : work.n)
                                                           : (first ? work.n : work.k);
    rows = div_ceil(rows, ranks_);
    columns *= ranks_;
    work.experts = div_ceil(work.experts, ranks_);
  }

  Graph& graph_;
  const int64_t ranks_;
  const int64_t rows_;
  std::set<TensorId> sent_;
};

class TensorPass {
 public:
  TensorPass(Graph& graph, const Model& model, const Plan& plan, const StackFacts& facts)
      : graph_(graph), model_(model), plan_(plan), facts_(facts) {}

  void run() {
    std::vector<Op> result;
    result.reserve(graph_.step.ops.size() * 3 / 2);
    for (Op& op : graph_.step.ops) {
      next_computation_.meet(op);
      rewrite(std::move(op), result);
    }
    std::erase_if(result, [&](const Op& op) {
      return dropped_.contains(static_cast<size_t>(&op - result.data()));
    });
    graph_.step.ops = std::move(result);
  }

 private:
  void rewrite(Op op, std::vector<Op>& result) {
    const ModuleKind module = op.label.module;
    const bool forward = op.phase == Phase::kForward;
    if (op.kind == OpKind::kEmbedding) return embedding(std::move(op), result);
    if (op.kind == OpKind::kLoss) return loss(std::move(op), result);
    const bool is_split = is_column(module) || is_row(module);
    const bool is_whole = keeps_experts_whole(plan_, facts_) && is_product_of_experts(op);
    if (op.kind != OpKind::kGemm || !is_split || is_whole || makes_latent(op)) {
      result.push_back(std::move(op));
      return;
    }
    if (is_column(module)) {
      if (forward) return product(std::move(op), Role::kInput, std::nullopt, result);
      if (op.phase == Phase::kBackwardInput) {
        return product(std::move(op), std::nullopt, Role::kInputGradient, result);
      }
      return product(std::move(op), Role::kInput, std::nullopt, result);
    }
    if (forward) return product(std::move(op), std::nullopt, Role::kOutput, result);
    product(std::move(op), Role::kOutputGradient, std::nullopt, result);
  }

  // `gathered`: the access that a product needs whole; `partial`: the one whose sum it leaves open.
  void product(Op op, std::optional<Role> gathered, std::optional<Role> partial,
               std::vector<Op>& result) {
    if (gathered && plan_.tensor_sequence) gather(op, *gathered, result);
    if (partial) drop_unfinished(access_of(op, *partial), result);
    const TensorId beside = partial ? reduce_beside(op, *partial, result) : -1;
    result.push_back(std::move(op));
    if (partial) reduce(*partial, beside, result);
  }

  // Several products may add to one sum (those of routed and of shared experts): it is exchanged
  // once, after the last, so what was made for the one before goes.
  void drop_unfinished(const Access& access, const std::vector<Op>& result) {
    if (!reads(access)) return;
    find_exchanges(result);
    drop_exchanges_of(access.tensor);
    const auto pieces = beside_of_.find(access.tensor);
    if (pieces != beside_of_.end()) drop_exchanges_of(pieces->second);
  }

  void find_exchanges(const std::vector<Op>& result) {
    for (; searched_ < result.size(); ++searched_) {
      const Op& op = result[searched_];
      if (op.kind != OpKind::kCollective) continue;
      for (const Access& one : op.accesses) {
        if (writes(one)) exchanges_of_[one.tensor].push_back(searched_);
      }
    }
  }

  void drop_exchanges_of(TensorId tensor) {
    std::vector<size_t>& exchanges = exchanges_of_[tensor];
    dropped_.insert(exchanges.begin(), exchanges.end());
    exchanges.clear();
  }

  Access& access_of(Op& op, Role role) {
    for (Access& access : op.accesses) {
      if (access.role == role) return access;
    }
    CHECK(false && "a product without this access");
    return op.accesses.front();
  }

  TensorId workspace(TensorId like, TensorKind kind, int64_t elements) {
    Tensor tensor = graph_.tensor(like);
    tensor.kind = kind;
    tensor.category = Category::kWorkspace;
    tensor.elements = elements;
    return add_tensor(graph_, tensor);
  }

  // Whole rows of what lies split by token; both products of a backward share one gathering, and
  // all pieces of a head.
  void gather(Op& op, Role role, std::vector<Op>& result) {
    Access& access = access_of(op, role);
    const TensorId split = access.tensor;
    const bool shares = op.phase != Phase::kForward || op.label.loss_chunk > 0;
    const bool reused = shares && gathered_.contains(split);
    if (!reused) {
      const int64_t whole = graph_.tensor(split).elements * plan_.tensor;
      const TensorId here = workspace(split, TensorKind::kGathered, whole);
      gathered_[split] = here;
      result.push_back(exchange(CollectiveKind::kAllGather, here, op,
                                {read(split, Role::kSource), write(here, Role::kDestination)}));
      if (overlaps()) {
        const TensorId done = token(here);
        next_computation_.wait_for(done);
        result.push_back(
            rest_of(result.back(), {read(split, Role::kSource), write(done, Role::kDestination)}));
      }
    }
    access.tensor = gathered_.at(split);
  }

  // Where the exchange is cut into a piece a rank, all but one run beside the product.
  bool overlaps() const { return facts_.tensor_overlap == Overlap::kFull; }
  TensorId token(TensorId like) { return add_token(graph_, graph_.tensor(like)); }
  Op rest_of(const Op& piece, std::vector<Access> accesses) const {
    Op rest = piece;
    CollectiveWork& work = std::get<CollectiveWork>(rest.work);
    work.bytes = work.bytes * (plan_.tensor - 1);
    rest.accesses = std::move(accesses);
    return rest;
  }
  // The pieces of a product's sum that are exchanged while it runs; -1 where there are none.
  TensorId reduce_beside(Op& op, Role role, std::vector<Op>& result) {
    if (!overlaps()) return -1;
    const TensorId sum = access_of(op, role).tensor;
    const int64_t elements = graph_.tensor(sum).elements;
    const TensorId whole = workspace(sum, TensorKind::kPartial,
                                     plan_.tensor_sequence ? elements * plan_.tensor : elements);
    const TensorId done = token(sum);
    const CollectiveKind kind =
        plan_.tensor_sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
    std::vector<Access> accesses;
    for (const Access& access : op.accesses) {
      if (reads(access) && access.tensor != sum) {
        accesses.push_back(read(access.tensor, Role::kSource));
      }
    }
    accesses.push_back(write(done, Role::kDestination));
    result.push_back(rest_of(exchange(kind, whole, op, {}), std::move(accesses)));
    beside_of_[sum] = done;
    return done;
  }

  // Turns what the last operation wrote into a sum over all ranks. `beside`: the end of the pieces
  // that were exchanged already, or -1.
  void reduce(Role role, TensorId beside, std::vector<Op>& result) {
    Op& op = result.back();
    Access& access = access_of(op, role);
    const TensorId sum = access.tensor;
    const int64_t elements = graph_.tensor(sum).elements;
    const bool goes_on = reads(access);
    const TensorId open =
        goes_on ? partial_of_.at(sum)
                : workspace(sum, TensorKind::kPartial,
                            plan_.tensor_sequence ? elements * plan_.tensor : elements);
    access.tensor = partial_of_[sum] = open;
    const CollectiveKind kind =
        plan_.tensor_sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
    Op made = exchange(kind, open, op, {read(open, Role::kSource), write(sum, Role::kDestination)});
    if (beside >= 0) made.accesses.push_back(read(beside, Role::kScratch));
    result.push_back(std::move(made));
  }

  Op exchange(CollectiveKind kind, TensorId whole, const Op& beside, std::vector<Access> accesses) {
    CollectiveWork work{kind, graph_.tensor(whole).bytes(), plan_.tensor, 1};
    if (overlaps()) {
      work.bytes = {div_ceil(work.bytes.count, plan_.tensor)};
    }
    const Phase phase = beside.phase == Phase::kForward ? Phase::kForward : Phase::kBackward;
    return collective_op(LaneKind::kTensorNetwork, work, phase, beside.label, std::move(accesses));
  }

  // Each rank looks up its part of the vocabulary and leaves zeros elsewhere.
  void embedding(Op op, std::vector<Op>& result) {
    if (op.phase == Phase::kForward)
      return product(std::move(op), std::nullopt, Role::kOutput, result);
    product(std::move(op), Role::kOutputGradient, std::nullopt, result);
  }

  // The loss of all logits, which every rank has then.
  void whole_loss(Op op, std::vector<Op>& result) {
    const TensorId logits = access_of(op, Role::kOutput).tensor;
    Tensor tensor = graph_.tensor(logits);
    tensor.elements *= plan_.tensor;
    const TensorId whole = add_tensor(graph_, tensor);
    const CollectiveWork work{CollectiveKind::kAllGather, graph_.tensor(whole).bytes(),
                              plan_.tensor, 1};
    result.push_back(
        collective_op(LaneKind::kTensorNetwork, work, Phase::kForward, op.label,
                      {read(logits, Role::kSource), write(whole, Role::kDestination)}));
    for (const Access& access : op.accesses) {
      if (access.role == Role::kScratch) graph_.tensor(access.tensor).elements *= plan_.tensor;
    }
    RowWork& rows = std::get<RowWork>(op.work);
    rows.columns *= plan_.tensor;
    rows.moved = rows.moved * plan_.tensor;
    rows.flops = {rows.flops.count * static_cast<double>(plan_.tensor)};
    op.accesses.push_back(update(whole, Role::kStatistics));
    result.push_back(std::move(op));
  }

  // Largest logit, sum of exponentials and the label's logit of every token, over all ranks.
  void loss(Op op, std::vector<Op>& result) {
    if (facts_.gathers_logits) return whole_loss(std::move(op), result);
    const TensorId logits = access_of(op, Role::kOutput).tensor;
    Tensor sums = graph_.tensor(logits);
    sums.kind = TensorKind::kPartial;
    sums.category = Category::kWorkspace;
    sums.dtype = DType::kF32;
    const int64_t stride = facts_.logits_stride(div_ceil(model_.vocab, plan_.tensor));
    sums.elements = 3 * div_ceil(sums.elements, stride);
    const TensorId shared = add_tensor(graph_, sums);
    const CollectiveWork work{CollectiveKind::kAllReduce, sums.bytes(), plan_.tensor, 1};
    result.push_back(
        collective_op(LaneKind::kTensorNetwork, work, Phase::kForward, op.label,
                      {read(access_of(op, Role::kTokens).tensor, Role::kTokens),
                       read(logits, Role::kSource), write(shared, Role::kDestination)}));
    op.accesses.push_back(read(shared, Role::kStatistics));
    result.push_back(std::move(op));
  }

  Graph& graph_;
  const Model& model_;
  const Plan& plan_;
  const StackFacts& facts_;
  std::unordered_map<TensorId, TensorId> gathered_;    // split -> whole
  std::unordered_map<TensorId, TensorId> partial_of_;  // sum -> what one rank has of it
  std::unordered_map<TensorId, TensorId> beside_of_;   // sum -> end of the pieces exchanged beside
  NextComputation next_computation_;
  // Places in the result: of exchanges, by what they write, as far as they were searched for; and
  // of those that go.
  std::unordered_map<TensorId, std::vector<size_t>> exchanges_of_;
  size_t searched_ = 0;
  std::set<size_t> dropped_;
};

}  // namespace

Graph tensor_pass(Graph graph, const Model& model, const Plan& plan, const StackFacts& facts) {
  if (keeps_experts_whole(plan, facts)) WholeExperts(graph, model, plan).run();
  TensorPass(graph, model, plan, facts).run();
  return graph;
}

}  // namespace ballast
