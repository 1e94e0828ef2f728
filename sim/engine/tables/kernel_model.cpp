#include "sim/engine/tables/kernel_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/base/error.h"
#include "sim/engine/tables/tile.h"

namespace ballast {
namespace {

// The tiles of CUTLASS and cuBLAS for 16-bit operands.
constexpr std::array<Tile, 10> kTableTiles = {{{128, 256},
                                               {256, 128},
                                               {128, 192},
                                               {192, 128},
                                               {128, 128},
                                               {64, 256},
                                               {256, 64},
                                               {64, 128},
                                               {128, 64},
                                               {64, 64}}};

// Octaves and kinds that count as one unit of distance: neighbours on the grids of the sources
// (factors of two) are half a unit apart. Parts of a generation go through the same shapes alike,
// so another part is a tenth of a unit away: its points count for nearly as much as the part's own.
constexpr double kOctaves = 2;
constexpr double kOfPart = 10;
// Of attention: length by octaves; another head size, mask, direction or part counts like more
// octaves of length, so that each length learns first from its own kind.
constexpr double kOfHead = 2;
constexpr double kOfMask = 0.7;
constexpr double kOfDirection = 0.35;
// Attention with wider heads gains nothing (scripts/make_kernel_tables.py, WIDE_HEAD, says why).
constexpr int64_t kWideHead = 128;

double octaves(double value) { return std::log2(value); }

// The other version of the same library, if there is one.
std::optional<AttentionKernel> other_version(AttentionKernel kernel) {
  if (kernel == AttentionKernel::kCudnn) return AttentionKernel::kCudnn9_13;
  if (kernel == AttentionKernel::kCudnn9_13) return AttentionKernel::kCudnn;
  return std::nullopt;
}

}  // namespace

KernelModel::KernelModel(KernelTables tables) : tables_(std::move(tables)) {
  for (const GemmTable& table : tables_.gemm) {
    std::vector<Correction::Point> points;
    for (const GemmSeries& series : table.series) {
      const KernelPart* kernel = part(series.part);
      CHECK(kernel != nullptr);
      for (const GemmPoint& point : series.points) {
        const GemmQuery query{table.format, point.batch, point.m, point.n, point.k};
        const Duration model = modelled(table, query, *kernel,
                                        {series.part, 1, kernel->memory, kernel->multiprocessors});
        points.push_back({place_of(query, series.part), point.time.seconds() / model.seconds()});
      }
    }
    gemm_.push_back(
        {&table, Correction(std::move(points), {kOctaves, kOctaves, kOctaves, 0, kOfPart})});
  }
  for (const AttentionTable& table : tables_.attention) {
    attention_.push_back({&table, levels_of(table), Correction()});
    Attention& own = attention_.back();
    std::vector<Correction::Point> points;
    for (const AttentionSeries& series : table.series) {
      for (const AttentionPoint& point : series.points) {
        const AttentionQuery query{table.kernel, point.head_size, point.length, point.backward,
                                   point.causal};
        const double model = attention_rate(query, series.part)->flops_per_s;
        points.push_back({place_of(query, series.part), point.rate.flops_per_s / model});
      }
    }
    own.correction =
        Correction(std::move(points), {kOctaves, kOfHead, kOfMask, kOfDirection, kOfPart});
  }
}

const KernelPart* KernelModel::part(const std::string& name) const {
  for (const KernelPart& part : tables_.parts) {
    if (part.name == name) return &part;
  }
  return nullptr;
}

const GemmTable* KernelModel::gemm_table(ProductFormat format) const {
  for (const GemmTable& table : tables_.gemm) {
    if (table.format == format) return &table;
  }
  return nullptr;
}

bool KernelModel::timed_as_16_bit(ProductFormat format) const {
  const GemmTable* half = gemm_table(ProductFormat::kAsStored);
  const GemmTable* own = gemm_table(format);
  return half && own && own->under_load == half->under_load;
}

double KernelModel::part_axis(const std::string& name) const {
  return static_cast<double>(part(name) - tables_.parts.data());
}

double KernelModel::rate_of(const KernelPart& part, ProductFormat format) const {
  const DType dtype = format == ProductFormat::kFp8 ? DType::kE4m3 : DType::kBf16;
  const auto own = part.matmul.find(dtype);
  const auto first = tables_.parts.front().matmul.find(dtype);
  if (own == part.matmul.end() || first == tables_.parts.front().matmul.end()) return 1;
  return own->second.flops_per_s / first->second.flops_per_s;
}

// A batch fills the device as more rows and columns do.
TablePlace KernelModel::place_of(const GemmQuery& query, const std::string& part) const {
  const double batch = octaves(static_cast<double>(query.batch)) / 2;
  return {octaves(static_cast<double>(query.m)) + batch,
          octaves(static_cast<double>(query.n)) + batch, octaves(static_cast<double>(query.k)), 0,
          part_axis(part)};
}

TablePlace KernelModel::place_of(const AttentionQuery& query, const std::string& part) const {
  return {octaves(static_cast<double>(query.length)), octaves(static_cast<double>(query.head_size)),
          query.causal ? 1.0 : 0.0, query.backward ? 1.0 : 0.0, part_axis(part)};
}

Duration KernelModel::modelled(const GemmTable& table, const GemmQuery& query,
                               const KernelPart& part, const KernelUse& use) const {
  const GemmConstants& constants = table.constants;
  const auto multiprocessors = static_cast<double>(use.multiprocessors);
  const double rate =
      constants.rate.flops_per_s * use.rate * rate_of(part, table.format) / multiprocessors;
  const double memory = use.memory.bytes_per_s;
  const double factor_bytes = table.format == ProductFormat::kFp8 ? 1 : 2;
  const auto batch = static_cast<double>(query.batch);
  const auto m = static_cast<double>(query.m), n = static_cast<double>(query.n);
  const auto k = static_cast<double>(query.k);
  const double read = batch * factor_bytes * (m * k + k * n) / memory;
  const double written = batch * 2 * m * n / memory;
  const auto with = [&](const Tile& tile, int64_t parts) {
    const int64_t tiles = query.batch * div_ceil(query.m, tile.m) * div_ceil(query.n, tile.n);
    const auto waves = static_cast<double>(div_ceil(tiles * parts, use.multiprocessors));
    const double depth = static_cast<double>(div_ceil(query.k, parts)) + constants.start_k;
    const double share = tile.share_of(kTableTiles.front(), constants.load);
    const double flops = 2 * waves * static_cast<double>(tile.m * tile.n) * depth;
    double seconds = std::max(flops / (rate * share), read) + written;
    if (parts > 1) {
      seconds +=
          constants.split.seconds() + 8 * static_cast<double>(parts) * batch * m * n / memory;
    }
    return seconds;
  };
  double best = with(kTableTiles.front(), 1);
  for (const Tile& tile : kTableTiles) {
    for (int64_t parts = 1; parts == 1 || (parts <= kMostParts && query.k >= parts * kLeastSplit);
         parts *= 2) {
      best = std::min(best, with(tile, parts));
    }
  }
  return constants.start + Duration::from_seconds(best);
}

std::optional<Duration> KernelModel::gemm_time(const GemmQuery& query, const KernelUse& use) const {
  const KernelPart* kernel = part(use.part);
  if (kernel == nullptr) return std::nullopt;
  for (const Gemm& gemm : gemm_) {
    if (gemm.table->format != query.format) continue;
    const double ratio = gemm.correction.ratio_at(place_of(query, use.part));
    return modelled(*gemm.table, query, *kernel, use) * ratio;
  }
  return std::nullopt;
}

FlopRate KernelModel::modelled(const AttentionTable& table, const AttentionQuery& query,
                               const KernelPart& part) const {
  const AttentionConstants& constants = table.constants;
  const auto length = static_cast<double>(query.length);
  double rate = query.backward
                    ? constants.backward.flops_per_s / (1 + constants.half_backward / length)
                    : constants.forward.flops_per_s / (1 + constants.half_forward / length);
  rate /= 1 + constants.half_head / static_cast<double>(std::min(query.head_size, kWideHead));
  if (query.causal) rate /= 1 + constants.diagonal / length;
  return FlopRate{rate * rate_of(part, ProductFormat::kAsStored)};
}

std::map<size_t, KernelModel::Mean> KernelModel::misses_of(const AttentionTable& table,
                                                           bool backward) const {
  std::map<size_t, Mean> misses;
  for (const AttentionSeries& series : table.series) {
    const auto index = static_cast<size_t>(part_axis(series.part));
    for (const AttentionPoint& point : series.points) {
      if (point.backward != backward) continue;
      const AttentionQuery query{table.kernel, point.head_size, point.length, point.backward,
                                 point.causal};
      const FlopRate model = modelled(table, query, tables_.parts[index]);
      misses[index].add(std::log(point.rate.flops_per_s / model.flops_per_s));
    }
  }
  return misses;
}

// B200, GB200 and GB300 are listed with the same products, but their attention differs by more than
// a quarter, as their power lets it. A part that was not timed with this version has the level of
// the other version there, times the mean ratio of both versions on the parts that were timed with
// both; failing that, the level of the nearest timed part of the file.
std::vector<std::array<double, 2>> KernelModel::levels_of(const AttentionTable& table) const {
  std::vector<std::array<double, 2>> levels(tables_.parts.size(), {1, 1});
  const std::optional<AttentionKernel> version = other_version(table.kernel);
  const auto other = std::find_if(tables_.attention.begin(), tables_.attention.end(),
                                  [&](const AttentionTable& one) { return one.kernel == version; });
  for (const bool backward : {false, true}) {
    std::map<size_t, Mean> known = misses_of(table, backward);
    if (known.empty()) continue;
    const std::map<size_t, Mean> of_other =
        other != tables_.attention.end() ? misses_of(*other, backward) : std::map<size_t, Mean>();
    Mean versions;
    for (const auto& [index, miss] : known) {
      const auto found = of_other.find(index);
      if (found != of_other.end()) versions.add(miss.mean() - found->second.mean());
    }
    for (size_t i = 0; i < levels.size(); ++i) {
      const auto distance = [i](const auto& one) {
        return one.first < i ? i - one.first : one.first - i;
      };
      const auto nearest =
          std::min_element(known.begin(), known.end(),
                           [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
      const auto found = of_other.find(i);
      const bool by_version = !known.contains(i) && found != of_other.end() && versions.count > 0;
      const double level =
          by_version ? found->second.mean() + versions.mean() : nearest->second.mean();
      levels[i][backward ? 1 : 0] = std::exp(level);
    }
  }
  return levels;
}

std::optional<FlopRate> KernelModel::attention_rate(const AttentionQuery& query,
                                                    const std::string& part) const {
  for (const Attention& attention : attention_) {
    if (attention.table->kernel != query.kernel) continue;
    const double rate = modelled(*attention.table, query, *this->part(part)).flops_per_s;
    const std::array<double, 2>& level = attention.levels[static_cast<size_t>(part_axis(part))];
    return FlopRate{rate * level[query.backward ? 1 : 0] *
                    attention.correction.ratio_at(place_of(query, part))};
  }
  if (query.kernel == AttentionKernel::kFlash2) return std::nullopt;
  AttentionQuery other = query;
  other.kernel = query.kernel == AttentionKernel::kCudnn9_13 ? AttentionKernel::kCudnn
                                                             : AttentionKernel::kFlash2;
  return attention_rate(other, part);
}

}  // namespace ballast
