#include "backend/execute/rank_shares.h"

#include <algorithm>

#include "backend/execute/rank_place.h"

namespace ballast {

ElementRange overlap(const ElementRange& one, const ElementRange& other) {
  const int64_t begin = std::max(one.begin, other.begin);
  return {begin, std::max<int64_t>(0, std::min(one.end(), other.end()) - begin)};
}

RankShares::RankShares(const Graph& graph, const Plan& plan, Communicator& ranks)
    : graph_(graph),
      ranks_(ranks),
      group_(replica_group(plan)),
      of_(plan.zero_stage == 0 || group_.ranks == 1 ? Of::kNothing
          : plan.zero_stage == 3                    ? Of::kModules
                                                    : Of::kBuckets) {
  CHECK(rank_count(plan) == ranks.size() && group_.ranks == plan.replicas());
}

ElementRange RankShares::of(int32_t bucket, int rank) const {
  const int64_t count = graph_.bucket(bucket).count;
  if (!are_of_buckets()) return {0, count};
  const int64_t share = share_of_bucket(graph_, bucket, count, group_.ranks);
  return overlap({0, count}, {share * rank, share});
}

ElementRange RankShares::of_module(int32_t module, int rank) const {
  const ElementRange all{0, whole_count(graph_.module(module))};
  if (!are_of_modules()) return all;
  const int64_t share = graph_.module(module).count;
  return overlap(all, {share * rank, share});
}

Bucket RankShares::bucket_of(int32_t bucket, int rank) const {
  Bucket own = graph_.bucket(bucket);
  if (are_of_modules()) {
    for (Bucket::Piece& piece : own.pieces) {
      const ElementRange share = of_module(piece.module, rank);
      piece.begin += graph_.module(piece.module).count * rank;
      piece.count = overlap(share, {piece.begin, piece.count}).count;
    }
    return own;
  }
  const ElementRange share = of(bucket, rank);
  for (Bucket::Piece& piece : own.pieces) {
    const ElementRange here = overlap(share, {piece.offset, piece.count});
    piece.begin += std::max<int64_t>(0, here.begin - piece.offset);
    piece.offset = std::max<int64_t>(0, here.begin - share.begin);
    piece.count = here.count;
  }
  own.begin += share.begin;
  own.count = share.count;
  return own;
}

std::vector<SegmentRange> RankShares::segments_of(int32_t bucket, int rank) const {
  std::vector<SegmentRange> segments;
  const Bucket share = bucket_of(bucket, rank);
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

void RankShares::gather(int32_t bucket, int64_t begin, std::span<float> values) const {
  if (!are_of_buckets()) return;
  std::vector<GatheredPart> parts;
  for (int rank = 0; rank < count(); ++rank) {
    const ElementRange here = overlap(of(bucket, rank), {begin, std::ssize(values)});
    if (here.count == 0) continue;
    auto* const at = reinterpret_cast<std::byte*>(values.data() + (here.begin - begin));
    parts.push_back({rank, at, at, here.count * size_of(DType::kF32)});
  }
  gather(parts);
}

void RankShares::gather(std::span<const GatheredPart> parts) const {
  ranks_.all_gather(Channel::kControl, group_, parts);
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
