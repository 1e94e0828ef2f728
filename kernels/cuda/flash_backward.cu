// Causal flash attention on tensor cores, backward: one kernel for dq, one for dk and dv.
//
// Bound: 6 D operations a seen pair of query and key for dq, 8 D for dk and dv, where one
// kernel with atomics would need 10 D in all: the price of a fixed order. Each warp holds 16 rows;
// dk and dv of 16 keys of 128 values take 128 registers a thread, so tiles of 32 queries pass by
// there, and 64 at D = 64.

#include "kernels/cuda/flash.h"

namespace ballast::kernels::cuda {
namespace {

template <int kHeadSize>
struct BackwardKind {
  using Shape = FlashShape<kHeadSize, 1, kHeadSize == 64 ? 64 : 32>;
};

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// The first row and column of a warp's scores, as positions.
struct Corner {
  int row = 0;
  int column = 0;
};

// Turns dp, [queries, keys], into the gradients of the scores.
template <class Shape>
__device__ __forceinline__ void differentiate_rows(const Tiles<Shape, Shape::kColumnTiles>& scores,
                                                   Tiles<Shape, Shape::kColumnTiles>& dp,
                                                   const float (&log_sum_exp)[Shape::kRowTiles][2],
                                                   const float (&delta)[Shape::kRowTiles][2],
                                                   float scale_log2, const Corner& corner) {
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool hidden = corner.column + column_in_tile(n, i) > corner.row + row_in_warp(m, i);
        const float p = fast_exp2(fmaf(scores[m][n][i], scale_log2, -log_sum_exp[m][i / 2]));
        dp[m][n][i] = hidden ? 0.0f : p * (dp[m][n][i] - delta[m][i / 2]);
      }
    }
  }
}

// Loads log_sum_exp (times log2(e)) and delta of this lane's rows. Rows beyond the end of the
// sequence get what makes their probability 0.
template <class Shape>
__device__ __forceinline__ void load_statistics(const AttentionTask& d, int64_t sequence,
                                                int64_t head, int row,
                                                float (&log_sum_exp)[Shape::kRowTiles][2],
                                                float (&delta)[Shape::kRowTiles][2]) {
  const int length = static_cast<int>(d.shape.length);
  const int64_t statistics = (sequence * d.shape.heads + head) * length;
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = row + row_in_warp(m, 2 * r);
      log_sum_exp[m][r] = at < length ? d.log_sum_exp[statistics + at] * kLog2E : infinity();
      delta[m][r] = at < length ? d.delta[statistics + at] : 0.0f;
    }
  }
}

// dq: block (x, y, z) is a tile of queries, the last ones first; a head; a sequence.
template <Format kFormat, class Shape>
__global__ void __launch_bounds__(kFlashThreads, 2) query_kernel(AttentionTask d) {
  constexpr int kTile = Shape::kColumns * Shape::kStride;
  auto* q = reinterpret_cast<uint16_t*>(dynamic_shared());
  uint16_t* dout = q + Shape::kRows * Shape::kStride;
  uint16_t* k = dout + Shape::kRows * Shape::kStride;
  uint16_t* v = k + 2 * kTile;
  const int length = static_cast<int>(d.shape.length);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Shape::kRowsOfWarp;
  const int row = first + warp_row;
  const int64_t head = blockIdx.y, sequence = blockIdx.z;
  const int64_t kv_head = head / (d.shape.heads / d.shape.kv_heads);
  const Rows keys = rows_of(d.k, d.shape, sequence, kv_head);
  const Rows values = rows_of(d.v, d.shape, sequence, kv_head);

  start_tile<Shape, Shape::kRows>(q, rows_of(d.q, d.shape, sequence, head), first, length);
  start_tile<Shape, Shape::kRows>(dout, rows_of(d.dout, d.shape, sequence, head), first, length);
  start_tile<Shape, Shape::kColumns>(k, keys, 0, length);
  start_tile<Shape, Shape::kColumns>(v, values, 0, length);
  close_copies();
  float log_sum_exp[Shape::kRowTiles][2], delta[Shape::kRowTiles][2];
  load_statistics<Shape>(d, sequence, head, row, log_sum_exp, delta);
  Tiles<Shape, Shape::kHeadTiles> sums = {};
  const float scale_log2 = d.score_scale * kLog2E;
  const int tiles = static_cast<int>(keys_seen(first, Shape::kRows, length, Shape::kColumns).last);
  for (int j = 0; j < tiles; ++j) {
    wait_for_copies<0>();
    __syncthreads();  // tile j is there for all, and tile j - 1 has been used by all
    if (j + 1 < tiles) {
      const int next = (j + 1) % 2 * kTile;
      start_tile<Shape, Shape::kColumns>(k + next, keys, (j + 1) * Shape::kColumns, length);
      start_tile<Shape, Shape::kColumns>(v + next, values, (j + 1) * Shape::kColumns, length);
      close_copies();
    }
    const int column = j * Shape::kColumns;
    if (column >= row + Shape::kRowsOfWarp) continue;  // all of it is this warp's future
    const int now = j % 2 * kTile;
    Tiles<Shape, Shape::kColumnTiles> scores, dp;
    multiply_rows<kFormat, Shape>(scores, q + warp_row * Shape::kStride, k + now);
    multiply_rows<kFormat, Shape>(dp, dout + warp_row * Shape::kStride, v + now);
    differentiate_rows<Shape>(scores, dp, log_sum_exp, delta, scale_log2, {row, column});
    add_products<kFormat, Shape>(sums, dp, k + now);
  }

  rotate_back<Shape>(sums, d, row);
  float factor[Shape::kRowTiles][2];
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    factor[m][0] = factor[m][1] = d.score_scale;
  }
  store_rows<kFormat, Shape>(sums, factor, q + warp_row * Shape::kStride,
                             rows_of(d.dq, d.shape, sequence, head) + row * d.dq.stride,
                             d.dq.stride, length - row);
}

// What a tile of queries brings along for dk and dv.
template <class Shape>
struct QueryStage {
  uint16_t* q = nullptr;
  uint16_t* dout = nullptr;
  float* log_sum_exp = nullptr;  // times log2(e); infinite beyond the end
  float* delta = nullptr;
};

template <class Shape>
__device__ __forceinline__ QueryStage<Shape> query_stage(uint16_t* memory, int stage) {
  constexpr int kTile = Shape::kColumns * Shape::kStride;
  auto* floats = reinterpret_cast<float*>(memory + 4 * kTile) + stage * 2 * Shape::kColumns;
  return {memory + stage * kTile, memory + (2 + stage) * kTile, floats, floats + Shape::kColumns};
}

// Begins to bring queries [first, first + kColumns) of a head. The statistics are ordinary stores,
// ordered by the barrier before the tile is used.
template <class Shape>
__device__ __forceinline__ void start_queries(const QueryStage<Shape>& stage,
                                              const AttentionTask& d, int64_t sequence,
                                              int64_t head, int first) {
  const int length = static_cast<int>(d.shape.length);
  start_tile<Shape, Shape::kColumns>(stage.q, rows_of(d.q, d.shape, sequence, head), first, length);
  start_tile<Shape, Shape::kColumns>(stage.dout, rows_of(d.dout, d.shape, sequence, head), first,
                                     length);
  close_copies();
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= Shape::kColumns) return;
  const int64_t at = (sequence * d.shape.heads + head) * length + first + lane;
  const bool exists = first + lane < length;
  stage.log_sum_exp[lane] = exists ? d.log_sum_exp[at] * kLog2E : infinity();
  stage.delta[lane] = exists ? d.delta[at] : 0.0f;
}

// Turns transposed scores and dp, [keys, queries], into probabilities and their gradients.
template <class Shape>
__device__ __forceinline__ void differentiate(Tiles<Shape, Shape::kColumnTiles>& scores,
                                              Tiles<Shape, Shape::kColumnTiles>& dp,
                                              const QueryStage<Shape>& stage, float scale_log2,
                                              int key, int query) {
#pragma unroll
  for (int n = 0; n < Shape::kColumnTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = column_in_tile(n, e);
      const float log_sum_exp = stage.log_sum_exp[column], delta = stage.delta[column];
#pragma unroll
      for (int m = 0; m < Shape::kRowTiles; ++m) {
#pragma unroll
        for (int i = e; i < 4; i += 2) {
          const bool hidden = key + row_in_warp(m, i) > query + column;
          const float p =
              hidden ? 0.0f : fast_exp2(fmaf(scores[m][n][i], scale_log2, -log_sum_exp));
          scores[m][n][i] = p;
          dp[m][n][i] = p * (dp[m][n][i] - delta);
        }
      }
    }
  }
}

// dk, dv: block (x, y, z) is a tile of keys, the first ones first since most queries see them; a
// key-value head; a sequence. The queries of all heads that share it pass by, head after head.
template <Format kFormat, class Shape>
__global__ void __launch_bounds__(kFlashThreads, 2) key_kernel(AttentionTask d) {
  auto* k = reinterpret_cast<uint16_t*>(dynamic_shared());
  uint16_t* v = k + Shape::kRows * Shape::kStride;
  uint16_t* stages = v + Shape::kRows * Shape::kStride;
  const int length = static_cast<int>(d.shape.length);
  const int first = static_cast<int>(blockIdx.x) * Shape::kRows;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Shape::kRowsOfWarp;
  const int row = first + warp_row;
  const int64_t kv_head = blockIdx.y, sequence = blockIdx.z;
  const int group = static_cast<int>(d.shape.heads / d.shape.kv_heads);
  const TileRange queries = queries_seeing(first, length, Shape::kColumns);
  const int per_head = static_cast<int>(queries.last - queries.first);
  // Passing tile t is tile queries.first + t % per_head of head t / per_head of the group.
  const auto head_of = [&](int t) { return kv_head * group + t / per_head; };
  const auto query_of = [&](int t) {
    return (static_cast<int>(queries.first) + t % per_head) * Shape::kColumns;
  };

  start_tile<Shape, Shape::kRows>(k, rows_of(d.k, d.shape, sequence, kv_head), first, length);
  start_tile<Shape, Shape::kRows>(v, rows_of(d.v, d.shape, sequence, kv_head), first, length);
  start_queries<Shape>(query_stage<Shape>(stages, 0), d, sequence, head_of(0), query_of(0));
  Tiles<Shape, Shape::kHeadTiles> dk = {}, dv = {};
  const float scale_log2 = d.score_scale * kLog2E;
  for (int t = 0; t < group * per_head; ++t) {
    wait_for_copies<0>();
    __syncthreads();  // tile t is there for all, and tile t - 1 has been used by all
    if (t + 1 < group * per_head) {
      start_queries<Shape>(query_stage<Shape>(stages, (t + 1) % 2), d, sequence, head_of(t + 1),
                           query_of(t + 1));
    }
    const int query = query_of(t);
    if (query + Shape::kColumns - 1 < row) continue;  // all of it is before this warp's keys
    const QueryStage<Shape> stage = query_stage<Shape>(stages, t % 2);
    Tiles<Shape, Shape::kColumnTiles> scores, dp;
    multiply_rows<kFormat, Shape>(scores, k + warp_row * Shape::kStride, stage.q);
    multiply_rows<kFormat, Shape>(dp, v + warp_row * Shape::kStride, stage.dout);
    differentiate<Shape>(scores, dp, stage, scale_log2, row, query);
    add_products<kFormat, Shape>(dv, scores, stage.dout);
    add_products<kFormat, Shape>(dk, dp, stage.q);
  }

  rotate_back<Shape>(dk, d, row);
  float of_dk[Shape::kRowTiles][2], of_dv[Shape::kRowTiles][2];
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    of_dk[m][0] = of_dk[m][1] = d.score_scale;
    of_dv[m][0] = of_dv[m][1] = 1.0f;
  }
  store_rows<kFormat, Shape>(dk, of_dk, k + warp_row * Shape::kStride,
                             rows_of(d.dk, d.shape, sequence, kv_head) + row * d.dk.stride,
                             d.dk.stride, length - row);
  store_rows<kFormat, Shape>(dv, of_dv, v + warp_row * Shape::kStride,
                             rows_of(d.dv, d.shape, sequence, kv_head) + row * d.dv.stride,
                             d.dv.stride, length - row);
}

template <Format kFormat>
Status launch_backward(const AttentionTask& d, Stream stream) {
  return with_head_size<BackwardKind>(d.shape.head_size, [&](auto shape) {
    using Shape = decltype(shape);
    const int64_t tiles = 2 * Shape::kStride * (2 * Shape::kRows + 4 * Shape::kColumns);
    const Grid queries{.x = div_up(d.shape.length, Shape::kRows),
                       .y = d.shape.heads,
                       .z = d.shape.sequences,
                       .threads = kFlashThreads,
                       .shared_bytes = tiles};
    BALLAST_CUDA_TRY(launch("flash_backward_dq", query_kernel<kFormat, Shape>, queries, stream, d));
    Grid keys = queries;
    keys.y = d.shape.kv_heads;
    keys.shared_bytes += 4 * 4 * Shape::kColumns;
    return launch("flash_backward_dk_dv", key_kernel<kFormat, Shape>, keys, stream, d);
  });
}

}  // namespace

Status flash_backward(const AttentionTask& d, Stream stream) {
  if (d.format == Format::kBf16) return launch_backward<Format::kBf16>(d, stream);
  return launch_backward<Format::kF16>(d, stream);
}

}  // namespace ballast::kernels::cuda
