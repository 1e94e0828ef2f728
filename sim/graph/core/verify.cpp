#include <algorithm>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

// Kinds whose value may come from the step before (or from initialisation).
bool may_carry(TensorKind kind) {
  switch (kind) {
    case TensorKind::kWeight:
    case TensorKind::kGradient:
    case TensorKind::kBucketGradient:
    case TensorKind::kBucketGradientFp32:
    case TensorKind::kBucketWeights:
    case TensorKind::kMaster:
    case TensorKind::kMoment1:
    case TensorKind::kMoment2:
    case TensorKind::kUndoRecord:
    case TensorKind::kNormPartials:
    case TensorKind::kPacked:
    case TensorKind::kReduced:
    case TensorKind::kState:
    case TensorKind::kCodes:
      return true;
    default:
      return false;
  }
}

void verify_op(const Graph& graph, const Op& op) {
  CHECK(op.lane >= 0 && op.lane < graph.lanes);
  for (const Access& access : op.accesses) {
    CHECK(access.tensor >= 0 && static_cast<size_t>(access.tensor) < graph.tensors.size());
    const Tensor& tensor = graph.tensor(access.tensor);
    CHECK(tensor.elements > 0);
    CHECK(tensor.copies == 1 || tensor.copies == 2);
    CHECK(access.step_offset >= 0 && access.step_offset < tensor.copies);
  }
}

}  // namespace

void verify(const Graph& graph) {
  std::vector<bool> written(graph.tensors.size(), false);
  for (const Op& op : graph.step.ops) {
    verify_op(graph, op);
    for (const Access& access : op.accesses) {
      const auto tensor = static_cast<size_t>(access.tensor);
      if (!reads(access) || written[tensor]) continue;
      CHECK(may_carry(graph.tensors[tensor].kind));
    }
    for (const Access& access : op.accesses) {
      if (writes(access)) written[static_cast<size_t>(access.tensor)] = true;
    }
  }
  for (const Op& op : graph.repair.ops) verify_op(graph, op);
  for (const Bucket& bucket : graph.buckets) {
    int64_t count = 0;
    for (const Bucket::Piece& piece : bucket.pieces) {
      CHECK(piece.offset == count && piece.count > 0 && piece.begin % kSegment == 0);
      count += piece.count;
    }
    CHECK(count == bucket.count);
  }
  if (graph.commit >= 0) {
    const Op& commit = graph.op(graph.commit);
    CHECK(commit.kind == OpKind::kCommit && commit.fence);
    CHECK(static_cast<size_t>(graph.commit) < first_backward(graph.step.ops));
  }
}

}  // namespace ballast
