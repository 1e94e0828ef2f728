#include <algorithm>
#include <array>

#include "sim/engine/cost.h"
#include "sim/engine/tables/tile.h"

namespace ballast {
namespace {

// The tiles of CUTLASS and cuBLAS for 16-bit operands.
constexpr std::array<Tile, 8> kTiles = {
    {{128, 256}, {256, 128}, {128, 192}, {192, 128}, {128, 128}, {64, 128}, {128, 64}, {64, 64}}};
// Multiply-adds of one operand element that take as long as loading it. Assumed: with it a tile of
// 128 x 128 runs at 93 % of the largest and one of 64 x 64 at 73 %.
constexpr double kLoad = 19.2;
// k that one stage of the copy pipeline brings in (128 bytes of 16-bit or 8-bit factors). One such
// stage is the latency before the first and after the last.
constexpr int64_t kStepOfK = 64;
constexpr int64_t kStepOfK8Bit = 128;

}  // namespace

Duration gemm_time(const GemmWork& work, const MatrixUnit& unit) {
  return batched_gemm_time(work, 1, unit);
}

Duration batched_gemm_time(const GemmWork& work, int64_t batch, const MatrixUnit& unit) {
  const double multiprocessor = unit.best.flops_per_s / static_cast<double>(unit.multiprocessors);
  const Duration traffic = product_bytes(work) * batch / unit.memory;
  const int64_t step = work.format == ProductFormat::kFp8 ? kStepOfK8Bit : kStepOfK;
  const auto with = [&](const Tile& tile, int64_t parts) {
    const int64_t tiles = batch * div_ceil(work.m, tile.m) * div_ceil(work.n, tile.n);
    const int64_t waves = div_ceil(tiles * parts, unit.multiprocessors);
    const int64_t k = round_up(div_ceil(work.k, parts), step) + step;
    const double flops = 2.0 * static_cast<double>(waves * tile.m * tile.n * k);
    const Duration compute =
        Flops{flops} / FlopRate{multiprocessor * tile.share_of(kTiles.front(), kLoad)};
    const Bytes partial{parts > 1 ? 2 * parts * batch * work.m * work.n * size_of(DType::kF32) : 0};
    return std::max(compute, traffic) + partial / unit.memory;
  };
  Duration best = with(kTiles.front(), 1);
  for (const Tile& tile : kTiles) {
    best = std::min(best, with(tile, 1));
    for (int64_t parts = 2; parts <= kMostParts && work.k >= parts * kLeastSplit; parts *= 2) {
      best = std::min(best, with(tile, parts));
    }
  }
  return best;
}

}  // namespace ballast
