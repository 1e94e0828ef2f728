// Sums of squares: exact on integers, the same bits from every table, not finite when an input is.

#include <gtest/gtest.h>

#include "kernels/reference/convert.h"
#include "tests/kernels/inputs.h"

namespace ballast::kernels::testing {
namespace {

void fill(void* values, Format format, int64_t i, float value) {
  reference().cast(&value, Format::kF32, static_cast<char*>(values) + i * bytes_of(format), format,
                   1);
}

// 3^2 + 4^2 + 12^2 = 9 + 16 + 144 = 169.
TEST(norm, three_four_twelve_is_thirteen_squared) {
  for (const Table* table : available()) {
    const float values[] = {3.0f, 4.0f, -12.0f};
    EXPECT_EQ(table->sum_of_squares(values, Format::kF32, 3), 169.0) << table->name;
    EXPECT_EQ(table->sum_of_squares(values, Format::kF32, 0), 0.0) << table->name;
  }
}

// Lane 0 adds 1e16 first and then 1, lane 1 the same: (1e16 + 1) loses the 1 (ulp is 2). In one
// running sum over 130 values all 128 ones would be lost; here the order is fixed: lanes 0 and 1
// hold 1e16 each, and the other 126 lanes 1 each.
TEST(norm, order_of_addition_is_the_documented_one) {
  std::vector<float> values(130, 1.0f);
  values[0] = values[1] = 1e8f;
  for (const Table* table : available()) {
    // Halves: lane 0 + lane 64 = 1e16 + 1 -> 1e16 (tie to even); every other sum is exact: lane 0
    // meets lane 32's 1 + 1 = 2, then 4, 8, 16 and lane 2's 32; then lane 1's equal of it.
    const double lane_0 = 1e16 + 2.0 + 4.0 + 8.0 + 16.0 + 32.0;
    const double lane_1 = lane_0;
    EXPECT_EQ(table->sum_of_squares(values.data(), Format::kF32, 130), lane_0 + lane_1)
        << table->name;
  }
}

TEST(norm, every_table_gives_the_bits_of_the_reference) {
  Source source(11);
  std::vector<int64_t> counts = lengths();
  for (const int64_t rows : {32, 64}) {
    for (const int64_t more : {-1, 0, 1, 77}) counts.push_back(rows * kNormLanes + more);
  }
  counts.push_back(kNormBlock);
  for (const Format format : kFormats) {
    for (const int64_t count : counts) {
      Guarded<float> wide(count, 1);
      Guarded<uint16_t> narrow(count, 1);
      void* values = format == Format::kF32 ? static_cast<void*>(wide.data()) : narrow.data();
      for (int64_t i = 0; i < count; ++i) fill(values, format, i, source.next(Values::kNormal));
      const double expected = reference().sum_of_squares(values, format, count);
      for (const Table* table : vector_tables()) {
        EXPECT_EQ(table->sum_of_squares(values, format, count), expected)
            << table->name << " " << name_of(format) << " " << count;
      }
    }
  }
}

// The largest f32 squared is 1.2e77: 65536 of them stay far below the largest double.
TEST(norm, largest_values_do_not_overflow) {
  const std::vector<float> values(kNormBlock, std::numeric_limits<float>::max());
  for (const Table* table : available()) {
    EXPECT_TRUE(std::isfinite(table->sum_of_squares(values.data(), Format::kF32, kNormBlock)));
  }
}

TEST(norm, one_nan_or_infinity_anywhere_shows) {
  constexpr int64_t kCount = 2 * kNormLanes + 83;
  for (const Table* table : available()) {
    for (const Format format : kFormats) {
      for (const float poison :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        for (int64_t at = 0; at < kCount; ++at) {
          float storage[kCount] = {};
          fill(storage, format, at, poison);
          EXPECT_FALSE(std::isfinite(table->sum_of_squares(storage, format, kCount)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ballast::kernels::testing
