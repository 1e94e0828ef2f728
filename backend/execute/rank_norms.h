// The gradient norm of buckets that ranks share: every rank comes to know the partial sums of all
// segments, and so sums the same numbers in the same order as one that has all of them.
//
// Of a segment that lies in one rank's share its sum is told, of one that shares cut through its
// values, from which every rank finds the sum that one rank finds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/execute/bucket_ranges.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/rank_shares.h"
#include "kernels/kernels.h"
#include "sim/graph/core/graph.h"

namespace ballast {

class RankNorms {
 public:
  // All of what is referred to must outlive this.
  RankNorms(const Graph& graph, const OperationArguments& arguments, const RankShares& shares);

  // The values of cut segments that a kSumOfSquares of a bucket met, and how they are stored, which
  // is the same on every rank. Thread safety: as the graph orders the bucket's norm partials.
  void keep(int32_t bucket, kernels::Format format, const std::vector<CutRange>& cuts);

  // Fills the norm partials in CPU memory with those of all ranks, each of which calls.
  void complete(const kernels::Table& table);

 private:
  // The norm partials of a bucket in CPU memory.
  double* partials_of(int32_t bucket) const;
  // Calls for every segment that lies in a rank's share, in the order in which it tells of them,
  // with how many bytes it tells.
  void for_segments(int rank, const std::function<void(int32_t bucket, const SegmentRange& segment,
                                                       int64_t bytes)>& visit) const;
  int64_t told_by(int rank) const;  // bytes
  std::vector<std::byte> told_by_this() const;
  void take(const std::vector<std::byte>& told, const kernels::Table& table);

  const Graph& graph_;
  const OperationArguments& arguments_;
  const RankShares& shares_;
  std::vector<TensorId> partials_;  // by bucket
  struct Kept {
    kernels::Format format{};
    std::vector<std::byte> values;  // of all cut segments, one after another
  };
  std::vector<Kept> kept_;  // by bucket
};

}  // namespace ballast
