// Inputs of the kernel tests: adversarial floats and guarded, misaligned arrays.
//
// Every value comes from one seeded generator, so a failure repeats.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ballast::kernels::testing {

inline uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

// Equal bits, or NaN on both sides: which NaN comes out of an operation is the processor's choice.
inline bool same_number(float a, float b) {
  return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b));
}

// An array between guards of NaN, its start misaligned by `shift` values from 64 bytes.
template <class T>
class Guarded {
 public:
  Guarded(int64_t count, int64_t shift)
      : storage_(static_cast<size_t>(count + shift) + 2 * kGuard + 64, guard()) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    const size_t to_line = (64 - address % 64) % 64 / sizeof(T);
    start_ = to_line + kGuard + static_cast<size_t>(shift);
    count_ = static_cast<size_t>(count);
  }
  T* data() { return storage_.data() + start_; }
  const T* data() const { return storage_.data() + start_; }
  std::span<T> values() { return {data(), count_}; }
  std::span<const T> values() const { return {data(), count_}; }

  bool guards_are_intact() const {
    for (size_t i = 0; i < storage_.size(); ++i) {
      const bool inside = i >= start_ && i < start_ + count_;
      if (!inside && std::bit_cast<Bits>(storage_[i]) != std::bit_cast<Bits>(guard())) return false;
    }
    return true;
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  static constexpr size_t kGuard = 64;
  static T guard() {
    return std::bit_cast<T>(static_cast<Bits>(sizeof(T) == 4 ? 0x7fc0dead : 0x7fff));
  }
  std::vector<T> storage_;
  size_t start_ = 0;
  size_t count_ = 0;
};

enum class Values { kNormal, kAdversarial, kAnyBits };

// kNormal: unit normal. kAdversarial: finite, any exponent, with zeros and denormals among them.
// kAnyBits: every bit pattern, NaN and Inf too.
class Source {
 public:
  explicit Source(uint64_t seed) : generator_(seed) {}

  float next(Values values) {
    if (values == Values::kNormal) return normal_(generator_);
    const uint32_t bits = static_cast<uint32_t>(generator_());
    if (values == Values::kAnyBits) return float_of(bits);
    switch (generator_() % 8) {
      case 0:
        return float_of(bits & 0x80000000u);  // +0 or -0
      case 1:
        return float_of(bits & 0x807fffffu);  // denormal
      case 2:
        return (bits & 1u) != 0 ? std::numeric_limits<float>::max() : -1.0f;
      default: {
        const uint32_t exponent = (bits >> 23) & 0xffu;
        return float_of(exponent == 0xffu ? bits & 0xbfffffffu : bits);
      }
    }
  }
  uint64_t bits() { return generator_(); }

 private:
  std::mt19937_64 generator_;
  std::normal_distribution<float> normal_;
};

inline std::string name_of(Format format) {
  return format == Format::kF32 ? "f32" : format == Format::kBf16 ? "bf16" : "f16";
}

inline constexpr Format kFormats[] = {Format::kF32, Format::kBf16, Format::kF16};

// The lengths that matter: nothing, one, and both sides of 1, 2 and 4 vectors of every width.
inline std::vector<int64_t> lengths() {
  std::vector<int64_t> result = {0, 1, 2, 3};
  for (const int64_t width : {4, 8, 16, 32, 64}) {
    for (const int64_t count : {width, 2 * width, 4 * width}) {
      for (const int64_t near : {count - 1, count, count + 1}) result.push_back(near);
    }
  }
  result.push_back(1000);
  return result;
}

// Tables other than the reference, which each must equal.
inline std::span<const Table* const> vector_tables() { return available().subspan(1); }

}  // namespace ballast::kernels::testing
