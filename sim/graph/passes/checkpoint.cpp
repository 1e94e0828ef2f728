// Pass `checkpoint`: what becomes of saved activations between forward and backward.
//
// Recompute: the forward operations that write an output are repeated right before the first
// backward operation that reads it (Chen et al., arXiv 1604.06174); what they read is recomputed
// first where that was not kept either. Offload: the output leaves after its last forward use and
// returns `look_ahead` operations before its first backward use (Megatron-Core's fine-grained
// activation offload, four waits; here they all follow from the tensors).
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

bool is_activation(const Tensor& tensor) {
  return tensor.kind == TensorKind::kOutput || tensor.kind == TensorKind::kKeysValues ||
         tensor.kind == TensorKind::kNormStatistics || tensor.kind == TensorKind::kLogSumExp ||
         tensor.kind == TensorKind::kMask;
}

// What an exchange leaves is used at once and never kept; a forward that is repeated repeats it.
bool is_passing(const Tensor& tensor) {
  return tensor.kind == TensorKind::kGathered || tensor.kind == TensorKind::kPartial;
}

// The layers of a graph, counted from its first.
struct Layers {
  int64_t count = 0;
  // The last of them is that of the model: its backward comes before a copy could return.
  bool ends_model = false;
};
Layers layers_in(const Graph& graph) {
  Layers layers;
  for (const Module& module : graph.modules) {
    layers.count = std::max(layers.count, module.layer + 1);
  }
  layers.ends_model = std::any_of(graph.step.ops.begin(), graph.step.ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::kLoss; });
  return layers;
}

// As PyTorch's selective checkpointing chooses blocks (foundation-model-stack/fms-fsdp,
// policies/ac_handler.py): evenly spread.
bool obeys_recompute(const ActivationPlan& plan, int64_t layer, const Layers& layers) {
  if (layer < 0) return true;
  const int64_t some = std::llround(plan.recompute_share * static_cast<double>(layers.count));
  return (layer + 1) * some / layers.count > layer * some / layers.count;
}

ActivationFate named_fate_of(const Tensor& tensor, const ActivationPlan& plan,
                             const Layers& layers) {
  if (tensor.kind == TensorKind::kScores ||
      (tensor.kind == TensorKind::kMask && tensor.label.module == ModuleKind::kCoreAttention)) {
    return plan.scores;
  }
  // The last mask of a layer is remade where its neighbours are, so that the layer runs to its end.
  if (tensor.kind == TensorKind::kMask && tensor.label.module == ModuleKind::kFc2) {
    return plan.fate[static_cast<size_t>(ModuleKind::kActivation)] == ActivationFate::kRecompute
               ? ActivationFate::kRecompute
               : ActivationFate::kKeep;
  }
  if (!is_activation(tensor) || !saves_output(tensor.label.module)) return ActivationFate::kKeep;
  const ActivationFate fate = plan.fate[static_cast<size_t>(tensor.label.module)];
  if (fate != ActivationFate::kOffload) return fate;
  const auto offloaded =
      static_cast<int64_t>(std::ceil(plan.offload_share * static_cast<double>(layers.count)));
  const int64_t layer = tensor.label.layer;
  const bool is_last = layers.ends_model && layer == layers.count - 1;
  return layer < offloaded && !is_last ? fate : ActivationFate::kKeep;
}

ActivationFate fate_of(const Tensor& tensor, const ActivationPlan& plan, const Layers& layers) {
  if (is_passing(tensor)) return ActivationFate::kRecompute;
  const ActivationFate fate = named_fate_of(tensor, plan, layers);
  const bool obeyed =
      fate != ActivationFate::kRecompute || obeys_recompute(plan, tensor.label.layer, layers);
  return obeyed ? fate : ActivationFate::kKeep;
}

// Walks the backward, puts a copy of the producing forward before the first reader of every
// output that is to be recomputed, and points the backward's reads at what the copies write.
class Recompute {
 public:
  Recompute(Graph& graph, const ActivationPlan& plan, const StackFacts& facts)
      : graph_(graph), gathers_beside_(facts.tensor_overlap == Overlap::kPartial) {
    const Layers layers = layers_in(graph);
    producers_.resize(graph.tensors.size());
    recomputed_.assign(graph.tensors.size(), false);
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      recomputed_[i] = fate_of(graph.tensors[i], plan, layers) == ActivationFate::kRecompute;
    }
    for (size_t i = 0; i < graph.step.ops.size(); ++i) {
      const Op& op = graph.step.ops[i];
      if (op.phase != Phase::kForward) continue;
      for (const Access& access : op.accesses) {
        if (writes(access)) {
          producers_[static_cast<size_t>(access.tensor)].push_back(static_cast<OpId>(i));
        }
      }
    }
  }

  void run() {
    std::vector<Op>& ops = graph_.step.ops;
    Insertions insertions;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (!is_backward(ops[i].phase)) continue;
      const size_t position = gathers_beside_ ? start_of_gradients(ops, i) : i;
      starts_behind_ = position < i ? computation_before(ops, position) : nullptr;
      resolve(ops[i], ops, position, insertions);
    }
    ops = insertions.apply(std::move(ops));
  }

 private:
  // Of the product of a weight's gradient: where that of its input's gradient stands, from which
  // only exchanges part it. Of all others: where they stand themselves.
  static size_t start_of_gradients(const std::vector<Op>& ops, size_t i) {
    if (ops[i].kind != OpKind::kGemm || ops[i].phase != Phase::kBackwardWeight) return i;
    size_t before = i;
    while (before > 0 && ops[before - 1].kind == OpKind::kCollective) --before;
    const bool pair = before > 0 && ops[before - 1].kind == OpKind::kGemm &&
                      ops[before - 1].phase == Phase::kBackwardInput &&
                      ops[before - 1].label == ops[i].label;
    return pair ? before - 1 : i;
  }

  static Op* computation_before(std::vector<Op>& ops, size_t position) {
    for (size_t i = position; i-- > 0;) {
      if (kind_of(ops[i].lane) == LaneKind::kCompute) return &ops[i];
    }
    return nullptr;
  }

  // Makes every input of `op` available before `position`, and renames it to its new copy.
  void resolve(Op& op, const std::vector<Op>& ops, size_t position, Insertions& insertions) {
    for (Access& access : op.accesses) {
      if (!reads(access) || !is_recomputed(access.tensor)) continue;
      if (!copy_of_.contains(access.tensor)) {
        for (const OpId producer : producers_[static_cast<size_t>(access.tensor)]) {
          if (!repeated_.insert(producer).second) continue;
          repeat(ops[static_cast<size_t>(producer)], ops, position, insertions);
        }
      }
      access.tensor = copy_of_.at(access.tensor);
    }
  }

  void repeat(Op op, const std::vector<Op>& ops, size_t position, Insertions& insertions) {
    op.phase = Phase::kRecompute;
    resolve(op, ops, position, insertions);
    if (starts_behind_ != nullptr && op.kind == OpKind::kCollective) {
      hand_token(graph_, starts_behind_->accesses, op.accesses);
    }
    for (Access& access : op.accesses) {
      if (access.mode != AccessMode::kWrite) continue;
      const TensorId copy = add_tensor(graph_, graph_.tensor(access.tensor));
      copy_of_.emplace(access.tensor, copy);
      access.tensor = copy;
    }
    insertions.before(position, std::move(op));
  }

  bool is_recomputed(TensorId tensor) const {
    const auto index = static_cast<size_t>(tensor);
    // What the backward itself makes is there when it is read.
    return index < recomputed_.size() && recomputed_[index] && !producers_[index].empty();
  }

  Graph& graph_;
  // What the gradient of a weight reads whole is gathered beside the product before it, which is
  // that of its input's (Megatron-LM, core/tensor_parallel/layers.py,
  // LinearWithGradAccumulationAndAsyncCommunication.backward).
  const bool gathers_beside_;
  Op* starts_behind_ = nullptr;  // such a gathering, which is enqueued when this is done
  std::vector<std::vector<OpId>> producers_;  // of each tensor, in order
  std::set<OpId> repeated_;
  std::vector<bool> recomputed_;
  std::unordered_map<TensorId, TensorId> copy_of_;
};

struct Uses {
  size_t last_forward = 0;
  size_t first_backward = 0;  // 0: the backward does not read it
};

// Uses of each tensor, by the forward on one side and by backward and recompute on the other.
std::vector<Uses> uses_of(const Graph& graph) {
  std::vector<Uses> uses(graph.tensors.size());
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    for (const Access& access : op.accesses) {
      Uses& use = uses[static_cast<size_t>(access.tensor)];
      if (op.phase == Phase::kForward) {
        use.last_forward = i;
      } else if (use.first_backward == 0) {
        use.first_backward = i;
      }
    }
  }
  return uses;
}

Op copy_op(const Graph& graph, TensorId from, TensorId to, Phase phase) {
  const Tensor& tensor = graph.tensor(from);
  Op op;
  op.kind = OpKind::kCopy;
  op.phase = phase;
  const bool out = phase == Phase::kOffload;
  op.lane = lane_of(0, out ? LaneKind::kCopyOut : LaneKind::kCopyIn);
  op.label = tensor.label;
  op.work =
      CopyWork{tensor.bytes(), out ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice};
  op.accesses = {read(from, Role::kSource), write(to, Role::kDestination)};
  return op;
}

// Outputs that a forward makes, a backward reads, and that are to be elsewhere between.
bool may_leave(const Tensor& tensor, const Uses& uses, const ActivationPlan& plan,
               const Layers& layers) {
  const bool recomputed_copy = uses.last_forward == 0;
  return !recomputed_copy && uses.first_backward > 0 &&
         fate_of(tensor, plan, layers) == ActivationFate::kOffload;
}

// Of every output that leaves, the share that does.
class Shares {
 public:
  Shares(const Graph& graph, const ActivationPlan& plan, const Layers& layers) : plan_(plan) {
    const auto in_part = [](const Label& label) {
      return label.layer >= 0 && label.subsequence >= 0;
    };
    if (plan.offload_per_mflop == 0) return;
    std::map<int16_t, std::map<int16_t, Part>> parts;
    const std::vector<Uses> uses = uses_of(graph);
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (!in_part(tensor.label) || tensor.kind == TensorKind::kKeysValues) continue;
      if (!may_leave(tensor, uses[t], plan, layers)) continue;
      parts[tensor.label.layer][tensor.label.subsequence].bytes += tensor.bytes();
    }
    for (const Op& op : graph.step.ops) {
      if (op.phase != Phase::kForward || !in_part(op.label)) continue;
      parts[op.label.layer][op.label.subsequence].flops += flops_of(op.work).count;
    }
    by_part_ = !parts.empty();
    for (const auto& [layer, of_layer] : parts) add_layer(layer, of_layer);
  }

  double of(const Tensor& tensor) const {
    if (!by_part_) return plan_.offload_part;
    if (tensor.kind == TensorKind::kKeysValues) return 0;
    const auto found = shares_.find({tensor.label.layer, tensor.label.subsequence});
    return found == shares_.end() ? 0 : found->second;
  }

 private:
  struct Part {
    Bytes bytes;  // that could leave
    double flops = 0;
  };

  // SPPO (arXiv 2503.10377): what leaves of a part fits under the computation of the
  // next, and of no part a greater share than of the one before. Nothing follows the last.
  void add_layer(int16_t layer, const std::map<int16_t, Part>& parts) {
    double share = 1;
    for (auto part = parts.begin(); part != parts.end(); ++part) {
      const auto next = std::next(part);
      const double under = next == parts.end() ? 0 : next->second.flops;
      const double room = static_cast<double>(plan_.offload_per_mflop) * 1e-6 * under;
      const auto bytes = static_cast<double>(part->second.bytes.count);
      if (room < share * bytes) share = room / bytes;
      shares_[{layer, part->first}] = share;
    }
  }

  const ActivationPlan& plan_;
  bool by_part_ = false;
  std::map<std::pair<int16_t, int16_t>, double> shares_;  // by layer and part
};

// Cuts every output that leaves in part into what stays and what leaves; whoever touches the one
// touches the other. True of those that stay.
std::vector<bool> cut_outputs(Graph& graph, const ActivationPlan& plan, const Layers& layers) {
  const size_t tensors = graph.tensors.size();
  std::vector<TensorId> leaves(tensors, -1);
  std::vector<bool> stays(tensors, false);
  const Shares shares(graph, plan, layers);
  for (size_t t = 0; t < tensors; ++t) {
    if (fate_of(graph.tensors[t], plan, layers) != ActivationFate::kOffload) continue;
    const double share = shares.of(graph.tensors[t]);
    if (share == 1) continue;
    stays[t] = true;
    if (share == 0 && plan.offload_per_mflop > 0) continue;
    Tensor part = graph.tensors[t];
    const double all = static_cast<double>(part.elements);
    // At least one element on either side.
    part.elements =
        std::clamp<int64_t>(std::llround(share * all), 1, std::max<int64_t>(1, part.elements - 1));
    graph.tensors[t].elements = std::max<int64_t>(1, graph.tensors[t].elements - part.elements);
    leaves[t] = add_tensor(graph, part);
  }
  for (Op& op : graph.step.ops) {
    const size_t count = op.accesses.size();
    for (size_t a = 0; a < count; ++a) {
      const auto tensor = static_cast<size_t>(op.accesses[a].tensor);
      if (tensor >= tensors || leaves[tensor] < 0) continue;
      Access other = op.accesses[a];
      other.tensor = leaves[tensor];
      op.accesses.push_back(other);
    }
  }
  stays.resize(graph.tensors.size(), false);
  return stays;
}

void offload(Graph& graph, const ActivationPlan& plan) {
  const Layers layers = layers_in(graph);
  const std::vector<bool> stays = cut_outputs(graph, plan, layers);
  const std::vector<Uses> uses = uses_of(graph);
  std::vector<Op>& ops = graph.step.ops;
  Insertions insertions;
  std::unordered_map<TensorId, TensorId> returned;
  const size_t tensors = graph.tensors.size();
  for (size_t i = 0; i < tensors; ++i) {
    const Uses use = uses[i];
    if (stays[i] || !may_leave(graph.tensors[i], use, plan, layers)) continue;
    const auto id = static_cast<TensorId>(i);
    Tensor host = graph.tensors[i];
    host.place = Place::kDram;
    host.kind = TensorKind::kHostOutput;
    const TensorId away = add_tensor(graph, host);
    const TensorId back = add_tensor(graph, graph.tensors[i]);
    insertions.after(use.last_forward, copy_op(graph, id, away, Phase::kOffload));
    const size_t least = use.last_forward + 1;
    insertions.before(ahead_of(ops, use.first_backward, plan.look_ahead, least),
                      copy_op(graph, away, back, Phase::kReload));
    returned.emplace(id, back);
  }
  for (Op& op : ops) {
    if (op.phase == Phase::kForward) continue;
    for (Access& access : op.accesses) {
      if (const auto found = returned.find(access.tensor); found != returned.end()) {
        access.tensor = found->second;
      }
    }
  }
  ops = insertions.apply(std::move(ops));
}

// Of fc1 and activation only a tile exists at a time. The backward makes each tile again for
// itself, besides the recomputation of a whole layer that leads up to it (DeepSpeed,
// runtime/sequence_parallel/ulysses_sp.py, SequenceTiledCompute.backward).
void tile_feed_forward(Graph& graph, const Plan& plan) {
  const auto is_tiled = [](const Label& label) {
    return label.layer >= 0 &&
           (label.module == ModuleKind::kFc1 || label.module == ModuleKind::kActivation);
  };
  for (Tensor& tensor : graph.tensors) {
    const bool values =
        tensor.kind == TensorKind::kOutput || tensor.kind == TensorKind::kOutputGradient;
    if (values && is_tiled(tensor.label)) {
      tensor.elements = div_ceil(tensor.elements, plan.ffn_tiles);
    }
  }
  const bool whole_layer =
      plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm2)] == ActivationFate::kRecompute;
  if (!whole_layer) return;
  std::vector<Op> ops;
  ops.reserve(graph.step.ops.size());
  for (Op& op : graph.step.ops) {
    if (op.phase == Phase::kRecompute && is_tiled(op.label)) ops.push_back(op);
    ops.push_back(std::move(op));
  }
  graph.step.ops = std::move(ops);
}

}  // namespace

Graph checkpoint_pass(Graph graph, const Plan& plan, const StackFacts& facts) {
  Recompute(graph, *plan.activations, facts).run();
  offload(graph, *plan.activations);
  if (plan.ffn_tiles > 1) tile_feed_forward(graph, plan);
  return graph;
}

}  // namespace ballast
