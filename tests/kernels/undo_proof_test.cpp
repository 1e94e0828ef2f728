// The exact undo on very many values: every exponent, cancellation, zeros, denormals, NaN.
//
// BALLAST_UNDO_VALUES=1000000000 sets the number of parameters; the default takes a second.

#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>
#include <thread>

#include "kernels/undo.h"
#include "tests/kernels/adam_inputs.h"

namespace ballast::kernels::testing {
namespace {

// splitmix64 (Steele, Lea, Flood 2014), fast enough for 10^9 values.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

float with_exponent(uint32_t bits, uint32_t exponent) {
  return float_of((bits & 0x807fffffu) | (exponent << 23));
}

// Emulated processors take a hundred times as long.
#if defined(__aarch64__)
constexpr uint64_t kDefaultValues = 100'000;
#else
constexpr uint64_t kDefaultValues = 2'000'000;
#endif

enum class Kind { kTraining, kCancelling, kAnyFinite, kAnyBits, kZeros, kCount };

// w, m, v and g of one parameter out of two random words.
struct Parameter {
  float w, m, v, g;
};
Parameter make(Kind kind, uint64_t a, uint64_t b) {
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const uint32_t spread = (a >> 20) & 7u;
  switch (kind) {
    case Kind::kTraining: {  // gradients of one size, moments and weights as after some steps
      const float g = with_exponent(low(a), 110 + spread);
      return {with_exponent(high(a), 118 + ((b >> 8) & 7u)), with_exponent(low(b), 107 + spread),
              g * g * float_of(0x3f000000u | (high(b) >> 10)), g};
    }
    case Kind::kCancelling: {  // 0.9 m + 0.1 g is near 0, and w near its update
      const float g = with_exponent(low(a), 120);
      const float m = float_of(bits_of(-g / 9.0f) + (low(b) & 7u));
      return {float_of(0x3a83126fu + (high(b) & 15u)), m, 1e-3f * g * g, g};
    }
    case Kind::kAnyFinite: {
      const auto finite = [](uint32_t x) { return with_exponent(x, (x >> 23) % 255u); };
      return {finite(low(a)), finite(high(a)), std::abs(finite(low(b))), finite(high(b))};
    }
    case Kind::kAnyBits:
      return {float_of(low(a)), float_of(high(a)), float_of(low(b)), float_of(high(b))};
    case Kind::kZeros:
    case Kind::kCount:
      break;
  }
  const auto sparse = [](uint32_t x) { return (x & 3u) == 0 ? float_of(x & 0x807fffffu) : 0.0f; };
  return {sparse(low(a)), sparse(high(a)), std::abs(sparse(low(b))),
          (a & 64u) != 0 ? 0.0f : with_exponent(high(b), high(b) >> 25)};
}

AdamConstants constants_of_chunk(uint64_t chunk) {
  AdamConstants c = constants_of_step(1 + static_cast<int>(chunk % 7), 0.0f);
  if (chunk % 2 == 1) c.weight_decay = 0.1f;
  if (chunk % 3 == 1) c.beta2 = 0.95f;
  if (chunk % 5 == 1) c.gradient_scale = 0.37f;
  if (chunk % 11 == 1) c.learning_rate = 0.5f;
  return c;
}

// Chunks begin, begin + stride, ... below end; returns the number of words that differ.
int64_t differing(const Table& table, uint64_t begin, uint64_t end, uint64_t stride) {
  constexpr int64_t kChunk = kUndoTile;
  std::vector<float> w(kChunk), m(kChunk), v(kChunk), g(kChunk);
  std::vector<uint8_t> fixed(
      static_cast<size_t>(UndoRecord::fixed_bytes(kChunk, UndoForm::kRecord)));
  UndoRecord record(fixed, kChunk, UndoForm::kRecord);
  const AdamArrays a = {.master = w.data(),
                        .moment1 = m.data(),
                        .moment2 = v.data(),
                        .gradient = g.data(),
                        .count = kChunk};
  int64_t different = 0;
  for (uint64_t chunk = begin; chunk < end; chunk += stride) {
    const auto kind = static_cast<Kind>(chunk % static_cast<uint64_t>(Kind::kCount));
    for (size_t i = 0; i < kChunk; ++i) {
      const uint64_t word = mix(chunk * kChunk + i);
      const Parameter p = make(kind, word, mix(word));
      w[i] = p.w;
      m[i] = p.m;
      v[i] = p.v;
      g[i] = p.g;
    }
    const std::vector<float> w0 = w, m0 = m, v0 = v;
    const AdamConstants c = constants_of_chunk(chunk / static_cast<uint64_t>(Kind::kCount));
    record.step_tiles(table, a, c, 0, record.tiles());
    record.undo_tiles(table, a, c, 0, record.tiles());
    const size_t bytes = kChunk * sizeof(float);
    if (std::memcmp(w.data(), w0.data(), bytes) == 0 &&
        std::memcmp(m.data(), m0.data(), bytes) == 0 &&
        std::memcmp(v.data(), v0.data(), bytes) == 0) {
      continue;
    }
    for (size_t i = 0; i < kChunk; ++i) {
      different += bits_of(w[i]) != bits_of(w0[i]) ? 1 : 0;
      different += bits_of(m[i]) != bits_of(m0[i]) ? 1 : 0;
      different += bits_of(v[i]) != bits_of(v0[i]) ? 1 : 0;
    }
  }
  return different;
}

TEST(undo_proof, no_bit_of_very_many_values_is_different) {
  const char* wanted = std::getenv("BALLAST_UNDO_VALUES");
  const uint64_t values = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : kDefaultValues;
  const uint64_t chunks = values / kUndoTile + 1;
  for (const Table* table : wanted != nullptr ? available().last(1) : available()) {
    std::atomic<int64_t> different = 0;
    std::thread odd([&] { different += differing(*table, 1, chunks, 2); });
    different += differing(*table, 0, chunks, 2);
    odd.join();
    EXPECT_EQ(different, 0) << table->name;
    std::printf("%s: %lld parameters, %lld words different\n", std::string(table->name).c_str(),
                static_cast<long long>(chunks * kUndoTile), static_cast<long long>(different));
  }
}

}  // namespace
}  // namespace ballast::kernels::testing
