// The arithmetic of launches and fragments, which needs neither a GPU nor its emulation.

#include "kernels/cuda/geometry.h"

#include <array>
#include <gtest/gtest.h>
#include <set>
#include <vector>

#include "kernels/cuda/fragments.h"
#include "sim/engine/cost.h"

namespace ballast::kernels::cuda {
namespace {

TEST(geometry, runs_of_rows_cover_each_row_once) {
  EXPECT_EQ(norm_runs(0).runs, 0);
  EXPECT_EQ(norm_runs(1).runs, 1);
  EXPECT_EQ(norm_runs(2048).runs, 256);  // more than there are multiprocessors
  // 4 runs: fewer rows each would cost more than it gains.
  EXPECT_EQ(norm_runs(32).rows_per_run, 8);
  EXPECT_EQ(norm_runs(528 * 40).rows_per_run, 40);
  for (const int64_t rows : {1, 15, 16, 17, 8447, 8448, 8449, 100000}) {
    for (const RowRuns runs : {norm_runs(rows), bias_runs(rows)}) {
      EXPECT_LT((runs.runs - 1) * runs.rows_per_run, rows);
      EXPECT_GE(runs.runs * runs.rows_per_run, rows);
    }
    EXPECT_LE(norm_runs(rows).runs, kNormRuns);
  }
}

TEST(geometry, kernels_across_the_link_hold_the_multiprocessors_that_they_are_priced_with) {
  EXPECT_EQ(kDirectBlocks, ballast::kDirectBlocks);
}

TEST(geometry, the_arrays_of_the_token_index_lie_side_by_side) {
  // 101 ids and 100 counts: 404 and 400 bytes, 512 each; 70 tokens: 280 bytes, 512.
  const TokenIndex index = token_index(100, 70);
  EXPECT_EQ(index.begins, 0);
  EXPECT_EQ(index.placed, 512);
  EXPECT_EQ(index.unordered, 1024);
  EXPECT_EQ(index.ordered, 1536);
  EXPECT_EQ(index.bytes, 2048);
}

TEST(geometry, every_seen_pair_of_query_and_key_is_in_a_tile_that_is_visited) {
  for (const int64_t length : {1, 31, 32, 33, 130}) {
    for (int64_t query = 0; query < length; ++query) {
      const int64_t first = query / 128 * 128;
      for (int64_t key = 0; key <= query; ++key) {
        const TileRange keys = keys_seen(first, 128, length, 32);
        EXPECT_TRUE(key / 32 >= keys.first && key / 32 < keys.last) << query << " " << key;
        const TileRange queries = queries_seeing(key / 64 * 64, length, 32);
        EXPECT_TRUE(query / 32 >= queries.first && query / 32 < queries.last);
      }
    }
  }
}

TEST(geometry, segments_are_65536_values) {
  EXPECT_EQ(segments_of(0), 0);
  EXPECT_EQ(segments_of(1), 1);
  EXPECT_EQ(segments_of(65536), 1);
  EXPECT_EQ(segments_of(65537), 2);
}

TEST(fragments, the_accumulators_of_a_warp_cover_16_by_8_once) {
  std::set<std::pair<int, int>> seen;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Place place = accumulator_place(lane, i);
      EXPECT_TRUE(place.row >= 0 && place.row < 16 && place.column >= 0 && place.column < 8);
      seen.insert({place.row, place.column});
    }
  }
  EXPECT_EQ(seen.size(), 128u);
}

// Register i of lane l after ldmatrix: matrix i, its row l / 4, columns 2 (l % 4) and the next (of
// the transposed matrix, where it transposes). The PTX ISA's tables of mma.m16n8k16 then say which
// element of the operand it must be.
Place loaded(Place (*place)(int), int lane, int i, int e) {
  const Place row = place(8 * i + lane / 4);
  return {row.row, row.column + 2 * (lane % 4) + e};
}
Place loaded_transposed(Place (*place)(int), int lane, int i, int e) {
  const Place row = place(8 * i + 2 * (lane % 4) + e);
  return {row.row, row.column + lane / 4};
}

TEST(fragments, operands_are_loaded_as_the_product_wants_them) {
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      for (int e = 0; e < 2; ++e) {
        const Place left = loaded(left_place, lane, i, e);
        EXPECT_EQ(left.row, group + 8 * (i % 2));
        EXPECT_EQ(left.column, pair + e + 8 * (i / 2));
        // Registers 0, 1: the first tile of 8 columns; 2, 3: the second. [n, k] and [k, n].
        const Place right = loaded(right_place, lane, i, e);
        EXPECT_EQ(right.row, group + 8 * (i / 2));
        EXPECT_EQ(right.column, pair + e + 8 * (i % 2));
        const Place transposed = loaded_transposed(right_transposed_place, lane, i, e);
        EXPECT_EQ(transposed.row, pair + e + 8 * (i % 2));
        EXPECT_EQ(transposed.column, group + 8 * (i / 2));
      }
    }
  }
}

TEST(fragments, accumulators_of_two_tiles_are_the_left_operand_of_the_next_product) {
  // What add_products packs: register i of A is accumulators 0, 1 (i even) or 2, 3 (i odd) of the
  // column tile k + i / 2.
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      for (int e = 0; e < 2; ++e) {
        const Place from = accumulator_place(lane, 2 * (i % 2) + e);
        const Place to = loaded(left_place, lane, i, e);
        EXPECT_EQ(from.row, to.row);
        EXPECT_EQ(from.column + 8 * (i / 2), to.column);
      }
    }
  }
}

TEST(fragments, the_8_rows_of_a_matrix_begin_in_different_banks) {
  for (const int head_size : {64, 80, 96, 128}) {
    std::set<int> sixteenths;  // of 128 bytes, the width of all banks
    for (int row = 0; row < 8; ++row) sixteenths.insert(2 * row * padded_row(head_size) % 128 / 16);
    EXPECT_EQ(sixteenths.size(), 8u) << head_size;
    EXPECT_EQ(2 * padded_row(head_size) % 16, 0);  // ldmatrix and cp.async want 16 bytes
  }
}

}  // namespace
}  // namespace ballast::kernels::cuda
