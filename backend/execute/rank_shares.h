// Which part of the parameters a rank steps and keeps (ZeRO 1 to 3), and the way to the others.
//
// ZeRO 1 and 2 split every bucket: a share are consecutive parameters of it, as many as
// share_of_bucket() plans for. ZeRO 3 splits every module, and the graph's buckets are of shares.
// The last ranks have fewer where parameters do not divide. Shares cut through segments: the norm
// of a segment that several ranks have is summed from its values, which they tell each other, so
// that it has the bits that one rank finds.
//
// Modules are of two sorts (Sort): those that every rank has whole, and those with experts that
// ranks share, which fewer ranks have alike. Each sort is split among its own ranks, and a share of
// a bucket with both holds first what is of the one, then what is of the other.
// Will not do: touch the memory of tensors.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/comm/communicator.h"
#include "backend/execute/rank_place.h"
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

// Who holds the same of a module: all ranks of data parallelism, or those with the same experts.
enum class Sort : uint8_t { kDense, kExperts };
inline constexpr std::array kSorts = {Sort::kDense, Sort::kExperts};
inline Sort sort_of(const Module& module) {
  return module.expert_ranks > 1 ? Sort::kExperts : Sort::kDense;
}

// A part of a bucket, in one piece, that one rank has in its share.
struct SharePart {
  Sort sort{};
  int owner = 0;         // of the group of its sort
  ElementRange range;    // from the bucket's start
  int64_t in_share = 0;  // elements before it in what the owner's tensors hold of the bucket
};

class RankShares {
 public:
  // All of what is referred to must outlive this.
  RankShares(const Graph& graph, const Plan& plan, Communicator& ranks);

  Communicator& ranks() const { return ranks_; }
  const RankGroup& group(Sort sort) const { return groups_[static_cast<size_t>(sort)]; }
  // This one's index among those that hold the same weights.
  int rank(Sort sort) const { return ranks_.members_of(group(sort)).self; }
  int count(Sort sort) const { return static_cast<int>(group(sort).ranks); }
  Sort sort(int32_t module) const { return sort_of(graph_.module(module)); }
  // At most one of them; neither where every rank keeps all.
  bool are_of_buckets() const { return of_ == Of::kBuckets; }
  bool are_of_modules() const { return of_ == Of::kModules; }
  bool are_split() const { return of_ != Of::kNothing; }

  // Ranks that keep the same of modules of a sort as this one: all with the same weights, or those
  // with the same share.
  RankCopies copies(Sort sort) const;

  // What of a bucket each rank sums for the others, and where shares are of buckets keeps: of
  // every piece the parts of all ranks of its sort, in order.
  std::vector<SharePart> parts_of(int32_t bucket) const;
  // Of a module; all of it where shares are not of modules. `rank`: of those of its sort.
  ElementRange of_module(int32_t module, int rank) const;
  ElementRange own_of_module(int32_t module) const { return of_module(module, rank(sort(module))); }
  // The bucket with what of its pieces lies in a rank's share: `begin` from the start of the whole
  // module, `offset` from that of the share. All pieces are there; some have no elements, and so
  // have those of the other sort.
  Bucket bucket_of(int32_t bucket, Sort sort, int rank) const;
  // The same of this rank, of both sorts.
  Bucket own_bucket(int32_t bucket) const;
  std::vector<SegmentRange> segments_of(int32_t bucket, Sort sort, int rank) const;
  std::vector<SegmentRange> own_segments(int32_t bucket) const;

  // Fills `values`, which is all of a bucket, with what each rank has in its share; every rank
  // calls. Requires that this rank's is there.
  void gather(int32_t bucket, std::span<float> values) const;
  // What lies where it goes on its owner, which is of the group of this sort; every rank calls.
  void gather(Sort sort, std::span<const GatheredPart> parts) const;
  // One after another the values of all ranks of the plan, as many of each.
  std::vector<double> gather_numbers(std::span<const double> own) const;

 private:
  enum class Of : uint8_t { kNothing, kBuckets, kModules };
  // Elements of a bucket that are of a sort, and how many of them a share holds.
  struct Extent {
    int64_t count = 0;
    int64_t share = 0;
  };
  Extent extent_of(int32_t bucket, Sort sort) const;
  std::vector<SegmentRange> segments_of(const Bucket& share) const;

  const Graph& graph_;
  Communicator& ranks_;
  std::array<RankGroup, kSorts.size()> groups_;
  RankGroup with_same_share_;
  Of of_;
};

}  // namespace ballast
