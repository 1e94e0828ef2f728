#include "backend/cuda/cuda_segments.h"

#include <algorithm>
#include <utility>

namespace ballast {

namespace {

// A module, at the same addresses in every step.
bool is_fixed(const Graph& graph, const Op& op) {
  switch (op.kind) {
    case OpKind::kEmbedding:
    case OpKind::kNorm:
    case OpKind::kGemm:
    case OpKind::kAttention:
    case OpKind::kActivation:
      break;
    default:
      return false;
  }
  return std::all_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
    return graph.tensors[static_cast<size_t>(access.tensor)].copies == 1;
  });
}

}  // namespace

std::vector<CudaSegment> cuda_segments(const Graph& graph,
                                       const std::function<bool(const Op& op)>& is_apart) {
  const Program& step = graph.step;
  std::vector<bool> is_followed(step.ops.size(), false);
  for (const Edge& edge : step.edges) is_followed[static_cast<size_t>(edge.op)] = true;
  std::vector<CudaSegment> segments;
  CudaSegment open;
  const auto close = [&] {
    if (open.ops.size() > 1) segments.push_back(open);
    open.ops.clear();
  };
  for (size_t i = 0; i < step.ops.size(); ++i) {
    if (kind_of(step.ops[i].lane) != LaneKind::kCompute) continue;
    const bool follows = step.edge_begin[i] != step.edge_begin[i + 1];
    const bool fixed = is_fixed(graph, step.ops[i]) && !(is_apart && is_apart(step.ops[i]));
    if (follows || !fixed) close();
    if (!fixed) continue;
    open.ops.push_back(static_cast<OpId>(i));
    if (is_followed[i]) close();
  }
  close();
  return segments;
}

}  // namespace ballast
