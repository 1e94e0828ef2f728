// AdamW and sums of squares, with the bits of kernels/reference.
//
// Bound: bytes. Adam moves 30 bytes a parameter with fp32 gradients and 16-bit weights, and 12 more
// with a snapshot. Every operation is written as the instruction that rounds it, so no compiler may
// contract two. A sum of squares has 128 chains of 512 dependent additions in double a segment (the
// order of the CPU), one a thread: a block copies its segment through shared memory, three tiles
// under way while its threads add a fourth.

#include "kernels/cuda/adam_step.h"
#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

// --- Adam --------------------------------------------------------------------------------------

constexpr int kAdamThreads = 256;
constexpr int kAdamWide = 4;  // parameters of a thread: 16 bytes of each fp32 array

struct AdamTask {
  AdamArrays arrays;
  StepConstants constants;
  Snapshot snapshot;
};

template <int kCount>
__global__ void __launch_bounds__(kAdamThreads) adam_kernel(AdamTask task) {
  const AdamArrays& a = task.arrays;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kAdamThreads + threadIdx.x) * kCount;
  if (at >= a.count) return;
  float w[kCount], m[kCount], v[kCount], g[kCount];
  load(ConstArray(a.gradient, a.gradient_format), at, g);
  load<Format::kF32>(a.master, at, w);
  load<Format::kF32>(a.moment1, at, m);
  load<Format::kF32>(a.moment2, at, v);
  if (task.snapshot.master != nullptr) {
    store<Format::kF32>(task.snapshot.master, at, w);
    store<Format::kF32>(task.snapshot.moment1, at, m);
    store<Format::kF32>(task.snapshot.moment2, at, v);
  }
  for (int i = 0; i < kCount; ++i) step(task.constants, g[i], w[i], m[i], v[i]);
  store<Format::kF32>(a.master, at, w);
  store<Format::kF32>(a.moment1, at, m);
  store<Format::kF32>(a.moment2, at, v);
  if (a.weights != nullptr) store(Array{a.weights, a.weights_format}, at, w);
}

// The task from parameter `first` on, `count` of them.
AdamTask part_of(AdamTask task, int64_t first, int64_t count) {
  AdamArrays& a = task.arrays;
  a.master += first, a.moment1 += first, a.moment2 += first;
  a.gradient = static_cast<const char*>(a.gradient) + first * bytes_of(a.gradient_format);
  if (a.weights != nullptr) {
    a.weights = static_cast<char*>(a.weights) + first * bytes_of(a.weights_format);
  }
  a.count = count;
  Snapshot& s = task.snapshot;
  if (s.master != nullptr) s.master += first, s.moment1 += first, s.moment2 += first;
  return task;
}

// --- Sums of squares ---------------------------------------------------------------------------

constexpr int kSumThreads = static_cast<int>(kNormLanes);  // thread j adds up lane j
constexpr int kSumTile = 2048;  // values that are copied to shared memory together
constexpr int kSumStages = 4;   // tiles there: one that is added, the others on their way
constexpr int kSumAhead = 8;    // values on their way to double beside the additions
constexpr int kSumPerThread = kSumTile / kSumThreads;

template <Format kFormat>
constexpr int64_t kValueBytes = kFormat == Format::kF32 ? 4 : 2;
template <Format kFormat>
constexpr int64_t kSumTileBytes = kSumTile * kValueBytes<kFormat>;

// |x| as a double. A number with an exponent of its own is widened by shifts: the unit that
// converts has a longer latency than the addition that waits for it.
__device__ __forceinline__ double wide_magnitude(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  constexpr uint32_t kLeast = 0x00800000u, kBeyond = 0x7f800000u;  // below are zero and subnormals
  constexpr uint32_t kBias = (1023u - 127u) << 20;
  if (bits - kLeast >= kBeyond - kLeast) return static_cast<double>(__uint_as_float(bits));
  return __hiloint2double(static_cast<int>((bits >> 3) + kBias), static_cast<int>(bits << 29));
}

// Starts the copies of a tile, zeros after `end`, as one group; an empty one beyond the last tile.
template <Format kFormat>
__device__ __forceinline__ void fetch_tile(const void* values, int64_t first, int64_t end,
                                           unsigned char* to) {
  constexpr int64_t kPiece = 16 / kValueBytes<kFormat>;  // values of a copy
  for (int i = static_cast<int>(threadIdx.x); first < end && i < kSumTile / kPiece;
       i += kSumThreads) {
    const int64_t at = first + i * kPiece;
    const int64_t left = at < end ? smaller(end - at, kPiece) : 0;
    const auto* from = static_cast<const unsigned char*>(values);
    start_copy(to + 16 * i, from + (left > 0 ? at : first) * kValueBytes<kFormat>,
               static_cast<uint32_t>(left * kValueBytes<kFormat>));
  }
  close_copies();
}

// Lanes added in halves, by all threads of the block; thread 0 has what comes of it, others 0.
__device__ __forceinline__ double sum_of_lanes(double sum) {
  __shared__ double sums[kSumThreads];
  const int lane = static_cast<int>(threadIdx.x);
  sums[lane] = sum;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) sums[lane] = __dadd_rn(sums[lane], sums[lane + half]);
  }
  return lane == 0 ? sums[0] : 0;
}

// Block x: segment x. A zero beyond the end adds +0 to a sum of squares, which changes no bit. The
// product is exact: 24 + 24 bits fit in 53.
template <Format kFormat>
__global__ void __launch_bounds__(kSumThreads) sum_of_squares_kernel(SumOfSquares d) {
  unsigned char* const ring = dynamic_shared();
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t begin = blockIdx.x * kNormBlock;
  const int64_t end = smaller(begin + kNormBlock, d.count);
  const auto stage = [&](int64_t first) {
    return ring + (first - begin) / kSumTile % kSumStages * kSumTileBytes<kFormat>;
  };
  for (int64_t i = 0; i < kSumStages - 1; ++i) {
    const int64_t first = begin + i * kSumTile;
    fetch_tile<kFormat>(d.values.data, first, end, stage(first));
  }
  double sum = 0;
  for (int64_t first = begin; first < end; first += kSumTile) {
    wait_for_copies<kSumStages - 2>();
    __syncthreads();  // all threads' copies are there, and the tile before has been added
    const int64_t ahead = first + (kSumStages - 1) * kSumTile;
    fetch_tile<kFormat>(d.values.data, ahead, end, stage(ahead));
    const unsigned char* const tile = stage(first);
#pragma unroll
    for (int i = 0; i < kSumPerThread; i += kSumAhead) {
      double value[kSumAhead];
#pragma unroll
      for (int k = 0; k < kSumAhead; ++k) {
        float x[1];
        load<kFormat>(tile, (i + k) * kSumThreads + lane, x);
        value[k] = wide_magnitude(x[0]);
      }
#pragma unroll
      for (int k = 0; k < kSumAhead; ++k) sum = __fma_rn(value[k], value[k], sum);
    }
  }
  sum = sum_of_lanes(sum);
  if (lane == 0) d.partials[blockIdx.x] = sum;
}

// The same of values that do not begin at a multiple of 16 bytes, as copies must.
template <Format kFormat>
__global__ void __launch_bounds__(kSumThreads) unaligned_sum_of_squares_kernel(SumOfSquares d) {
  const int64_t begin = blockIdx.x * kNormBlock;
  const int64_t end = smaller(begin + kNormBlock, d.count);
  double sum = 0;
#pragma unroll 8
  for (int64_t at = begin + threadIdx.x; at < end; at += kSumThreads) {
    float x[1];
    load<kFormat>(d.values.data, at, x);
    const double value = wide_magnitude(x[0]);
    sum = __fma_rn(value, value, sum);
  }
  sum = sum_of_lanes(sum);
  if (threadIdx.x == 0) d.partials[blockIdx.x] = sum;
}

}  // namespace

// --- Launchers ---------------------------------------------------------------------------------

Status adam_step(const AdamArrays& arrays, const AdamConstants& constants, const Snapshot& snapshot,
                 Stream stream) {
  const AdamTask task{arrays, step_constants(constants), snapshot};
  bool wide = is_wide(arrays.gradient) && is_wide(arrays.weights);
  for (const float* values : {arrays.master, arrays.moment1, arrays.moment2, snapshot.master,
                              snapshot.moment1, snapshot.moment2}) {
    wide = wide && is_wide(values);
  }
  const int64_t first = wide ? arrays.count / kAdamWide * kAdamWide : 0;
  if (first > 0) {
    const Grid grid{.x = div_up(first, kAdamThreads * kAdamWide), .threads = kAdamThreads};
    BALLAST_CUDA_TRY(
        launch("adam_step", adam_kernel<kAdamWide>, grid, stream, part_of(task, 0, first)));
  }
  const int64_t left = arrays.count - first;
  const Grid grid{.x = div_up(left, kAdamThreads), .threads = kAdamThreads};
  return launch("adam_step", adam_kernel<1>, grid, stream, part_of(task, first, left));
}

Status sum_of_squares(const SumOfSquares& d, Stream stream) {
  const bool wide = is_wide(d.values.data);
  return with_format(d.values.format, [&](auto tag) {
    constexpr Format kFormat = decltype(tag)::kValue;
    Grid grid{.x = segments_of(d.count), .threads = kSumThreads};
    if (!wide) {
      return launch("sum_of_squares", unaligned_sum_of_squares_kernel<kFormat>, grid, stream, d);
    }
    grid.shared_bytes = kSumStages * kSumTileBytes<kFormat>;
    return launch("sum_of_squares", sum_of_squares_kernel<kFormat>, grid, stream, d);
  });
}

}  // namespace ballast::kernels::cuda
