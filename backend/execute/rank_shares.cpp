#include "backend/execute/rank_shares.h"

#include <algorithm>

#include "backend/execute/rank_place.h"

namespace ballast {

ElementRange overlap(const ElementRange& one, const ElementRange& other) {
  const int64_t begin = std::max(one.begin, other.begin);
  return {begin, std::max<int64_t>(0, std::min(one.end(), other.end()) - begin)};
}

RankShares::RankShares(const Graph& graph, const Plan& plan, Communicator& ranks)
    : graph_(graph), ranks_(ranks), with_same_share_(copies_group(plan)) {
  const RankGroup all = replica_group(plan);
  groups_ = {all, {all.ranks / plan.expert, all.stride * plan.expert}};
  of_ = plan.zero_stage == 0 || all.ranks == 1 ? Of::kNothing
        : plan.zero_stage == 3                 ? Of::kModules
                                               : Of::kBuckets;
  CHECK(rank_count(plan) == ranks.size() && all.ranks == plan.sharing());
}

RankCopies RankShares::copies(Sort sort) const {
  const RankGroup& same = are_split() ? with_same_share_ : group(sort);
  return {ranks_.members_of(same).self, same.ranks};
}

RankShares::Extent RankShares::extent_of(int32_t bucket, Sort sort) const {
  Extent extent;
  for (const Bucket::Piece& piece : graph_.bucket(bucket).pieces) {
    if (this->sort(piece.module) == sort) extent.count += piece.count;
  }
  extent.share = div_ceil(extent.count, int64_t{count(sort)});
  return extent;
}

std::vector<SharePart> RankShares::parts_of(int32_t bucket) const {
  std::vector<SharePart> parts;
  std::array<int64_t, kSorts.size()> before{};  // elements of pieces of the sort
  const int64_t first_of_experts = extent_of(bucket, Sort::kDense).share;
  for (const Bucket::Piece& piece : graph_.bucket(bucket).pieces) {
    const Sort sort = this->sort(piece.module);
    int64_t& begin = before[static_cast<size_t>(sort)];
    const int64_t share = extent_of(bucket, sort).share;
    const int64_t first = sort == Sort::kExperts ? first_of_experts : 0;
    for (int owner = 0; owner < count(sort); ++owner) {
      const ElementRange here = overlap({share * owner, share}, {begin, piece.count});
      if (here.count == 0) continue;
      parts.push_back({sort,
                       owner,
                       {piece.offset + here.begin - begin, here.count},
                       first + here.begin - share * owner});
    }
    begin += piece.count;
  }
  return parts;
}

ElementRange RankShares::of_module(int32_t module, int rank) const {
  const ElementRange all{0, whole_count(graph_.module(module))};
  if (!are_of_modules()) return all;
  const int64_t share = graph_.module(module).count;
  return overlap(all, {share * rank, share});
}

Bucket RankShares::bucket_of(int32_t bucket, Sort sort, int rank) const {
  Bucket own = graph_.bucket(bucket);
  own.count = 0;
  int64_t before = 0;
  const int64_t share = extent_of(bucket, sort).share;
  const int64_t first = sort == Sort::kExperts ? extent_of(bucket, Sort::kDense).share : 0;
  for (Bucket::Piece& piece : own.pieces) {
    if (this->sort(piece.module) != sort) {
      piece.count = 0;
      continue;
    }
    if (are_of_modules()) {
      const ElementRange whole = of_module(piece.module, rank);
      piece.begin += graph_.module(piece.module).count * rank;
      piece.count = overlap(whole, {piece.begin, piece.count}).count;
    } else if (are_of_buckets()) {
      const ElementRange here = overlap({share * rank, share}, {before, piece.count});
      before += piece.count;
      piece.begin += here.begin - (before - piece.count);
      piece.offset = first + here.begin - share * rank;
      piece.count = here.count;
    }
    own.count += piece.count;
  }
  return own;
}

Bucket RankShares::own_bucket(int32_t bucket) const {
  Bucket own = bucket_of(bucket, Sort::kDense, rank(Sort::kDense));
  const Bucket experts = bucket_of(bucket, Sort::kExperts, rank(Sort::kExperts));
  for (size_t i = 0; i < own.pieces.size(); ++i) {
    if (sort(own.pieces[i].module) == Sort::kExperts) own.pieces[i] = experts.pieces[i];
  }
  own.count += experts.count;
  return own;
}

std::vector<SegmentRange> RankShares::segments_of(const Bucket& share) const {
  std::vector<SegmentRange> segments;
  for (size_t i = 0; i < share.pieces.size(); ++i) {
    const Bucket::Piece& piece = share.pieces[i];
    const int64_t all = whole_count(graph_.module(piece.module));
    const ElementRange here{piece.begin, piece.count};
    for (int64_t at = here.begin; at < here.end();) {
      SegmentRange one{piece.module, at / kSegment, {}, {}, static_cast<int32_t>(i), 0};
      one.all = overlap({0, all}, {one.segment * kSegment, kSegment});
      one.here = overlap(one.all, here);
      one.offset = piece.offset + at - here.begin;
      segments.push_back(one);
      at = one.here.end();
    }
  }
  return segments;
}

std::vector<SegmentRange> RankShares::segments_of(int32_t bucket, Sort sort, int rank) const {
  return segments_of(bucket_of(bucket, sort, rank));
}

std::vector<SegmentRange> RankShares::own_segments(int32_t bucket) const {
  return segments_of(own_bucket(bucket));
}

void RankShares::gather(int32_t bucket, std::span<float> values) const {
  if (!are_of_buckets()) return;
  std::array<std::vector<GatheredPart>, kSorts.size()> parts;
  for (const SharePart& part : parts_of(bucket)) {
    auto* const at = reinterpret_cast<std::byte*>(values.data() + part.range.begin);
    parts[static_cast<size_t>(part.sort)].push_back(
        {part.owner, at, at, part.range.count * size_of(DType::kF32)});
  }
  for (const Sort sort : kSorts) {
    const std::vector<GatheredPart>& of_sort = parts[static_cast<size_t>(sort)];
    if (!of_sort.empty()) gather(sort, of_sort);
  }
}

void RankShares::gather(Sort sort, std::span<const GatheredPart> parts) const {
  ranks_.all_gather(Channel::kControl, group(sort), parts);
}

std::vector<double> RankShares::gather_numbers(std::span<const double> own) const {
  const size_t size = own.size();
  const int ranks = ranks_.size();
  std::vector<double> all(size * static_cast<size_t>(ranks));
  std::vector<GatheredPart> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    auto* const to = reinterpret_cast<std::byte*>(all.data() + size * static_cast<size_t>(rank));
    parts.push_back({rank, reinterpret_cast<const std::byte*>(own.data()), to,
                     static_cast<int64_t>(size * sizeof(double))});
  }
  ranks_.all_gather(Channel::kControl, {ranks, 1}, parts);
  return all;
}

}  // namespace ballast
