// CRC-32C against the values of RFC 3720, B.4, and the instruction against the tables.
#include "sim/base/crc32c.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <string_view>

namespace ballast {
namespace {

uint32_t both(std::span<const std::byte> bytes) {
  const uint32_t sum = crc32c(bytes);
  EXPECT_EQ(sum, crc32c_by_tables(bytes));
  return sum;
}

TEST(Crc32c, has_the_values_of_its_standard) {
  std::vector<std::byte> bytes(32);
  EXPECT_EQ(both(bytes), 0x8a9136aau);
  std::ranges::fill(bytes, std::byte{0xff});
  EXPECT_EQ(both(bytes), 0x62a8ab43u);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i);
  EXPECT_EQ(both(bytes), 0x46dd794eu);
  std::ranges::reverse(bytes);
  EXPECT_EQ(both(bytes), 0x113fdb5cu);
  const std::string_view digits = "123456789";
  EXPECT_EQ(both(std::as_bytes(std::span(digits))), 0xe3069283u);
  EXPECT_EQ(both({}), 0u);
}

TEST(Crc32c, is_the_same_in_parts_at_any_length_and_alignment) {
  std::mt19937 random(3);
  std::vector<std::byte> bytes(200);
  for (std::byte& byte : bytes) byte = std::byte(random() & 0xff);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t count = 0; count < 70; ++count) {
      const auto part = std::span(bytes).subspan(begin, count);
      const uint32_t whole = both(part);
      const size_t cut = count == 0 ? 0 : random() % count;
      EXPECT_EQ(crc32c(part.subspan(cut), crc32c(part.first(cut))), whole);
      EXPECT_EQ(crc32c_by_tables(part.subspan(cut), crc32c_by_tables(part.first(cut))), whole);
    }
  }
}

TEST(Crc32c, digits_are_eight_small_ones) {
  EXPECT_EQ(hex_of(0), "00000000");
  EXPECT_EQ(hex_of(0x0badcafe), "0badcafe");
}

}  // namespace
}  // namespace ballast
