// LayerNorm and RMSNorm, forward and backward.
//
// Bound: bytes. Forward reads and writes a row once, 4 bytes a value in 16 bits; backward reads x,
// dout and the residual gradient and writes dx, 8 bytes. A row (8 KiB at 4,096 columns) is read two
// or three times by its block, from the first cache all but once. Backward keeps the block's sums
// of the parameters' gradients in shared memory, each value in the hands of one thread, and leaves
// one partial sum a run of rows.

#include "kernels/cuda/columns.h"
#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// The sum over a row of value(element), all threads.
template <int kCount, class Value>
__device__ __forceinline__ float sum_of_row(int64_t columns, Value value) {
  float sum = 0;
  for (int64_t at = threadIdx.x * kCount; at < columns; at += kThreads * kCount) {
    value(at, sum);
  }
  return sum_of_block<kThreads>(sum);
}

template <Format kFormat, int kCount>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormForward d) {
  const int64_t columns = d.shape.columns;
  const int64_t first = blockIdx.x * columns;
  const bool centred = d.shape.kind == NormKind::kLayerNorm;
  const float count = static_cast<float>(columns);
  float mean = 0;
  if (centred) {
    mean = sum_of_row<kCount>(columns,
                              [&](int64_t at, float& sum) {
                                float x[kCount];
                                load<kFormat>(d.x.data, first + at, x);
                                for (int i = 0; i < kCount; ++i) sum += x[i];
                              }) /
           count;
  }
  const float squares = sum_of_row<kCount>(columns, [&](int64_t at, float& sum) {
    float x[kCount];
    load<kFormat>(d.x.data, first + at, x);
    for (int i = 0; i < kCount; ++i) sum = fmaf(x[i] - mean, x[i] - mean, sum);
  });
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(squares / count + d.epsilon));
  if (threadIdx.x == 0) {
    d.statistics[2 * blockIdx.x] = mean;
    d.statistics[2 * blockIdx.x + 1] = inverse;
  }
  for (int64_t at = threadIdx.x * kCount; at < columns; at += kThreads * kCount) {
    float x[kCount], weight[kCount], bias[kCount] = {};
    load<kFormat>(d.x.data, first + at, x);
    load(d.params, at, weight);
    if (centred) load(d.params, columns + at, bias);
    for (int i = 0; i < kCount; ++i) x[i] = fmaf((x[i] - mean) * inverse, weight[i], bias[i]);
    store<kFormat>(d.out.data, first + at, x);
  }
}

// kCount neighbouring sums, of a thread's own columns from `at` on. Eight lie in two halves, each
// next to those of the neighbouring threads, so that no two threads meet in a bank.
template <int kCount>
struct Sums {
  float* values = nullptr;
  int64_t columns = 0;

  __device__ __forceinline__ float4* half(int64_t at, int which) const {
    return reinterpret_cast<float4*>(values) + (which * columns + at) / kWide;
  }
  __device__ __forceinline__ void get(int64_t at, float (&to)[kCount]) const {
    if constexpr (kCount == 1) {
      to[0] = values[at];
    } else {
      const float4 a = *half(at, 0), b = *half(at, 1);
      to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
      to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    }
  }
  __device__ __forceinline__ void set(int64_t at, const float (&from)[kCount]) const {
    if constexpr (kCount == 1) {
      values[at] = from[0];
    } else {
      *half(at, 0) = make_float4(from[0], from[1], from[2], from[3]);
      *half(at, 1) = make_float4(from[4], from[5], from[6], from[7]);
    }
  }
  __device__ __forceinline__ void add(int64_t at, const float (&more)[kCount]) const {
    float sums[kCount];
    get(at, sums);
    for (int i = 0; i < kCount; ++i) sums[i] += more[i];
    set(at, sums);
  }
};

// What a row gives to its own gradient and, if kLayerNorm, to both parameters'.
struct Row {
  int64_t first = 0;  // element
  float mean = 0;
  float inverse = 0;
  float mean_g = 0;   // of dout * weight
  float mean_gx = 0;  // of dout * weight * x_hat
};

template <Format kFormat, int kCount>
__device__ __forceinline__ void row_means(const NormBackward& d, Row& row) {
  const int64_t columns = d.shape.columns;
  float sum_g = 0, sum_gx = 0;
  for (int64_t at = threadIdx.x * kCount; at < columns; at += kThreads * kCount) {
    float x[kCount], dout[kCount], weight[kCount];
    load<kFormat>(d.x.data, row.first + at, x);
    load<kFormat>(d.dout.data, row.first + at, dout);
    load(d.params, at, weight);
    for (int i = 0; i < kCount; ++i) {
      const float g = dout[i] * weight[i];
      sum_g += g;
      sum_gx = fmaf(g, (x[i] - row.mean) * row.inverse, sum_gx);
    }
  }
  const float count = static_cast<float>(columns);
  if (d.shape.kind == NormKind::kLayerNorm) row.mean_g = sum_of_block<kThreads>(sum_g) / count;
  row.mean_gx = sum_of_block<kThreads>(sum_gx) / count;
}

// dx of the row, and the row's share of the sums. dout is read before dx, which may be the same
// array, is written, by the same thread.
template <Format kFormat, int kCount>
__device__ __forceinline__ void row_gradient(const NormBackward& d, const Row& row,
                                             const Sums<kCount>& dweight,
                                             const Sums<kCount>& dbias) {
  const int64_t columns = d.shape.columns;
  for (int64_t at = threadIdx.x * kCount; at < columns; at += kThreads * kCount) {
    float x[kCount], dout[kCount], weight[kCount], dx[kCount] = {};
    load<kFormat>(d.x.data, row.first + at, x);
    load<kFormat>(d.dout.data, row.first + at, dout);
    load(d.params, at, weight);
    if (d.residual_gradient.data != nullptr) {
      load<kFormat>(d.residual_gradient.data, row.first + at, dx);
    }
    if (dbias.values != nullptr) dbias.add(at, dout);
    for (int i = 0; i < kCount; ++i) {
      const float x_hat = (x[i] - row.mean) * row.inverse;
      dx[i] += row.inverse * (dout[i] * weight[i] - row.mean_g - x_hat * row.mean_gx);
      dout[i] *= x_hat;
    }
    dweight.add(at, dout);
    store<kFormat>(d.dx.data, row.first + at, dx);
  }
}

// One block a run of rows; partials: [runs, parameters].
template <Format kFormat, int kCount>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(NormBackward d, int64_t rows_per_run, float* partials) {
  const int64_t columns = d.shape.columns;
  const bool centred = d.shape.kind == NormKind::kLayerNorm;
  Sums<kCount> dweight{reinterpret_cast<float*>(dynamic_shared()), columns};
  Sums<kCount> dbias{centred ? dweight.values + columns : nullptr, columns};
  // A thread clears, adds to and writes out the same columns, so no barrier is needed for them.
  for (int64_t at = threadIdx.x * kCount; at < columns; at += kThreads * kCount) {
    const float zeros[kCount] = {};
    dweight.set(at, zeros);
    if (centred) dbias.set(at, zeros);
  }
  const int64_t begin = blockIdx.x * rows_per_run;
  const int64_t end = smaller(begin + rows_per_run, d.shape.rows);
  for (int64_t i = begin; i < end; ++i) {
    Row row;
    row.first = i * columns;
    row.mean = d.statistics[2 * i];
    row.inverse = d.statistics[2 * i + 1];
    row_means<kFormat, kCount>(d, row);
    row_gradient<kFormat>(d, row, dweight, dbias);
  }
  float* to = partials + blockIdx.x * d.shape.parameters();
  for (int64_t at = threadIdx.x * kCount; at < columns; at += kThreads * kCount) {
    float sums[kCount];
    dweight.get(at, sums);
    store<Format::kF32>(to, at, sums);
    if (!centred) continue;
    dbias.get(at, sums);
    store<Format::kF32>(to, columns + at, sums);
  }
}

bool wide_columns(int64_t columns, const ConstArray& params) {
  return columns % kWide == 0 && is_wide(params.data);
}

}  // namespace

Status norm_forward(const NormForward& d, Stream stream) {
  const bool wide =
      wide_columns(d.shape.columns, d.params) && is_wide(d.x.data) && is_wide(d.out.data);
  const Grid grid{.x = d.shape.columns == 0 ? 0 : d.shape.rows, .threads = kThreads};
  return with_format(d.x.format, [&](auto tag) {
    constexpr Format kFormat = decltype(tag)::kValue;
    const auto kernel = wide ? forward_kernel<kFormat, kWide> : forward_kernel<kFormat, 1>;
    return launch("norm_forward", kernel, grid, stream, d);
  });
}

int64_t norm_backward_scratch_bytes(const NormShape& shape) {
  return scratch_bytes_of(norm_runs(shape.rows).runs * shape.parameters() * 4);
}

Status norm_backward(const NormBackward& d, Stream stream) {
  if (d.shape.parameters() > kNormParametersMax) return invalid("norm_backward");
  const RowRuns runs = norm_runs(d.shape.rows);
  const bool wide = wide_columns(d.shape.columns, d.params) && is_wide(d.x.data) &&
                    is_wide(d.dout.data) && is_wide(d.residual_gradient.data) && is_wide(d.dx.data);
  const Grid grid{.x = d.shape.columns == 0 ? 0 : runs.runs,
                  .threads = kThreads,
                  .shared_bytes = d.shape.parameters() * 4};
  auto* partials = static_cast<float*>(d.scratch);
  BALLAST_CUDA_TRY(with_format(d.x.format, [&](auto tag) {
    constexpr Format kFormat = decltype(tag)::kValue;
    const auto kernel = wide ? backward_kernel<kFormat, kWide> : backward_kernel<kFormat, 1>;
    return launch("norm_backward", kernel, grid, stream, d, runs.rows_per_run, partials);
  }));
  return sum_partials({partials, runs.runs, d.shape.parameters(), d.dparams, d.write}, stream);
}

}  // namespace ballast::kernels::cuda
