#include "kernels/reference/compact.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/compact_codes.h"
#include "kernels/reference/convert.h"

namespace ballast::kernels {
namespace {

// Rounds up with the probability of the dropped part. Not for NaN or Inf.
uint16_t to_bf16_at_random(float value, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + (random & 0xffffu)) >> 16);
}

uint32_t magnitude_bits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

float decode(uint32_t code, const MomentCode& form, uint32_t exponent) {
  if (code == 0) return 0.0f;
  return std::bit_cast<float>((code << kFractionBits) + form.offset(exponent));
}

// The code of a magnitude in or above the smallest exponent.
uint32_t encode_normal(uint32_t bits, const MomentCode& form, uint32_t exponent, uint32_t random) {
  const uint32_t shifted = bits - form.offset(exponent) + (random & kRoundingMask);
  return std::min(shifted >> kFractionBits, form.last);
}
uint32_t smallest_bits(const MomentCode& form, uint32_t exponent) {
  return (kSmallestCode << kFractionBits) + form.offset(exponent);
}

// Below the smallest value s: s with probability magnitude / s, else 0.
uint8_t encode1(float m, uint32_t exponent, uint32_t random) {
  const uint32_t bits = magnitude_bits(m), smallest = smallest_bits(kMoment1Code, exponent);
  const uint32_t sign = std::bit_cast<uint32_t>(m) >> 31 << 7;
  if (bits >= smallest) {
    return static_cast<uint8_t>(sign | encode_normal(bits, kMoment1Code, exponent, random));
  }
  const float zero_to_one = std::bit_cast<float>(0x3f800000u | (random >> 9)) - 1.0f;
  const bool up = zero_to_one * std::bit_cast<float>(smallest) < std::bit_cast<float>(bits);
  return static_cast<uint8_t>(up ? sign | kSmallestCode : sign);
}
uint8_t encode2(float v, uint32_t exponent, uint32_t random) {
  const uint32_t bits = magnitude_bits(v);
  if (bits >= smallest_bits(kMoment2Code, exponent)) {
    return static_cast<uint8_t>(encode_normal(bits, kMoment2Code, exponent, random));
  }
  return static_cast<uint8_t>(bits == 0 ? 0 : kSmallestCode);
}

struct Block {
  float m[kMomentBlock], v[kMomentBlock];
};

void load_moments(const CompactArrays& a, int64_t begin, int64_t count, Block* block) {
  const int64_t index = begin / kMomentBlock;
  uint32_t exponent1 = kExponentMin, exponent2 = kExponentMin;
  if (a.moment_format == MomentFormat::kBlock8) {  // 0 in fresh memory
    exponent1 = std::max<uint32_t>(kExponentMin, a.exponents1[index]);
    exponent2 = std::max<uint32_t>(kExponentMin, a.exponents2[index]);
  }
  for (int64_t j = 0; j < count; ++j) {
    if (a.moment_format == MomentFormat::kBf16) {
      block->m[j] = bf16_to_f32(static_cast<const uint16_t*>(a.moment1)[begin + j]);
      block->v[j] = bf16_to_f32(static_cast<const uint16_t*>(a.moment2)[begin + j]);
      continue;
    }
    const uint32_t code = static_cast<const uint8_t*>(a.moment1)[begin + j];
    const float m = decode(code & 0x7fu, kMoment1Code, exponent1);
    block->m[j] = (code & 0x80u) != 0 ? -m : m;
    block->v[j] =
        decode(static_cast<const uint8_t*>(a.moment2)[begin + j], kMoment2Code, exponent2);
  }
}

void store_moments(const CompactArrays& a, int64_t begin, int64_t count, const Block& block) {
  uint32_t largest1 = 0, largest2 = 0;
  for (int64_t j = 0; j < count; ++j) {
    largest1 = std::max(largest1, magnitude_bits(block.m[j]));
    largest2 = std::max(largest2, magnitude_bits(block.v[j]));
  }
  const uint32_t exponent1 = block_exponent(largest1), exponent2 = block_exponent(largest2);
  if (a.moment_format == MomentFormat::kBlock8) {
    a.exponents1[begin / kMomentBlock] = static_cast<uint8_t>(exponent1);
    a.exponents2[begin / kMomentBlock] = static_cast<uint8_t>(exponent2);
  }
  for (int64_t j = 0; j < count; ++j) {
    const uint32_t place = a.seed + static_cast<uint32_t>(begin + j);
    const uint32_t random1 = hash32(place), random2 = hash32(place + kSeed2);
    if (a.moment_format == MomentFormat::kBf16) {
      static_cast<uint16_t*>(a.moment1)[begin + j] = to_bf16_at_random(block.m[j], random1);
      static_cast<uint16_t*>(a.moment2)[begin + j] = to_bf16_at_random(block.v[j], random2);
    } else {
      static_cast<uint8_t*>(a.moment1)[begin + j] = encode1(block.m[j], exponent1, random1);
      static_cast<uint8_t*>(a.moment2)[begin + j] = encode2(block.v[j], exponent2, random2);
    }
  }
}

}  // namespace

void adam_step_compact_reference(const CompactArrays& a, const AdamConstants& constants) {
  Block block;
  for (int64_t begin = 0; begin < a.count; begin += kMomentBlock) {
    const int64_t count = std::min(kMomentBlock, a.count - begin);
    load_moments(a, begin, count, &block);
    AdamArrays part = {
        .master = a.master + begin,
        .moment1 = block.m,
        .moment2 = block.v,
        .gradient = static_cast<const char*>(a.gradient) + begin * bytes_of(a.gradient_format),
        .gradient_format = a.gradient_format,
        .weights_format = a.weights_format,
        .count = count};
    if (a.weights != nullptr) {
      part.weights = static_cast<char*>(a.weights) + begin * bytes_of(a.weights_format);
    }
    reference().adam_step(part, constants);
    store_moments(a, begin, count, block);
  }
}

}  // namespace ballast::kernels
