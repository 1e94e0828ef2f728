// Pass `optimizer`: gradients leave by bucket, are stepped, and the weights come home.
//
//   CPU bucket: pack -> copy out -> [cast] -> [snapshot] -> Adam -> [cast] -> upload -> [unpack]
//   GPU bucket: Adam straight from the modules' gradients into their weights
// wait       (ZeRO-Offload, arXiv 2101.06840): all norms, one decision, then every step.
// delay      (its one-step delayed update): the step of t-1 runs beside forward and backward of t,
//            into a second copy of the weights.
// speculate  (SuperOffload, arXiv 2509.21271 section 4.4): each bucket steps as it lands; the
//            commit, before the first backward of the next step, accepts or runs `Graph::repair`.
#include <algorithm>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/bucket_ops.h"

namespace ballast {
namespace {

// The loss itself, or the block of a pipeline that it lies in.
bool computes_loss(const Op& op) {
  return op.kind == OpKind::kLoss ||
         (op.kind == OpKind::kBlock && op.label.module == ModuleKind::kLoss);
}

class OptimizerPass {
 public:
  OptimizerPass(Graph& graph, const Plan& plan, const StackFacts& facts)
      : graph_(graph),
        plan_(plan),
        facts_(facts),
        ops_(graph, plan, facts),
        end_(graph.step.ops.size()),
        buckets_(static_cast<int32_t>(graph.buckets.size())) {
    index_uses();
  }

  void run() {
    switch (plan_.optimizer.sync) {
      case SyncMode::kWait:
        wait();
        break;
      case SyncMode::kDelay:
        delay();
        break;
      case SyncMode::kSpeculate:
        speculate();
        break;
    }
    if (facts_.weight_overlap != Overlap::kFull) hold_up_forward();
    graph_.step.ops = insertions_.apply(std::move(graph_.step.ops));
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      if (graph_.step.ops[i].kind == OpKind::kCommit) graph_.commit = static_cast<OpId>(i);
    }
  }

 private:
  struct Positions {
    size_t gradient = 0;  // last operation that writes a gradient of the bucket
    size_t weight = 0;    // last one that reads a stationary weight of it
    size_t home = 0;      // last fetch of flowing weights from its state
  };

  // --- the three ways to step ----------------------------------------------------------------

  void wait() {
    for (int32_t b = 0; b < buckets_; ++b) {
      // A norm that waits for an exchange must not hold up the backward.
      const bool exchanged = plan_.replicas() > 1 && graph_.bucket(b).site == Site::kGpu;
      gradient_leaves(b, exchanged ? end_ : ready_at(b));
    }
    insertions_.before(end_, ops_.decide());
    // First layers first: the next forward begins with them.
    for (int32_t b = buckets_ - 1; b >= 0; --b) {
      insert(end_, ops_.step_of(b));
      insert(end_, ops_.upload(b));
    }
    // Buckets share modules: a step that came after a gather would wait for its weights, and with
    // it the forward, which can begin as soon as the first layers are whole.
    for (int32_t b = buckets_ - 1; b >= 0; --b) insert(end_, ops_.gather_of(b));
    for (int32_t b = buckets_ - 1; b >= 0; --b) insert(end_, ops_.unpack_of(b));
  }

  void delay() {
    insertions_.before(0, ops_.decide());
    // The verdict on step t-1 sets the loss scale of step t.
    for (Op& next : graph_.step.ops) {
      if (!computes_loss(next)) continue;
      next.accesses.push_back(read(ops_.decision(), Role::kDecision));
    }
    // In the order in which the next gradients will want the buckets.
    for (int32_t b = 0; b < buckets_; ++b) {
      insert(0, ops_.step_of(b));
      insert(0, ops_.gather_of(b));
      insert(0, ops_.unpack_of(b));
      insert(0, ops_.upload(b));
    }
    for (int32_t b = 0; b < buckets_; ++b) gradient_leaves(b, ready_at(b));
  }

  void speculate() {
    std::vector<int32_t> deferred;  // CPU buckets that come home after a GPU bucket's step
    for (int32_t b = 0; b < buckets_; ++b) {
      gradient_leaves(b, ready_at(b));
      const Positions last = position_of(b);
      // The backward must see the weights of the forward: no step before the last fetch from the
      // bucket, no new weight (which a GPU bucket's step writes itself) before the last reader.
      const size_t steppable = std::max(ready_at(b), last.home + 1);
      const size_t unused = unused_from(b);
      const bool on_gpu = graph_.bucket(b).site == Site::kGpu;
      insert(on_gpu ? unused : steppable, ops_.step_of(b));
      insert(on_gpu ? unused : steppable, ops_.gather_of(b));
      insert(on_gpu ? unused : steppable, ops_.unpack_of(b));
      if (last_gpu_sharer(b) > b) {
        deferred.push_back(b);
        continue;
      }
      insert(unused, ops_.upload(b));
      if (deferred.empty() || last_gpu_sharer(deferred.front()) != b) continue;
      for (const int32_t earlier : deferred) {
        insert(std::max(unused, unused_from(earlier)), ops_.upload(earlier));
      }
      deferred.clear();
    }
    return_what_was_stepped();
    insertions_.before(first_backward(graph_.step.ops), ops_.commit());
    ops_.repair();
  }

  // By the process that computes: its next forward waits.
  void return_what_was_stepped() {
    std::vector<TensorId> returned;
    for (int32_t b = 0; b < buckets_; ++b) {
      std::vector<Op> passes = ops_.return_passes(b);
      if (!passes.empty()) returned.push_back(graph_.bucket(b).master);
      insert(end_, std::move(passes));
    }
    compute_after(returned, graph_.step.ops);
  }

  // --- what they share -----------------------------------------------------------------------

  void insert(size_t position, std::vector<Op> ops) {
    for (Op& next : ops) insertions_.before(position, std::move(next));
  }

  // Where the whole gradient of a bucket has been written.
  size_t ready_at(int32_t b) const {
    return facts_.gradient_overlap == Overlap::kNone ? end_ : position_of(b).gradient + 1;
  }

  // From where on a bucket can be stepped and nothing reads its old weights.
  size_t unused_from(int32_t b) const {
    const Positions last = position_of(b);
    return std::max({ready_at(b), last.home + 1, last.weight + 1});
  }

  // Exchanged between ranks as soon as it is there, and then out and summed.
  void gradient_leaves(int32_t b, size_t position) {
    if (ops_.reduces(b)) insert(ready_at(b), ops_.reduction(b));
    insert(position, ops_.gradient_out(b));
  }

  // The first computation of a step waits until every weight that stays on the GPU is home.
  void hold_up_forward() {
    std::vector<TensorId> weights;
    for (size_t i = 0; i < graph_.modules.size(); ++i) {
      const TensorId weight = ops_.module_weights()[i];
      if (weight >= 0 && !ops_.flowing()[i]) weights.push_back(weight);
    }
    compute_after(weights, graph_.step.ops);
  }

  void index_uses() {
    last_gradient_.assign(graph_.tensors.size(), 0);
    last_weight_.assign(graph_.tensors.size(), 0);
    last_fetch_.assign(graph_.tensors.size(), 0);
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      for (const Access& access : graph_.step.ops[i].accesses) {
        const auto t = static_cast<size_t>(access.tensor);
        if (access.role == Role::kParameterGradient) last_gradient_[t] = i;
        if (access.role == Role::kWeight) last_weight_[t] = i;
        if (graph_.step.ops[i].phase == Phase::kFetch) last_fetch_[t] = i;
      }
    }
  }

  Positions position_of(int32_t b) const {
    Positions positions;
    for (const TensorId home : {graph_.bucket(b).master, graph_.bucket(b).weights}) {
      if (home >= 0) {
        positions.home = std::max(positions.home, last_fetch_[static_cast<size_t>(home)]);
      }
    }
    for (const Bucket::Piece& piece : graph_.bucket(b).pieces) {
      const auto module = static_cast<size_t>(piece.module);
      const auto gradient = static_cast<size_t>(ops_.module_gradients()[module]);
      const auto weight = static_cast<size_t>(ops_.module_weights()[module]);
      positions.gradient = std::max(positions.gradient, last_gradient_[gradient]);
      positions.weight = std::max(positions.weight, last_weight_[weight]);
    }
    return positions;
  }

  // Where a module is cut between CPU and GPU buckets, the GPU steps its parts first: it must not
  // stand still until the others have been to the CPU and back. The last GPU bucket that has a part
  // of a module of this CPU bucket, or -1.
  int32_t last_gpu_sharer(int32_t b) const {
    if (graph_.bucket(b).site == Site::kGpu) return -1;
    const int32_t module = graph_.bucket(b).pieces.front().module;
    int32_t last = -1;
    for (auto c = b + 1; c < static_cast<int32_t>(graph_.buckets.size()); ++c) {
      if (graph_.bucket(c).pieces.back().module != module) break;
      if (graph_.bucket(c).site == Site::kGpu) last = c;
    }
    return last;
  }

  Graph& graph_;
  const Plan& plan_;
  const StackFacts& facts_;
  BucketOps ops_;
  const size_t end_;
  const int32_t buckets_;
  Insertions insertions_;
  std::vector<size_t> last_gradient_, last_weight_, last_fetch_;  // by tensor: an operation's index
};

}  // namespace

Graph optimizer_pass(Graph graph, const Plan& plan) {
  return optimizer_pass(std::move(graph), plan, StackFacts{});
}

Graph optimizer_pass(Graph graph, const Plan& plan, const StackFacts& facts) {
  OptimizerPass(graph, plan, facts).run();
  return graph;
}

}  // namespace ballast
