#include "sim/graph/schedules/chunk.h"

#include <algorithm>

#include "sim/graph/core/edit.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/report/memory.h"

namespace ballast {
namespace {

bool moves_activations(const Op& op) {
  return op.phase == Phase::kOffload || op.phase == Phase::kReload;
}

// The operations of one direction with the edges among them, from a linked graph. What leaves and
// returns does so beside the turns (stage_program.cpp), and has left or is back as far as a turn
// knows.
Sequence part_of(const Graph& graph, Direction direction) {
  const Sequence& step = graph.step;
  std::vector<OpId> place(step.ops.size(), -1);
  Sequence part;
  part.edge_begin.push_back(0);
  for (size_t i = 0; i < step.ops.size(); ++i) {
    if (!belongs(step.ops[i], direction) || moves_activations(step.ops[i])) continue;
    place[i] = static_cast<OpId>(part.ops.size());
    part.ops.push_back(step.ops[i]);
    part.ops.back().accesses.clear();
    for (int32_t e = step.edge_begin[i]; e < step.edge_begin[i + 1]; ++e) {
      const Edge& edge = step.edges[static_cast<size_t>(e)];
      const OpId before = place[static_cast<size_t>(edge.op)];
      if (edge.steps_ahead == 0 && before >= 0) part.edges.push_back({before, 0});
    }
    part.edge_begin.push_back(static_cast<int32_t>(part.edges.size()));
  }
  return part;
}

void measure_memory(const Graph& graph, ChunkKind& chunk) {
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
  for (size_t i = 0; i < live.size(); ++i) {
    Bytes& peak = belongs(graph.step.ops[i], Direction::kForward) ? forward : backward;
    peak = std::max(peak, live[i]);
  }
  // What leaves and returns has tensors of its own beside the workspace.
  const Bytes kept = chunk.saved + chunk.saved_on_host;
  chunk.forward_workspace = std::max(Bytes{}, forward - kept);
  chunk.backward_workspace = std::max(Bytes{}, backward - kept);
}

// The first tensor of this kind that this module of the layer has.
TensorId tensor_at(const Graph& graph, TensorKind kind, int64_t layer, ModuleKind module) {
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.kind == kind && tensor.label.layer == layer && tensor.label.module == module) {
      return static_cast<TensorId>(t);
    }
  }
  CHECK(false && "a chunk without an end");
  return -1;
}

void find_ends(int64_t layers, ChunkEnds ends, ChunkKind& chunk) {
  const auto at = [&](TensorKind kind, int64_t layer, ModuleKind module) {
    return tensor_at(chunk.inside, kind, layer, module);
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

bool belongs(const Op& op, Direction direction) {
  const bool forward = op.phase == Phase::kForward || op.phase == Phase::kOffload;
  return forward == (direction == Direction::kForward);
}

ChunkKind make_chunk(const Model& model, const Plan& plan, const StackFacts& facts, int64_t first,
                     int64_t last) {
  const ChunkEnds ends{first == 0, last == model.layers};
  Model part = rank_model(model, plan);
  part.first_layer = first;
  part.layers = last - first;
  Plan once = plan;
  once.pipeline = once.virtual_pipeline = 1;
  once.devices = plan.devices / plan.pipeline;
  once.global_batch = once.data * *once.micro_batch;
  const PassContext context{model, once, facts};
  ChunkKind chunk;
  chunk.inside =
      run_passes(build_chunk(part, once, facts, ends), context, "gemm formats", "checkpoint");
  find_ends(part.layers, ends, chunk);
  Graph alone = run_passes(chunk.inside, context, "gemm codes", "gemm codes");
  link(alone);
  measure_memory(alone, chunk);
  chunk.forward = part_of(alone, Direction::kForward);
  chunk.backward = part_of(alone, Direction::kBackward);
  return chunk;
}

}  // namespace ballast
