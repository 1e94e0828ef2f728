// How the kernels cut their work: arithmetic on sizes that needs no GPU, and is tested without one.
//
// Cuts depend on shapes only, never on the device, so that results do not either.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"

namespace ballast::kernels::cuda {

constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Values that one thread takes at a time where addresses and lengths allow 16-byte accesses.
inline constexpr int64_t kWide = 8;

// Whether kWide values of an array can be read at multiples of kWide from its start.
inline bool is_wide(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Rows that are cut into at most `parts` runs, each summed by one block.
struct RowRuns {
  int64_t rows_per_run = 1;
  int64_t runs = 0;
};

// Four blocks of 256 threads on each of the 132 multiprocessors of an H100, H200 or GH200, as many
// as there are registers for. Runs of 8 rows write and read 1 byte of partial sums a value beside 8
// to 10 of the rows themselves, and shorter ones more; runs of 16 would keep 128 blocks busy with
// 2,048 rows, one or none a multiprocessor.
inline constexpr int64_t kNormRuns = 4 * 132;
inline constexpr int64_t kNormRowsLeast = 8;
constexpr RowRuns norm_runs(int64_t rows) {
  if (rows == 0) return {};
  const int64_t wanted = div_up(rows, kNormRuns);
  const int64_t per_run = wanted < kNormRowsLeast ? kNormRowsLeast : wanted;
  return {per_run, div_up(rows, per_run)};
}

// A block sums kBiasColumns columns of a run of 256 rows, each of its 8 warps every eighth row.
inline constexpr int64_t kBiasRows = 256;
constexpr RowRuns bias_runs(int64_t rows) { return {kBiasRows, div_up(rows, kBiasRows)}; }

// Blocks of a kernel that reads or writes CPU memory, and threads of each: as few multiprocessors
// as fill the link, which have no room for a product's block beside. They ask for 1 MB at a time
// (16 x 1024 threads, kDirectAhead times 8 values in fp32), which a link of 400 GB/s delivers in
// 2.6 us: longer than it takes to answer (0.6 us and more for the first bytes,
// ntua-el20062/grace-hopper-benchmark), so that it is the link that they wait for.
inline constexpr int64_t kDirectBlocks = 16;
inline constexpr int kDirectThreads = 1024;
inline constexpr int kDirectAhead = 2;

// Blocks of a loop over `items` in which every block of `threads` takes `per_block` at a time.
// Grids are one-dimensional and may have 2^31 - 1 blocks.
constexpr int64_t blocks_for(int64_t items, int64_t per_block) { return div_up(items, per_block); }

// Scratch is cut into arrays that each begin at a multiple of this many bytes.
inline constexpr int64_t kScratchAlignment = 256;
constexpr int64_t scratch_bytes_of(int64_t bytes) {
  return div_up(bytes, kScratchAlignment) * kScratchAlignment;
}

// The index of tokens by id that the embedding's scatter builds: where each id's tokens begin, how
// many have been placed, the tokens by id in any order, and by id in their own order. int32 each.
struct TokenIndex {
  int64_t begins = 0;     // offsets in bytes; [vocab + 1]
  int64_t placed = 0;     // [vocab]
  int64_t unordered = 0;  // [tokens]
  int64_t ordered = 0;    // [tokens]
  int64_t bytes = 0;
};
constexpr TokenIndex token_index(int64_t vocab, int64_t tokens) {
  TokenIndex index;
  index.placed = scratch_bytes_of(4 * (vocab + 1));
  index.unordered = index.placed + scratch_bytes_of(4 * vocab);
  index.ordered = index.unordered + scratch_bytes_of(4 * tokens);
  index.bytes = index.ordered + scratch_bytes_of(4 * tokens);
  return index;
}

// Key tiles [first, last) that the queries [query, query + rows) see, of `tile` keys each.
struct TileRange {
  int64_t first = 0;
  int64_t last = 0;
};
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr TileRange keys_seen(int64_t query, int64_t rows, int64_t length, int64_t tile) {
  return {0, div_up(smaller(query + rows, length), tile)};
}
// Query tiles that see some key of [key, ...).
constexpr TileRange queries_seeing(int64_t key, int64_t length, int64_t tile) {
  return {key / tile, div_up(length, tile)};
}

}  // namespace ballast::kernels::cuda
