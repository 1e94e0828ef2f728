// Normal deviates: Philox's words, the deviate of a word, and sequences of them by every table and
// in every cut. That a long sequence is normal is looked at in tests/backend/random_test.cpp.

#include <array>
#include <gtest/gtest.h>

#include "kernels/normal_deviates.h"
#include "tests/kernels/inputs.h"

namespace ballast::kernels::testing {
namespace {

constexpr uint64_t kKey = 0x0123456789ABCDEF;
constexpr double kDeviation = 0.3;

float deviate_alone(int64_t place) {
  const auto counter = static_cast<uint64_t>(place / 4);
  uint32_t words[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  philox_4x32(words, kKey);
  return static_cast<float>(kDeviation * normal_deviate(words[place % 4]));
}

// Known answers of the authors' library Random123, tests/kat_vectors, "philox4x32 10".
TEST(normals, philox_gives_the_published_answers) {
  using Words = std::array<uint32_t, 4>;
  const auto philox = [](const Words& counter, const std::array<uint32_t, 2>& key) {
    uint32_t words[4] = {counter[0], counter[1], counter[2], counter[3]};
    philox_4x32(words, uint64_t{key[1]} << 32 | key[0]);
    return std::to_array(words);
  };
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Python: statistics.NormalDist().inv_cdf((word + 0.5) / 2**32), for the centre, the middle and the
// tail of the distribution.
TEST(normals, normal_deviates_are_the_inverse_of_the_distribution) {
  const auto expect = [](uint32_t word, double deviate) {
    EXPECT_NEAR(normal_deviate(word), deviate, 1e-14 * std::abs(deviate)) << word;
  };
  expect(0x00000000u, -6.337957754553789);
  expect(0x00000001u, -6.166429517819749);
  expect(0x000186A0u, -4.0722240098541675);
  expect(0x0CCCCCCCu, -1.6448536276287282);
  expect(0x12345678u, -1.4675657314922321);
  expect(0x13333333u, -1.4395314704450153);
  expect(0x7FFFFFFFu, -2.9180993729166234e-10);
  expect(0xC0000000u, 0.6744897505624251);
  expect(0xFFFFFFFFu, 6.337957754553789);
}

TEST(normals, normal_deviates_are_symmetric) {
  for (const uint32_t word : {0u, 1u, 12345u, 0x0CCCCCCCu, 0x7FFFFFFFu}) {
    EXPECT_EQ(normal_deviate(word), -normal_deviate(~word)) << word;
  }
}

// A block, one value less and one more, many blocks, and where the counter passes 32 bits.
TEST(normals, each_value_is_the_deviate_of_its_own_word) {
  for (const int64_t first : {int64_t{0}, int64_t{4}, (int64_t{1} << 34) - 256}) {
    for (const int64_t count : {1, 255, 256, 257, 3001}) {
      for (const Table* table : available()) {
        Guarded<float> drawn(count, first % 3);
        table->normals(kKey, kDeviation, first, drawn.data(), count);
        EXPECT_TRUE(drawn.guards_are_intact());
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(bits_of(drawn.data()[i]), bits_of(deviate_alone(first + i)))
              << table->name << " from " << first << " at " << i << " of " << count;
        }
      }
    }
  }
}

// A training is the same on every machine and after every change here: FNV-1a of the bytes of 4,096
// values, as they were drawn one by one before there was a kernel of it.
TEST(normals, values_are_those_of_every_other_build) {
  constexpr int64_t kCount = 4096;
  for (const Table* table : available()) {
    std::vector<float> drawn(kCount);
    table->normals(kKey, kDeviation, 0, drawn.data(), kCount);
    uint64_t hash = 0xCBF29CE484222325;
    for (const float value : drawn) {
      for (int shift = 0; shift < 32; shift += 8) {
        hash = (hash ^ (bits_of(value) >> shift & 0xFF)) * 0x100000001B3;
      }
    }
    EXPECT_EQ(hash, 0xC0894F3F538B35BDU) << table->name;
  }
}

// Doubles around each power of two and sqrt(1/2), where the exponent is split off.
TEST(normals, the_logarithm_is_that_of_the_library_but_for_its_last_bits) {
  for (int exponent = -33; exponent <= 0; ++exponent) {
    for (const double m : {0.5, 0.70710678118654746, 0.70710678118654757, 0.75, 0.99999999999}) {
      const double x = std::ldexp(m, exponent);
      EXPECT_NEAR(portable_log(x), std::log(x), 4e-16 * std::abs(std::log(x)) + 1e-16) << x;
    }
  }
}

}  // namespace
}  // namespace ballast::kernels::testing
