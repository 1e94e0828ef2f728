#include "sim/graph/schedules/stage_program.h"

#include <algorithm>

#include "sim/graph/core/edit.h"
#include "sim/graph/core/module_index.h"
#include "sim/graph/schedules/multiplex.h"

namespace ballast {
namespace {

class StageBuilder {
 public:
  StageBuilder(int64_t stage, const PipelineContext& context, Turns turns)
      : stage_(stage), context_(context), plan_(context.plan), turns_(turns) {}

  Graph run() {
    graph_.lanes = kLaneKinds;
    for (int64_t c = stage_; c < context_.chunks(); c += plan_.pipeline) add_chunk(c);
    if (plan_.multiplex) {
      for (int64_t s = 0; s < plan_.pipeline; ++s) add_shared_chunk(s);
    }
    place_modules();
    const std::vector<Turn> turns =
        plan_.multiplex ? multiplexed_turns(stage_, plan_) : turns_of(stage_, plan_);
    for (size_t i = 0; i < turns.size(); ++i) {
      // What a backward reads comes back beside the turn before it.
      if (turns_ == Turns::kFolded && i + 1 < turns.size()) bring_back(turns[i + 1]);
      follows_ = i + 1 < turns.size() ? turns[i + 1] : turns[i];
      emit(turns[i]);
    }
    sum_tied_gradient();
    graph_.buckets = buckets_of(graph_.modules, plan_.optimizer);
    add_bucket_state(graph_, plan_, context_.facts);
    return std::move(graph_);
  }

 private:
  // A chunk of this stage.
  struct Chunk {
    int64_t index = 0;  // in the pipeline
    const ChunkKind* kind = nullptr;
    int64_t parts = 1;  // by which its turns are numbered (place_of)
    // By tensor of kind->inside: the same in this program, -1 where each turn has its own.
    std::vector<TensorId> shared;
    std::vector<std::vector<Access>> state;  // folded: of weights and gradients, by turn
  };
  // What turns of a chunk leave for later ones of the same micro-batch.
  struct Saved {
    // Folded, by what is kept: where it is; of what left and is back the part that its last turn
    // alone reads, once it is there.
    std::vector<std::vector<TensorId>> kept;
    std::vector<std::vector<TensorId>> returned;
    std::vector<bool> is_back;      // of what is away
    std::vector<TensorId> tensors;  // spread: by tensor of kind->inside
  };

  // What goes to the CPU after a turn: which of the kept, and where it is until it has left.
  struct Departure {
    size_t kept = 0;
    std::vector<TensorId> from;
  };

  void add_chunk(int64_t index) {
    Chunk chunk;
    chunk.index = index;
    chunk.kind = context_.kind_of_chunk[static_cast<size_t>(index)];
    chunk.parts = plan_.subsequences;
    const Graph& inside = chunk.kind->inside;
    chunk.shared.assign(inside.tensors.size(), -1);
    const ModuleIndex modules(inside.modules);
    for (size_t t = 0; t < inside.tensors.size(); ++t) {
      Tensor tensor = inside.tensors[t];
      if (tensor.kind != TensorKind::kWeight && tensor.kind != TensorKind::kGradient) continue;
      move(tensor.label, index, -1);
      chunk.shared[t] = add_tensor(graph_, tensor);
      if (tensor.kind != TensorKind::kWeight) continue;
      Module module = inside.module(modules.of(inside.tensors[t].label));
      module.layer = tensor.label.layer;
      // The inside is that of a chunk alike, whose layers have other names.
      if (!module.parameters.empty()) module.parameters = context_.whole_module(module).parameters;
      graph_.modules.push_back(std::move(module));
    }
    const bool folded = turns_ == Turns::kFolded;
    for (size_t turn = 0; folded && turn < chunk.kind->turns.size(); ++turn) {
      chunk.state.push_back(state_accesses(chunk, turn));
    }
    add_saved(std::move(chunk));
  }

  void add_saved(Chunk chunk) {
    const size_t kept = chunk.kind->kept.size();
    const std::vector<std::vector<TensorId>> nothing(kept);
    saved_.emplace_back(static_cast<size_t>(plan_.accumulation()),
                        Saved{nothing, nothing, std::vector<bool>(kept, false), {}});
    chunks_.push_back(std::move(chunk));
  }

  // What all stages share of one of them. Its weights and gradients are there for a turn only.
  void add_shared_chunk(int64_t stage) {
    Chunk chunk;
    chunk.index = stage;
    chunk.kind = context_.shared_kinds[static_cast<size_t>(stage)];
    chunk.parts = kSharedEnds;
    add_saved(std::move(chunk));
  }

  // The matrix of a tied embedding on the last stage is that of the head, whose gradient comes
  // first, so it stands at the end of the flat space.
  void place_modules() {
    if (stage_ > 0) {
      std::stable_partition(graph_.modules.begin(), graph_.modules.end(), [](const Module& module) {
        return module.kind != ModuleKind::kEmbedding;
      });
    }
    int64_t offset = 0;
    for (Module& module : graph_.modules) {
      module.flat_offset = offset;
      offset += module.count;
    }
  }

  // A label of a chunk's inside, as it stands in this program.
  void move(Label& label, int64_t chunk, int64_t micro_batch) const {
    if (label.layer >= 0) {
      label.layer = static_cast<int16_t>(label.layer + context_.first_layer(chunk));
    }
    label.micro_batch = static_cast<int16_t>(micro_batch);
  }

  // What a turn does with the stage's weights and gradients, each once.
  std::vector<Access> state_accesses(const Chunk& chunk, size_t turn) const {
    std::vector<Access> accesses;
    std::vector<bool> seen(graph_.tensors.size(), false);
    for (const OpId i : chunk.kind->operations[turn]) {
      for (const Access& access : chunk.kind->inside.op(i).accesses) {
        const TensorId shared = chunk.shared[static_cast<size_t>(access.tensor)];
        if (shared < 0 || seen[static_cast<size_t>(shared)]) continue;
        seen[static_cast<size_t>(shared)] = true;
        accesses.push_back({shared, access.role, access.mode, 0});
      }
    }
    return accesses;
  }

  TensorId tensor(int64_t chunk, TensorKind kind, Category category, DType dtype,
                  int64_t elements) {
    Tensor t;
    t.kind = kind;
    t.category = category;
    t.dtype = dtype;
    t.label = context_.place_of_chunk(chunk);
    t.elements = std::max<int64_t>(1, elements);
    return add_tensor(graph_, t);
  }

  Op op_of(const Turn& turn, int64_t chunk, OpKind kind, LaneKind lane) const {
    Op op;
    op.kind = kind;
    op.phase = turn.direction == Direction::kForward ? Phase::kForward : Phase::kBackward;
    op.lane = lane_of(0, lane);
    op.label = context_.place_of_chunk(chunk);
    op.label.micro_batch = static_cast<int16_t>(turn.micro_batch);
    if (plan_.subsequences > 1) op.label.subsequence = static_cast<int16_t>(turn.part);
    return op;
  }

  size_t place(const Turn& turn) const {
    return place_of(turn, chunks_[static_cast<size_t>(turn.chunk)].parts);
  }
  bool is_shared_turn(const Turn& turn) const { return turn.chunk >= plan_.virtual_pipeline; }
  // Of a tensor for each part, or of none at an end of the model: -1.
  static TensorId of_turn(const std::vector<TensorId>& by_part, const Turn& turn) {
    return by_part.empty() ? -1 : by_part[static_cast<size_t>(turn.part)];
  }

  void emit(const Turn& turn) {
    if (is_shared_turn(turn)) return share(turn);
    if (turns_ == Turns::kFolded) return fold(turn);
    spread(turn);
  }

  // Later micro-batches add to the gradients of the first, which are made as in the chunk: products
  // of one module may write other parts of its gradient.
  static void accumulate(const Turn& turn, Access& access, Op& op) {
    if (access.role != Role::kParameterGradient || turn.micro_batch == 0) return;
    access.mode = AccessMode::kReadWrite;
    if (auto* gemm = std::get_if<GemmWork>(&op.work)) gemm->accumulate = true;
  }

  // --- a turn as one operation ---------------------------------------------------------------

  void fold(const Turn& turn) {
    const bool forward = turn.direction == Direction::kForward;
    const Chunk& chunk = chunks_[static_cast<size_t>(turn.chunk)];
    const ChunkKind& kind = *chunk.kind;
    Op block = op_of(turn, chunk.index, OpKind::kBlock, LaneKind::kCompute);
    const int32_t first = context_.block_of_chunk[static_cast<size_t>(chunk.index)];
    block.work = BlockWork{first + static_cast<int32_t>(place(turn))};
    if (forward && kind.output.empty()) block.label.module = ModuleKind::kLoss;
    block.accesses = chunk.state[place(turn)];
    for (Access& access : block.accesses) accumulate(turn, access, block);
    if (!(forward ? kind.input : kind.output_gradient).empty()) {
      const TensorId arrived = message(turn, chunk.index);
      receive(turn, chunk.index, arrived);
      block.accesses.push_back(read(arrived, Role::kInput));
    }
    use_workspace(turn, chunk, block);
    use_kept(turn, chunk, block);
    const std::vector<Departure> leaving = keep(turn, chunk, block);
    TensorId made = -1;
    if (!(forward ? kind.output : kind.input_gradient).empty()) {
      made = message(turn, chunk.index);
      block.accesses.push_back(write(made, Role::kOutput));
    }
    graph_.step.ops.push_back(std::move(block));
    move_out(turn, chunk, leaving);
    if (made >= 0) send(turn, chunk.index, made);
  }

  void use_workspace(const Turn& turn, const Chunk& chunk, Op& block) {
    const Bytes workspace = chunk.kind->turns[place(turn)].workspace;
    if (workspace.count == 0) return;
    const TensorId scratch = tensor(chunk.index, TensorKind::kPartial, Category::kWorkspace,
                                    DType::kU8, workspace.count);
    block.accesses.push_back(write(scratch, Role::kScratch));
  }

  // --- a turn that all stages share ----------------------------------------------------------

  void share(const Turn& turn) {
    const Chunk& chunk = chunks_[static_cast<size_t>(turn.chunk)];
    const Turn own = own_turn_of(turn, plan_);
    const bool is_own = chunk.index == stage_;
    Op block = op_of(own, chunk.index, OpKind::kBlock, LaneKind::kCompute);
    block.label.subsequence = -1;
    const int32_t first = context_.shared_blocks[static_cast<size_t>(chunk.index)];
    block.work = BlockWork{first + static_cast<int32_t>(place(turn)), true};
    pass_between_shared(turn, chunk, block);
    TensorId made = -1;
    const Turn crossing = crossing_turn(turn, chunk.index);
    if (is_own) {
      made = act_for_stage(turn, own, crossing, block);
    }
    use_workspace(turn, chunk, block);
    use_kept(turn, chunk, block);
    const std::vector<Departure> leaving = keep(turn, chunk, block);
    graph_.step.ops.push_back(std::move(block));
    move_out(turn, chunk, leaving);
    if (made >= 0) send(crossing, chunk.index, made);
  }

  // Of the parts that a shared turn takes the one that comes from a stage's own turn, or goes to
  // one: the last on the left, the first on the right.
  Turn crossing_turn(const Turn& turn, int64_t stage) const {
    const SharedParts parts = shared_parts(plan_, stage);
    return {turn.direction, 0, 0, turn.part == kLeft ? parts.left - 1 : parts.right};
  }

  // What the stage's own turns see of a shared one, on the stage itself: what it does to weights,
  // gradients, keys and values, and the part that arrives for it or that it makes for a neighbour.
  TensorId act_for_stage(const Turn& turn, const Turn& own, const Turn& crossing, Op& block) {
    const Chunk& chunk = chunks_.front();
    for (const Access& access : chunk.state[place(own)]) block.accesses.push_back(access);
    use_kept(own, chunk, block);
    const std::vector<Departure> leaving = keep(own, chunk, block);
    CHECK(leaving.empty());  // keys and values stay
    const bool sends = (turn.direction == Direction::kForward) == (turn.part == kLeft);
    const TensorId crosses = message(crossing, chunk.index);
    if (sends) {
      block.accesses.push_back(write(crosses, Role::kOutput));
      return crosses;
    }
    receive(crossing, chunk.index, crosses);
    block.accesses.push_back(read(crosses, Role::kInput));
    return -1;
  }

  // The other parts stay where they are from a shared turn to the next one, by token.
  void pass_between_shared(const Turn& turn, const Chunk& chunk, Op& block) {
    if (passed_ >= 0) block.accesses.push_back(read(passed_, Role::kInput));
    passed_ = -1;
    const bool follows = is_shared_turn(follows_) && follows_.direction == turn.direction &&
                         follows_.part == turn.part && follows_.chunk != turn.chunk;
    if (!follows) return;
    const SharedParts here = shared_parts(plan_, chunk.index);
    const SharedParts next =
        shared_parts(plan_, chunks_[static_cast<size_t>(follows_.chunk)].index);
    int64_t elements = 0;
    for (int64_t part = 0; part < plan_.subsequences; ++part) {
      const bool on_left = part < std::min(here.left, next.left);
      const bool on_right = part >= std::max(here.right, next.right);
      if (turn.part == kLeft ? on_left : on_right) {
        elements += message_elements({turn.direction, 0, 0, part});
      }
    }
    passed_ = tensor(chunk.index, TensorKind::kOutput, Category::kStaging, plan_.dtype,
                     div_ceil(elements, plan_.pipeline));
    block.accesses.push_back(write(passed_, Role::kOutput));
  }

  void move_out(const Turn& turn, const Chunk& chunk, const std::vector<Departure>& leaving) {
    for (const Departure& one : leaving) {
      move_kept(turn, chunk, one.kept, one.from, saved_of(turn).kept[one.kept], Phase::kOffload);
    }
  }

  // On the GPU.
  TensorId saved_tensor(const Chunk& chunk, Bytes bytes) {
    return tensor(chunk.index, TensorKind::kSaved, Category::kActivations, DType::kU8, bytes.count);
  }

  void move_kept(const Turn& turn, const Chunk& chunk, size_t k, const std::vector<TensorId>& from,
                 const std::vector<TensorId>& to, Phase phase) {
    const bool out = phase == Phase::kOffload;
    Op op = op_of(turn, chunk.index, OpKind::kCopy, out ? LaneKind::kCopyOut : LaneKind::kCopyIn);
    op.phase = phase;
    op.work = CopyWork{chunk.kind->kept[k].bytes,
                       out ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice};
    for (const TensorId id : from) op.accesses.push_back(read(id, Role::kSource));
    for (const TensorId id : to) op.accesses.push_back(write(id, Role::kDestination));
    graph_.step.ops.push_back(std::move(op));
  }

  // What a turn reads that left for the CPU.
  void bring_back(const Turn& turn) {
    if (turn.direction == Direction::kForward) return;
    const Chunk& chunk = chunks_[static_cast<size_t>(turn.chunk)];
    Saved& saved = saved_of(turn);
    for (size_t k = 0; k < chunk.kind->kept.size(); ++k) {
      const Kept& one = chunk.kind->kept[k];
      if (one.what != KeptFor::kAway || one.last != place(turn)) continue;
      if (saved.kept[k].empty() || saved.is_back[k]) continue;  // not made yet, or back
      saved.is_back[k] = true;
      if (one.last_alone.count > 0) saved.returned[k] = {saved_tensor(chunk, one.last_alone)};
      std::vector<TensorId> to = saved.returned[k];
      for (const Kept::Move& move : one.moves) {
        if (!move.to) continue;
        std::vector<TensorId>& back = saved.kept[*move.to];
        if (back.empty()) back = {saved_tensor(chunk, chunk.kind->kept[*move.to].bytes)};
        if (std::find(to.begin(), to.end(), back.front()) == to.end()) to.push_back(back.front());
      }
      move_kept(turn, chunk, k, saved.kept[k], to, Phase::kReload);
    }
  }

  void use_kept(const Turn& turn, const Chunk& chunk, Op& block) {
    bring_back(turn);  // where what it reads was made in the turn before
    const Saved& saved = saved_of(turn);
    for (size_t k = 0; k < chunk.kind->kept.size(); ++k) {
      const Kept& one = chunk.kind->kept[k];
      const bool arrives = one.what == KeptFor::kBack && one.first == place(turn);
      if (one.last != place(turn) && !arrives) continue;
      const auto& here = one.what == KeptFor::kAway ? saved.returned[k] : saved.kept[k];
      for (const TensorId id : here) block.accesses.push_back(read(id, Role::kStatistics));
    }
  }

  // What a turn leaves. Of what goes to the CPU it writes what was not kept before.
  std::vector<Departure> keep(const Turn& turn, const Chunk& chunk, Op& block) {
    const std::vector<Kept>& kept = chunk.kind->kept;
    Saved& saved = saved_of(turn);
    std::vector<Departure> leaving;
    for (size_t k = 0; k < kept.size(); ++k) {
      if (kept[k].first != place(turn) || kept[k].what == KeptFor::kBack) continue;
      if (kept[k].what != KeptFor::kAway) {
        saved.kept[k] = {saved_tensor(chunk, kept[k].bytes)};
        block.accesses.push_back(write(saved.kept[k].front(), Role::kStatistics));
        continue;
      }
      Departure departure{k, {}};
      if (kept[k].first_alone.count > 0) {
        departure.from = {saved_tensor(chunk, kept[k].first_alone)};
        block.accesses.push_back(write(departure.from.front(), Role::kStatistics));
      }
      if (used_at_once(turn, kept[k])) {
        stay(kept[k], departure, saved);
        continue;
      }
      for (const Kept::Move& move : kept[k].moves) {
        if (!move.from) continue;
        const TensorId from = saved.kept[*move.from].front();
        const bool is_new =
            std::find(departure.from.begin(), departure.from.end(), from) == departure.from.end();
        if (is_new) departure.from.push_back(from);
      }
      const TensorId away = saved_tensor(chunk, kept[k].bytes);
      graph_.tensor(away).kind = TensorKind::kHostOutput;
      graph_.tensor(away).place = Place::kDram;
      saved.kept[k] = {away};
      leaving.push_back(std::move(departure));
    }
    return leaving;
  }

  // Whoever would read what comes back reads what never left.
  static void stay(const Kept& kept, const Departure& departure, Saved& saved) {
    const size_t k = departure.kept;
    saved.is_back[k] = true;
    saved.returned[k] = departure.from;
    for (const Kept::Move& move : kept.moves) {
      const std::vector<TensorId> here = move.from ? saved.kept[*move.from] : departure.from;
      std::vector<TensorId>& there = move.to ? saved.kept[*move.to] : saved.returned[k];
      for (const TensorId id : here) {
        if (std::find(there.begin(), there.end(), id) == there.end()) there.push_back(id);
      }
    }
  }

  // What comes back by module does not leave where the turn that reads it follows.
  bool used_at_once(const Turn& turn, const Kept& one) const {
    return plan_.activations->reload == ReloadOrder::kByModule && follows_.chunk == turn.chunk &&
           follows_.micro_batch == turn.micro_batch && place(follows_) == one.last;
  }

  Saved& saved_of(const Turn& turn) {
    return saved_[static_cast<size_t>(turn.chunk)][static_cast<size_t>(turn.micro_batch)];
  }

  // --- a turn as all its operations ----------------------------------------------------------

  void spread(const Turn& turn) {
    const bool forward = turn.direction == Direction::kForward;
    const Chunk& chunk = chunks_[static_cast<size_t>(turn.chunk)];
    const ChunkKind& kind = *chunk.kind;
    Saved& saved = saved_of(turn);
    if (saved.tensors.empty()) saved.tensors = chunk.shared;
    for (const OpId i : kind.operations[place(turn)]) {
      Op op = kind.inside.op(i);
      move(op.label, chunk.index, turn.micro_batch);
      for (Access& access : op.accesses) {
        access.tensor = here(access.tensor, chunk, turn, saved);
        accumulate(turn, access, op);
      }
      if (is_receive(op)) {
        receive(turn, chunk.index, std::move(op.accesses));
      } else {
        graph_.step.ops.push_back(std::move(op));
      }
    }
    const TensorId made = of_turn(forward ? kind.output : kind.input_gradient, turn);
    if (made >= 0) send(turn, chunk.index, saved.tensors[static_cast<size_t>(made)]);
    if (place(turn) + 1 == kind.operations.size()) saved.tensors = {};
  }

  TensorId here(TensorId inside, const Chunk& chunk, const Turn& turn, Saved& saved) {
    TensorId& id = saved.tensors[static_cast<size_t>(inside)];
    if (id < 0) {
      Tensor tensor = chunk.kind->inside.tensor(inside);
      move(tensor.label, chunk.index, turn.micro_batch);
      id = add_tensor(graph_, tensor);
    }
    return id;
  }

  // --- what crosses between stages -----------------------------------------------------------

  // A rank's share of [tokens, C]: tensor-parallel ranks send a part each.
  int64_t message_elements(const Turn& turn) const {
    const Subsequence& part = context_.parts[static_cast<size_t>(turn.part)];
    return div_ceil(part_tokens(plan_, part) * context_.model.hidden, plan_.tensor);
  }
  TensorId message(const Turn& turn, int64_t chunk) {
    return tensor(chunk, TensorKind::kOutput, Category::kStaging, plan_.dtype,
                  message_elements(turn));
  }

  void receive(const Turn& turn, int64_t chunk, TensorId arrived) {
    receive(turn, chunk, std::vector{write(arrived, Role::kDestination)});
  }
  // Writes of one tensor, or of the part that stays and the part that leaves.
  void receive(const Turn& turn, int64_t chunk, std::vector<Access> arrived) {
    Op op = op_of(turn, chunk, OpKind::kCollective, LaneKind::kPipelineNetwork);
    op.accesses = std::move(arrived);
    graph_.step.ops.push_back(std::move(op));
  }

  void send(const Turn& turn, int64_t chunk, TensorId made) {
    const bool overlaps = context_.facts.pipeline_overlap != Overlap::kNone;
    Op op = op_of(turn, chunk, OpKind::kCollective,
                  overlaps ? LaneKind::kPipelineNetwork : LaneKind::kCompute);
    op.work =
        CollectiveWork{CollectiveKind::kSendReceive, bytes_of(message_elements(turn), plan_.dtype),
                       2, plan_.devices / plan_.pipeline};
    op.accesses = {read(made, Role::kSource)};
    graph_.step.ops.push_back(std::move(op));
  }

  // The first and the last stage hold the same matrix and add up its gradients, after all turns.
  void sum_tied_gradient() {
    const bool holds = stage_ == 0 || stage_ == plan_.pipeline - 1;
    if (!context_.model.tied_embeddings || !holds) return;
    Op op;
    op.kind = OpKind::kCollective;
    op.phase = Phase::kOptimizer;
    op.lane = lane_of(0, LaneKind::kPipelineNetwork);
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      if (tensor.kind != TensorKind::kGradient || tensor.label.module != ModuleKind::kEmbedding) {
        continue;
      }
      const int64_t stride = plan_.devices / plan_.pipeline * (plan_.pipeline - 1);
      // Of learned positions, which lie in the same module, there is one table.
      const Model rank = rank_model(context_.model, plan_);
      op.work = CollectiveWork{CollectiveKind::kAllReduce,
                               bytes_of(rank.vocab * rank.hidden, tensor.dtype), 2, stride};
      op.accesses = {update(static_cast<TensorId>(t), Role::kParameterGradient)};
    }
    CHECK(!op.accesses.empty());
    graph_.step.ops.push_back(std::move(op));
  }

  const int64_t stage_;
  const PipelineContext& context_;
  const Plan& plan_;
  const Turns turns_;
  Graph graph_;
  std::vector<Chunk> chunks_;
  Turn follows_;                           // the turn after the one under way
  std::vector<std::vector<Saved>> saved_;  // by chunk of the stage and micro-batch
  TensorId passed_ = -1;                   // from a shared turn to the next
};

}  // namespace

Graph stage_program(int64_t stage, const PipelineContext& context, Turns turns) {
  return StageBuilder(stage, context, turns).run();
}

bool is_shared(const Op& op) {
  const auto* block = std::get_if<BlockWork>(&op.work);
  return block != nullptr && block->is_shared;
}

bool is_receive(const Op& op) {
  return op.kind == OpKind::kCollective && std::holds_alternative<std::monostate>(op.work);
}

bool is_send(const Op& op) {
  const auto* work = std::get_if<CollectiveWork>(&op.work);
  return work != nullptr && work->kind == CollectiveKind::kSendReceive && op.accesses.size() == 1;
}

Message message_of(const Op& op, const PipelineContext& context) {
  Message message;
  message.direction = op.phase == Phase::kForward ? Direction::kForward : Direction::kBackward;
  message.from = context.chunk_of(op.label);
  if (is_receive(op)) message.from += message.direction == Direction::kForward ? -1 : 1;
  message.micro_batch = op.label.micro_batch;
  message.part = std::max<int64_t>(0, op.label.subsequence);
  return message;
}

bool sums_tied_gradient(const Op& op) {
  const auto* work = std::get_if<CollectiveWork>(&op.work);
  return work != nullptr && op.phase == Phase::kOptimizer && op.accesses.size() == 1 &&
         op.accesses.front().role == Role::kParameterGradient;
}

}  // namespace ballast
