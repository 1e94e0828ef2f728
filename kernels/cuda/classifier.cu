// Softmax, cross-entropy and gradient over rows of logits, in place; the mean loss.
//
// Bound: bytes, 2 read twice and written once a logit in 16 bits: the second reading of a row of
// 50k to 150k logits comes from the second cache in part. Rows need not be aligned (without a
// stride those of a vocabulary of 50,257 are not): a block takes single values up to the first
// aligned one and after the last.

#include <cfloat>

#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 512;

// --- Kernels -----------------------------------------------------------------------------------

// The maximum of some logits, and the sum of exp(logit - maximum). The lowest finite maximum
// stands for none, so that a logit of minus infinity counts as 0.
struct Softmax {
  float maximum = -FLT_MAX;
  float sum = 0;

  template <int kCount>
  __device__ __forceinline__ void add(const float (&x)[kCount]) {
    float largest = maximum;
    for (int i = 0; i < kCount; ++i) largest = fmaxf(largest, x[i]);
    sum *= expf(maximum - largest);
    for (int i = 0; i < kCount; ++i) sum += expf(x[i] - largest);
    maximum = largest;
  }
};

// The same of a whole row, summed in double over threads.
struct RowSoftmax {
  float maximum = -FLT_MAX;
  double sum = 0;
};

__device__ __forceinline__ RowSoftmax merged(const RowSoftmax& a, const RowSoftmax& b) {
  const float largest = fmaxf(a.maximum, b.maximum);
  return {largest, __dadd_rn(a.sum * expf(a.maximum - largest), b.sum * expf(b.maximum - largest))};
}

// Of all threads of the block, in one fixed tree, known to all.
__device__ __forceinline__ RowSoftmax merged_over_block(const Softmax& of_thread) {
  __shared__ float maxima[kThreads / kWarp];
  __shared__ double sums[kThreads / kWarp];
  RowSoftmax row{of_thread.maximum, of_thread.sum};
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    row = merged(row, {__shfl_xor_sync(kAllLanes, row.maximum, distance),
                       __shfl_xor_sync(kAllLanes, row.sum, distance)});
  }
  if (threadIdx.x % kWarp == 0) {
    maxima[threadIdx.x / kWarp] = row.maximum;
    sums[threadIdx.x / kWarp] = row.sum;
  }
  __syncthreads();
  row = {};
  for (int i = 0; i < kThreads / kWarp; ++i) row = merged(row, {maxima[i], sums[i]});
  return row;
}

// Calls body(first, count tag) of this thread's share of a row that begins at `row`: kWide values
// at a time between the first aligned one and the last.
template <Format kFormat, class Body>
__device__ __forceinline__ void for_row(const void* row, int64_t columns, Body body) {
  constexpr int64_t kBytes = kFormat == Format::kF32 ? 4 : 2;
  const auto address = reinterpret_cast<uintptr_t>(row);
  const int64_t head = smaller(static_cast<int64_t>((16 - address % 16) % 16) / kBytes, columns);
  const int64_t vectors = (columns - head) / kWide;
  const int64_t tail = head + vectors * kWide;
  for (int64_t at = threadIdx.x; at < head; at += kThreads) body.template operator()<1>(at);
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    body.template operator()<static_cast<int>(kWide)>(head + i * kWide);
  }
  for (int64_t at = tail + threadIdx.x; at < columns; at += kThreads) {
    body.template operator()<1>(at);
  }
}

template <Format kFormat>
struct Observe {
  const void* row;
  Softmax* softmax;
  template <int kCount>
  __device__ __forceinline__ void operator()(int64_t at) const {
    float x[kCount];
    load<kFormat>(row, at, x);
    softmax->add(x);
  }
};

// x becomes scale * exp(x - maximum), less `factor` at column `target`.
template <Format kFormat>
struct Replace {
  void* row;
  float maximum;
  float scale;
  float factor;
  int64_t target;
  template <int kCount>
  __device__ __forceinline__ void operator()(int64_t at) const {
    float x[kCount];
    load<kFormat>(row, at, x);
    for (int i = 0; i < kCount; ++i) {
      x[i] = scale * expf(x[i] - maximum) - (at + i == target ? factor : 0.0f);
    }
    store<kFormat>(row, at, x);
  }
};

template <Format kFormat>
__device__ __forceinline__ void* row_of(const Array& logits, int64_t row, int64_t stride) {
  constexpr int64_t kBytes = kFormat == Format::kF32 ? 4 : 2;
  return static_cast<char*>(logits.data) + row * stride * kBytes;
}

// Of token `token`: rows of tokens hold one more id than inputs.
__device__ __forceinline__ int64_t target_of(const ClassifierRows& rows, const int32_t* tokens,
                                             int64_t token) {
  return tokens[token + token / rows.length + 1];
}

__device__ __forceinline__ double not_a_number() {
  return static_cast<double>(__uint_as_float(0x7fc00000u));
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads) classifier_kernel(Classifier d) {
  void* row = row_of<kFormat>(d.logits, blockIdx.x, d.stride > 0 ? d.stride : d.vocab);
  const int64_t token = d.rows.first_row + blockIdx.x;
  const int64_t target = target_of(d.rows, d.tokens, token);
  const bool known = target >= 0 && target < d.vocab;
  float logit[1] = {0};
  if (known) load<kFormat>(row, target, logit);
  Softmax softmax;
  for_row<kFormat>(row, d.vocab, Observe<kFormat>{row, &softmax});
  const RowSoftmax all = merged_over_block(softmax);  // a barrier: `logit` has been read
  const auto scale = static_cast<float>(static_cast<double>(d.gradient_factor) / all.sum);
  for_row<kFormat>(row, d.vocab,
                   Replace<kFormat>{row, all.maximum, scale, d.gradient_factor, target});
  if (threadIdx.x != 0) return;
  d.losses[token] =
      known ? log(all.sum) + static_cast<double>(all.maximum) - static_cast<double>(logit[0])
            : not_a_number();
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads) observe_kernel(ClassifierChunk d, Chunk chunk) {
  const void* row = row_of<kFormat>(d.logits, blockIdx.x, d.columns);
  const int64_t token = d.rows.first_row + blockIdx.x;
  const int64_t target = target_of(d.rows, d.tokens, token) - d.first_column;
  Softmax softmax;
  for_row<kFormat>(row, d.columns, Observe<kFormat>{row, &softmax});
  RowSoftmax all = merged_over_block(softmax);
  if (threadIdx.x != 0) return;
  double* running = d.running + 3 * token;
  double logit = chunk == Chunk::kFirst ? not_a_number() : running[2];
  if (chunk == Chunk::kLater) all = merged({static_cast<float>(running[0]), running[1]}, all);
  if (target >= 0 && target < d.columns) {
    float x[1];
    load<kFormat>(row, target, x);
    logit = static_cast<double>(x[0]);
  }
  running[0] = static_cast<double>(all.maximum);
  running[1] = all.sum;
  running[2] = logit;
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads) gradient_kernel(ClassifierChunk d, double* losses) {
  void* row = row_of<kFormat>(d.logits, blockIdx.x, d.columns);
  const int64_t token = d.rows.first_row + blockIdx.x;
  const int64_t target = target_of(d.rows, d.tokens, token) - d.first_column;
  const double maximum = d.running[3 * token], sum = d.running[3 * token + 1];
  const auto scale = static_cast<float>(static_cast<double>(d.gradient_factor) / sum);
  for_row<kFormat>(
      row, d.columns,
      Replace<kFormat>{row, static_cast<float>(maximum), scale, d.gradient_factor, target});
  if (threadIdx.x == 0 && losses != nullptr) {
    losses[token] = log(sum) + maximum - d.running[3 * token + 2];
  }
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads) tell_kernel(ClassifierShare d, float* told) {
  const void* row = row_of<kFormat>(d.logits, blockIdx.x, d.stride > 0 ? d.stride : d.columns);
  const int64_t token = d.rows.first_row + blockIdx.x;
  const int64_t target = target_of(d.rows, d.tokens, token) - d.first_id;
  Softmax softmax;
  for_row<kFormat>(row, d.ids, Observe<kFormat>{row, &softmax});
  const RowSoftmax all = merged_over_block(softmax);
  if (threadIdx.x != 0) return;
  float logit[1] = {0};
  if (target >= 0 && target < d.ids) load<kFormat>(row, target, logit);
  float* to = told + 3 * static_cast<int64_t>(blockIdx.x);
  to[0] = all.maximum;
  to[1] = static_cast<float>(all.sum);
  to[2] = logit[0];
}

__global__ void __launch_bounds__(kThreads) merge_kernel(ToldSums d) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= d.rows) return;
  const float* told = d.told + 3 * row;
  float maximum = told[0], sum = told[1], target = told[2];
  for (int64_t rank = 1; rank < d.ranks; ++rank) {
    told += 3 * d.rows;
    const float largest = fmaxf(maximum, told[0]);
    sum = sum * expf(maximum - largest) + told[1] * expf(told[0] - largest);
    maximum = largest;
    target += told[2];
  }
  float* to = d.sums + 3 * row;
  to[0] = maximum;
  to[1] = sum;
  to[2] = target;
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads)
    share_kernel(ClassifierShare d, const float* sums, double* losses) {
  void* row = row_of<kFormat>(d.logits, blockIdx.x, d.stride > 0 ? d.stride : d.columns);
  const int64_t token = d.rows.first_row + blockIdx.x;
  const int64_t target = target_of(d.rows, d.tokens, token) - d.first_id;
  const float* of_all = sums + 3 * static_cast<int64_t>(blockIdx.x);
  const auto sum = static_cast<double>(of_all[1]);
  const auto scale = static_cast<float>(static_cast<double>(d.gradient_factor) / sum);
  for_row<kFormat>(row, d.ids, Replace<kFormat>{row, of_all[0], scale, d.gradient_factor, target});
  const float nothing[1] = {0};
  for (int64_t at = d.ids + threadIdx.x; at < d.columns; at += kThreads) {
    store<kFormat>(row, at, nothing);
  }
  if (threadIdx.x != 0) return;
  losses[token] = log(sum) + static_cast<double>(of_all[0]) - static_cast<double>(of_all[2]);
}

// One block: thread t adds losses t, t + 512, ...; then a tree over the threads.
__global__ void __launch_bounds__(kThreads) mean_loss_kernel(MeanLoss d) {
  __shared__ double sums[kThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < d.count; i += kThreads) sum = __dadd_rn(sum, d.losses[i]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      sums[threadIdx.x] = __dadd_rn(sums[threadIdx.x], sums[threadIdx.x + half]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) d.mean[0] = sums[0] / static_cast<double>(d.count);
}

}  // namespace

// --- Launchers ---------------------------------------------------------------------------------

Status classifier(const Classifier& d, Stream stream) {
  const Grid grid{.x = d.rows.rows, .threads = kThreads};
  return with_format(d.logits.format, [&](auto tag) {
    return launch("classifier", classifier_kernel<decltype(tag)::kValue>, grid, stream, d);
  });
}

Status classifier_observe(const ClassifierChunk& d, Chunk chunk, Stream stream) {
  const Grid grid{.x = d.rows.rows, .threads = kThreads};
  return with_format(d.logits.format, [&](auto tag) {
    return launch("classifier_observe", observe_kernel<decltype(tag)::kValue>, grid, stream, d,
                  chunk);
  });
}

Status classifier_gradient(const ClassifierChunk& d, double* losses, Stream stream) {
  const Grid grid{.x = d.rows.rows, .threads = kThreads};
  return with_format(d.logits.format, [&](auto tag) {
    return launch("classifier_gradient", gradient_kernel<decltype(tag)::kValue>, grid, stream, d,
                  losses);
  });
}

Status classifier_tell(const ClassifierShare& d, float* told, Stream stream) {
  const Grid grid{.x = d.rows.rows, .threads = kThreads};
  return with_format(d.logits.format, [&](auto tag) {
    return launch("classifier_tell", tell_kernel<decltype(tag)::kValue>, grid, stream, d, told);
  });
}

Status classifier_merge(const ToldSums& d, Stream stream) {
  const Grid grid{.x = div_up(d.rows, kThreads), .threads = kThreads};
  return launch("classifier_merge", merge_kernel, grid, stream, d);
}

Status classifier_share(const ClassifierShare& d, const float* sums, double* losses,
                        Stream stream) {
  const Grid grid{.x = d.rows.rows, .threads = kThreads};
  return with_format(d.logits.format, [&](auto tag) {
    return launch("classifier_share", share_kernel<decltype(tag)::kValue>, grid, stream, d, sums,
                  losses);
  });
}

Status mean_loss(const MeanLoss& d, Stream stream) {
  const Grid grid{.x = d.count == 0 ? 0 : 1, .threads = kThreads};
  return launch("mean_loss", mean_loss_kernel, grid, stream, d);
}

}  // namespace ballast::kernels::cuda
