#include "sim/graph/schedules/multiplex.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

// No model has as many layers.
constexpr int64_t kMostLayers = int64_t{1} << 20;

// By operation of a chunk: its turn (place_of).
std::vector<size_t> turns_in(const ChunkKind& chunk) {
  std::vector<size_t> turns(chunk.inside.step.ops.size());
  for (size_t turn = 0; turn < chunk.operations.size(); ++turn) {
    for (const OpId i : chunk.operations[turn]) turns[static_cast<size_t>(i)] = turn;
  }
  return turns;
}

int64_t part_of_turn(size_t turn, int64_t parts) {
  const auto at = static_cast<int64_t>(turn);
  return at < parts ? at : 2 * parts - 1 - at;
}

bool is_pair(const Tensor& tensor) {
  return tensor.kind == TensorKind::kKeysValues || tensor.kind == TensorKind::kKeyGradient;
}

// Of keys and values, and of sums of their gradients, that operations of several parts touch (what
// attention has of them, not what makes or takes them) the part that they are of, which is the
// first to touch the former and the last, back, to touch the latter; -1 of all other tensors.
std::vector<int64_t> parts_of_pairs(const Graph& graph) {
  constexpr int64_t kUntouched = -2;
  std::vector<int64_t> least(graph.tensors.size(), kUntouched), most = least;
  for (const Op& op : graph.step.ops) {
    for (const Access& access : op.accesses) {
      if (!is_pair(graph.tensor(access.tensor))) continue;
      const auto t = static_cast<size_t>(access.tensor);
      const int64_t part = op.label.subsequence;
      least[t] = least[t] == kUntouched ? part : std::min(least[t], part);
      most[t] = std::max(most[t], part);
    }
  }
  for (size_t t = 0; t < least.size(); ++t) {
    if (least[t] == most[t]) least[t] = -1;
  }
  return least;
}

// Which of the two ends a turn of a stage's parts lies at, and which way: place_of() of two parts.
size_t shared_place(size_t turn, const SharedParts& parts, int64_t count) {
  const int64_t end = part_of_turn(turn, count) < parts.left ? kLeft : kRight;
  const bool forward = static_cast<int64_t>(turn) < count;
  return place_of({forward ? Direction::kForward : Direction::kBackward, 0, 0, end}, kSharedEnds);
}

// --- what the devices of all stages do together ------------------------------------------------

// One shared turn: its operations layer by layer, and what comes and goes for each layer.
class SharedTurn {
 public:
  SharedTurn(Graph& graph, const Plan& plan, const SharedParts& parts,
             const std::vector<int64_t>& pairs, size_t place)
      : graph_(graph),
        plan_(plan),
        parts_(parts),
        pairs_(pairs),
        forward_(place < kSharedEnds),
        left_(place == 0 || place + 1 == 2 * kSharedEnds) {}

  std::vector<Op> run(std::vector<Op> ops) {
    std::stable_sort(ops.begin(), ops.end(),
                     [&](const Op& a, const Op& b) { return order_of(a) < order_of(b); });
    std::vector<Layer> layers;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (layers.empty() || order_of(ops[i]) != order_of(layers.back().ops.front())) {
        layers.emplace_back();
      }
      layers.back().ops.push_back(std::move(ops[i]));
    }
    for (Layer& layer : layers) localize(layer);
    std::vector<Op> result;
    for (size_t l = 0; l < layers.size(); ++l) {
      // One layer ahead, in place of the one that is done.
      if (l == 0) arrive(layers[0], -1, result);
      if (l + 1 < layers.size()) arrive(layers[l + 1], l == 0 ? -1 : layers[l - 1].made, result);
      for (Op& op : layers[l].ops) result.push_back(std::move(op));
      depart(layers[l], result);
    }
    return result;
  }

 private:
  struct Layer {
    std::vector<Op> ops;
    std::vector<TensorId> weights, gradients;  // of this turn alone
    std::vector<TensorId> arriving, leaving;   // keys and values, or sums of their gradients
    Label label;
    TensorId made = -1;  // by its last computation
  };

  // Embedding first, back last; what ends the forward belongs to the backward.
  int64_t order_of(const Op& op) const {
    const int64_t layer = op.label.layer;
    if (forward_) return layer;
    if (layer >= 0) return kMostLayers - layer;
    return op.label.module == ModuleKind::kEmbedding ? kMostLayers + 1 : -1;
  }

  // Of a pair: its part, or -1. What was made for this turn alone is none.
  int64_t part_of_pair(TensorId id) const {
    return static_cast<size_t>(id) < pairs_.size() ? pairs_[static_cast<size_t>(id)] : -1;
  }
  // Whether a part is not of this end, so that its pairs lie on the stage.
  bool is_of_stage(int64_t part) const { return left_ ? part >= parts_.left : part < parts_.right; }

  // Weights, gradients and what is sent have memory for as long as the turn takes.
  TensorId here(TensorId id) {
    const Tensor& tensor = graph_.tensor(id);
    const bool is_state =
        tensor.kind == TensorKind::kWeight || tensor.kind == TensorKind::kGradient;
    const int64_t part = part_of_pair(id);
    const bool is_sent = part >= 0 && (tensor.kind == TensorKind::kKeyGradient ||
                                       (is_of_stage(part) && part >= parts_.left));
    if (!is_state && !is_sent) return id;
    const auto found = here_.find(id);
    if (found != here_.end()) return found->second;
    Tensor local = tensor;
    if (is_state) {
      local.kind =
          tensor.kind == TensorKind::kWeight ? TensorKind::kGathered : TensorKind::kPartial;
      local.category = Category::kWorkspace;
    }
    return here_[id] = add_tensor(graph_, local);
  }

  void localize(Layer& layer) {
    layer.label = layer.ops.front().label;
    layer.label.subsequence = -1;
    for (Op& op : layer.ops) {
      for (Access& access : op.accesses) {
        const TensorId before = access.tensor;
        access.tensor = here(before);
        if (access.tensor != before) meet(before, access, op, layer);
        // The stage's own turns see keys and values of the parts on the left.
        if (forward_ && left_ && writes(access) && part_of_pair(before) >= 0) {
          add_once(before, layer.leaving);
        }
      }
      const bool computes = kind_of(op.lane) == LaneKind::kCompute;
      for (const Access& access : op.accesses) {
        if (computes && writes(access)) layer.made = access.tensor;
      }
    }
  }

  // What the turn has of its own is made by its first use, or arrives before that.
  void meet(TensorId before, Access& access, Op& op, Layer& layer) {
    const bool is_first = met_.insert(access.tensor).second;
    const Tensor& tensor = graph_.tensor(before);
    if (tensor.kind == TensorKind::kWeight) {
      add_once(access.tensor, layer.weights);
    } else if (tensor.kind == TensorKind::kGradient) {
      add_once(access.tensor, layer.gradients);
      if (!is_first) return;
      access.mode = AccessMode::kWrite;
      if (auto* gemm = std::get_if<GemmWork>(&op.work)) gemm->accumulate = false;
    } else if (is_first && reads(access)) {
      layer.arriving.push_back(access.tensor);
    } else if (is_first && is_of_stage(part_of_pair(before))) {
      layer.leaving.push_back(access.tensor);
    }
  }

  static void add_once(TensorId id, std::vector<TensorId>& ids) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }

  Bytes sum_of(const std::vector<TensorId>& ids) const {
    Bytes sum;
    for (const TensorId id : ids) sum += graph_.tensor(id).bytes();
    return sum;
  }

  int64_t ranks() const { return plan_.sequence * plan_.pipeline; }

  // Between a device of the stage and those with the same place in the others.
  CollectiveWork between_stages(Bytes bytes) const {
    return {CollectiveKind::kSendReceive, bytes, plan_.pipeline, plan_.devices / plan_.pipeline};
  }
  CollectiveWork among_all(CollectiveKind kind, Bytes bytes) const {
    return {kind, bytes, ranks(), plan_.tensor};
  }

  Op sent(LaneKind lane, const CollectiveWork& work, const Layer& layer,
          std::vector<Access> accesses) const {
    return collective_op(lane, work, forward_ ? Phase::kForward : Phase::kBackward, layer.label,
                         std::move(accesses));
  }

  void arrive(const Layer& layer, TensorId after, std::vector<Op>& result) const {
    const auto into = [&](const std::vector<TensorId>& ids) {
      std::vector<Access> accesses;
      for (const TensorId id : ids) accesses.push_back(write(id, Role::kDestination));
      if (after >= 0) accesses.push_back(read(after, Role::kScratch));
      return accesses;
    };
    if (!layer.weights.empty()) {
      result.push_back(sent(LaneKind::kDataNetwork,
                            among_all(CollectiveKind::kBroadcast, sum_of(layer.weights)), layer,
                            into(layer.weights)));
    }
    // The stage's device sends each other one the heads that it has.
    if (!layer.arriving.empty()) {
      result.push_back(sent(LaneKind::kPipelineNetwork,
                            between_stages(sum_of(layer.arriving) * (plan_.pipeline - 1)), layer,
                            into(layer.arriving)));
    }
  }

  void depart(const Layer& layer, std::vector<Op>& result) const {
    if (!layer.leaving.empty()) {
      std::vector<Access> accesses;
      for (const TensorId id : layer.leaving) accesses.push_back(read(id, Role::kSource));
      result.push_back(sent(LaneKind::kPipelineNetwork,
                            between_stages(sum_of(layer.leaving) * (plan_.pipeline - 1)), layer,
                            std::move(accesses)));
    }
    if (layer.gradients.empty()) return;
    // Summed by share over all, then the shares go to the stage.
    const Bytes bytes = sum_of(layer.gradients);
    std::vector<Access> accesses;
    for (const TensorId id : layer.gradients) accesses.push_back(update(id, Role::kSource));
    result.push_back(sent(LaneKind::kDataNetwork, among_all(CollectiveKind::kReduceScatter, bytes),
                          layer, accesses));
    const Bytes shares{div_ceil(bytes.count, ranks()) * (plan_.pipeline - 1)};
    for (Access& access : accesses) access.mode = AccessMode::kRead;
    result.push_back(
        sent(LaneKind::kDataNetwork, between_stages(shares), layer, std::move(accesses)));
  }

  Graph& graph_;
  const Plan& plan_;
  const SharedParts& parts_;
  const std::vector<int64_t>& pairs_;  // by tensor: parts_of_pairs()
  const bool forward_, left_;
  std::map<TensorId, TensorId> here_;
  std::set<TensorId> met_;
};

// The batch is loaded by the first of a stage's turns, whichever that is.
bool is_of_no_part(const Op& op) { return op.phase == Phase::kForward && op.label.subsequence < 0; }

}  // namespace

ChunkKind shared_chunk(const ChunkKind& spread, const Plan& plan, const SharedParts& parts) {
  ChunkKind chunk;
  chunk.inside = spread.inside;
  const std::vector<size_t> turns = turns_in(spread);
  const std::vector<int64_t> pairs = parts_of_pairs(spread.inside);
  std::vector<std::vector<Op>> by_place(2 * kSharedEnds);
  const size_t first = parts.left > 0 ? 0 : 1;
  for (size_t i = 0; i < turns.size(); ++i) {
    const Op& op = spread.inside.step.ops[i];
    if (is_of_no_part(op)) {
      by_place[first].push_back(op);
    } else if (parts.has(part_of_turn(turns[i], plan.subsequences))) {
      by_place[shared_place(turns[i], parts, plan.subsequences)].push_back(op);
    }
  }
  std::vector<Op> ops;
  for (size_t place = 0; place < by_place.size(); ++place) {
    SharedTurn turn(chunk.inside, plan, parts, pairs, place);
    std::vector<OpId> own;
    for (Op& op : turn.run(std::move(by_place[place]))) {
      own.push_back(static_cast<OpId>(ops.size()));
      ops.push_back(std::move(op));
    }
    chunk.operations.push_back(std::move(own));
  }
  chunk.inside.step.ops = std::move(ops);
  return chunk;
}

// --- what is left of it on the stage itself ----------------------------------------------------

namespace {

// What a shared turn does to what the stage's own turns touch.
class OwnEffect {
 public:
  OwnEffect(const Graph& graph, const SharedParts& parts, const std::vector<int64_t>& pairs,
            size_t place)
      : graph_(graph), parts_(parts), pairs_(pairs), place_(place) {
    op_.kind = OpKind::kBlock;
    op_.phase = place < kSharedEnds ? Phase::kForward : Phase::kBackward;
    op_.lane = lane_of(0, LaneKind::kCompute);
  }

  void meet(const Op& op) {
    for (const Access& access : op.accesses) {
      if (!counts(access)) continue;
      const auto [found, is_new] = at_.emplace(access.tensor, op_.accesses.size());
      if (is_new) {
        op_.accesses.push_back(access);
      } else if (writes(access)) {
        AccessMode& mode = op_.accesses[found->second].mode;
        if (mode == AccessMode::kRead) mode = AccessMode::kReadWrite;
      }
    }
  }
  const Op& op() const { return op_; }

 private:
  bool counts(const Access& access) const {
    const Tensor& tensor = graph_.tensor(access.tensor);
    if (tensor.kind == TensorKind::kWeight || tensor.kind == TensorKind::kGradient) return true;
    const int64_t part = pairs_[static_cast<size_t>(access.tensor)];
    if (part < 0 || part >= parts_.right) return false;
    // Back on the left each device has the keys and values of its heads still.
    const bool back_on_left = place_ + 1 == 2 * kSharedEnds;
    return tensor.kind == TensorKind::kKeyGradient || !back_on_left;
  }

  const Graph& graph_;
  const SharedParts& parts_;
  const std::vector<int64_t>& pairs_;
  const size_t place_;
  Op op_;
  std::map<TensorId, size_t> at_;  // in op_.accesses
};

}  // namespace

void leave_to_all_stages(ChunkKind& chunk, const Plan& plan, const SharedParts& parts) {
  const int64_t count = plan.subsequences;
  const std::vector<size_t> turns = turns_in(chunk);
  const std::vector<int64_t> pairs = parts_of_pairs(chunk.inside);
  std::vector<OwnEffect> effects;
  for (size_t place = 0; place < 2 * kSharedEnds; ++place) {
    effects.emplace_back(chunk.inside, parts, pairs, place);
  }
  const auto is_shared_op = [&](size_t i) {
    return !is_of_no_part(chunk.inside.step.ops[i]) && parts.has(part_of_turn(turns[i], count));
  };
  for (size_t i = 0; i < turns.size(); ++i) {
    if (!is_shared_op(i)) continue;
    effects[shared_place(turns[i], parts, count)].meet(chunk.inside.step.ops[i]);
  }
  std::vector<Op> ops;
  std::vector<std::vector<OpId>> operations(chunk.operations.size());
  const auto add = [&](size_t turn, Op op) {
    operations[turn].push_back(static_cast<OpId>(ops.size()));
    ops.push_back(std::move(op));
  };
  std::vector<bool> stands(2 * kSharedEnds, false);
  for (size_t i = 0; i < turns.size(); ++i) {
    Op& op = chunk.inside.step.ops[i];
    if (!is_shared_op(i)) {
      const bool moves = parts.has(part_of_turn(turns[i], count));
      add(moves ? static_cast<size_t>(parts.left) : turns[i], std::move(op));
      continue;
    }
    const size_t place = shared_place(turns[i], parts, count);
    if (stands[place]) continue;
    stands[place] = true;
    const Direction direction = place < kSharedEnds ? Direction::kForward : Direction::kBackward;
    const int64_t end = place == 0 || place + 1 == 2 * kSharedEnds ? kLeft : kRight;
    add(place_of(own_turn_of({direction, 0, 0, end}, plan), count), effects[place].op());
  }
  chunk.inside.step.ops = std::move(ops);
  chunk.operations = std::move(operations);
}

std::vector<Turn> multiplexed_turns(int64_t stage, const Plan& plan) {
  std::vector<Turn> turns;
  const int64_t stages = plan.pipeline;
  const auto share = [&](Direction direction, int64_t of, int64_t end) {
    const SharedParts parts = shared_parts(plan, of);
    const bool any = end == kLeft ? parts.left > 0 : parts.right < plan.subsequences;
    if (any) turns.push_back({direction, 1 + of, 0, end});
  };
  const SharedParts own = shared_parts(plan, stage);
  for (int64_t s = 0; s < stages; ++s) share(Direction::kForward, s, kLeft);
  for (int64_t part = own.left; part < own.right; ++part) {
    turns.push_back({Direction::kForward, 0, 0, part});
  }
  for (int64_t s = 0; s < stages; ++s) share(Direction::kForward, s, kRight);
  for (int64_t s = stages; s-- > 0;) share(Direction::kBackward, s, kRight);
  for (int64_t part = own.right; part-- > own.left;) {
    turns.push_back({Direction::kBackward, 0, 0, part});
  }
  for (int64_t s = stages; s-- > 0;) share(Direction::kBackward, s, kLeft);
  return turns;
}

}  // namespace ballast
