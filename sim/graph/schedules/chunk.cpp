#include "sim/graph/schedules/chunk.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "sim/graph/core/edit.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/report/memory.h"

namespace ballast {
namespace {

bool moves_activations(const Op& op) {
  return op.phase == Phase::kOffload || op.phase == Phase::kReload;
}

// True where an operation of an undivided chunk is of its forward.
bool is_forward(const Op& op) { return op.phase == Phase::kForward || op.phase == Phase::kOffload; }

// The turn that an operation makes, where its label says it. Of a part's end of the forward that is
// its backward: the decoder puts it there.
std::optional<size_t> own_turn(const Op& op, int64_t parts) {
  if (op.phase == Phase::kRecompute || moves_activations(op)) return std::nullopt;
  const ModuleKind module = op.label.module;
  const bool ends = module == ModuleKind::kFinalNorm || module == ModuleKind::kHead ||
                    module == ModuleKind::kLoss;
  const bool forward = op.phase == Phase::kForward && !ends;
  const int64_t part = std::max<int64_t>(0, op.label.subsequence);
  return place_of({forward ? Direction::kForward : Direction::kBackward, 0, 0, part}, parts);
}

// The operations of every turn with the edges among them, from a graph linked once. What leaves and
// returns does so beside the turns (stage_program.cpp), and has left or is back as far as a turn
// knows.
std::vector<Program> programs_of_turns(const Graph& graph, const std::vector<size_t>& turn_of,
                                       size_t turns) {
  const Program& step = graph.step;
  std::vector<Program> programs(turns);
  for (Program& program : programs) program.edge_begin.push_back(0);
  std::vector<OpId> place(step.ops.size(), -1);  // in the program of its turn
  for (size_t i = 0; i < step.ops.size(); ++i) {
    const Op& op = step.ops[i];
    if (moves_activations(op)) continue;
    Program& program = programs[turn_of[i]];
    place[i] = static_cast<OpId>(program.ops.size());
    program.ops.push_back({op.kind, op.phase, op.lane, op.label, op.work, {}, op.fence});
    for (int32_t e = step.edge_begin[i]; e < step.edge_begin[i + 1]; ++e) {
      const auto from = static_cast<size_t>(step.edges[static_cast<size_t>(e)].op);
      const bool within = turn_of[from] == turn_of[i] && place[from] >= 0;
      if (within) program.edges.push_back({place[from], 0});
    }
    program.edge_begin.push_back(static_cast<int32_t>(program.edges.size()));
  }
  return programs;
}

// Finds what turns leave for later ones, in the order of Kept::what, first and last turn.
class KeptFinder {
 public:
  KeptFinder(const Graph& graph, const std::vector<size_t>& turn_of, size_t turns)
      : graph_(graph),
        turn_of_(turn_of),
        turns_(turns),
        lives_(lives_of(graph)),
        copy_of_(graph.tensors.size()),
        place_(graph.tensors.size()) {
    for (const Op& op : graph.step.ops) {
      if (!moves_activations(op)) continue;
      const TensorId from = op.accesses[0].tensor, to = op.accesses[1].tensor;
      const bool leaves = op.phase == Phase::kOffload;
      CopiesOf& here = copy_of_[static_cast<size_t>(leaves ? from : to)];
      (leaves ? here.leaves : here.returns) = true;
      CopiesOf& away = copy_of_[static_cast<size_t>(leaves ? to : from)];
      (leaves ? away.source : away.destination) = leaves ? from : to;
    }
  }

  bool counts(size_t t) const {
    return lives_[t].first >= 0 && !lives_[t].carried &&
           graph_.tensors[t].kind != TensorKind::kGradient;
  }
  const std::vector<Life>& lives() const { return lives_; }

  // First what forwards leave on the GPU for their own backwards, of every forward.
  std::vector<Kept> run() {
    number();
    for (const bool away : {false, true}) {
      for (size_t t = 0; t < graph_.tensors.size(); ++t) {
        if (counts(t) && is_away(t) == away) add(t);
      }
    }
    for (Kept& one : kept_) {
      std::sort(one.moves.begin(), one.moves.end());
      one.moves.erase(std::unique(one.moves.begin(), one.moves.end()), one.moves.end());
    }
    return std::move(kept_);
  }

 private:
  struct CopiesOf {
    bool leaves = false, returns = false;  // of what is on the GPU
    TensorId source = -1, destination = -1;
  };

  using Key = std::tuple<KeptFor, size_t, size_t>;

  bool is_away(size_t t) const { return graph_.tensors[t].place == Place::kDram; }

  Key key_of(size_t t) const {
    const CopiesOf& copies = copy_of_[t];
    const KeptFor what = is_away(t)       ? KeptFor::kAway
                         : copies.leaves  ? KeptFor::kLeave
                         : copies.returns ? KeptFor::kBack
                                          : KeptFor::kTurns;
    return {what, turn_of_[static_cast<size_t>(lives_[t].first)],
            turn_of_[static_cast<size_t>(lives_[t].last)]};
  }

  void number() {
    for (size_t turn = 0; turn < turns_ / 2; ++turn) {
      index_[{KeptFor::kTurns, turn, turns_ - 1 - turn}] = 0;
    }
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      if (!counts(t)) continue;
      const Key key = key_of(t);
      if (std::get<1>(key) < std::get<2>(key)) index_[key] = 0;
    }
    for (const bool own : {true, false}) {
      for (auto& [key, at] : index_) {
        const auto& [what, first, last] = key;
        if ((what == KeptFor::kTurns && first + last == turns_ - 1) != own) continue;
        at = kept_.size();
        kept_.push_back({first, last, what, {}, {}, {}, {}});
      }
    }
  }

  void add(size_t t) {
    const auto found = index_.find(key_of(t));
    if (found == index_.end()) return;  // of one turn
    place_[t] = found->second;
    const Bytes bytes = graph_.tensors[t].all_bytes();
    Kept& kept = kept_[found->second];
    kept.bytes += bytes;
    if (!is_away(t)) return;
    const CopiesOf& copies = copy_of_[t];
    const Kept::Move move{place_of_tensor(copies.source), place_of_tensor(copies.destination)};
    if (!move.from) kept.first_alone += bytes;
    if (!move.to) kept.last_alone += bytes;
    if (move.from || move.to) kept.moves.push_back(move);
  }

  std::optional<size_t> place_of_tensor(TensorId tensor) const {
    return tensor < 0 ? std::nullopt : place_[static_cast<size_t>(tensor)];
  }

  const Graph& graph_;
  const std::vector<size_t>& turn_of_;
  const size_t turns_;
  const std::vector<Life> lives_;
  std::vector<CopiesOf> copy_of_;             // by tensor
  std::vector<std::optional<size_t>> place_;  // by tensor, in kept_
  std::map<Key, size_t> index_;               // in kept_
  std::vector<Kept> kept_;
};

// What is on the GPU of something that is kept, while a turn runs.
Bytes held_in(size_t turn, const Kept& kept) {
  if (kept.what != KeptFor::kAway) {
    return kept.first <= turn && turn <= kept.last ? kept.bytes : Bytes{};
  }
  return kept.first == turn ? kept.first_alone : kept.last == turn ? kept.last_alone : Bytes{};
}

void measure_memory(const std::vector<size_t>& turn_of, ChunkKind& chunk) {
  const Graph& graph = chunk.inside;
  const size_t turns = chunk.turns.size();
  KeptFinder finder(graph, turn_of, turns);
  chunk.kept = finder.run();
  const std::vector<Bytes> live = live_bytes(graph, finder.lives(), [&](size_t t) {
    return finder.counts(t) && graph.tensors[t].place != Place::kDram;
  });
  for (size_t i = 0; i < live.size(); ++i) {
    Bytes& peak = chunk.turns[turn_of[i]].workspace;
    peak = std::max(peak, live[i]);
  }
  for (size_t turn = 0; turn < turns; ++turn) {
    Bytes& workspace = chunk.turns[turn].workspace;
    for (const Kept& one : chunk.kept) workspace -= held_in(turn, one);
    workspace = std::max(Bytes{}, workspace);
  }
}

// The first tensor of this kind that this module of the layer has for each part.
std::vector<TensorId> tensors_at(const Graph& graph, int64_t parts, TensorKind kind, int64_t layer,
                                 ModuleKind module) {
  std::vector<TensorId> found(static_cast<size_t>(parts), -1);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.kind != kind || tensor.label.layer != layer || tensor.label.module != module) {
      continue;
    }
    const auto part = static_cast<size_t>(std::max<int64_t>(0, tensor.label.subsequence));
    if (found[part] < 0) found[part] = static_cast<TensorId>(t);
  }
  CHECK(std::find(found.begin(), found.end(), -1) == found.end() && "a chunk without an end");
  return found;
}

void find_ends(int64_t layers, int64_t parts, ChunkEnds ends, ChunkKind& chunk) {
  const auto at = [&](TensorKind kind, int64_t layer, ModuleKind module) {
    return tensors_at(chunk.inside, parts, kind, layer, module);
  };
  if (!ends.first) {
    chunk.input = at(TensorKind::kOutput, -1, ModuleKind::kEmbedding);
    chunk.input_gradient = at(TensorKind::kOutputGradient, -1, ModuleKind::kEmbedding);
  }
  if (!ends.last) {
    const ModuleKind last = layers > 0 ? ModuleKind::kFc2 : ModuleKind::kEmbedding;
    chunk.output = at(TensorKind::kOutput, layers - 1, last);
    chunk.output_gradient = at(TensorKind::kOutputGradient, layers - 1, last);
  }
}

}  // namespace

std::vector<size_t> turns_of_operations(const std::vector<Op>& ops, int64_t parts) {
  std::vector<size_t> turns(ops.size());
  const auto forwards = static_cast<size_t>(parts);
  size_t next = 2 * forwards - 1;
  for (size_t i = ops.size(); i-- > 0;) {
    next = own_turn(ops[i], parts).value_or(next);
    turns[i] = is_forward(ops[i]) ? next : std::max(next, forwards);
  }
  size_t before = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    before = own_turn(ops[i], parts).value_or(before);
    if (ops[i].phase == Phase::kOffload) turns[i] = std::min(before, forwards - 1);
  }
  if (parts > 1) return turns;
  for (size_t i = 0; i < ops.size(); ++i) turns[i] = is_forward(ops[i]) ? 0 : 1;
  return turns;
}

namespace {

// The plan of a chunk's inside: no pipeline, one micro-batch.
Plan inside_plan(const Plan& plan) {
  Plan once = plan;
  once.pipeline = once.virtual_pipeline = 1;
  once.devices = plan.devices / plan.pipeline;
  once.global_batch = once.data * *once.micro_batch;
  return once;
}

}  // namespace

ChunkKind make_chunk(const Model& model, const Plan& plan, const StackFacts& facts,
                     const ChunkLayers& layers) {
  Model part = rank_model(model, plan);
  part.first_layer = layers.first;
  part.layers = layers.last - layers.first;
  const Plan once = inside_plan(plan);
  ChunkKind chunk;
  chunk.inside = run_passes(build_chunk(part, once, facts, layers.ends), {model, once, facts},
                            "gemm formats", "checkpoint");
  find_ends(part.layers, plan.subsequences, layers.ends, chunk);
  const std::vector<size_t> turn_of = turns_of_operations(chunk.inside.step.ops, plan.subsequences);
  chunk.operations.resize(static_cast<size_t>(2 * plan.subsequences));
  for (size_t i = 0; i < turn_of.size(); ++i) {
    chunk.operations[turn_of[i]].push_back(static_cast<OpId>(i));
  }
  return chunk;
}

void fold_turns(ChunkKind& chunk, const Model& model, const Plan& plan, const StackFacts& facts) {
  const Plan once = inside_plan(plan);
  const size_t operations = chunk.inside.step.ops.size();
  chunk.inside =
      run_passes(std::move(chunk.inside), {model, once, facts}, "gemm codes", "gemm codes");
  CHECK(chunk.inside.step.ops.size() == operations);
  link_once(chunk.inside);
  std::vector<size_t> turn_of(operations);
  for (size_t turn = 0; turn < chunk.operations.size(); ++turn) {
    for (const OpId i : chunk.operations[turn]) turn_of[static_cast<size_t>(i)] = turn;
  }
  chunk.turns.resize(chunk.operations.size());
  measure_memory(turn_of, chunk);
  std::vector<Program> programs = programs_of_turns(chunk.inside, turn_of, chunk.turns.size());
  for (size_t turn = 0; turn < chunk.turns.size(); ++turn) {
    chunk.turns[turn].ops = std::move(programs[turn]);
  }
}

}  // namespace ballast
