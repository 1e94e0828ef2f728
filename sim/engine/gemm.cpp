#include <algorithm>

#include "sim/engine/cost.h"

namespace ballast {
namespace {

constexpr int64_t kTileShort = 128;
constexpr int64_t kTileLong = 256;
constexpr int64_t kStepOfK = 64;      // k that one stage of the copy pipeline brings in (128 bytes)
constexpr int64_t kTileFill = 64;     // one stage of latency before the first and after the last
constexpr int64_t kLeastSplit = 512;  // k below which a part does not repay starting its tile
constexpr int64_t kMostParts = 64;

// Output tiles, laid whichever way needs fewer.
int64_t tiles_of(const GemmWork& work) {
  const int64_t flat = div_ceil(work.m, kTileShort) * div_ceil(work.n, kTileLong);
  const int64_t upright = div_ceil(work.m, kTileLong) * div_ceil(work.n, kTileShort);
  return std::min(flat, upright);
}

}  // namespace

Duration gemm_time(const GemmWork& work, const MatrixUnit& unit) {
  const int64_t tiles = tiles_of(work);
  const double tile_rate = unit.best.flops_per_s / static_cast<double>(unit.multiprocessors);
  const Duration traffic = bytes_of(Work{work}) / unit.memory;
  const auto with_parts = [&](int64_t parts) {
    const int64_t waves = div_ceil(tiles * parts, unit.multiprocessors);
    const int64_t k = round_up(div_ceil(work.k, parts), kStepOfK) + kTileFill;
    const double tile_flops = 2.0 * static_cast<double>(kTileShort * kTileLong * k);
    const Duration compute = Flops{static_cast<double>(waves) * tile_flops} / FlopRate{tile_rate};
    const Bytes partial{parts > 1 ? 2 * parts * work.m * work.n * size_of(DType::kF32) : 0};
    return std::max(compute, traffic) + partial / unit.memory;
  };
  Duration best = with_parts(1);
  for (int64_t parts = 2; parts <= kMostParts && work.k >= parts * kLeastSplit; parts *= 2) {
    best = std::min(best, with_parts(parts));
  }
  return best;
}

}  // namespace ballast
