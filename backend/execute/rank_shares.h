// Which part of every bucket a rank steps and keeps (ZeRO 1 and 2), and the way to the others.
//
// A rank's share of a bucket are consecutive parameters, as many as share_of_bucket() plans for;
// the last ranks have fewer where they do not divide. Shares cut through segments: the norm of a
// segment that several ranks have is summed from its values, which they tell each other, so that it
// has the bits that one rank finds.
// Will not do: touch the memory of tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/comm/communicator.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/plan.h"

namespace ballast {

// Elements [begin, begin + count), from a bucket's start.
struct ElementRange {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const { return begin + count; }
};

ElementRange overlap(const ElementRange& one, const ElementRange& other);

// Parts of a bucket's segments that lie in a share: `segment` counts from the bucket's first.
struct SegmentRange {
  int64_t segment = 0;
  ElementRange all;   // the segment, from the bucket's start
  ElementRange here;  // what of it is in the share
  bool whole() const { return all.count == here.count; }
};

class RankShares {
 public:
  // All of what is referred to must outlive this.
  RankShares(const Graph& graph, const Plan& plan, Communicator& ranks);

  Communicator& ranks() const { return ranks_; }
  const RankGroup& group() const { return group_; }
  int rank() const { return ranks_.rank(); }
  int count() const { return static_cast<int>(group_.ranks); }
  // False where every rank keeps all of every bucket.
  bool are_split() const { return split_; }

  ElementRange of(int32_t bucket, int rank) const;
  ElementRange own(int32_t bucket) const { return of(bucket, rank()); }
  // The bucket with what of its pieces lies in a rank's share, offsets from the share's start. All
  // pieces are there; some have no elements.
  Bucket bucket_of(int32_t bucket, int rank) const;
  std::vector<SegmentRange> segments_of(int32_t bucket, int rank) const;

  // Fills `values`, elements [begin, begin + size) of a bucket, with what each rank has in its
  // share of them; every rank calls. Requires that this rank's are there.
  void gather(int32_t bucket, int64_t begin, std::span<float> values) const;
  // One after another the values of all ranks, as many of each.
  std::vector<double> gather_numbers(std::span<const double> own) const;

 private:
  const Graph& graph_;
  Communicator& ranks_;
  RankGroup group_;
  bool split_;
};

}  // namespace ballast
