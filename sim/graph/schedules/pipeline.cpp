// All stages of a pipeline as one graph: device s is stage s, for all the ranks that share its
// layers.
//
// The forward and the backward of a chunk of layers for one micro-batch are each one operation, a
// block, whose inside is built once by the passes of a graph without a pipeline and timed once. So
// a step of a thousand devices is some ten thousand operations. Stages run 1F1B (arXiv 2006.09503,
// arXiv 2104.04473 figure 4), with several chunks a stage interleaved as Megatron-LM does; what a
// chunk saves between its two blocks is one tensor, and sends go over the network lanes.
//
// Will not do: overlap inside a block with anything outside it, or split a block's collectives from
// its computation.
#include "sim/graph/schedules/pipeline.h"

#include <algorithm>
#include <map>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/report/memory.h"

namespace ballast {

namespace {

// A chunk of layers as blocks: what it takes of time and memory for one micro-batch.
struct ChunkKind {
  int32_t forward = 0;  // index in Graph::blocks
  int32_t backward = 0;
  int64_t parameters = 0;
  Bytes saved;              // from forward to backward
  Bytes saved_on_host;      // the same for what is offloaded
  Bytes forward_workspace;  // most alive beside what is saved
  Bytes backward_workspace;
};

bool belongs(const Op& op, Direction direction) {
  const bool forward = op.phase == Phase::kForward || op.phase == Phase::kOffload;
  return forward == (direction == Direction::kForward);
}

// The operations of one direction with the edges among them, from a linked graph.
Sequence part_of(const Graph& graph, Direction direction) {
  const Sequence& step = graph.step;
  std::vector<OpId> place(step.ops.size(), -1);
  Sequence part;
  part.edge_begin.push_back(0);
  for (size_t i = 0; i < step.ops.size(); ++i) {
    if (!belongs(step.ops[i], direction)) continue;
    place[i] = static_cast<OpId>(part.ops.size());
    part.ops.push_back(step.ops[i]);
    part.ops.back().accesses.clear();
    for (int32_t e = step.edge_begin[i]; e < step.edge_begin[i + 1]; ++e) {
      const Edge& edge = step.edges[static_cast<size_t>(e)];
      const OpId before = place[static_cast<size_t>(edge.op)];
      if (edge.steps_ahead == 0 && before >= 0 &&
          belongs(step.ops[static_cast<size_t>(edge.op)], direction)) {
        part.edges.push_back({before, 0});
      }
    }
    part.edge_begin.push_back(static_cast<int32_t>(part.edges.size()));
  }
  return part;
}

void measure_memory(const Graph& graph, ChunkKind& chunk) {
  const std::vector<Op>& ops = graph.step.ops;
  const std::vector<Life> lives = lives_of(graph);
  const auto counts = [&](size_t t) {
    return lives[t].first >= 0 && !lives[t].carried &&
           graph.tensors[t].kind != TensorKind::kGradient;
  };
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (!counts(t) || !belongs(graph.op(lives[t].first), Direction::kForward) ||
        !belongs(graph.op(lives[t].last), Direction::kBackward)) {
      continue;
    }
    (tensor.place == Place::kDram ? chunk.saved_on_host : chunk.saved) += tensor.all_bytes();
  }
  const std::vector<Bytes> live = live_bytes(
      graph, lives, [&](size_t t) { return counts(t) && graph.tensors[t].place != Place::kDram; });
  Bytes forward, backward;
  for (size_t i = 0; i < ops.size(); ++i) {
    Bytes& peak = belongs(ops[i], Direction::kForward) ? forward : backward;
    peak = std::max(peak, live[i]);
  }
  chunk.forward_workspace = std::max(Bytes{}, forward - chunk.saved);
  chunk.backward_workspace = std::max(Bytes{}, backward - chunk.saved);
}

}  // namespace

std::vector<Turn> turns_of(int64_t stage, const Plan& plan) {
  const int64_t stages = plan.pipeline;
  const int64_t chunks = plan.virtual_pipeline;
  const int64_t total = plan.accumulation() * chunks;
  const auto turn = [&](int64_t index, Direction direction) {
    const int64_t round = stages * chunks;
    int64_t chunk = index % round / stages;
    if (direction == Direction::kBackward) chunk = chunks - 1 - chunk;
    return Turn{direction, chunk, index / round * stages + index % stages};
  };
  int64_t ahead = stages - stage - 1;
  if (chunks > 1) ahead = 2 * ahead + (chunks - 1) * stages;
  ahead = std::min(ahead, total);
  std::vector<Turn> turns;
  for (int64_t i = 0; i < ahead; ++i) turns.push_back(turn(i, Direction::kForward));
  for (int64_t i = 0; i < total; ++i) {
    if (ahead + i < total) turns.push_back(turn(ahead + i, Direction::kForward));
    turns.push_back(turn(i, Direction::kBackward));
  }
  return turns;
}

void for_turns(const Plan& plan, const std::function<bool(int64_t stage, const Turn& turn)>& run) {
  const auto stages = static_cast<size_t>(plan.pipeline);
  std::vector<std::vector<Turn>> turns;
  for (size_t s = 0; s < stages; ++s) turns.push_back(turns_of(static_cast<int64_t>(s), plan));
  std::vector<size_t> next(stages, 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t s = 0; s < stages; ++s) {
      while (next[s] < turns[s].size() && run(static_cast<int64_t>(s), turns[s][next[s]])) {
        ++next[s];
        progress = true;
      }
    }
  }
  for (size_t s = 0; s < stages; ++s) CHECK(next[s] == turns[s].size());
}

namespace {

class Pipeline {
 public:
  Pipeline(const Model& model, const Plan& plan, const StackFacts& facts)
      : model_(model),
        rank_(rank_model(model, plan)),
        plan_(plan),
        facts_(facts),
        chunks_(plan.pipeline * plan.virtual_pipeline) {}

  Graph run() {
    graph_.lanes = static_cast<int>(plan_.pipeline) * kLaneKinds;
    for (int64_t c = 0; c < chunks_; ++c) add_chunk(c);
    values_.resize(2);
    for (auto& values : values_) {
      values.assign(static_cast<size_t>(chunks_ * plan_.accumulation()), -1);
    }
    saved_.assign(values_[0].size(), -1);
    emit_blocks();
    emit_optimizer();
    verify(graph_);
    return std::move(graph_);
  }

 private:
  struct Chunk {
    ChunkKind kind;
    int64_t first_layer = 0;
    TensorId weight = -1, gradient = -1;
  };

  int64_t stage_of(int64_t chunk) const { return chunk % plan_.pipeline; }
  int64_t first_layer(int64_t chunk) const { return first_layer_of(chunk, chunks_, model_.layers); }
  int64_t layers_of(int64_t chunk) const { return first_layer(chunk + 1) - first_layer(chunk); }
  size_t at(int64_t chunk, int64_t micro) const {
    return static_cast<size_t>(chunk * plan_.accumulation() + micro);
  }

  void add_chunk(int64_t index) {
    const ChunkEnds ends{index == 0, index == chunks_ - 1};
    const auto key = std::tuple(layers_of(index), ends.first, ends.last);
    auto found = kinds_.find(key);
    if (found == kinds_.end()) found = kinds_.emplace(key, make_kind(layers_of(index), ends)).first;
    Chunk chunk;
    chunk.kind = found->second;
    chunk.first_layer = first_layer(index);
    const int64_t count = chunk.kind.parameters;
    chunk.weight = tensor(index, TensorKind::kWeight, Category::kWeights, plan_.dtype, count);
    chunk.gradient = tensor(index, TensorKind::kGradient, Category::kGradients,
                            gradient_dtype(plan_, facts_), count);
    all_.push_back(chunk);
  }

  ChunkKind make_kind(int64_t layers, ChunkEnds ends) {
    Model part = rank_;
    part.layers = layers;
    Plan once = plan_;
    once.pipeline = once.virtual_pipeline = 1;
    once.devices = plan_.devices / plan_.pipeline;
    once.global_batch = once.data * *once.micro_batch;
    const PassContext context{model_, once, facts_};
    Graph inside = build_chunk(part, once, facts_, ends);
    inside = run_passes(std::move(inside), context, "gemm formats", "checkpoint");
    inside = run_passes(std::move(inside), context, "gemm codes", "gemm codes");
    link(inside);
    ChunkKind kind;
    for (const Tensor& tensor : inside.tensors) {
      if (tensor.kind == TensorKind::kWeight) kind.parameters += tensor.elements;
    }
    measure_memory(inside, kind);
    kind.forward = static_cast<int32_t>(graph_.blocks.size());
    graph_.blocks.push_back(part_of(inside, Direction::kForward));
    kind.backward = static_cast<int32_t>(graph_.blocks.size());
    graph_.blocks.push_back(part_of(inside, Direction::kBackward));
    return kind;
  }

  TensorId tensor(int64_t chunk, TensorKind kind, Category category, DType dtype,
                  int64_t elements) {
    Tensor t;
    t.kind = kind;
    t.category = category;
    t.place = Place::kHbm;
    t.dtype = dtype;
    t.device = static_cast<int8_t>(stage_of(chunk));
    t.label.layer = static_cast<int16_t>(first_layer(chunk));
    t.elements = std::max<int64_t>(1, elements);
    return add_tensor(graph_, t);
  }

  Op op(OpKind kind, LaneKind lane, int64_t chunk, int64_t micro) const {
    Op result;
    result.kind = kind;
    result.lane = lane_of(static_cast<int>(stage_of(chunk)), lane);
    result.label.layer = static_cast<int16_t>(first_layer(chunk));
    result.label.micro_batch = static_cast<int16_t>(micro);
    return result;
  }

  // Stage by stage, whatever has what it needs: a valid order of all, and every lane's own order.
  void emit_blocks() {
    for_turns(plan_, [this](int64_t stage, const Turn& turn) { return emit(stage, turn); });
  }

  // False where what the block reads is not there yet.
  bool emit(int64_t stage, const Turn& turn) {
    const bool forward = turn.direction == Direction::kForward;
    const int64_t index = turn.chunk * plan_.pipeline + stage;
    const size_t place = at(index, turn.micro_batch);
    const bool receives = forward ? index > 0 : index < chunks_ - 1;
    std::vector<TensorId>& values = values_[forward ? 0 : 1];
    if (receives && values[place] < 0) return false;
    if (!forward && saved_[place] < 0) return false;
    const Chunk& chunk = all_[static_cast<size_t>(index)];
    Op block = op(OpKind::kBlock, LaneKind::kCompute, index, turn.micro_batch);
    block.phase = forward ? Phase::kForward : Phase::kBackward;
    block.work = BlockWork{forward ? chunk.kind.forward : chunk.kind.backward};
    block.accesses.push_back(read(chunk.weight, Role::kWeight));
    if (receives) block.accesses.push_back(read(values[place], Role::kInput));
    const Bytes workspace = forward ? chunk.kind.forward_workspace : chunk.kind.backward_workspace;
    if (workspace.count > 0) {
      block.accesses.push_back(write(
          tensor(index, TensorKind::kPartial, Category::kWorkspace, DType::kU8, workspace.count),
          Role::kScratch));
    }
    keep_or_use_saved(turn, index, block);
    const int64_t to = forward ? index + 1 : index - 1;
    const bool sends = to >= 0 && to < chunks_;
    TensorId made = -1;
    if (sends) {
      made = message(index);
      block.accesses.push_back(write(made, Role::kOutput));
    }
    graph_.step.ops.push_back(std::move(block));
    if (sends) values[at(to, turn.micro_batch)] = send(index, to, turn, made);
    return true;
  }

  void keep_or_use_saved(const Turn& turn, int64_t index, Op& block) {
    const Chunk& chunk = all_[static_cast<size_t>(index)];
    const size_t place = at(index, turn.micro_batch);
    if (turn.direction == Direction::kForward) {
      saved_[place] = tensor(index, TensorKind::kSaved, Category::kActivations, DType::kU8,
                             chunk.kind.saved.count);
      block.accesses.push_back(write(saved_[place], Role::kStatistics));
      if (chunk.kind.saved_on_host.count > 0) {
        const TensorId away = tensor(index, TensorKind::kHostOutput, Category::kActivations,
                                     DType::kU8, chunk.kind.saved_on_host.count);
        graph_.tensor(away).place = Place::kDram;
        on_host_[place] = away;
        block.accesses.push_back(write(away, Role::kStatistics));
      }
      return;
    }
    block.accesses.push_back(read(saved_[place], Role::kStatistics));
    if (const auto away = on_host_.find(place); away != on_host_.end()) {
      block.accesses.push_back(read(away->second, Role::kStatistics));
    }
    block.accesses.push_back({chunk.gradient, Role::kParameterGradient,
                              turn.micro_batch == 0 ? AccessMode::kWrite : AccessMode::kReadWrite,
                              0});
  }

  // A rank's share of [tokens, C]: tensor-parallel ranks send a part each.
  TensorId message(int64_t chunk) {
    const int64_t values = plan_.tokens_per_micro_batch() * model_.hidden;
    return tensor(chunk, TensorKind::kOutput, Category::kStaging, plan_.dtype,
                  div_ceil(values, plan_.tensor));
  }

  TensorId send(int64_t from, int64_t to, const Turn& turn, TensorId made) {
    const bool overlaps = facts_.pipeline_overlap != Overlap::kNone;
    Op sending = op(OpKind::kCollective, overlaps ? LaneKind::kNetwork : LaneKind::kCompute, from,
                    turn.micro_batch);
    sending.phase = turn.direction == Direction::kForward ? Phase::kForward : Phase::kBackward;
    sending.work = CollectiveWork{CollectiveKind::kSendReceive, graph_.tensor(made).bytes(), 2,
                                  plan_.devices / plan_.pipeline};
    const TensorId arrived = message(to);
    sending.accesses = {read(made, Role::kSource), write(arrived, Role::kDestination)};
    graph_.step.ops.push_back(std::move(sending));
    return arrived;
  }

  // --- the optimizer, chunk by chunk ---------------------------------------------------------

  struct State {
    TensorId master = -1, moment1 = -1, moment2 = -1, partial = -1, landed = -1;
  };

  int64_t shard_of(int64_t count) const {
    return plan_.zero_stage > 0 ? div_ceil(count, plan_.replicas()) : count;
  }
  bool on_cpu() const { return plan_.optimizer.placement == OptimizerPlacement::kCpu; }

  void emit_optimizer() {
    std::vector<State> states;
    for (int64_t c = 0; c < chunks_; ++c) states.push_back(make_state(c));
    exchange_tied_embedding();
    for (int64_t c = chunks_ - 1; c >= 0; --c) {
      if (plan_.replicas() > 1) emit_reduction(c);
      emit_norm(c, states[static_cast<size_t>(c)]);
    }
    const TensorId decision =
        tensor(0, TensorKind::kDecision, Category::kWorkspace, DType::kF64, 4);
    Op decide = op(OpKind::kDecide, LaneKind::kCheck, 0, -1);
    decide.phase = Phase::kOptimizer;
    decide.accesses.push_back(write(decision, Role::kDecision));
    for (const State& state : states) {
      decide.accesses.push_back(read(state.partial, Role::kNormPartials));
    }
    graph_.step.ops.push_back(std::move(decide));
    for (int64_t c = 0; c < chunks_; ++c) {
      emit_step(c, states[static_cast<size_t>(c)], decision);
    }
  }

  State make_state(int64_t c) {
    const int64_t shard = shard_of(all_[static_cast<size_t>(c)].kind.parameters);
    State state;
    const auto add = [&](TensorKind kind, Category category, DType dtype) {
      const TensorId id = tensor(c, kind, category, dtype, shard);
      if (on_cpu()) graph_.tensor(id).place = Place::kDram;
      return id;
    };
    state.master = add(TensorKind::kMaster, Category::kMaster, DType::kF32);
    state.moment1 = add(TensorKind::kMoment1, Category::kMoments, plan_.optimizer.moments);
    state.moment2 = add(TensorKind::kMoment2, Category::kMoments, plan_.optimizer.moments);
    if (on_cpu()) {
      state.landed = add(TensorKind::kBucketGradient, Category::kGradients,
                         cast_on_cpu(plan_) ? plan_.dtype : DType::kF32);
    }
    state.partial = tensor(c, TensorKind::kNormPartials, Category::kWorkspace, DType::kF64, 1);
    return state;
  }

  Op group_op(CollectiveKind kind, int64_t c, DType dtype, const Access& access) const {
    const RankGroup group = replica_group(plan_);
    Op result = op(OpKind::kCollective, LaneKind::kNetwork, c, -1);
    result.phase = Phase::kOptimizer;
    const int64_t count = all_[static_cast<size_t>(c)].kind.parameters;
    result.work = CollectiveWork{kind, bytes_of(count, dtype), group.ranks, group.stride};
    result.accesses = {access};
    return result;
  }

  // The first and the last stage hold the same matrix and add up its gradients.
  void exchange_tied_embedding() {
    if (!model_.tied_embeddings) return;
    Op result = op(OpKind::kCollective, LaneKind::kNetwork, 0, -1);
    result.phase = Phase::kOptimizer;
    const Chunk& first = all_.front();
    const Chunk& last = all_.back();
    const DType dtype = graph_.tensor(first.gradient).dtype;
    const int64_t stride = plan_.devices / plan_.pipeline * (plan_.pipeline - 1);
    result.work = CollectiveWork{CollectiveKind::kAllReduce,
                                 bytes_of(rank_.vocab * rank_.hidden, dtype), 2, stride};
    result.accesses = {update(first.gradient, Role::kSource), update(last.gradient, Role::kSource)};
    graph_.step.ops.push_back(std::move(result));
  }

  void emit_reduction(int64_t c) {
    const Chunk& chunk = all_[static_cast<size_t>(c)];
    const bool wide = facts_.reduction == GradientPrecision::kF32;
    const DType dtype = wide ? DType::kF32 : graph_.tensor(chunk.gradient).dtype;
    const CollectiveKind kind =
        plan_.zero_stage > 0 ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
    Op reduction = group_op(kind, c, dtype, update(chunk.gradient, Role::kSource));
    // Without overlap it waits for the whole stage: the last block of its compute lane.
    if (facts_.gradient_overlap == Overlap::kNone) {
      const Chunk& last = all_[static_cast<size_t>(stage_of(c))];
      if (last.gradient != chunk.gradient) {
        reduction.accesses.push_back(read(last.gradient, Role::kScratch));
      }
    }
    graph_.step.ops.push_back(std::move(reduction));
  }

  void emit_norm(int64_t c, const State& state) {
    const Chunk& chunk = all_[static_cast<size_t>(c)];
    const DType dtype = graph_.tensor(chunk.gradient).dtype;
    const int64_t shard = shard_of(chunk.kind.parameters);
    Op norm = op(OpKind::kSumOfSquares, LaneKind::kCompute, c, -1);
    norm.phase = Phase::kOptimizer;
    norm.work = BucketWork{shard, dtype, DType::kF64, Site::kGpu, bytes_of(shard, dtype)};
    norm.accesses = {read(chunk.gradient, Role::kSource),
                     write(state.partial, Role::kNormPartials)};
    graph_.step.ops.push_back(std::move(norm));
    if (on_cpu()) {
      Op out = op(OpKind::kCopy, LaneKind::kCopyOut, c, -1);
      out.phase = Phase::kOptimizer;
      out.work = CopyWork{graph_.tensor(state.landed).bytes(), CopyDirection::kDeviceToHost};
      out.accesses = {read(chunk.gradient, Role::kSource), write(state.landed, Role::kDestination)};
      graph_.step.ops.push_back(std::move(out));
    }
  }

  void emit_step(int64_t c, const State& state, TensorId decision) {
    const Chunk& chunk = all_[static_cast<size_t>(c)];
    const TensorId gradient = on_cpu() ? state.landed : chunk.gradient;
    const DType from = graph_.tensor(gradient).dtype;
    const int64_t shard = shard_of(chunk.kind.parameters);
    const Bytes moments = bytes_of(4 * shard, plan_.optimizer.moments);
    Op adam = op(OpKind::kAdam, on_cpu() ? LaneKind::kCpu : LaneKind::kCompute, c, -1);
    adam.phase = Phase::kOptimizer;
    adam.work = BucketWork{shard, from, plan_.dtype, on_cpu() ? Site::kCpu : Site::kGpu,
                           bytes_of(shard, from) + bytes_of(2 * shard, DType::kF32) + moments +
                               bytes_of(shard, plan_.dtype)};
    adam.accesses = {update(state.master, Role::kMaster), update(state.moment1, Role::kMoment1),
                     update(state.moment2, Role::kMoment2), read(gradient, Role::kGradient),
                     read(decision, Role::kDecision)};
    if (!on_cpu()) adam.accesses.push_back(write(chunk.weight, Role::kDestination));
    graph_.step.ops.push_back(std::move(adam));
    if (on_cpu()) {
      Op home = op(OpKind::kCopy, LaneKind::kUpload, c, -1);
      home.phase = Phase::kOptimizer;
      home.work = CopyWork{bytes_of(shard, cast_on_cpu(plan_) ? plan_.dtype : DType::kF32),
                           CopyDirection::kHostToDevice};
      home.accesses = {read(state.master, Role::kSource), write(chunk.weight, Role::kDestination)};
      graph_.step.ops.push_back(std::move(home));
    }
    if (plan_.zero_stage > 0 && plan_.replicas() > 1) {
      graph_.step.ops.push_back(group_op(CollectiveKind::kAllGather, c, plan_.dtype,
                                         update(chunk.weight, Role::kDestination)));
    }
  }

  const Model& model_;
  Model rank_;
  const Plan& plan_;
  const StackFacts& facts_;
  int64_t chunks_;  // of the whole pipeline; chunk c is on stage c mod stages
  Graph graph_;
  std::map<std::tuple<int64_t, bool, bool>, ChunkKind> kinds_;
  std::vector<Chunk> all_;
  // Activations (0) and their gradients (1) that have arrived, by chunk and micro-batch.
  std::vector<std::vector<TensorId>> values_;
  std::vector<TensorId> saved_;
  std::map<size_t, TensorId> on_host_;
};

}  // namespace

Graph build_pipeline(const Model& model, const Plan& plan, const StackFacts& facts) {
  return Pipeline(model, plan, facts).run();
}

}  // namespace ballast
