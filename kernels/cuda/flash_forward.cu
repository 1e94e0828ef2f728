// Causal flash attention on tensor cores, forward (Dao, arXiv 2307.08691, Alg. 1).
//
// Bound: 4 D operations a seen pair of query and key; bytes are few. Each warp takes 32 rows,
// so that a fragment of keys or values that it loads from shared memory serves two products: at 16
// rows the loads (128 bytes a cycle) would take longer than the products. Registers decide the
// rest: 128 a thread for the sums of 32 rows of 128, so tiles of 32 keys there and 64 at D = 64.

#include "kernels/cuda/flash.h"

namespace ballast::kernels::cuda {
namespace {

template <int kHeadSize>
struct ForwardKind {
  using Shape = FlashShape<kHeadSize, 2, kHeadSize == 64 ? 64 : 32>;
};

// What a warp has seen so far of each of its rows (those of registers 0 and 2).
template <class Shape>
struct Running {
  float maximum[Shape::kRowTiles][2];
  float sum[Shape::kRowTiles][2];  // of this lane's columns
};

template <class Shape>
__device__ __forceinline__ void hide_future(Tiles<Shape, Shape::kColumnTiles>& scores, int row,
                                            int column) {
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool hidden = column + column_in_tile(n, i) > row + row_in_warp(m, i);
        if (hidden) scores[m][n][i] = -__uint_as_float(0x7f800000u);
      }
    }
  }
}

// Scores become exp(scale * (score - maximum)); what was summed under an older maximum shrinks.
template <class Shape>
__device__ __forceinline__ void soften(Tiles<Shape, Shape::kColumnTiles>& scores, float scale_log2,
                                       Running<Shape>& running,
                                       Tiles<Shape, Shape::kHeadTiles>& sums) {
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = running.maximum[m][r];
#pragma unroll
      for (int n = 0; n < Shape::kColumnTiles; ++n) {
        largest = fmaxf(largest, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float shrink = fast_exp2((running.maximum[m][r] - largest) * scale_log2);
      const float offset = -largest * scale_log2;
      float sum = running.sum[m][r] * shrink;
#pragma unroll
      for (int n = 0; n < Shape::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          scores[m][n][i] = fast_exp2(fmaf(scores[m][n][i], scale_log2, offset));
          sum += scores[m][n][i];
        }
      }
#pragma unroll
      for (int n = 0; n < Shape::kHeadTiles; ++n) {
        sums[m][n][2 * r] *= shrink;
        sums[m][n][2 * r + 1] *= shrink;
      }
      running.maximum[m][r] = largest;
      running.sum[m][r] = sum;
    }
  }
}

// Writes log_sum_exp and leaves in `factor` what each row must be multiplied by.
template <class Shape>
__device__ __forceinline__ void finish_rows(const Running<Shape>& running, float scale, float* to,
                                            int rows, float (&factor)[Shape::kRowTiles][2]) {
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = running.sum[m][r];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      factor[m][r] = 1.0f / sum;
      const int row = row_in_warp(m, 2 * r);
      if (threadIdx.x % 4 == 0 && row < rows) to[row] = running.maximum[m][r] * scale + logf(sum);
    }
  }
}

// Block (x, y, z): a tile of queries, the last ones first since they see most; a head; a sequence.
template <Format kFormat, class Shape>
__global__ void __launch_bounds__(kFlashThreads) forward_kernel(AttentionTask d) {
  constexpr int kTile = Shape::kColumns * Shape::kStride;
  auto* q = reinterpret_cast<uint16_t*>(dynamic_shared());
  uint16_t* k = q + Shape::kRows * Shape::kStride;
  uint16_t* v = k + 2 * kTile;
  const int length = static_cast<int>(d.shape.length);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Shape::kRowsOfWarp;
  const int64_t head = blockIdx.y, sequence = blockIdx.z;
  const int64_t kv_head = head / (d.shape.heads / d.shape.kv_heads);
  const Rows keys = rows_of(d.k, d.shape, sequence, kv_head);
  const Rows values = rows_of(d.v, d.shape, sequence, kv_head);

  start_tile<Shape, Shape::kRows>(q, rows_of(d.q, d.shape, sequence, head), first, length);
  start_tile<Shape, Shape::kColumns>(k, keys, 0, length);
  start_tile<Shape, Shape::kColumns>(v, values, 0, length);
  close_copies();
  Tiles<Shape, Shape::kHeadTiles> sums = {};
  Running<Shape> running;
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    for (int r = 0; r < 2; ++r) {
      running.maximum[m][r] = -__uint_as_float(0x7f800000u);
      running.sum[m][r] = 0;
    }
  }
  const float scale_log2 = d.score_scale * kLog2E;
  const int tiles = static_cast<int>(keys_seen(first, Shape::kRows, length, Shape::kColumns).last);
  for (int j = 0; j < tiles; ++j) {
    wait_for_copies<0>();
    __syncthreads();  // tile j is there for all, and tile j - 1 has been used by all
    if (j + 1 < tiles) {
      const int next = (j + 1) % 2 * kTile, row = (j + 1) * Shape::kColumns;
      start_tile<Shape, Shape::kColumns>(k + next, keys, row, length);
      start_tile<Shape, Shape::kColumns>(v + next, values, row, length);
      close_copies();
    }
    const int column = j * Shape::kColumns, row = first + warp_row;
    if (column >= row + Shape::kRowsOfWarp) continue;  // all of it is this warp's future
    Tiles<Shape, Shape::kColumnTiles> scores;
    multiply_rows<kFormat, Shape>(scores, q + warp_row * Shape::kStride, k + j % 2 * kTile);
    if (column + Shape::kColumns - 1 > row) hide_future<Shape>(scores, row, column);
    soften<Shape>(scores, scale_log2, running, sums);
    add_products<kFormat, Shape>(sums, scores, v + j % 2 * kTile);
  }

  const int rows = length - first - warp_row;
  const int64_t row = first + warp_row;
  float factor[Shape::kRowTiles][2];
  finish_rows<Shape>(running, d.score_scale,
                     d.log_sum_exp + (sequence * d.shape.heads + head) * length + row, rows,
                     factor);
  store_rows<kFormat, Shape>(sums, factor, q + warp_row * Shape::kStride,
                             rows_of(d.out, d.shape, sequence, head) + row * d.out.stride,
                             d.out.stride, rows);
}

template <Format kFormat>
Status launch_forward(const AttentionTask& d, Stream stream) {
  return with_head_size<ForwardKind>(d.shape.head_size, [&](auto shape) {
    using Shape = decltype(shape);
    const Grid grid{.x = div_up(d.shape.length, Shape::kRows),
                    .y = d.shape.heads,
                    .z = d.shape.sequences,
                    .threads = kFlashThreads,
                    .shared_bytes = 2 * Shape::kStride * (Shape::kRows + 4 * Shape::kColumns)};
    return launch("flash_forward", forward_kernel<kFormat, Shape>, grid, stream, d);
  });
}

}  // namespace

Status flash_forward(const AttentionTask& d, Stream stream) {
  if (d.format == Format::kBf16) return launch_forward<Format::kBf16>(d, stream);
  return launch_forward<Format::kF16>(d, stream);
}

}  // namespace ballast::kernels::cuda
