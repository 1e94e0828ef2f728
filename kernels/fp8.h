// 8-bit floats (Micikevicius et al., arXiv 2209.05433, Table 1), by which matrix products go faster
// than by 16 bits. A tensor of them has one scale, which keeps its largest value in their range.
//
//   kE4m3  sign, 4 bits of exponent (bias 7), 3 of fraction: to 448; no infinity, one NaN a sign
//   kE5m2  sign, 5 bits of exponent (bias 15), 2 of fraction: to 57344; infinity and NaN as IEEE's
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ballast::kernels {

enum class Fp8 : uint8_t { kE4m3, kE5m2 };

constexpr int fraction_bits(Fp8 format) { return format == Fp8::kE4m3 ? 3 : 2; }
// Of the smallest normal number; subnormal ones share it.
constexpr int least_exponent(Fp8 format) { return format == Fp8::kE4m3 ? -6 : -14; }
constexpr float largest_of(Fp8 format) { return format == Fp8::kE4m3 ? 448.0f : 57344.0f; }
inline constexpr uint8_t kFp8NotANumber = 0x7f;

// The power of two by which a tensor is multiplied before it is rounded: the largest p for which
// its largest magnitude times 2^p is no more than largest_of(format), at most 126 so that 2^-p is
// no subnormal number. 0 for zeros, and where a value is not finite. Powers of two round nothing:
// what is lost is lost by the format alone, and 2^-p undoes the scale exactly.
// `largest_bits`: of the largest magnitude, as fp32.
constexpr int fp8_exponent(Fp8 format, uint32_t largest_bits) {
  constexpr uint32_t kInfinity = 0x7f800000u, kFraction = 0x7fffffu;
  constexpr uint32_t kThreeQuarters = 0x600000u;  // both largest numbers are 1.75 * 2^n
  constexpr int kBias = 127, kMost = 126;
  if (largest_bits == 0 || largest_bits >= kInfinity) return 0;
  const int exponent = static_cast<int>(largest_bits >> 23) - kBias;
  const int most = format == Fp8::kE4m3 ? 8 : 15;
  const int fits =
      (largest_bits & kFraction) <= kThreeQuarters ? most - exponent : most - exponent - 1;
  return fits < kMost ? fits : kMost;
}

inline float float_of_fp8(Fp8 format, uint8_t code) {
  const int bits = fraction_bits(format);
  const int field = (code & 0x7f) >> bits;
  const int fraction = code & ((1 << bits) - 1);
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  if (format == Fp8::kE4m3 && (code & 0x7f) == kFp8NotANumber) return NAN;
  if (format == Fp8::kE5m2 && field == 31) return fraction == 0 ? sign * INFINITY : NAN;
  const int whole = field == 0 ? fraction : fraction + (1 << bits);
  const int exponent = field == 0 ? 0 : field - 1;
  return sign * std::ldexp(static_cast<float>(whole), exponent + least_exponent(format) - bits);
}

// To nearest, ties to even. What is larger than the largest number becomes it, infinity too, as the
// hardware's saturating conversion does; NaN becomes kFp8NotANumber.
inline uint8_t fp8_of_float(Fp8 format, float value) {
  if (std::isnan(value)) return kFp8NotANumber;
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 24 & 0x80u;
  const float magnitude = std::fmin(std::fabs(value), largest_of(format));
  const int bits = fraction_bits(format), least = least_exponent(format);
  const int exponent = magnitude == 0 ? least : std::max(std::ilogb(magnitude), least);
  // In units of the last place; what rounds up to the next power of two carries into the exponent.
  const float units = std::nearbyint(std::ldexp(magnitude, bits - exponent));
  const uint32_t code =
      (static_cast<uint32_t>(exponent - least) << bits) + static_cast<uint32_t>(units);
  return static_cast<uint8_t>(sign | code);
}

}  // namespace ballast::kernels
