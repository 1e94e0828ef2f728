#include "backend/execute/rank_norms.h"

#include <cstring>
#include <utility>

#include "sim/graph/core/stages.h"

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
  for (const Module& module : graph.modules) {
    sums_.emplace_back(static_cast<size_t>(div_ceil(whole_count(module), kSegment)));
  }
}

const double* RankNorms::partials_of(int32_t bucket) const {
  const TensorId tensor = partials_[static_cast<size_t>(bucket)];
  return reinterpret_cast<const double*>(arguments_.bytes(tensor).data());
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
  std::vector<int64_t> summed(graph_.buckets.size(), 0);
  const auto tell = [&](const std::byte* from, int64_t bytes) {
    told.insert(told.end(), from, from + bytes);
  };
  for_segments(shares_.rank(), [&](int32_t b, const SegmentRange& segment, int64_t bytes) {
    if (segment.whole()) {
      const double* const sum = partials_of(b) + summed[static_cast<size_t>(b)]++;
      return tell(reinterpret_cast<const std::byte*>(sum), bytes);
    }
    size_t& begin = taken[static_cast<size_t>(b)];
    const std::vector<std::byte>& values = kept_[static_cast<size_t>(b)].values;
    CHECK(begin + static_cast<size_t>(bytes) <= values.size());
    tell(values.data() + begin, bytes);
    begin += static_cast<size_t>(bytes);
  });
  return told;
}

void RankNorms::take(const std::vector<std::byte>& told, const kernels::Table& table) {
  const std::byte* at = told.data();
  OpenSegments open;
  for (int rank = 0; rank < shares_.count(); ++rank) {
    for_segments(rank, [&](int32_t b, const SegmentRange& segment, int64_t bytes) {
      const std::byte* const values = std::exchange(at, at + bytes);
      if (!segment.whole()) return take_cut(b, segment, values, open, table);
      std::memcpy(&sum_of(segment), values, sizeof(double));
    });
  }
  CHECK(open.empty());
}

// Buckets hold gradients in different formats, whose values are all those of fp32.
void RankNorms::take_cut(int32_t bucket, const SegmentRange& segment, const std::byte* values,
                         OpenSegments& open, const kernels::Table& table) {
  const auto key = std::pair(segment.module, segment.segment);
  Open& of = open[key];
  of.values.resize(static_cast<size_t>(segment.all.count));
  table.cast(values, kept_[static_cast<size_t>(bucket)].format,
             of.values.data() + (segment.here.begin - segment.all.begin), kernels::Format::kF32,
             segment.here.count);
  of.known += segment.here.count;
  if (of.known < segment.all.count) return;
  sum_of(segment) =
      table.sum_of_squares(of.values.data(), kernels::Format::kF32, segment.all.count);
  open.erase(key);
}

double RankNorms::sum_of_all(const kernels::Table& table) {
  CHECK(shares_.are_split());
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
  shares_.gather(parts);
  take(told, table);
  double sum = 0;
  for (const int32_t module : modules_in_order(graph_)) {
    for (const double partial : sums_[static_cast<size_t>(module)]) sum += partial;
  }
  return sum;
}

}  // namespace ballast
