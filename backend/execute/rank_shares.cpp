#include "backend/execute/rank_shares.h"

#include <algorithm>

namespace ballast {

ElementRange overlap(const ElementRange& one, const ElementRange& other) {
  const int64_t begin = std::max(one.begin, other.begin);
  return {begin, std::max<int64_t>(0, std::min(one.end(), other.end()) - begin)};
}

RankShares::RankShares(const Graph& graph, const Plan& plan, Communicator& ranks)
    : graph_(graph), ranks_(ranks), group_(replica_group(plan)), split_(plan.zero_stage > 0) {
  CHECK(group_.ranks == ranks.size() && group_.stride == 1);
}

ElementRange RankShares::of(int32_t bucket, int rank) const {
  const int64_t count = graph_.bucket(bucket).count;
  if (!split_) return {0, count};
  const int64_t share = share_of_bucket(graph_, bucket, count, group_.ranks);
  return overlap({0, count}, {share * rank, share});
}

Bucket RankShares::bucket_of(int32_t bucket, int rank) const {
  Bucket own = graph_.bucket(bucket);
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
  const ElementRange share = of(bucket, rank);
  std::vector<SegmentRange> segments;
  int64_t segment = 0;
  for (const Bucket::Piece& piece : graph_.bucket(bucket).pieces) {
    for (int64_t at = 0; at < piece.count; at += kSegment, ++segment) {
      const ElementRange all{piece.offset + at, std::min(kSegment, piece.count - at)};
      const ElementRange here = overlap(all, share);
      if (here.count > 0) segments.push_back({segment, all, here});
    }
  }
  return segments;
}

void RankShares::gather(int32_t bucket, int64_t begin, std::span<float> values) const {
  if (!split_) return;
  std::vector<GatheredPart> parts;
  for (int rank = 0; rank < count(); ++rank) {
    const ElementRange here = overlap(of(bucket, rank), {begin, std::ssize(values)});
    if (here.count == 0) continue;
    auto* const at = reinterpret_cast<std::byte*>(values.data() + (here.begin - begin));
    parts.push_back({rank, at, at, here.count * size_of(DType::kF32)});
  }
  ranks_.all_gather(Channel::kControl, group_, parts);
}

std::vector<double> RankShares::gather_numbers(std::span<const double> own) const {
  const size_t size = own.size();
  std::vector<double> all(size * static_cast<size_t>(count()));
  std::vector<GatheredPart> parts;
  for (int rank = 0; rank < count(); ++rank) {
    auto* const to = reinterpret_cast<std::byte*>(all.data() + size * static_cast<size_t>(rank));
    parts.push_back({rank, reinterpret_cast<const std::byte*>(own.data()), to,
                     static_cast<int64_t>(size * sizeof(double))});
  }
  ranks_.all_gather(Channel::kControl, group_, parts);
  return all;
}

}  // namespace ballast
