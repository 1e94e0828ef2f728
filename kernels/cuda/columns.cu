// Sums over rows: bias gradients, and the second half of every such sum.
//
// Bound: bytes, 2 a value of dy in 16 bits. A warp reads 256 neighbouring columns of a row, 512
// bytes in one go, and four rows before it adds the first.

#include "kernels/cuda/columns.h"
#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kAhead = 4;  // rows whose loads are under way together

// Block (x, y): columns of group x, rows of run y. Warp w adds the rows w, w + 8, ... of the run;
// then the warps are added in order. partials: [runs, columns].
template <Format kFormat, int kCount>
__global__ void __launch_bounds__(kThreads)
    bias_gradient_kernel(BiasGradient d, int64_t rows_per_run, float* partials) {
  __shared__ float of_warps[kWarps][kWarp * kCount];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + lane) * kCount;
  const int64_t begin = blockIdx.y * rows_per_run;
  const int64_t end = smaller(begin + rows_per_run, d.place.rows);
  float sums[kCount] = {};
  for (int64_t row = begin + warp; row < end; row += kWarps * kAhead) {
    float values[kAhead][kCount] = {};
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t at = row + k * kWarps;
      if (at < end && column < d.place.columns) {
        load<kFormat>(d.dy.data, at * d.place.stride + d.place.first + column, values[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      for (int i = 0; i < kCount; ++i) sums[i] += values[k][i];
    }
  }
  for (int i = 0; i < kCount; ++i) of_warps[warp][i * kWarp + lane] = sums[i];
  __syncthreads();
  for (int at = threadIdx.x; at < kWarp * kCount; at += kThreads) {
    const int64_t to =
        (static_cast<int64_t>(blockIdx.x) * kWarp + at % kWarp) * kCount + at / kWarp;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w][at];
    if (to < d.place.columns) partials[blockIdx.y * d.place.columns + to] = sum;
  }
}

// Block x: 32 columns. Warp w adds the partials of the w-th eighth of the runs; then the warps are
// added in order.
__global__ void __launch_bounds__(kThreads) sum_partials_kernel(SumPartials d) {
  __shared__ float of_warps[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  const int64_t share = div_up(d.runs, kWarps);
  const int64_t end = smaller((warp + 1) * share, d.runs);
  float sum = 0;
  if (column < d.columns) {
#pragma unroll 8
    for (int64_t run = warp * share; run < end; ++run) {
      sum += d.partials[run * d.columns + column];
    }
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= d.columns) return;
  float total[1] = {0};
  for (int w = 0; w < kWarps; ++w) total[0] += of_warps[w][lane];
  write(d.to, column, d.write, total);
}

}  // namespace

Status sum_partials(const SumPartials& d, Stream stream) {
  const Grid grid{.x = div_up(d.columns, kWarp), .threads = kThreads};
  return launch("sum_partials", sum_partials_kernel, grid, stream, d);
}

int64_t bias_gradient_scratch_bytes(const Columns& place) {
  return scratch_bytes_of(bias_runs(place.rows).runs * place.columns * 4);
}

Status bias_gradient(const BiasGradient& d, Stream stream) {
  const RowRuns runs = bias_runs(d.place.rows);
  const bool wide = d.place.stride % kWide == 0 && d.place.first % kWide == 0 &&
                    d.place.columns % kWide == 0 && is_wide(d.dy.data);
  const Grid grid{.x = div_up(d.place.columns, kWarp * (wide ? kWide : 1)),
                  .y = runs.runs,
                  .threads = kThreads};
  auto* partials = static_cast<float*>(d.scratch);
  BALLAST_CUDA_TRY(with_format(d.dy.format, [&](auto tag) {
    constexpr Format kFormat = decltype(tag)::kValue;
    const auto kernel =
        wide ? bias_gradient_kernel<kFormat, kWide> : bias_gradient_kernel<kFormat, 1>;
    return launch("bias_gradient", kernel, grid, stream, d, runs.rows_per_run, partials);
  }));
  return sum_partials({partials, runs.runs, d.place.columns, d.dbias, d.write}, stream);
}

}  // namespace ballast::kernels::cuda
