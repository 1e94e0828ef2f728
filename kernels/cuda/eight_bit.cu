// Matrices rounded to 8 bits with one scale each, as stored or turned over.
//
// Bound: bytes, 2 a value for the largest and 3 for the codes (16-bit values), 4 in both orders.
// The largest of a set is the same in every order, so blocks need no fixed one.

#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kPartials = 1024;  // most blocks, each of which leaves the largest it saw
constexpr int kTile = 64;            // rows and columns that are turned over together

// --- Kernels -----------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Over all threads, in each of them. Once a kernel.
__device__ __forceinline__ uint32_t largest_of_block(uint32_t value) {
  __shared__ uint32_t of_warps[kWarps];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = larger(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  uint32_t largest = of_warps[0];
  for (int i = 1; i < kWarps; ++i) largest = larger(largest, of_warps[i]);
  return largest;
}

// Magnitudes as bits: they are in the order of their numbers, NaN above infinity above all others.
template <int kCount>
__global__ void __launch_bounds__(kThreads) largest_kernel(RoundMatrix d, uint32_t* partials) {
  uint32_t largest = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kCount;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  for (int64_t row = blockIdx.y; row < d.rows; row += gridDim.y) {
    for (int64_t column = first; column < d.columns; column += step) {
      float values[kCount];
      load(d.from, row * d.stride + column, values);
      for (int i = 0; i < kCount; ++i) {
        largest = larger(largest, __float_as_uint(values[i]) & 0x7fffffffu);
      }
    }
  }
  largest = largest_of_block(largest);
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = largest;
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

struct Scaled {
  float factor = 1;
  bool finite = true;
};

// Every block finds the scale itself; one of them writes what a code is worth.
__device__ __forceinline__ Scaled scale_of(const RoundMatrix& d, const uint32_t* partials,
                                           int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) largest = larger(largest, partials[i]);
  largest = largest_of_block(largest);
  const int exponent = fp8_exponent(d.format, largest);
  const bool first = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0;
  if (first) *d.scale = power_of_two(-exponent);
  return {power_of_two(exponent), largest < 0x7f800000u};
}

// Codes of two values, the first in the low byte.
template <Fp8 kFormat>
__device__ __forceinline__ uint32_t pair_of(const Scaled& scaled, float low, float high) {
  uint32_t pair = pack_fp8<kFormat>(low * scaled.factor, high * scaled.factor);
  if (scaled.finite) return pair;
  // What is not finite must show in the product: hardware would make infinity the largest number.
  const auto is_special = [](float v) { return (__float_as_uint(v) & 0x7f800000u) == 0x7f800000u; };
  if (is_special(low)) pair = (pair & 0xff00u) | kFp8NotANumber;
  if (is_special(high)) pair = (pair & 0x00ffu) | (kFp8NotANumber << 8);
  return pair;
}
template <Fp8 kFormat>
__device__ __forceinline__ uint8_t code_of(const Scaled& scaled, float value) {
  return static_cast<uint8_t>(pair_of<kFormat>(scaled, value, 0.0f));
}

template <Fp8 kFormat, int kCount>
__global__ void __launch_bounds__(kThreads)
    codes_kernel(RoundMatrix d, const uint32_t* partials, int64_t count) {
  const Scaled scaled = scale_of(d, partials, count);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kCount;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  for (int64_t row = blockIdx.y; row < d.rows; row += gridDim.y) {
    for (int64_t column = first; column < d.columns; column += step) {
      float values[kCount];
      load(d.from, row * d.stride + column, values);
      uint8_t* to = d.codes + row * d.columns + column;
      if constexpr (kCount == 1) {
        *to = code_of<kFormat>(scaled, values[0]);
      } else {
        uint32_t words[2];
        for (int i = 0; i < 2; ++i) {
          words[i] = pair_of<kFormat>(scaled, values[4 * i], values[4 * i + 1]) |
                     (pair_of<kFormat>(scaled, values[4 * i + 2], values[4 * i + 3]) << 16);
        }
        *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
      }
    }
  }
}

template <int kCount>
__device__ __forceinline__ void write_codes(const uint8_t (&codes)[kCount], uint8_t* to) {
  if constexpr (kCount == 1) {
    *to = codes[0];
  } else {
    uint32_t words[2] = {};
    for (int i = 0; i < kCount; ++i) words[i / 4] |= static_cast<uint32_t>(codes[i]) << i % 4 * 8;
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  }
}

// A block takes tiles of 64 x 64 in turn: rows come in, columns go out, four codes a word.
template <Fp8 kFormat, int kCount>
__global__ void __launch_bounds__(kThreads)
    turned_codes_kernel(RoundMatrix d, const uint32_t* partials, int64_t count) {
  constexpr int kWords = kTile / 4;
  constexpr int kThreadsOfRow = kTile / kCount;
  // One more word a column: words of neighbouring columns lie in different banks.
  __shared__ uint32_t tile[kTile][kWords + 1];
  const Scaled scaled = scale_of(d, partials, count);
  const int64_t across = div_up(d.columns, kTile), tiles = div_up(d.rows, kTile) * across;
  for (int64_t at = blockIdx.x; at < tiles; at += gridDim.x) {
    const int64_t first_row = at / across * kTile, first_column = at % across * kTile;
    const int c = threadIdx.x % kThreadsOfRow * kCount;
    for (int r = threadIdx.x / kThreadsOfRow; r < kTile; r += kThreads / kThreadsOfRow) {
      if (first_row + r >= d.rows || first_column + c >= d.columns) continue;
      float values[kCount];
      load(d.from, (first_row + r) * d.stride + first_column + c, values);
      uint8_t codes[kCount];
      for (int i = 0; i < kCount; ++i) {
        codes[i] = code_of<kFormat>(scaled, values[i]);
        reinterpret_cast<uint8_t*>(tile[c + i])[r] = codes[i];
      }
      if (d.codes_as_stored != nullptr) {
        write_codes(codes, d.codes_as_stored + (first_row + r) * d.columns + first_column + c);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kWords; i += kThreads) {
      const int64_t column = first_column + i / kWords, row = first_row + i % kWords * 4;
      if (column >= d.columns || row >= d.rows) continue;
      *reinterpret_cast<uint32_t*>(d.codes + column * d.rows + row) = tile[i / kWords][i % kWords];
    }
    __syncthreads();
  }
}

// --- Launchers ---------------------------------------------------------------------------------

// A matrix without gaps is one long row.
RoundMatrix flat(RoundMatrix d) {
  if (d.stride != d.columns) return d;
  d.columns *= d.rows, d.stride = d.columns, d.rows = 1;
  return d;
}

Grid grid_of(const RoundMatrix& d, int64_t count) {
  const int64_t x = smaller(blocks_for(d.columns, kThreads * count), kPartials);
  return {.x = x, .y = smaller(d.rows, kPartials / x), .threads = kThreads};
}

template <Fp8 kFormat>
Status launch_codes(const RoundMatrix& d, bool wide, Stream stream) {
  auto* partials = static_cast<uint32_t*>(d.scratch);
  const RoundMatrix whole = flat(d);
  const Grid grid = grid_of(whole, wide ? kWide : 1);
  const int64_t count = grid.x * grid.y;
  const auto largest = wide ? largest_kernel<kWide> : largest_kernel<1>;
  BALLAST_CUDA_TRY(launch("round_largest", largest, grid, stream, whole, partials));
  if (d.order == CodeOrder::kAsStored) {
    const auto codes = wide ? codes_kernel<kFormat, kWide> : codes_kernel<kFormat, 1>;
    return launch("round_codes", codes, grid, stream, whole, partials, count);
  }
  const auto codes = wide ? turned_codes_kernel<kFormat, kWide> : turned_codes_kernel<kFormat, 1>;
  const int64_t tiles = div_up(d.rows, kTile) * div_up(d.columns, kTile);
  const Grid of_tiles{.x = smaller(tiles, kPartials), .threads = kThreads};
  return launch("round_turned_codes", codes, of_tiles, stream, d, partials, count);
}

}  // namespace

int64_t round_matrix_scratch_bytes() { return scratch_bytes_of(kPartials * 4); }

Status round_matrix(const RoundMatrix& d, Stream stream) {
  const bool fits = d.rows % kCodesMultiple == 0 && d.columns % kCodesMultiple == 0 &&
                    reinterpret_cast<uintptr_t>(d.codes) % kCodesMultiple == 0 &&
                    reinterpret_cast<uintptr_t>(d.codes_as_stored) % kCodesMultiple == 0;
  if (!fits) return invalid("round_matrix");
  if (d.rows == 0 || d.columns == 0) return {0, "round_matrix", 0, 0, 0};
  const bool wide = d.stride % kWide == 0 && is_wide(d.from.data);
  return d.format == Fp8::kE4m3 ? launch_codes<Fp8::kE4m3>(d, wide, stream)
                                : launch_codes<Fp8::kE5m2>(d, wide, stream);
}

}  // namespace ballast::kernels::cuda
