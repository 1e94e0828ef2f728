// Activations, additions, casts and scaling: one thread takes one or eight neighbouring values.
//
// Bound: bytes, each read and written once.

#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// --- Kernels -----------------------------------------------------------------------------------

constexpr float kTwiceSqrt2OverPi = 1.5957691216057308f;
constexpr float kGeluCubic = 0.044715f;
constexpr float kSqrtHalf = 0.70710678118654752f;
constexpr float kInverseSqrt2Pi = 0.39894228040143268f;

constexpr float kLog2E = 1.4426950408889634f;

// Of what is stored in 16 bits, by the special function unit: its exponential misses by 2 ulp and
// its reciprocal by 1, the sum by half of one, and log2 e and the product with it by 2^-24 each,
// which the exponential makes 1.2e-7 |x|. Together a relative error below 4.3e-7 + 1.2e-7
// |x|, 1.1e-5 at |x| = 88, where fp32 ends: storing rounds by 4e-3 in bf16, by 5e-4 in fp16.
template <Format kFormat>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (kFormat == Format::kF32) return 1.0f / (1.0f + expf(-x));
  return fast_reciprocal(1.0f + fast_exp2(-kLog2E * x));
}

__device__ __forceinline__ float gelu_argument(float x) {
  return kTwiceSqrt2OverPi * x * fmaf(kGeluCubic, x * x, 1.0f);
}

__device__ __forceinline__ float normal_cdf(float x) { return 0.5f * (1.0f + erff(x * kSqrtHalf)); }

template <Format kFormat, ActivationKind kKind>
__device__ __forceinline__ float gelu_of(float x) {
  if constexpr (kKind == ActivationKind::kGelu) return x * normal_cdf(x);
  return x * sigmoid<kFormat>(gelu_argument(x));
}

template <Format kFormat, ActivationKind kKind>
__device__ __forceinline__ float gelu_slope(float x) {
  if constexpr (kKind == ActivationKind::kGelu) {
    return fmaf(x, kInverseSqrt2Pi * expf(-0.5f * x * x), normal_cdf(x));
  }
  const float s = sigmoid<kFormat>(gelu_argument(x));
  const float slope = kTwiceSqrt2OverPi * fmaf(3 * kGeluCubic, x * x, 1.0f);
  return fmaf(x * s * (1.0f - s), slope, s);
}

// The values of h from element `at`, with the bias of column `column`, which is stored with them.
template <Format kFormat, int kCount>
__device__ __forceinline__ void load_biased(const ActivationForward& d, int64_t at, int64_t column,
                                            float (&h)[kCount]) {
  load<kFormat>(d.h.data, at, h);
  if (d.bias.data == nullptr) return;
  float bias[kCount];
  load(d.bias, column, bias);
  for (int i = 0; i < kCount; ++i) h[i] += bias[i];
  store<kFormat>(d.h.data, at, h);
  load<kFormat>(d.h.data, at, h);  // as rounded: backward will see these
}

template <Format kFormat, ActivationKind kKind, int kCount>
__global__ void __launch_bounds__(kThreads) activation_forward_kernel(ActivationForward d) {
  const int64_t row = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  if (column >= d.shape.columns) return;
  const int64_t at = row * d.shape.columns + column;
  const int64_t first = row * d.shape.inputs() + column;
  float h[kCount];
  load_biased<kFormat>(d, first, column, h);
  if constexpr (kKind == ActivationKind::kSwiGlu) {
    float up[kCount];
    load_biased<kFormat>(d, first + d.shape.columns, d.shape.columns + column, up);
    for (int i = 0; i < kCount; ++i) h[i] = h[i] * sigmoid<kFormat>(h[i]) * up[i];
  } else {
    for (int i = 0; i < kCount; ++i) h[i] = gelu_of<kFormat, kKind>(h[i]);
  }
  store<kFormat>(d.a.data, at, h);
}

template <Format kFormat, ActivationKind kKind, int kCount>
__global__ void __launch_bounds__(kThreads) activation_backward_kernel(ActivationBackward d) {
  const int64_t row = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  if (column >= d.shape.columns) return;
  const int64_t at = row * d.shape.columns + column;
  const int64_t first = row * d.shape.inputs() + column;
  float h[kCount], da[kCount];
  load<kFormat>(d.h.data, first, h);
  load<kFormat>(d.da.data, at, da);
  if constexpr (kKind == ActivationKind::kSwiGlu) {
    float up[kCount];
    load<kFormat>(d.h.data, first + d.shape.columns, up);
    for (int i = 0; i < kCount; ++i) {
      const float s = sigmoid<kFormat>(h[i]);
      const float silu = h[i] * s;
      h[i] = da[i] * up[i] * fmaf(silu, 1.0f - s, s);
      up[i] = da[i] * silu;
    }
    store<kFormat>(d.dh.data, first + d.shape.columns, up);
  } else {
    for (int i = 0; i < kCount; ++i) h[i] = da[i] * gelu_slope<kFormat, kKind>(h[i]);
  }
  store<kFormat>(d.dh.data, first, h);
}

template <Format kFormat, int kCount>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(AddBias d) {
  const int64_t row = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  if (column >= d.place.columns) return;
  const int64_t first = row * d.place.stride + d.place.first + column;
  float y[kCount], other[kCount];
  load<kFormat>(d.y.data, first, y);
  if (d.bias.data != nullptr) {
    load(d.bias, column, other);
    for (int i = 0; i < kCount; ++i) y[i] += other[i];
  }
  if (d.residual.data != nullptr) {
    load<kFormat>(d.residual.data, first, other);
    for (int i = 0; i < kCount; ++i) y[i] += other[i];
  }
  store<kFormat>(d.y.data, first, y);
}

template <int kCount>
__global__ void __launch_bounds__(kThreads) add_kernel(Add d) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  if (at >= d.count) return;
  float x[kCount], y[kCount];
  load(d.x, at, x);
  load(d.y, at, y);
  for (int i = 0; i < kCount; ++i) x[i] += y[i];
  store(d.out, at, x);
}

template <int kCount>
__global__ void __launch_bounds__(kThreads) cast_kernel(Cast d) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  if (at >= d.count) return;
  float values[kCount];
  load(d.from, at, values);
  store(d.to, at, values);
}

struct Casts {
  Cast one[kMostCasts];
  int count = 0;
};

// The format of what is read is the compiler's to know, which then asks for all bytes that have to
// come from CPU memory before it waits for one.
template <Format kFormat, int kCount>
__global__ void __launch_bounds__(kDirectThreads) direct_cast_kernel(Casts casts) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kDirectThreads * kCount;
  for (int c = 0; c < casts.count; ++c) {
    const Cast d = casts.one[c];
    int64_t at = (static_cast<int64_t>(blockIdx.x) * kDirectThreads + threadIdx.x) * kCount;
    for (; at + (kDirectAhead - 1) * stride < d.count; at += kDirectAhead * stride) {
      float values[kDirectAhead][kCount];
#pragma unroll
      for (int i = 0; i < kDirectAhead; ++i) {
        load<kFormat>(d.from.data, at + i * stride, values[i]);
      }
#pragma unroll
      for (int i = 0; i < kDirectAhead; ++i) store(d.to, at + i * stride, values[i]);
    }
    for (; at < d.count; at += stride) {
      float values[kCount];
      load<kFormat>(d.from.data, at, values);
      store(d.to, at, values);
    }
  }
}

template <int kCount>
__global__ void __launch_bounds__(kThreads) scale_kernel(Scale d) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  if (at >= d.count) return;
  float values[kCount];
  load(ConstArray(d.values), at, values);
  for (int i = 0; i < kCount; ++i) values[i] = __fmul_rn(d.factor, values[i]);
  store(d.values, at, values);
}

// --- Launchers ---------------------------------------------------------------------------------

Grid grid_of(int64_t count, bool wide) {
  return {.x = blocks_for(count, kThreads * (wide ? kWide : 1)), .threads = kThreads};
}

// A row a block, which spares every thread a division by the length of a row.
Grid grid_of_rows(int64_t rows, int64_t columns, bool wide) {
  return {.x = rows, .y = blocks_for(columns, kThreads * (wide ? kWide : 1)), .threads = kThreads};
}

// grid_of for `count` values whose end need not be a multiple of kWide: what is left over goes to
// a second launch of one thread a value.
template <class Arguments, class Advance>
Status launch_run(const char* name, void (*wide)(Arguments), void (*narrow)(Arguments),
                  Arguments arguments, bool aligned, Advance advance, Stream stream) {
  const int64_t count = arguments.count;
  const int64_t first = aligned ? count / kWide * kWide : 0;
  if (first > 0) {
    arguments.count = first;
    BALLAST_CUDA_TRY(launch(name, wide, grid_of(first, true), stream, arguments));
  }
  arguments.count = count - first;
  advance(arguments, first);
  return launch(name, narrow, grid_of(count - first, false), stream, arguments);
}

void advance(ConstArray& array, int64_t values) {
  array.data = static_cast<const char*>(array.data) + values * bytes_of(array.format);
}
void advance(Array& array, int64_t values) {
  array.data = static_cast<char*>(array.data) + values * bytes_of(array.format);
}

template <ActivationKind kKind>
struct KindTag {
  static constexpr ActivationKind kValue = kKind;
};

// Calls body(KindTag) of the kind.
template <class Body>
Status with_kind(ActivationKind kind, Body body) {
  if (kind == ActivationKind::kSwiGlu) return body(KindTag<ActivationKind::kSwiGlu>());
  if (kind == ActivationKind::kGelu) return body(KindTag<ActivationKind::kGelu>());
  return body(KindTag<ActivationKind::kGeluTanh>());
}

}  // namespace

Status activation_forward(const ActivationForward& d, Stream stream) {
  const bool wide = d.shape.columns % kWide == 0 && is_wide(d.h.data) && is_wide(d.bias.data) &&
                    is_wide(d.a.data);
  return with_format(d.h.format, [&](auto tag) {
    return with_kind(d.shape.kind, [&](auto kind) {
      constexpr Format kFormat = decltype(tag)::kValue;
      constexpr ActivationKind kKind = decltype(kind)::kValue;
      const auto kernel = wide ? activation_forward_kernel<kFormat, kKind, kWide>
                               : activation_forward_kernel<kFormat, kKind, 1>;
      const Grid grid = grid_of_rows(d.shape.rows, d.shape.columns, wide);
      return launch("activation_forward", kernel, grid, stream, d);
    });
  });
}

Status activation_backward(const ActivationBackward& d, Stream stream) {
  const bool wide =
      d.shape.columns % kWide == 0 && is_wide(d.h.data) && is_wide(d.da.data) && is_wide(d.dh.data);
  return with_format(d.h.format, [&](auto tag) {
    return with_kind(d.shape.kind, [&](auto kind) {
      constexpr Format kFormat = decltype(tag)::kValue;
      constexpr ActivationKind kKind = decltype(kind)::kValue;
      const auto kernel = wide ? activation_backward_kernel<kFormat, kKind, kWide>
                               : activation_backward_kernel<kFormat, kKind, 1>;
      const Grid grid = grid_of_rows(d.shape.rows, d.shape.columns, wide);
      return launch("activation_backward", kernel, grid, stream, d);
    });
  });
}

Status add_bias(const AddBias& d, Stream stream) {
  const bool wide = d.place.columns % kWide == 0 && d.place.stride % kWide == 0 &&
                    d.place.first % kWide == 0 && is_wide(d.y.data) && is_wide(d.bias.data) &&
                    is_wide(d.residual.data);
  return with_format(d.y.format, [&](auto tag) {
    constexpr Format kFormat = decltype(tag)::kValue;
    const auto kernel = wide ? add_bias_kernel<kFormat, kWide> : add_bias_kernel<kFormat, 1>;
    const Grid grid = grid_of_rows(d.place.rows, d.place.columns, wide);
    return launch("add_bias", kernel, grid, stream, d);
  });
}

Status add(const Add& d, Stream stream) {
  const bool aligned = is_wide(d.x.data) && is_wide(d.y.data) && is_wide(d.out.data);
  const auto move = [](Add& left, int64_t values) {
    advance(left.x, values), advance(left.y, values), advance(left.out, values);
  };
  return launch_run("add", add_kernel<kWide>, add_kernel<1>, d, aligned, move, stream);
}

Status cast(const Cast& d, Stream stream) {
  const bool aligned = is_wide(d.from.data) && is_wide(d.to.data);
  const auto move = [](Cast& left, int64_t values) {
    advance(left.from, values), advance(left.to, values);
  };
  return launch_run("cast", cast_kernel<kWide>, cast_kernel<1>, d, aligned, move, stream);
}

// As many values a thread as `kCount` says, whose arrays allow it.
template <Format kFormat, int kCount>
Status launch_across_link(Casts& casts, Stream stream) {
  if (casts.count == 0) return {};
  int64_t longest = 0;
  for (int c = 0; c < casts.count; ++c) {
    if (casts.one[c].count > longest) longest = casts.one[c].count;
  }
  const int64_t blocks = smaller(blocks_for(longest, kDirectThreads * kCount), kDirectBlocks);
  const Grid grid{.x = blocks, .threads = kDirectThreads};
  const Status status =
      launch("direct_cast", direct_cast_kernel<kFormat, kCount>, grid, stream, casts);
  casts.count = 0;
  return status;
}

// Those of one format; what is left over of a length is taken a value a thread.
template <Format kFormat>
Status cast_across_link(std::span<const Cast> all, Stream stream) {
  Casts wide, narrow;
  for (const Cast& cast : all) {
    if (cast.from.format != kFormat) continue;
    Cast first = cast, rest = cast;
    first.count = is_wide(cast.from.data) && is_wide(cast.to.data) ? cast.count / kWide * kWide : 0;
    rest.count -= first.count;
    advance(rest.from, first.count), advance(rest.to, first.count);
    if (first.count > 0) wide.one[wide.count++] = first;
    if (rest.count > 0) narrow.one[narrow.count++] = rest;
    if (wide.count == kMostCasts) {
      BALLAST_CUDA_TRY((launch_across_link<kFormat, kWide>(wide, stream)));
    }
    if (narrow.count == kMostCasts) {
      BALLAST_CUDA_TRY((launch_across_link<kFormat, 1>(narrow, stream)));
    }
  }
  BALLAST_CUDA_TRY((launch_across_link<kFormat, kWide>(wide, stream)));
  return launch_across_link<kFormat, 1>(narrow, stream);
}

Status casts_across_link(std::span<const Cast> all, Stream stream) {
  BALLAST_CUDA_TRY(cast_across_link<Format::kBf16>(all, stream));
  BALLAST_CUDA_TRY(cast_across_link<Format::kF16>(all, stream));
  return cast_across_link<Format::kF32>(all, stream);
}

Status scale(const Scale& d, Stream stream) {
  const bool aligned = is_wide(d.values.data);
  const auto move = [](Scale& left, int64_t values) { advance(left.values, values); };
  return launch_run("scale", scale_kernel<kWide>, scale_kernel<1>, d, aligned, move, stream);
}

}  // namespace ballast::kernels::cuda
