// Chooses among the compiled units by asking the machine, once.

#include "backend/host/gemm.h"

#include <algorithm>
#include <array>
#include <vector>

#include "backend/host/compute_threads.h"
#include "backend/host/gemm/units.h"
#include "backend/host/transformer_rows.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

struct Available {
  std::array<GemmTable, 3> gemms{};
  std::array<const transformer::RowLoops<float>*, 3> rows{};
  size_t count = 0;

  void add(const GemmTable& gemm, const transformer::RowLoops<float>& row_loops) {
    gemms[count] = gemm;
    rows[count++] = &row_loops;
  }
};

Available ask_machine() {
  Available found;
  found.add(kGemmBaseline, kRowsBaseline);
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx2) found.add(kGemmAvx2, kRowsAvx2);
  if (avx512) found.add(kGemmAvx512, kRowsAvx512);
#endif
  return found;
}

// Tiles of C are products of their own. An edge is that long because each of its tiles packs its
// rows of A and columns of B anew: at 384, about a tenth of the time. The granule is the largest
// panel of registers (3 vectors of AVX-512), so that only the last tile has a ragged one.
constexpr RangeCut kEdge{384, 48};
// Multiplications below which a tile is not worth a hand-over.
constexpr double kLeastTile = 1 << 20;

template <class Arguments>
Arguments tile_of(const Arguments& whole, Range rows, Range columns) {
  Arguments tile = whole;
  tile.m = rows.size();
  tile.n = columns.size();
  tile.a += whole.transpose_a ? rows.begin : rows.begin * whole.lda;
  tile.b += whole.transpose_b ? columns.begin * whole.ldb : columns.begin;
  tile.c += rows.begin * whole.ldc + columns.begin;
  return tile;
}

template <class Arguments>
void in_tiles(const Arguments& g, void (*product)(const Arguments&)) {
  const int64_t down = parts_of(g.m, kEdge);
  const int64_t across = parts_of(g.n, kEdge);
  const int64_t tiles = down * across;
  const double each = static_cast<double>(g.m) * static_cast<double>(g.n) *
                      static_cast<double>(g.k) / static_cast<double>(tiles);
  if (tiles == 1 || each < kLeastTile) return product(g);
  for_parts(tiles, [&](int64_t tile) {
    product(tile_of(g, range_of(g.m, kEdge.granule, down, tile / across),
                    range_of(g.n, kEdge.granule, across, tile % across)));
  });
}

const Available& available() {
  static const Available found = ask_machine();
  return found;
}

}  // namespace

std::span<const GemmTable> gemm_tables() {
  return std::span(available().gemms).first(available().count);
}

#if defined(__x86_64__)
namespace {

void bf16_tile(const Bf16Product& tile) {
  thread_local std::vector<uint16_t> workspace(kBf16Workspace);
  kGemmAvx512Bf16(tile, workspace.data());
}

}  // namespace

bool multiplies_bf16() {
  static const bool found =
      gemm_tables().back().name == kGemmAvx512.name && __builtin_cpu_supports("avx512bf16");
  return found;
}
void gemm(const Bf16Product& arguments) {
  CHECK(multiplies_bf16());
  in_tiles(arguments, bf16_tile);
}
#else
bool multiplies_bf16() { return false; }
void gemm(const Bf16Product&) { CHECK(false && "no instruction for products of bf16"); }
#endif

void gemm(const GemmArguments<float>& arguments) { in_tiles(arguments, gemm_tables().back().gemm); }
void gemm(const GemmArguments<double>& arguments) { in_tiles(arguments, gemm_double); }

namespace transformer {

std::span<const RowLoops<float>* const> row_loop_tables() {
  return std::span(available().rows).first(available().count);
}

template <>
const RowLoops<float>& row_loops<float>() {
  return *row_loop_tables().back();
}

template <>
const RowLoops<double>& row_loops<double>() {
  return kRowsDouble;
}

}  // namespace transformer
}  // namespace ballast
