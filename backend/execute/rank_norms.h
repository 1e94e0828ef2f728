// The gradient norm of parameters that ranks share: every rank comes to know the partial sums of
// all segments, and so sums the same numbers in the same order as one that has all of them.
//
// Of a segment that lies in one rank's share of a bucket its sum is told, of one that shares cut
// through its values, from which every rank finds the sum that one rank finds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "backend/execute/bucket_ranges.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/parameter_slices.h"
#include "backend/execute/rank_shares.h"
#include "kernels/kernels.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// Sums of the squares of gradients: of all modules that a rank has, and of those with experts among
// them.
struct NormSums {
  double all = 0;
  double of_experts = 0;
};

class RankNorms {
 public:
  // All of what is referred to must outlive this.
  RankNorms(const Graph& graph, const OperationArguments& arguments, const RankShares& shares);

  // The values of cut segments that a kSumOfSquares of a bucket met, and how they are stored, which
  // is the same on every rank. Thread safety: as the graph orders the bucket's norm partials.
  void keep(int32_t bucket, kernels::Format format, const std::vector<CutRange>& cuts);

  // The sum of the squares of all parameters' gradients, segment by segment in their flat order.
  // Every rank calls.
  NormSums sum_of_all(const kernels::Table& table);

 private:
  // The norm partials of a bucket in CPU memory: of segments that lie in this rank's share, one
  // after another.
  const double* partials_of(int32_t bucket) const;
  // Calls for every segment that lies in a rank's share, in the order in which it tells of them,
  // with how many bytes it tells.
  void for_segments(Sort sort, int rank,
                    const std::function<void(int32_t bucket, const SegmentRange& segment,
                                             int64_t bytes)>& visit) const;
  int64_t told_by(Sort sort, int rank) const;  // bytes
  std::vector<std::byte> told_by_this(Sort sort) const;
  void take(Sort sort, const std::vector<std::byte>& told, const kernels::Table& table);
  // What ranks with the same modules of a sort know of them.
  void exchange(Sort sort, const kernels::Table& table);
  // Of a segment that is cut, until all of it is known.
  struct Open {
    std::vector<float> values;
    int64_t known = 0;
  };
  using OpenSegments = std::map<std::pair<int32_t, int64_t>, Open>;  // by module and segment
  void take_cut(int32_t bucket, const SegmentRange& segment, const std::byte* values,
                OpenSegments& open, const kernels::Table& table);
  double& sum_of(const SegmentRange& segment) {
    return sums_[static_cast<size_t>(segment.module)][static_cast<size_t>(segment.segment)];
  }

  const Graph& graph_;
  const OperationArguments& arguments_;
  const RankShares& shares_;
  std::vector<TensorId> partials_;         // by bucket
  std::vector<std::vector<double>> sums_;  // by module and segment
  struct Kept {
    kernels::Format format{};
    std::vector<std::byte> values;  // of all cut segments, one after another
  };
  std::vector<Kept> kept_;  // by bucket
};

// The same norm over ranks that split modules, by tensor or by experts: what they split each tells
// the sum of, and what all have alike counts once. However ranks with the same weights share them,
// its bits are the same.
class SplitNorms {
 public:
  // All of what is referred to must outlive this.
  SplitNorms(const Graph& graph, const RankShares& shares, const Plan& plan,
             const ParameterSlices& slices);

  // Where a kSumOfSquares of a bucket finds what all ranks have alike.
  struct Alike {
    int32_t module = 0;
    size_t unit = 0;  // of the module
    CutRange values;
  };
  std::vector<Alike> alike(const std::vector<BucketRanges::OwnSegment>& segments,
                           kernels::Format format) const;
  // Its values, which may have been brought elsewhere. Thread safety: as the graph orders the
  // bucket's norm partials.
  void keep(int32_t bucket, kernels::Format format, const std::vector<Alike>& alike,
            const kernels::Table& table);
  // Of the sum of this rank's weights that of the model's. Every rank calls.
  double sum_of_all(const NormSums& of_this, const kernels::Table& table);

 private:
  // Elements of a module that all ranks have alike, within one segment.
  struct Unit {
    ElementRange range;
    std::vector<float> values;  // where ranks with the same weights share them
    double sum = 0;
  };
  // Calls for every part of a unit that lies in a rank's share of a bucket.
  template <class Visit>
  void for_parts(int32_t bucket, int rank, const Visit& visit);
  void gather_units(const kernels::Table& table);

  const Graph& graph_;
  const RankShares& shares_;
  int64_t ranks_;                         // that split modules: the first ones of the plan
  Sort sort_;                             // of the modules that they split
  std::vector<std::vector<Unit>> units_;  // by module
  std::vector<std::vector<float>> kept_;  // by bucket: of all parts in this rank's share
};

}  // namespace ballast
