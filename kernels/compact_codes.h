// The constants of compact moments, shared by reference and vector code (see kernels.h).
//
// A block's byte is the biased f32 exponent of its largest value, at least kExponentMin. A value's
// code is its f32 exponent and three bits of fraction, counted so that the largest binade has the
// exponent `top`; codes 1 to 7, below the smallest exponent, are unused. Internal linkage, as in
// step_constants.h.
#pragma once

#include <cstdint>

namespace ballast::kernels {
namespace {

constexpr int kFractionBits = 20;  // of an f32's 23, those that a code does not keep
constexpr uint32_t kRoundingMask = (1u << kFractionBits) - 1;
constexpr uint32_t kSmallestCode = 1u << 3;  // exponent 1, fraction 0
constexpr uint32_t kExponentMin = 32;        // so that the smallest code is a normal f32

struct MomentCode {
  uint32_t top;   // exponent of the largest binade
  uint32_t last;  // largest code: all ones in exponent and fraction

  // What is subtracted from the bits of a value before they are shifted.
  constexpr uint32_t offset(uint32_t exponent) const { return (exponent - top) << 23; }
};
constexpr MomentCode kMoment1Code = {15, 0x7f};
constexpr MomentCode kMoment2Code = {31, 0xff};

[[maybe_unused]] inline uint32_t block_exponent(uint32_t largest_bits) {
  const uint32_t exponent = largest_bits >> 23;
  return exponent < kExponentMin ? kExponentMin : exponent;
}

// 32 random bits of value i of a run: hash32(seed + i) (lowbias32, Wellons 2018).
constexpr uint32_t kHashMultiplier1 = 0x7feb352du, kHashMultiplier2 = 0x846ca68bu;
[[maybe_unused]] inline uint32_t hash32(uint32_t x) {
  x ^= x >> 16;
  x *= kHashMultiplier1;
  x ^= x >> 15;
  x *= kHashMultiplier2;
  x ^= x >> 16;
  return x;
}
// Added to the seed for moment2, so that its rounding is independent of moment1's.
constexpr uint32_t kSeed2 = 0x9e3779b9u;

}  // namespace
}  // namespace ballast::kernels
