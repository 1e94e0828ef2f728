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

// Where the order of reloads decides, what it finds follows at once stays (reload.cpp): of parts of
// sequences only the last, and where all forwards run first only the last micro-batch.
bool order_decides(const Plan& plan) {
  const bool waits = plan.subsequences > 1 || plan.pipeline_schedule == PipelineSchedule::kGpipe;
  return plan.activations->reload == ReloadOrder::kByModule && waits;
}

// What a plan says of every tensor of a graph.
class TensorFates {
 public:
  TensorFates(const Graph& graph, const Plan& plan)
      : graph_(graph), plan_(*plan.activations), dispatched_(graph.tensors.size(), false) {
    for (const Module& module : graph.modules) layers_ = std::max(layers_, module.layer + 1);
    const std::vector<Op>& ops = graph.step.ops;
    const bool ends_model =
        std::any_of(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::kLoss; });
    last_stays_ = ends_model && !order_decides(plan);
    if (plan_.dispatched != ActivationFate::kKeep) find_dispatched();
  }

  ActivationFate of(size_t tensor) const {
    // What an exchange leaves is used at once and never kept; a forward that is repeated repeats
    // it.
    const TensorKind kind = graph_.tensors[tensor].kind;
    if (kind == TensorKind::kGathered || kind == TensorKind::kPartial) {
      return ActivationFate::kRecompute;
    }
    const ActivationFate fate = named(tensor);
    const int64_t layer = graph_.tensors[tensor].label.layer;
    const bool obeyed = fate == ActivationFate::kOffload     ? obeys_offload(tensor)
                        : fate == ActivationFate::kRecompute ? obeys_recompute(layer, tensor)
                                                             : true;
    return obeyed ? fate : ActivationFate::kKeep;
  }

 private:
  // Rows as experts take them: what their first product reads, and what was exchanged for it.
  void find_dispatched() {
    const std::vector<Op>& ops = graph_.step.ops;
    for (size_t i = ops.size(); i-- > 0;) {
      const Op& op = ops[i];
      if (op.phase != Phase::kForward) continue;
      const auto* product = std::get_if<GemmWork>(&op.work);
      const bool takes =
          product != nullptr && product->experts > 0 && op.label.module == ModuleKind::kFc1;
      const bool sends = op.kind == OpKind::kCollective && op.accesses.size() == 2 &&
                         dispatched_[static_cast<size_t>(op.accesses[1].tensor)];
      for (const Access& access : op.accesses) {
        const bool rows =
            (takes && access.role == Role::kInput) || (sends && access.role == Role::kSource);
        if (rows) dispatched_[static_cast<size_t>(access.tensor)] = true;
      }
    }
  }

  ActivationFate named(size_t index) const {
    if (dispatched_[index]) return plan_.dispatched;
    const Tensor& tensor = graph_.tensors[index];
    const ModuleKind module = tensor.label.module;
    if (tensor.kind == TensorKind::kScores ||
        (tensor.kind == TensorKind::kMask && module == ModuleKind::kCoreAttention)) {
      return plan_.scores;
    }
    // The last mask of a layer is remade where the whole of its network is, which then runs to its
    // end. An activation alone is made again where its output was, and no product behind it
    // (Megatron-LM at d98e8a64, megatron/core/tensor_parallel/random.py, CheckpointWithoutOutput).
    if (tensor.kind == TensorKind::kMask && module == ModuleKind::kFc2) {
      const bool whole = is_recomputed(ModuleKind::kFc1) && plan_.recompute_fc1_part == 1 &&
                         is_recomputed(ModuleKind::kActivation);
      return whole ? ActivationFate::kRecompute : ActivationFate::kKeep;
    }
    // The first layer's input is what the layer before it would have left.
    const bool enters = plan_.reload == ReloadOrder::kByModule && tensor.label.layer < 0 &&
                        tensor.kind == TensorKind::kOutput && module == ModuleKind::kEmbedding;
    if (enters) return plan_.fate[static_cast<size_t>(ModuleKind::kFc2)];
    // The codes of what attention made, which the product after it saves, leave as that does.
    if (tensor.kind == TensorKind::kCodes && tensor.category == Category::kActivations) {
      const bool leaves =
          plan_.fate[static_cast<size_t>(ModuleKind::kCoreAttention)] == ActivationFate::kOffload;
      return leaves ? ActivationFate::kOffload : ActivationFate::kKeep;
    }
    if (!is_activation(tensor) || !saves_output(module)) return ActivationFate::kKeep;
    return plan_.fate[static_cast<size_t>(module)];
  }

  bool is_recomputed(ModuleKind module) const {
    return plan_.fate[static_cast<size_t>(module)] == ActivationFate::kRecompute;
  }

  bool obeys_offload(size_t tensor) const {
    const auto leaving =
        static_cast<int64_t>(std::ceil(plan_.offload_share * static_cast<double>(layers_)));
    const int64_t layer = graph_.tensors[tensor].label.layer;
    const bool is_last = last_stays_ && layer == layers_ - 1;
    return layer < leaving && !is_last && graph_.tensors[tensor].bytes() >= plan_.offload_least;
  }

  // As PyTorch's selective checkpointing chooses blocks (foundation-model-stack/fms-fsdp,
  // policies/ac_handler.py): evenly spread.
  bool obeys_recompute(int64_t layer, size_t tensor) const {
    if (layer < 0) return true;
    if (plan_.recompute_fc1_part == 0 && graph_.tensors[tensor].label.module == ModuleKind::kFc1) {
      return false;
    }
    const int64_t some = std::llround(plan_.recompute_share * static_cast<double>(layers_));
    return (layer + 1) * some / layers_ > layer * some / layers_;
  }

  const Graph& graph_;
  const ActivationPlan& plan_;
  int64_t layers_ = 0;  // of the graph, counted from its first
  // The last of them is that of the model: its backward comes before a copy could return.
  bool last_stays_ = false;
  std::vector<bool> dispatched_;
};

// Cuts `graph.tensors[whole]` into a part of `share` of its elements (at least one on either side)
// and the rest, which keeps its name. The part.
TensorId cut(Graph& graph, size_t whole, double share) {
  Tensor part = graph.tensors[whole];
  const double all = static_cast<double>(part.elements);
  part.elements =
      std::clamp<int64_t>(std::llround(share * all), 1, std::max<int64_t>(1, part.elements - 1));
  graph.tensors[whole].elements =
      std::max<int64_t>(1, graph.tensors[whole].elements - part.elements);
  return add_tensor(graph, part);
}

// Whoever touches the one part touches the other: `part_of` gives that of a tensor, or -1.
void touch_both(std::vector<Op>& ops, const std::vector<TensorId>& part_of) {
  for (Op& op : ops) {
    const size_t count = op.accesses.size();
    for (size_t a = 0; a < count; ++a) {
      const auto tensor = static_cast<size_t>(op.accesses[a].tensor);
      if (tensor >= part_of.size() || part_of[tensor] < 0) continue;
      Access other = op.accesses[a];
      other.tensor = part_of[tensor];
      op.accesses.push_back(other);
    }
  }
}

// Walks the backward, puts a copy of the producing forward before the first reader of every
// output that is to be recomputed, and points the backward's reads at what the copies write.
class Recompute {
 public:
  Recompute(Graph& graph, const Plan& plan, const StackFacts& facts)
      : graph_(graph),
        fc1_part_(plan.activations->recompute_fc1_part),
        gathers_beside_(facts.tensor_overlap == Overlap::kPartial) {
    find_recomputed(plan);
    producers_.resize(graph.tensors.size());
    copy_of_.resize(graph.tensors.size(), -1);
    repeated_.resize(graph.step.ops.size(), false);
    for (size_t i = 0; i < graph.step.ops.size(); ++i) {
      const Op& op = graph.step.ops[i];
      if (op.phase != Phase::kForward) continue;
      for (const Access& access : op.accesses) {
        const auto tensor = static_cast<size_t>(access.tensor);
        if (writes(access) && recomputed_[tensor]) {
          producers_[tensor].push_back(static_cast<OpId>(i));
        }
      }
    }
  }

  void run() {
    if (std::find(recomputed_.begin(), recomputed_.end(), true) == recomputed_.end()) return;
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
  // Of what is recomputed in part, the part.
  void find_recomputed(const Plan& plan) {
    const TensorFates fates(graph_, plan);
    const size_t tensors = graph_.tensors.size();
    recomputed_.assign(tensors, false);
    std::vector<TensorId> part_of(tensors, -1);
    for (size_t i = 0; i < tensors; ++i) {
      if (fates.of(i) != ActivationFate::kRecompute) continue;
      const Tensor& tensor = graph_.tensors[i];
      const bool in_part = fc1_part_ < 1 && tensor.label.module == ModuleKind::kFc1 &&
                           tensor.kind == TensorKind::kOutput;
      if (in_part) {
        part_of[i] = cut(graph_, i, fc1_part_);
        recomputed_.push_back(true);
      } else {
        recomputed_[i] = true;
      }
    }
    if (recomputed_.size() > tensors) touch_both(graph_.step.ops, part_of);
  }

  // A product that is repeated for a part of its columns.
  void repeat_in_part(Op& op) const {
    auto* const product = std::get_if<GemmWork>(&op.work);
    if (fc1_part_ == 1 || product == nullptr || op.label.module != ModuleKind::kFc1) return;
    product->n = std::max<int64_t>(1, std::llround(fc1_part_ * static_cast<double>(product->n)));
    std::erase_if(op.accesses, [&](const Access& access) {
      return access.mode == AccessMode::kWrite && !is_recomputed(access.tensor);
    });
  }

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
      const auto tensor = static_cast<size_t>(access.tensor);
      if (copy_of_[tensor] < 0) {
        for (const OpId producer : producers_[tensor]) {
          if (repeated_[static_cast<size_t>(producer)]) continue;
          repeated_[static_cast<size_t>(producer)] = true;
          repeat(ops[static_cast<size_t>(producer)], ops, position, insertions);
        }
        CHECK(copy_of_[tensor] >= 0);
      }
      access.tensor = copy_of_[tensor];
    }
  }

  void repeat(Op op, const std::vector<Op>& ops, size_t position, Insertions& insertions) {
    op.phase = Phase::kRecompute;
    repeat_in_part(op);
    // How evenly tokens were sent is counted once.
    std::erase_if(op.accesses, [](const Access& one) { return one.role == Role::kBalance; });
    resolve(op, ops, position, insertions);
    if (starts_behind_ != nullptr && op.kind == OpKind::kCollective) {
      hand_token(graph_, starts_behind_->accesses, op.accesses);
    }
    for (Access& access : op.accesses) {
      if (access.mode != AccessMode::kWrite) continue;
      const TensorId copy = add_tensor(graph_, graph_.tensor(access.tensor));
      TensorId& known = copy_of_[static_cast<size_t>(access.tensor)];
      if (known < 0) known = copy;
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
  const double fc1_part_;
  // What the gradient of a weight reads whole is gathered beside the product before it, which is
  // that of its input's (Megatron-LM, core/tensor_parallel/layers.py,
  // LinearWithGradAccumulationAndAsyncCommunication.backward).
  const bool gathers_beside_;
  Op* starts_behind_ = nullptr;  // such a gathering, which is enqueued when this is done
  std::vector<bool> recomputed_;              // by tensor, as the two below
  std::vector<std::vector<OpId>> producers_;  // of those that are recomputed, in order
  std::vector<TensorId> copy_of_;             // or -1
  std::vector<bool> repeated_;                // by operation
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
bool may_leave(size_t tensor, const Uses& uses, const TensorFates& fates) {
  const bool recomputed_copy = uses.last_forward == 0;
  return !recomputed_copy && uses.first_backward > 0 &&
         fates.of(tensor) == ActivationFate::kOffload;
}

// Of every output that leaves, the share that does.
class Shares {
 public:
  Shares(const Graph& graph, const ActivationPlan& plan, const TensorFates& fates) : plan_(plan) {
    const auto in_part = [](const Label& label) {
      return label.layer >= 0 && label.subsequence >= 0;
    };
    if (plan.offload_per_mflop == 0) return;
    std::map<int16_t, std::map<int16_t, Part>> parts;
    const std::vector<Uses> uses = uses_of(graph);
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (!in_part(tensor.label) || tensor.kind == TensorKind::kKeysValues) continue;
      if (!may_leave(t, uses[t], fates)) continue;
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
std::vector<bool> cut_outputs(Graph& graph, const Plan& whole) {
  const ActivationPlan& plan = *whole.activations;
  const size_t tensors = graph.tensors.size();
  std::vector<TensorId> leaves(tensors, -1);
  std::vector<bool> stays(tensors, false);
  const TensorFates fates(graph, whole);
  const Shares shares(graph, plan, fates);
  for (size_t t = 0; t < tensors; ++t) {
    if (fates.of(t) != ActivationFate::kOffload) continue;
    const double share = shares.of(graph.tensors[t]);
    if (share == 1) continue;
    stays[t] = true;
    if (share == 0 && plan.offload_per_mflop > 0) continue;
    leaves[t] = cut(graph, t, share);
  }
  touch_both(graph.step.ops, leaves);
  stays.resize(graph.tensors.size(), false);
  return stays;
}

void offload(Graph& graph, const Plan& whole) {
  const ActivationPlan& plan = *whole.activations;
  const std::vector<bool> stays = cut_outputs(graph, whole);
  const TensorFates fates(graph, whole);
  const std::vector<Uses> uses = uses_of(graph);
  std::vector<Op>& ops = graph.step.ops;
  Insertions insertions;
  std::unordered_map<TensorId, TensorId> returned;
  const size_t tensors = graph.tensors.size();
  for (size_t i = 0; i < tensors; ++i) {
    const Uses use = uses[i];
    if (stays[i] || !may_leave(i, use, fates)) continue;
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
  Recompute(graph, plan, facts).run();
  offload(graph, plan);
  if (plan.ffn_tiles > 1) tile_feed_forward(graph, plan);
  return graph;
}

}  // namespace ballast
