#include "backend/execute/rank_norms.h"

#include <cstring>
#include <utility>

namespace ballast {

RankNorms::RankNorms(const Graph& graph, const OperationArguments& arguments,
                     const RankShares& shares)
    : graph_(graph), arguments_(arguments), shares_(shares) {
  partials_.assign(graph.buckets.size(), -1);
  kept_.resize(graph.buckets.size());
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const auto id = static_cast<TensorId>(t);
    if (tensor.label.bucket < 0) continue;
    const auto bucket = static_cast<size_t>(tensor.label.bucket);
    if (tensor.kind == TensorKind::kNormPartials && tensor.place == Place::kDram) {
      partials_[bucket] = id;
    }
  }
}

double* RankNorms::partials_of(int32_t bucket) const {
  const TensorId tensor = partials_[static_cast<size_t>(bucket)];
  return reinterpret_cast<double*>(arguments_.bytes(tensor).data());
}

void RankNorms::keep(int32_t bucket, kernels::Format format, const std::vector<CutRange>& cuts) {
  Kept& kept = kept_[static_cast<size_t>(bucket)];
  kept.format = format;
  kept.values.clear();
  for (const CutRange& cut : cuts) {
    const int64_t bytes = cut.count * kernels::bytes_of(format);
    kept.values.insert(kept.values.end(), cut.values, cut.values + bytes);
  }
}

void RankNorms::for_segments(int rank,
                             const std::function<void(int32_t bucket, const SegmentRange& segment,
                                                      int64_t bytes)>& visit) const {
  for (size_t b = 0; b < graph_.buckets.size(); ++b) {
    const auto bucket = static_cast<int32_t>(b);
    const int64_t width = kernels::bytes_of(kept_[b].format);
    for (const SegmentRange& segment : shares_.segments_of(bucket, rank)) {
      const auto sum = static_cast<int64_t>(sizeof(double));
      visit(bucket, segment, segment.whole() ? sum : segment.here.count * width);
    }
  }
}

int64_t RankNorms::told_by(int rank) const {
  int64_t all = 0;
  for_segments(rank, [&](int32_t, const SegmentRange&, int64_t bytes) { all += bytes; });
  return all;
}

std::vector<std::byte> RankNorms::told_by_this() const {
  std::vector<std::byte> told;
  std::vector<size_t> taken(graph_.buckets.size(), 0);
  const auto tell = [&](const std::byte* from, int64_t bytes) {
    told.insert(told.end(), from, from + bytes);
  };
  for_segments(shares_.rank(), [&](int32_t b, const SegmentRange& segment, int64_t bytes) {
    if (segment.whole()) {
      return tell(reinterpret_cast<const std::byte*>(partials_of(b) + segment.segment), bytes);
    }
    size_t& begin = taken[static_cast<size_t>(b)];
    const std::vector<std::byte>& values = kept_[static_cast<size_t>(b)].values;
    CHECK(begin + static_cast<size_t>(bytes) <= values.size());
    tell(values.data() + begin, bytes);
    begin += static_cast<size_t>(bytes);
  });
  return told;
}

// The ranks have consecutive parts of a segment that is cut.
void RankNorms::take(const std::vector<std::byte>& told, const kernels::Table& table) {
  const std::byte* at = told.data();
  std::vector<std::vector<std::byte>> open(graph_.buckets.size());  // values of it so far
  for (int rank = 0; rank < shares_.count(); ++rank) {
    for_segments(rank, [&](int32_t b, const SegmentRange& segment, int64_t bytes) {
      double& sum = partials_of(b)[segment.segment];
      const std::byte* const values = std::exchange(at, at + bytes);
      if (segment.whole()) {
        std::memcpy(&sum, values, sizeof(double));
        return;
      }
      std::vector<std::byte>& so_far = open[static_cast<size_t>(b)];
      so_far.insert(so_far.end(), values, values + bytes);
      if (segment.here.end() < segment.all.end()) return;
      const kernels::Format format = kept_[static_cast<size_t>(b)].format;
      sum = table.sum_of_squares(so_far.data(), format, segment.all.count);
      so_far.clear();
    });
  }
}

void RankNorms::complete(const kernels::Table& table) {
  if (!shares_.are_split()) return;
  const std::vector<std::byte> own = told_by_this();
  std::vector<int64_t> sizes;
  int64_t size = 0;
  for (int rank = 0; rank < shares_.count(); ++rank) {
    sizes.push_back(told_by(rank));
    size += sizes.back();
  }
  std::vector<std::byte> told(static_cast<size_t>(size));
  std::vector<GatheredPart> parts;
  std::byte* to = told.data();
  for (int rank = 0; rank < shares_.count(); ++rank) {
    const int64_t bytes = sizes[static_cast<size_t>(rank)];
    if (bytes > 0) parts.push_back({rank, own.data(), to, bytes});
    to += bytes;
  }
  shares_.ranks().all_gather(Channel::kControl, shares_.group(), parts);
  take(told, table);
}

}  // namespace ballast
