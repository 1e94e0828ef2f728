// Models and plans small enough to count their operations by hand.
#pragma once

#include <optional>
#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "tests/tiny.h"

namespace ballast::tiny {

// C=8, H=2, F=32, V=16, 2 layers; every module has fewer than kSegment parameters, so each is one
// segment.
inline Model model() {
  Model model = llama({});
  model.name = "tiny";
  return model;
}

// One micro-batch of 2 x 4 tokens, waits, casts on the GPU, one bucket a module.
inline Plan plan() { return waiting_plan({}, 1); }

inline int64_t count(const Graph& graph, OpKind kind, Phase phase) {
  int64_t found = 0;
  for (const Op& op : graph.step.ops) found += op.kind == kind && op.phase == phase;
  return found;
}

inline int64_t count(const Graph& graph, OpKind kind) {
  int64_t found = 0;
  for (const Op& op : graph.step.ops) found += op.kind == kind;
  return found;
}

// What copies of buckets move on a lane between the CPU and the GPU, but for sums of norms.
inline Bytes moved(const Graph& graph, CopyDirection direction, LaneKind lane) {
  Bytes bytes;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CopyWork>(&op.work);
    const bool state = work != nullptr && op.phase == Phase::kOptimizer && op.label.bucket >= 0;
    if (!state || holds_norms(graph, op)) continue;
    if (work->direction == direction && kind_of(op.lane) == lane) bytes += work->bytes;
  }
  return bytes;
}

// Of gradients that leave for the CPU.
inline Bytes sent(const Graph& graph) {
  return moved(graph, CopyDirection::kDeviceToHost, LaneKind::kCopyOut);
}

// Of all buckets, or of those that are stepped there.
inline int64_t parameters(const Graph& graph, std::optional<Site> site = std::nullopt) {
  int64_t found = 0;
  for (const Bucket& bucket : graph.buckets) {
    if (!site || bucket.site == *site) found += bucket.count;
  }
  return found;
}

// By the collectives of a kind.
inline Bytes exchanged(const Graph& graph, CollectiveKind kind) {
  Bytes bytes;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work != nullptr && work->kind == kind) bytes += work->bytes;
  }
  return bytes;
}

// What moves between ranks in a phase, in program order; inside the layers and outside.
struct Exchanges {
  std::vector<CollectiveWork> layers;
  std::vector<CollectiveWork> outside;
};
inline Exchanges exchanges(const Graph& graph, Phase phase) {
  Exchanges found;
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<CollectiveWork>(&op.work);
    if (work == nullptr || op.phase != phase) continue;
    (op.label.layer >= 0 ? found.layers : found.outside).push_back(*work);
  }
  return found;
}

inline int64_t count(const std::vector<CollectiveWork>& works, const CollectiveWork& like) {
  int64_t found = 0;
  for (const CollectiveWork& work : works) found += work == like;
  return found;
}

// Tensors of a kind that any operation of the step touches.
inline std::vector<Tensor> used(const Graph& graph, TensorKind kind) {
  std::vector<bool> touched(graph.tensors.size());
  for (const Op& op : graph.step.ops) {
    for (const Access& access : op.accesses) touched[static_cast<size_t>(access.tensor)] = true;
  }
  std::vector<Tensor> found;
  for (size_t t = 0; t < touched.size(); ++t) {
    if (touched[t] && graph.tensors[t].kind == kind) found.push_back(graph.tensors[t]);
  }
  return found;
}

// Sums over them, of one copy each.
inline int64_t elements(const Graph& graph, TensorKind kind) {
  int64_t sum = 0;
  for (const Tensor& tensor : used(graph, kind)) sum += tensor.elements;
  return sum;
}
inline Bytes bytes(const Graph& graph, TensorKind kind) {
  Bytes sum;
  for (const Tensor& tensor : used(graph, kind)) sum += tensor.bytes();
  return sum;
}

inline OpId first(const Graph& graph, OpKind kind) {
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    if (graph.step.ops[i].kind == kind) return static_cast<OpId>(i);
  }
  return -1;
}

}  // namespace ballast::tiny
