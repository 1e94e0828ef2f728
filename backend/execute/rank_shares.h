// Which part of the parameters a rank steps and keeps (ZeRO 1 to 3), and the way to the others.
//
// ZeRO 1 and 2 split every bucket: a share are consecutive parameters of it, as many as
// share_of_bucket() plans for. ZeRO 3 splits every module, and the graph's buckets are of shares.
// The last ranks have fewer where parameters do not divide. Shares cut through segments: the norm
// of a segment that several ranks have is summed from its values, which they tell each other, so
// that it has the bits that one rank finds.
// Will not do: touch the memory of tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/comm/communicator.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/plan.h"

namespace ballast {

// Elements [begin, begin + count), from a bucket's or a module's start.
struct ElementRange {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const { return begin + count; }
};

ElementRange overlap(const ElementRange& one, const ElementRange& other);

// The part of a module's segment that lies in a rank's share of a bucket, from the module's start.
struct SegmentRange {
  int32_t module = 0;
  int64_t segment = 0;  // of the module
  ElementRange all;     // the segment
  ElementRange here;    // what of it is in the share
  int32_t piece = 0;    // of the bucket
  int64_t offset = 0;   // of `here`, from the share's start
  bool whole() const { return all.count == here.count; }
};

class RankShares {
 public:
  // All of what is referred to must outlive this.
  RankShares(const Graph& graph, const Plan& plan, Communicator& ranks);

  Communicator& ranks() const { return ranks_; }
  const RankGroup& group() const { return group_; }
  // This one's index among those that hold the same weights.
  int rank() const { return ranks_.members_of(group_).self; }
  int count() const { return static_cast<int>(group_.ranks); }
  // At most one of them; neither where every rank keeps all.
  bool are_of_buckets() const { return of_ == Of::kBuckets; }
  bool are_of_modules() const { return of_ == Of::kModules; }
  bool are_split() const { return of_ != Of::kNothing; }

  // Of a bucket; all of it where shares are not of buckets.
  ElementRange of(int32_t bucket, int rank) const;
  ElementRange own(int32_t bucket) const { return of(bucket, rank()); }
  // Of a module; all of it where shares are not of modules.
  ElementRange of_module(int32_t module, int rank) const;
  // The bucket with what of its pieces lies in a rank's share: `begin` from the start of the whole
  // module, `offset` from that of the share. All pieces are there; some have no elements.
  Bucket bucket_of(int32_t bucket, int rank) const;
  std::vector<SegmentRange> segments_of(int32_t bucket, int rank) const;

  // Fills `values`, elements [begin, begin + size) of a bucket, with what each rank has in its
  // share of them; every rank calls. Requires that this rank's are there.
  void gather(int32_t bucket, int64_t begin, std::span<float> values) const;
  // What lies where it goes on its owner; every rank calls.
  void gather(std::span<const GatheredPart> parts) const;
  // One after another the values of all ranks of the plan, as many of each.
  std::vector<double> gather_numbers(std::span<const double> own) const;

 private:
  enum class Of : uint8_t { kNothing, kBuckets, kModules };

  const Graph& graph_;
  Communicator& ranks_;
  RankGroup group_;
  Of of_;
};

}  // namespace ballast
