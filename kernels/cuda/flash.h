// The pieces of the flash kernels: tiles through shared memory, products of tiles in fragments.
//
// A block holds a tile of rows (queries, or keys where dk and dv are summed) and lets tiles of
// columns pass by in two stages, the next being copied while one is used. For .cu files only.
#pragma once

#include "kernels/cuda/attention_task.h"
#include "kernels/cuda/fragments.h"
#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {

inline constexpr int kFlashThreads = 128;
inline constexpr float kLog2E = 1.4426950408889634f;

// The rows of one head in one sequence.
struct Rows {
  const uint16_t* data = nullptr;
  int64_t stride = 0;
};

// Head `head` of sequence `sequence`.
__device__ __forceinline__ Rows rows_of(const HeadRows& rows, const AttentionShape& shape,
                                        int64_t sequence, int64_t head) {
  return {static_cast<const uint16_t*>(rows.data) + sequence * shape.length * rows.stride +
              head * shape.head_size,
          rows.stride};
}
__device__ __forceinline__ uint16_t* rows_of(const HeadRowsOut& rows, const AttentionShape& shape,
                                             int64_t sequence, int64_t head) {
  return static_cast<uint16_t*>(rows.data) + sequence * shape.length * rows.stride +
         head * shape.head_size;
}

// Starts the copies of rows [first, first + kRows) into a tile, zeros from `length` on.
template <class Shape, int kRows>
__device__ __forceinline__ void start_tile(uint16_t* tile, const Rows& from, int first,
                                           int length) {
  constexpr int kPieces = Shape::kHeadSize / 8;  // of 16 bytes a row
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPieces; i += kFlashThreads) {
    const int row = i / kPieces, column = i % kPieces * 8;
    const bool exists = first + row < length;
    const uint16_t* source = from.data + (exists ? (first + row) * from.stride + column : 0);
    start_copy(tile + row * Shape::kStride + column, source, exists ? 16 : 0);
  }
}

// Accumulators of a warp: [row tiles][column tiles] of 16 x 8.
template <class Shape, int kTiles>
using Tiles = float[Shape::kRowTiles][kTiles][4];

// scores[rows, columns] = left[rows, D] right[columns, D]^T; left: the warp's first row.
template <Format kFormat, class Shape>
__device__ __forceinline__ void multiply_rows(Tiles<Shape, Shape::kColumnTiles>& scores,
                                              const uint16_t* left, const uint16_t* right) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  left += left_place(lane).row * Shape::kStride + left_place(lane).column;
  right += right_place(lane).row * Shape::kStride + right_place(lane).column;
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < Shape::kHeadSize; k += 16) {
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      load_matrices(a[m], left + 16 * m * Shape::kStride + k);
    }
#pragma unroll
    for (int n = 0; n < Shape::kColumnTiles; n += 2) {
      uint32_t b[4];
      load_matrices(b, right + 8 * n * Shape::kStride + k);
#pragma unroll
      for (int m = 0; m < Shape::kRowTiles; ++m) {
        multiply_tile<kFormat>(scores[m][n], a[m], b[0], b[1]);
        multiply_tile<kFormat>(scores[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// sums[rows, D] += weights[rows, columns] right[columns, D]: the accumulators of two column tiles
// are, rounded, the left operand of the next product (Dao, arXiv 2307.08691, section 3.3).
template <Format kFormat, class Shape>
__device__ __forceinline__ void add_products(Tiles<Shape, Shape::kHeadTiles>& sums,
                                             const Tiles<Shape, Shape::kColumnTiles>& weights,
                                             const uint16_t* right) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Place place = right_transposed_place(lane);
  right += place.row * Shape::kStride + place.column;
#pragma unroll
  for (int k = 0; k < Shape::kColumnTiles; k += 2) {
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      a[m][0] = pack_pair<kFormat>(weights[m][k][0], weights[m][k][1]);
      a[m][1] = pack_pair<kFormat>(weights[m][k][2], weights[m][k][3]);
      a[m][2] = pack_pair<kFormat>(weights[m][k + 1][0], weights[m][k + 1][1]);
      a[m][3] = pack_pair<kFormat>(weights[m][k + 1][2], weights[m][k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < Shape::kHeadTiles; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, right + 8 * k * Shape::kStride + 8 * n);
#pragma unroll
      for (int m = 0; m < Shape::kRowTiles; ++m) {
        multiply_tile<kFormat>(sums[m][n], a[m], b[0], b[1]);
        multiply_tile<kFormat>(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Row tile m, register i of this lane, in rows of the warp.
__device__ __forceinline__ int row_in_warp(int m, int i) {
  return 16 * m + accumulator_place(static_cast<int>(threadIdx.x) % kWarp, i).row;
}
// Column tile n, register i of this lane.
__device__ __forceinline__ int column_in_tile(int n, int i) {
  return 8 * n + accumulator_place(static_cast<int>(threadIdx.x) % kWarp, i).column;
}

// Turns back the pairs (x[i], x[i + D/2]) of gradients of rotated rows; a pair is in one thread.
template <class Shape>
__device__ __forceinline__ void rotate_back(Tiles<Shape, Shape::kHeadTiles>& sums,
                                            const AttentionTask& d, int first) {
  constexpr int kHalf = Shape::kHeadSize / 2;
  static_assert(kHalf % 8 == 0);
  if (d.rope == nullptr) return;
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t wanted = first + row_in_warp(m, i);
      const int64_t position = smaller(wanted, d.shape.length - 1);  // rows beyond are not stored
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
        const float* cosine = d.rope + position * kHalf + column_in_tile(n, i);
        const float sine = cosine[d.rope_positions * kHalf];
        const float x = sums[m][n][i], y = sums[m][n + kHalf / 8][i];
        sums[m][n][i] = fmaf(y, sine, x * *cosine);
        sums[m][n + kHalf / 8][i] = fmaf(-x, sine, y * *cosine);
      }
    }
  }
}

// Rounds the warp's rows times `factor` of their row and stores those before `length`, 16 bytes at
// a time by way of the warp's rows `staging` of a tile that it alone reads and no longer needs.
template <Format kFormat, class Shape>
__device__ __forceinline__ void store_rows(const Tiles<Shape, Shape::kHeadTiles>& sums,
                                           const float (&factor)[Shape::kRowTiles][2],
                                           uint16_t* staging, uint16_t* to, int64_t stride,
                                           int rows) {
  constexpr int kPieces = Shape::kHeadSize / 8;
  __syncwarp();  // every lane has read its fragments
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float scale = factor[m][i / 2];
        uint16_t* at = staging + row_in_warp(m, i) * Shape::kStride + column_in_tile(n, i);
        *reinterpret_cast<uint32_t*>(at) =
            pack_pair<kFormat>(sums[m][n][i] * scale, sums[m][n][i + 1] * scale);
      }
    }
  }
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < Shape::kRowsOfWarp * kPieces;
       i += kWarp) {
    const int row = i / kPieces, column = i % kPieces * 8;
    if (row >= rows) break;
    *reinterpret_cast<uint4*>(to + row * stride + column) =
        *reinterpret_cast<const uint4*>(staging + row * Shape::kStride + column);
  }
}

// Calls body(shape) for the head size; kinds<D>::Shape names the shape.
template <template <int> class Kind, class Body>
Status with_head_size(int64_t head_size, Body body) {
  switch (head_size) {
    case 64:
      return body(typename Kind<64>::Shape());
    case 80:
      return body(typename Kind<80>::Shape());
    case 96:
      return body(typename Kind<96>::Shape());
    default:
      return body(typename Kind<128>::Shape());
  }
}

}  // namespace ballast::kernels::cuda
