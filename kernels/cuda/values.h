// Reading and writing storage of any format in kernels, and sums over a block. For .cu files only.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/geometry.h"

namespace ballast::kernels::cuda {

// --- One value, with the bits of kernels/reference/convert.h -----------------------------------

__device__ __forceinline__ float float_of_bf16(uint32_t value) {
  return __uint_as_float(value << 16);
}
__device__ __forceinline__ uint16_t bf16_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ float float_of_f16(uint32_t value) {
  if ((value & 0x7fffu) > 0x7c00u) {  // NaN: the hardware would not keep the payload
    return __uint_as_float(((value & 0x8000u) << 16) | 0x7fc00000u | ((value & 0x3ffu) << 13));
  }
  return float_from_half(static_cast<uint16_t>(value));
}
__device__ __forceinline__ uint16_t f16_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | 0x7e00u | ((bits >> 13) & 0x3ffu));
  }
  return half_from_float(value);
}

template <Format kFormat>
__device__ __forceinline__ float float_of_bits(uint32_t bits) {
  return kFormat == Format::kBf16 ? float_of_bf16(bits) : float_of_f16(bits);
}
template <Format kFormat>
__device__ __forceinline__ uint32_t bits_of_float(float value) {
  return kFormat == Format::kBf16 ? bf16_of(value) : f16_of(value);
}

// Pairs by the hardware's own rounding, which is that of bits_of_float but for NaN, whose payload
// it drops: where there is one, all are rounded one by one.
template <Format kFormat, int kCount>
__device__ __forceinline__ void round_pairs(const float (&from)[kCount],
                                            uint32_t (&words)[kCount / 2]) {
  bool has_nan = false;
#pragma unroll
  for (int i = 0; i < kCount; ++i) has_nan |= from[i] != from[i];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    words[i] = pack_pair<kFormat>(from[2 * i], from[2 * i + 1]);
  }
  if (!has_nan) return;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    words[i] =
        bits_of_float<kFormat>(from[2 * i]) | (bits_of_float<kFormat>(from[2 * i + 1]) << 16);
  }
}

// --- kCount values from element `first` --------------------------------------------------------
// kCount is 1, or a multiple of 4 with addresses at multiples of 16 bytes (8 for 4 values in 16
// bits).

template <Format kFormat, int kCount>
__device__ __forceinline__ void load(const void* data, int64_t first, float (&to)[kCount]) {
  if constexpr (kFormat == Format::kF32) {
    const float* from = static_cast<const float*>(data) + first;
    if constexpr (kCount == 1) {
      to[0] = from[0];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
      }
    }
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(data) + first;
    if constexpr (kCount == 1) {
      to[0] = float_of_bits<kFormat>(from[0]);
    } else {
      uint32_t words[kCount / 2];
      if constexpr (kCount == 4) {
        const uint2 two = *reinterpret_cast<const uint2*>(from);
        words[0] = two.x, words[1] = two.y;
      } else {
#pragma unroll
        for (int i = 0; i < kCount / 2; i += 4) {
          const uint4 four = *reinterpret_cast<const uint4*>(from + 2 * i);
          words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
        }
      }
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        to[2 * i] = float_of_bits<kFormat>(words[i] & 0xffffu);
        to[2 * i + 1] = float_of_bits<kFormat>(words[i] >> 16);
      }
    }
  }
}

template <Format kFormat, int kCount>
__device__ __forceinline__ void store(void* data, int64_t first, const float (&from)[kCount]) {
  if constexpr (kFormat == Format::kF32) {
    float* to = static_cast<float*>(data) + first;
    if constexpr (kCount == 1) {
      to[0] = from[0];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        *reinterpret_cast<float4*>(to + i) =
            make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
      }
    }
  } else {
    uint16_t* to = static_cast<uint16_t*>(data) + first;
    if constexpr (kCount == 1) {
      to[0] = static_cast<uint16_t>(bits_of_float<kFormat>(from[0]));
    } else {
      uint32_t words[kCount / 2];
      round_pairs<kFormat>(from, words);
      if constexpr (kCount == 4) {
        *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
      } else {
#pragma unroll
        for (int i = 0; i < kCount / 2; i += 4) {
          *reinterpret_cast<uint4*>(to + 2 * i) =
              make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
        }
      }
    }
  }
}

// The same with a format that is known only when the kernel runs: for parameters and gradients,
// whose format would otherwise multiply the kernels. All threads take the same branch.
template <int kCount>
__device__ __forceinline__ void load(const ConstArray& array, int64_t first, float (&to)[kCount]) {
  if (array.format == Format::kBf16) return load<Format::kBf16>(array.data, first, to);
  if (array.format == Format::kF16) return load<Format::kF16>(array.data, first, to);
  load<Format::kF32>(array.data, first, to);
}
template <int kCount>
__device__ __forceinline__ void store(const Array& array, int64_t first,
                                      const float (&from)[kCount]) {
  if (array.format == Format::kBf16) return store<Format::kBf16>(array.data, first, from);
  if (array.format == Format::kF16) return store<Format::kF16>(array.data, first, from);
  store<Format::kF32>(array.data, first, from);
}

// Writes sums, or adds to what is stored and rounds once.
template <int kCount>
__device__ __forceinline__ void write(const Array& array, int64_t first, Write how,
                                      float (&sums)[kCount]) {
  if (how == Write::kAdd) {
    float stored[kCount];
    load(ConstArray(array.data, array.format), first, stored);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] += stored[i];
  }
  store(array, first, sums);
}

// --- Sums in one fixed order -------------------------------------------------------------------

template <class Real>
__device__ __forceinline__ Real sum_of_warp(Real value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// The sum over the block's kThreads threads, in all of them. May be called again at once.
template <int kThreads>
__device__ __forceinline__ float sum_of_block(float value) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float sums[kWarps];
  value = sum_of_warp(value);
  __syncthreads();  // the sums of the call before have been read
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i];
  return total;
}

// --- From formats and alignments to kernels ----------------------------------------------------

template <Format kFormat>
struct FormatTag {
  static constexpr Format kValue = kFormat;
};

// Calls body(FormatTag) of the format.
template <class Body>
Status with_format(Format format, Body body) {
  if (format == Format::kBf16) return body(FormatTag<Format::kBf16>());
  if (format == Format::kF16) return body(FormatTag<Format::kF16>());
  return body(FormatTag<Format::kF32>());
}

}  // namespace ballast::kernels::cuda
