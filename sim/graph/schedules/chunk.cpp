#include "sim/graph/schedules/chunk.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

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

void measure_memory(const std::vector<size_t>& turn_of, ChunkKind& chunk) {
  const Graph& graph = chunk.inside;
  const size_t turns = chunk.turns.size();
  const std::vector<Life> lives = lives_of(graph);
  const auto counts = [&](size_t t) {
    return lives[t].first >= 0 && !lives[t].carried &&
           graph.tensors[t].kind != TensorKind::kGradient;
  };
  std::map<std::tuple<bool, size_t, size_t>, Bytes> kept;  // by whether it is on the CPU
  for (size_t turn = 0; turn < turns / 2; ++turn) kept[{false, turn, turns - 1 - turn}] = {};
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (!counts(t)) continue;
    const Tensor& tensor = graph.tensors[t];
    const size_t first = turn_of[static_cast<size_t>(lives[t].first)];
    const size_t last = turn_of[static_cast<size_t>(lives[t].last)];
    if (first < last) kept[{tensor.place == Place::kDram, first, last}] += tensor.all_bytes();
  }
  for (const auto& [key, bytes] : kept) {
    const auto& [on_host, first, last] = key;
    chunk.kept.push_back({first, last, on_host ? Place::kDram : Place::kHbm, bytes});
  }
  std::stable_sort(chunk.kept.begin(), chunk.kept.end(), [&](const Kept& a, const Kept& b) {
    const auto of_itself = [&](const Kept& one) {
      return one.place == Place::kHbm && one.first + one.last == turns - 1;
    };
    return of_itself(a) && !of_itself(b);
  });
  const std::vector<Bytes> live = live_bytes(
      graph, lives, [&](size_t t) { return counts(t) && graph.tensors[t].place != Place::kDram; });
  for (size_t i = 0; i < live.size(); ++i) {
    Bytes& peak = chunk.turns[turn_of[i]].workspace;
    peak = std::max(peak, live[i]);
  }
  for (size_t turn = 0; turn < turns; ++turn) {
    Bytes& workspace = chunk.turns[turn].workspace;
    for (const Kept& one : chunk.kept) {
      // What leaves and returns has tensors of its own beside the workspace.
      const bool counted = one.place == Place::kHbm ? one.first <= turn && turn <= one.last
                                                    : one.first == turn || one.last == turn;
      if (counted) workspace -= one.bytes;
    }
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
    chunk.output = at(TensorKind::kOutput, layers - 1, ModuleKind::kFc2);
    chunk.output_gradient = at(TensorKind::kOutputGradient, layers - 1, ModuleKind::kFc2);
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

ChunkKind make_chunk(const Model& model, const Plan& plan, const StackFacts& facts, int64_t first,
                     int64_t last) {
  const ChunkEnds ends{first == 0, last == model.layers};
  Model part = rank_model(model, plan);
  part.first_layer = first;
  part.layers = last - first;
  const Plan once = inside_plan(plan);
  ChunkKind chunk;
  chunk.inside = run_passes(build_chunk(part, once, facts, ends), {model, once, facts},
                            "gemm formats", "checkpoint");
  find_ends(part.layers, plan.subsequences, ends, chunk);
  const std::vector<size_t> turn_of =
      turns_of_operations(chunk.inside.step.ops, plan.subsequences);
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
