// Normal deviates: every table, every cut of a sequence. That they are normal, and the words those
// of Philox's authors, is looked at in tests/backend/random_test.cpp.

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
  const double q = from_middle(words[place % 4]);
  return static_cast<float>(kDeviation *
                            (magnitude(q) <= kCentre ? central_deviate(q) : outer_deviate(q)));
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
