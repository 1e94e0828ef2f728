#include "backend/execute/rank_norms.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
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

// Of a matrix that two stages hold the copy is counted by neither.
TensorNorms::TensorNorms(const Graph& graph, const RankShares& shares, const Plan& plan,
                         const ParameterSlices& slices)
    : graph_(graph), shares_(shares), tensor_(plan.tensor) {
  units_.resize(graph.modules.size());
  kept_.resize(graph.buckets.size());
  for (const int32_t module : modules_in_order(graph)) {
    const auto index = static_cast<size_t>(module);
    for (const auto& [begin, count] : slices.alike(index)) {
      for (int64_t at = begin; at < begin + count;) {
        const ElementRange segment{at / kSegment * kSegment, kSegment};
        const ElementRange range = overlap({begin, count}, segment);
        units_[index].push_back({range, {}, 0});
        at = range.end();
      }
    }
  }
}

template <class Visit>
void TensorNorms::for_parts(int32_t bucket, int rank, const Visit& visit) {
  for (const SegmentRange& segment : shares_.segments_of(bucket, rank)) {
    for (Unit& unit : units_[static_cast<size_t>(segment.module)]) {
      const ElementRange here = overlap(unit.range, segment.here);
      if (here.count > 0) visit(unit, here);
    }
  }
}

void TensorNorms::keep(int32_t bucket, kernels::Format format,
                       const std::vector<BucketRanges::OwnSegment>& segments,
                       const kernels::Table& table) {
  std::vector<float>& kept = kept_[static_cast<size_t>(bucket)];
  kept.clear();
  for (const auto& [segment, values] : segments) {
    for (Unit& unit : units_[static_cast<size_t>(segment.module)]) {
      const ElementRange here = overlap(unit.range, segment.here);
      if (here.count == 0) continue;
      const std::byte* const at =
          values + (here.begin - segment.here.begin) * kernels::bytes_of(format);
      if (!shares_.are_split()) {
        CHECK(here.count == unit.range.count);
        unit.sum = table.sum_of_squares(at, format, here.count);
        continue;
      }
      const size_t known = kept.size();
      kept.resize(known + static_cast<size_t>(here.count));
      table.cast(at, format, kept.data() + known, kernels::Format::kF32, here.count);
    }
  }
}

// Each rank tells the values in its share, from which all find the sums that one would that has
// all.
void TensorNorms::gather_units(const kernels::Table& table) {
  const auto buckets = static_cast<int32_t>(graph_.buckets.size());
  std::vector<float> own;
  for (const std::vector<float>& kept : kept_) own.insert(own.end(), kept.begin(), kept.end());
  std::vector<int64_t> counts(static_cast<size_t>(shares_.count()), 0);
  for (int rank = 0; rank < shares_.count(); ++rank) {
    for (int32_t b = 0; b < buckets; ++b) {
      for_parts(b, rank, [&](Unit&, const ElementRange& here) {
        counts[static_cast<size_t>(rank)] += here.count;
      });
    }
  }
  std::vector<float> told(
      static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0})));
  std::vector<GatheredPart> parts;
  float* to = told.data();
  for (int rank = 0; rank < shares_.count(); ++rank) {
    const int64_t count = counts[static_cast<size_t>(rank)];
    parts.push_back({rank, reinterpret_cast<const std::byte*>(own.data()),
                     reinterpret_cast<std::byte*>(to), count * size_of(DType::kF32)});
    to += count;
  }
  shares_.gather(parts);
  const float* from = told.data();
  for (int rank = 0; rank < shares_.count(); ++rank) {
    for (int32_t b = 0; b < buckets; ++b) {
      for_parts(b, rank, [&](Unit& unit, const ElementRange& here) {
        unit.values.resize(static_cast<size_t>(unit.range.count));
        std::copy_n(from, here.count, unit.values.begin() + (here.begin - unit.range.begin));
        from += here.count;
      });
    }
  }
  for (std::vector<Unit>& units : units_) {
    for (Unit& unit : units) {
      unit.sum = table.sum_of_squares(unit.values.data(), kernels::Format::kF32, unit.range.count);
    }
  }
}

double TensorNorms::sum_of_all(double of_this, const kernels::Table& table) {
  if (shares_.are_split()) gather_units(table);
  double alike = 0;
  for (const std::vector<Unit>& units : units_) {
    for (const Unit& unit : units) alike += unit.sum;
  }
  const std::vector<double> told = shares_.gather_numbers(std::array{of_this, alike});
  double sum = told[0];
  for (int64_t rank = 1; rank < tensor_; ++rank) {
    sum += told[static_cast<size_t>(2 * rank)] - told[static_cast<size_t>(2 * rank + 1)];
  }
  return sum;
}

}  // namespace ballast
