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

void RankNorms::for_segments(Sort sort, int rank,
                             const std::function<void(int32_t bucket, const SegmentRange& segment,
                                                      int64_t bytes)>& visit) const {
  for (size_t b = 0; b < graph_.buckets.size(); ++b) {
    const auto bucket = static_cast<int32_t>(b);
    const int64_t width = kernels::bytes_of(kept_[b].format);
    for (const SegmentRange& segment : shares_.segments_of(bucket, sort, rank)) {
      const auto sum = static_cast<int64_t>(sizeof(double));
      visit(bucket, segment, segment.whole() ? sum : segment.here.count * width);
    }
  }
}

int64_t RankNorms::told_by(Sort sort, int rank) const {
  int64_t all = 0;
  for_segments(sort, rank, [&](int32_t, const SegmentRange&, int64_t bytes) { all += bytes; });
  return all;
}

// What a bucket's tensors hold of segments is of both sorts, in the order of its pieces.
std::vector<std::byte> RankNorms::told_by_this(Sort sort) const {
  std::vector<std::byte> told;
  for (size_t b = 0; b < graph_.buckets.size(); ++b) {
    const auto bucket = static_cast<int32_t>(b);
    const Kept& kept = kept_[b];
    const std::byte* values = kept.values.data();
    const double* sum = partials_of(bucket);
    for (const SegmentRange& segment : shares_.own_segments(bucket)) {
      const bool whole = segment.whole();
      const auto bytes = whole ? static_cast<int64_t>(sizeof(double))
                               : segment.here.count * kernels::bytes_of(kept.format);
      const std::byte* const from = whole ? reinterpret_cast<const std::byte*>(sum++) : values;
      if (!whole) values += bytes;
      CHECK(values - kept.values.data() <= std::ssize(kept.values));
      if (shares_.sort(segment.module) == sort) told.insert(told.end(), from, from + bytes);
    }
  }
  return told;
}

void RankNorms::take(Sort sort, const std::vector<std::byte>& told, const kernels::Table& table) {
  const std::byte* at = told.data();
  OpenSegments open;
  for (int rank = 0; rank < shares_.count(sort); ++rank) {
    for_segments(sort, rank, [&](int32_t b, const SegmentRange& segment, int64_t bytes) {
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
  Open& opened = open[key];
  opened.values.resize(static_cast<size_t>(segment.all.count));
  table.cast(values, kept_[static_cast<size_t>(bucket)].format,
             opened.values.data() + (segment.here.begin - segment.all.begin), kernels::Format::kF32,
             segment.here.count);
  opened.known += segment.here.count;
  if (opened.known < segment.all.count) return;
  sum_of(segment) =
      table.sum_of_squares(opened.values.data(), kernels::Format::kF32, segment.all.count);
  open.erase(key);
}

void RankNorms::exchange(Sort sort, const kernels::Table& table) {
  const std::vector<std::byte> own = told_by_this(sort);
  std::vector<int64_t> sizes;
  int64_t size = 0;
  for (int rank = 0; rank < shares_.count(sort); ++rank) {
    sizes.push_back(told_by(sort, rank));
    size += sizes.back();
  }
  if (size == 0) return;
  std::vector<std::byte> told(static_cast<size_t>(size));
  std::vector<GatheredPart> parts;
  std::byte* to = told.data();
  for (int rank = 0; rank < shares_.count(sort); ++rank) {
    const int64_t bytes = sizes[static_cast<size_t>(rank)];
    if (bytes > 0) parts.push_back({rank, own.data(), to, bytes});
    to += bytes;
  }
  shares_.gather(sort, parts);
  take(sort, told, table);
}

NormSums RankNorms::sum_of_all(const kernels::Table& table) {
  CHECK(shares_.are_split());
  for (const Sort sort : kSorts) exchange(sort, table);
  NormSums sums;
  for (const int32_t module : modules_in_order(graph_)) {
    double of_module = 0;
    for (const double partial : sums_[static_cast<size_t>(module)]) {
      sums.all += partial;
      of_module += partial;
    }
    if (shares_.sort(module) == Sort::kExperts) sums.of_experts += of_module;
  }
  return sums;
}

// Of a matrix that two stages hold the copy is counted by neither.
SplitNorms::SplitNorms(const Graph& graph, const RankShares& shares, const Plan& plan,
                       const ParameterSlices& slices)
    : graph_(graph),
      shares_(shares),
      ranks_(plan.tensor * plan.expert),
      sort_(plan.expert > 1 ? Sort::kExperts : Sort::kDense) {
  CHECK(plan.tensor == 1 || plan.expert == 1);
  units_.resize(graph.modules.size());
  kept_.resize(graph.buckets.size());
  for (const int32_t module : modules_in_order(graph)) {
    const auto index = static_cast<size_t>(module);
    if (shares.sort(module) != sort_) continue;
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
void SplitNorms::for_parts(int32_t bucket, int rank, const Visit& visit) {
  for (const SegmentRange& segment : shares_.segments_of(bucket, sort_, rank)) {
    for (Unit& unit : units_[static_cast<size_t>(segment.module)]) {
      const ElementRange here = overlap(unit.range, segment.here);
      if (here.count > 0) visit(unit, here);
    }
  }
}

std::vector<SplitNorms::Alike> SplitNorms::alike(
    const std::vector<BucketRanges::OwnSegment>& segments, kernels::Format format) const {
  std::vector<Alike> all;
  for (const auto& [segment, values] : segments) {
    const std::vector<Unit>& units = units_[static_cast<size_t>(segment.module)];
    for (size_t unit = 0; unit < units.size(); ++unit) {
      const ElementRange here = overlap(units[unit].range, segment.here);
      if (here.count == 0) continue;
      const int64_t before = here.begin - segment.here.begin;
      all.push_back(
          {segment.module, unit, {values + before * kernels::bytes_of(format), here.count}});
    }
  }
  return all;
}

void SplitNorms::keep(int32_t bucket, kernels::Format format, const std::vector<Alike>& alike,
                      const kernels::Table& table) {
  std::vector<float>& kept = kept_[static_cast<size_t>(bucket)];
  kept.clear();
  for (const Alike& part : alike) {
    const auto& [at, count] = part.values;
    if (!shares_.are_split()) {
      Unit& unit = units_[static_cast<size_t>(part.module)][part.unit];
      CHECK(count == unit.range.count);
      unit.sum = table.sum_of_squares(at, format, count);
      continue;
    }
    const size_t known = kept.size();
    kept.resize(known + static_cast<size_t>(count));
    table.cast(at, format, kept.data() + known, kernels::Format::kF32, count);
  }
}

// Each rank tells the values in its share, from which all find the sums that one would that has
// all.
void SplitNorms::gather_units(const kernels::Table& table) {
  const auto buckets = static_cast<int32_t>(graph_.buckets.size());
  std::vector<float> own;
  for (const std::vector<float>& kept : kept_) own.insert(own.end(), kept.begin(), kept.end());
  std::vector<int64_t> counts(static_cast<size_t>(shares_.count(sort_)), 0);
  for (int rank = 0; rank < shares_.count(sort_); ++rank) {
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
  for (int rank = 0; rank < shares_.count(sort_); ++rank) {
    const int64_t count = counts[static_cast<size_t>(rank)];
    parts.push_back({rank, reinterpret_cast<const std::byte*>(own.data()),
                     reinterpret_cast<std::byte*>(to), count * size_of(DType::kF32)});
    to += count;
  }
  shares_.gather(sort_, parts);
  const float* from = told.data();
  for (int rank = 0; rank < shares_.count(sort_); ++rank) {
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

// Of modules with experts the rest, which all ranks have, is of the first rank's sum.
double SplitNorms::sum_of_all(const NormSums& of_this, const kernels::Table& table) {
  if (shares_.are_split()) gather_units(table);
  double alike = 0;
  for (const std::vector<Unit>& units : units_) {
    for (const Unit& unit : units) alike += unit.sum;
  }
  const double split = sort_ == Sort::kExperts ? of_this.of_experts : of_this.all;
  const std::array own = {of_this.all, split, alike};
  const std::vector<double> told = shares_.gather_numbers(own);
  double sum = told[0];
  for (int64_t rank = 1; rank < ranks_; ++rank) {
    const double* const of_rank = told.data() + rank * std::ssize(own);
    sum += of_rank[1] - of_rank[2];
  }
  return sum;
}

}  // namespace ballast
