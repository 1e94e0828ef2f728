// The loops of the vector tables, written once over a vector type V that each instruction set
// defines: the same operations in the same order as reference/reference.cpp.
//
// V gives the vector F of lanes() floats, an integer vector I of as many lanes, a lane mask Mask,
// and static functions on them; loads and stores take All{} or V::first(n), the first n lanes.
// Everything has internal linkage (see step_constants.h), and nothing of std is instantiated.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/step_constants.h"

namespace ballast::kernels {
namespace {

struct All {};

constexpr int64_t kLanesMax = 64;  // the widest scalable vector has 2048 bits

template <class V, Format K, class Lanes>
inline typename V::F load_as_f32(Lanes lanes, const void* values, int64_t i) {
  if constexpr (K == Format::kF32) return V::load(lanes, static_cast<const float*>(values) + i);
  if constexpr (K == Format::kBf16) {
    return V::load_bf16(lanes, static_cast<const uint16_t*>(values) + i);
  }
  if constexpr (K == Format::kF16) {
    return V::load_f16(lanes, static_cast<const uint16_t*>(values) + i);
  }
}

template <class V, Format K, class Lanes>
inline void store_from_f32(Lanes lanes, void* values, int64_t i, typename V::F value) {
  if constexpr (K == Format::kF32) V::store(lanes, static_cast<float*>(values) + i, value);
  if constexpr (K == Format::kBf16) {
    V::store_bf16(lanes, static_cast<uint16_t*>(values) + i, value);
  }
  if constexpr (K == Format::kF16) {
    V::store_f16(lanes, static_cast<uint16_t*>(values) + i, value);
  }
}

// Calls body(lanes, i) for every whole vector, then once for what is left.
template <class V, class Body>
inline void for_vectors(int64_t count, Body body) {
  const int64_t step = V::lanes();
  int64_t i = 0;
  for (; i + step <= count; i += step) body(All{}, i);
  if (i < count) body(V::first(count - i), i);
}

// What the 16-bit stream of a step is: absent, or one of the formats.
template <Format K>
struct WeightsAs {
  static constexpr bool kWritten = true;
  static constexpr Format kFormat = K;
};
struct NoWeights {
  static constexpr bool kWritten = false;
  static constexpr Format kFormat = Format::kF32;
};

// The run of at most `size` parameters of arrays that begins at `begin`: slice(), inlined.
template <Format G, class W>
inline AdamArrays block(const AdamArrays& arrays, int64_t begin, int64_t size) {
  AdamArrays part = arrays;
  part.master += begin;
  part.moment1 += begin;
  part.moment2 += begin;
  part.gradient = static_cast<const char*>(arrays.gradient) + begin * bytes_of(G);
  if constexpr (W::kWritten) {
    part.weights = static_cast<char*>(arrays.weights) + begin * bytes_of(W::kFormat);
  }
  part.count = arrays.count - begin < size ? arrays.count - begin : size;
  return part;
}

// Asks for the lines that the streams need 2 KiB later, once a line: the distance that looked best
// in short runs at 4M parameters (docs/kernels.md). Always inlined: a function that does nothing
// but prefetch looks pure to GCC, which may drop the calls.
template <Format G>
__attribute__((always_inline)) inline void prefetch_streams(const AdamArrays& a, int64_t i) {
  constexpr int64_t kAhead = 512, kLineFloats = 16;
  if (i % kLineFloats != 0) return;
  __builtin_prefetch(a.master + i + kAhead, 1);
  __builtin_prefetch(a.moment1 + i + kAhead, 1);
  __builtin_prefetch(a.moment2 + i + kAhead, 1);
  __builtin_prefetch(static_cast<const char*>(a.gradient) + (i + kAhead) * bytes_of(G), 0);
}

// Calls use.template operator()<G, W>() for the formats of a.
template <Format G, class Arrays, class Use>
auto with_weights_format(const Arrays& a, Use use) {
  if (a.weights == nullptr) return use.template operator()<G, NoWeights>();
  if (a.weights_format == Format::kBf16) {
    return use.template operator()<G, WeightsAs<Format::kBf16>>();
  }
  if (a.weights_format == Format::kF16) {
    return use.template operator()<G, WeightsAs<Format::kF16>>();
  }
  return use.template operator()<G, WeightsAs<Format::kF32>>();
}
template <class Arrays, class Use>
auto with_formats(const Arrays& a, Use use) {
  if (a.gradient_format == Format::kBf16) return with_weights_format<Format::kBf16>(a, use);
  if (a.gradient_format == Format::kF16) return with_weights_format<Format::kF16>(a, use);
  return with_weights_format<Format::kF32>(a, use);
}

// Adds up the lanes in the order of kNormLanes.
inline double sum_lanes(double* lanes) {
  for (int64_t half = kNormLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

// V::add_squares where vectors may stand in arrays: a strip of four of them, whose squares are
// added as two vectors of doubles each.
template <class V, Format K>
void add_squares_in_four(const void* values, int64_t first_value, int64_t end, double* sums) {
  constexpr int64_t kWidth = V::kStripLanes / 4;
  typename V::D s[4][2];
  const auto add = [&](auto lanes, int64_t i, int k) {
    const auto x = load_as_f32<V, K>(lanes, values, i + kWidth * k);
    const auto low = V::low_doubles(x), high = V::high_doubles(x);
    s[k][0] = V::fma_doubles(low, low, s[k][0]);
    s[k][1] = V::fma_doubles(high, high, s[k][1]);
  };
  for (int k = 0; k < 8; ++k) s[k / 2][k % 2] = V::load_doubles(sums + kWidth / 2 * k);
  int64_t i = first_value;
  for (; i + V::kStripLanes <= end; i += kNormLanes) {
    for (int k = 0; k < 4; ++k) add(All{}, i, k);
  }
  for (int k = 0; k < 4 && i + kWidth * k < end; ++k) {
    const int64_t left = end - i - kWidth * k;
    add(V::first(left < kWidth ? left : kWidth), i, k);
  }
  for (int k = 0; k < 8; ++k) V::store_doubles(sums + kWidth / 2 * k, s[k / 2][k % 2]);
}

// The registers hold the sums of a strip of kStripLanes lanes. Strip after strip over a tile that
// the first cache holds, so that memory is read once:
//   V::add_squares<K>(values, first, end, sums)   adds to sums[0, kStripLanes) the squares of the
//                                                 values from `first` on, and so many of every
//                                                 kNormLanes after them, that lie before `end`
template <class V, Format K>
double sum_of_squares_in_strips(const void* values, int64_t count) {
  constexpr int64_t kSumTile = 32 * kNormLanes;
  alignas(64) double sums[kNormLanes] = {};
  for (int64_t begin = 0; begin < count; begin += kSumTile) {
    const int64_t end = begin + kSumTile < count ? begin + kSumTile : count;
    for (int64_t lane = 0; lane < kNormLanes; lane += V::kStripLanes) {
      V::template add_squares<K>(values, begin + lane, end, sums + lane);
    }
  }
  return sum_lanes(sums);
}

template <class V>
double sum_of_squares(const void* values, Format format, int64_t count) {
  switch (format) {
    case Format::kF32:
      return sum_of_squares_in_strips<V, Format::kF32>(values, count);
    case Format::kBf16:
      return sum_of_squares_in_strips<V, Format::kBf16>(values, count);
    case Format::kF16:
      return sum_of_squares_in_strips<V, Format::kF16>(values, count);
  }
  return 0.0;
}

template <class V, Format From, Format To>
void cast_loop(const void* src, void* dst, int64_t count) {
  for_vectors<V>(count, [=](auto lanes, int64_t i) {
    store_from_f32<V, To>(lanes, dst, i, load_as_f32<V, From>(lanes, src, i));
  });
}

template <class V, Format From>
void cast_from(const void* src, void* dst, Format dst_format, int64_t count) {
  switch (dst_format) {
    case Format::kF32:
      return cast_loop<V, From, Format::kF32>(src, dst, count);
    case Format::kBf16:
      return cast_loop<V, From, Format::kBf16>(src, dst, count);
    case Format::kF16:
      return cast_loop<V, From, Format::kF16>(src, dst, count);
  }
}

template <class V>
void cast(const void* src, Format src_format, void* dst, Format dst_format, int64_t count) {
  if (src_format == dst_format) {  // a copy, so that NaN keeps all its bits
    std::memcpy(dst, src, static_cast<size_t>(count * (src_format == Format::kF32 ? 4 : 2)));
    return;
  }
  switch (src_format) {
    case Format::kF32:
      return cast_from<V, Format::kF32>(src, dst, dst_format, count);
    case Format::kBf16:
      return cast_from<V, Format::kBf16>(src, dst, dst_format, count);
    case Format::kF16:
      return cast_from<V, Format::kF16>(src, dst, dst_format, count);
  }
}

template <class V, Format K>
void scale_loop(void* values, float factor, int64_t count) {
  for_vectors<V>(count, [=](auto lanes, int64_t i) {
    store_from_f32<V, K>(lanes, values, i,
                         V::mul(V::set(factor), load_as_f32<V, K>(lanes, values, i)));
  });
}

template <class V>
void scale(void* values, Format format, float factor, int64_t count) {
  switch (format) {
    case Format::kF32:
      return scale_loop<V, Format::kF32>(values, factor, count);
    case Format::kBf16:
      return scale_loop<V, Format::kBf16>(values, factor, count);
    case Format::kF16:
      return scale_loop<V, Format::kF16>(values, factor, count);
  }
}

// Streaming stores want whole aligned lines: the ends go the ordinary way.
template <class V>
void copy_streaming(const void* src, void* dst, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const auto* from = static_cast<const char*>(src);
  auto* to = static_cast<char*>(dst);
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine);
  int64_t head = (kLine - misaligned) % kLine;
  if (head > bytes) head = bytes;
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) V::copy_line(from + at, to + at);
  V::end_streaming();
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}

}  // namespace
}  // namespace ballast::kernels
