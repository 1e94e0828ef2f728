// Pass `residency`: weights that flow. A flowing module's weights live in DRAM (the fp32 master
// where the GPU casts, a 16-bit copy where the CPU does); they come in before each visit and are
// dropped after it (SuperOffload, arXiv 2509.21271 section 4.2; ZeRO-Infinity's prefetch).
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/module_index.h"

namespace ballast {

namespace {

// Uses of one module's weights that lie so near each other that one fetch serves them.
struct Visit {
  size_t first = 0;
  size_t last = 0;
};

// `uses`: the operations that read the weight, in order.
std::vector<Visit> visits_of(const std::vector<Op>& ops, const std::vector<size_t>& uses,
                             int64_t look_ahead) {
  std::vector<Visit> visits;
  for (const size_t i : uses) {
    const bool near = !visits.empty() && ahead_of(ops, i, look_ahead, 0) <= visits.back().last;
    if (near) {
      visits.back().last = i;
    } else {
      visits.push_back({i, i});
    }
  }
  return visits;
}

// By tensor: the operations that access it, for weights alone.
std::vector<std::vector<size_t>> uses_of_weights(const Graph& graph) {
  std::vector<std::vector<size_t>> uses(graph.tensors.size());
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    for (const Access& access : graph.step.ops[i].accesses) {
      const auto tensor = static_cast<size_t>(access.tensor);
      if (graph.tensors[tensor].kind == TensorKind::kWeight) uses[tensor].push_back(i);
    }
  }
  return uses;
}

// By module: where it is read from, one tensor for each bucket that holds a piece of it.
std::vector<std::vector<Access>> homes_of(const Graph& graph, const Plan& plan) {
  std::vector<std::vector<Access>> homes(graph.modules.size());
  for (const Bucket& bucket : graph.buckets) {
    for (const Bucket::Piece& piece : bucket.pieces) {
      homes[static_cast<size_t>(piece.module)].push_back(
          read(cast_on_cpu(plan) ? bucket.weights : bucket.master, Role::kSource));
    }
  }
  return homes;
}

void fetch(Graph& graph, const Plan& plan, const std::vector<Access>& homes, TensorId weight,
           const Visit& visit, Insertions& insertions) {
  std::vector<Op>& ops = graph.step.ops;
  const Tensor stationary = graph.tensor(weight);
  const TensorId here = add_tensor(graph, stationary);
  for (size_t i = visit.first; i <= visit.last; ++i) {
    for (Access& access : ops[i].accesses) {
      if (access.tensor == weight) access.tensor = here;
    }
  }
  const size_t position = ahead_of(ops, visit.first, plan.weights.look_ahead, 0);
  TensorId landing = here;
  if (cast_on_gpu(plan)) {
    Tensor arriving = stationary;
    arriving.kind = TensorKind::kArriving;
    arriving.category = Category::kStaging;
    arriving.dtype = DType::kF32;
    landing = add_tensor(graph, arriving);
  }
  Op copy;
  copy.kind = OpKind::kCopy;
  copy.phase = Phase::kFetch;
  copy.lane = lane_of(0, LaneKind::kCopyIn);
  copy.label = stationary.label;
  copy.work = CopyWork{graph.tensor(landing).bytes(), CopyDirection::kHostToDevice};
  copy.accesses = homes;
  copy.accesses.push_back(write(landing, Role::kDestination));
  insertions.before(position, copy);
  if (landing == here) return;
  Op cast = copy;
  cast.kind = OpKind::kUnpack;
  cast.work = BucketWork{stationary.elements, DType::kF32, plan.dtype, Site::kGpu,
                         bytes_of(stationary.elements, DType::kF32) + stationary.bytes()};
  cast.accesses = {read(landing, Role::kSource), write(here, Role::kDestination)};
  insertions.before(position, std::move(cast));
}

}  // namespace

Graph residency_pass(Graph graph, const Plan& plan) {
  const std::vector<bool> flowing = flowing_modules(graph, plan);
  const std::vector<std::vector<size_t>> uses = uses_of_weights(graph);
  const std::vector<std::vector<Access>> homes = homes_of(graph, plan);
  const ModuleIndex modules(graph.modules);
  Insertions insertions;
  for (size_t t = 0; t < uses.size(); ++t) {
    if (graph.tensors[t].kind != TensorKind::kWeight) continue;
    const int32_t module = modules.of(graph.tensors[t].label);
    if (module < 0 || !flowing[static_cast<size_t>(module)]) continue;
    for (const Visit& visit : visits_of(graph.step.ops, uses[t], plan.weights.look_ahead)) {
      fetch(graph, plan, homes[static_cast<size_t>(module)], static_cast<TensorId>(t), visit,
            insertions);
    }
  }
  graph.step.ops = insertions.apply(std::move(graph.step.ops));
  return graph;
}

}  // namespace ballast
