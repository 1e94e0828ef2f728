// 8-bit floats: every code, and every rounding between two of them.
#include "kernels/fp8.h"

#include <gtest/gtest.h>
#include <utility>

namespace ballast::kernels {
namespace {

constexpr Fp8 kBoth[] = {Fp8::kE4m3, Fp8::kE5m2};

// arXiv 2209.05433, Table 1: largest 448 (S.1111.110) and 57344 (S.11110.11), least normal 2^-6 and
// 2^-14, least subnormal 2^-9 and 2^-16; 1 is the exponent of its bias, 7 and 15.
TEST(Fp8, codes_of_the_papers_table_have_its_values) {
  const std::pair<uint8_t, float> e4m3[] = {
      {0x00, 0.0f}, {0x01, 0x1p-9f}, {0x07, 7 * 0x1p-9f}, {0x08, 0x1p-6f}, {0x38, 1.0f},
      {0x3c, 1.5f}, {0x77, 240.0f},  {0x78, 256.0f},      {0x7e, 448.0f},  {0xb8, -1.0f}};
  for (const auto& [code, value] : e4m3) EXPECT_EQ(float_of_fp8(Fp8::kE4m3, code), value);
  EXPECT_TRUE(std::isnan(float_of_fp8(Fp8::kE4m3, 0x7f)));
  EXPECT_TRUE(std::isnan(float_of_fp8(Fp8::kE4m3, 0xff)));
  const std::pair<uint8_t, float> e5m2[] = {
      {0x00, 0.0f},  {0x01, 0x1p-16f}, {0x03, 3 * 0x1p-16f}, {0x04, 0x1p-14f},  {0x3c, 1.0f},
      {0x3d, 1.25f}, {0x7b, 57344.0f}, {0x7c, INFINITY},     {0xfc, -INFINITY}, {0xc0, -2.0f}};
  for (const auto& [code, value] : e5m2) EXPECT_EQ(float_of_fp8(Fp8::kE5m2, code), value);
  for (const int code : {0x7d, 0x7e, 0x7f, 0xfd}) {
    EXPECT_TRUE(std::isnan(float_of_fp8(Fp8::kE5m2, static_cast<uint8_t>(code))));
  }
}

// Codes count up like their values: by 2^-9 (2^-16) to the second binade, twice as much in each
// binade after it.
TEST(Fp8, every_code_is_one_step_of_its_binade_above_the_one_before) {
  for (const Fp8 format : kBoth) {
    const int codes = format == Fp8::kE4m3 ? 0x7f : 0x7c;
    const int binade = format == Fp8::kE4m3 ? 8 : 4;
    double value = 0, step = format == Fp8::kE4m3 ? 0x1p-9 : 0x1p-16;
    for (int code = 0; code < codes; ++code) {
      EXPECT_EQ(float_of_fp8(format, static_cast<uint8_t>(code)), value) << code;
      EXPECT_EQ(float_of_fp8(format, static_cast<uint8_t>(code | 0x80)), -value) << code;
      if (code >= 2 * binade && code % binade == 0) step *= 2;
      value += step;
    }
  }
}

TEST(Fp8, every_finite_code_rounds_to_itself) {
  for (const Fp8 format : kBoth) {
    for (int code = 0; code < 256; ++code) {
      const float value = float_of_fp8(format, static_cast<uint8_t>(code));
      if (std::isfinite(value)) EXPECT_EQ(fp8_of_float(format, value), code);
    }
  }
}

TEST(Fp8, halfway_goes_to_the_even_code_and_all_else_to_the_nearest) {
  for (const Fp8 format : kBoth) {
    const int largest = format == Fp8::kE4m3 ? 0x7e : 0x7b;
    for (int code = 0; code < largest; ++code) {
      const auto at = [&](int c) { return float_of_fp8(format, static_cast<uint8_t>(c)); };
      const float middle = (at(code) + at(code + 1)) / 2;
      const int even = code % 2 == 0 ? code : code + 1;
      EXPECT_EQ(fp8_of_float(format, middle), even);
      EXPECT_EQ(fp8_of_float(format, std::nextafter(middle, 0.0f)), code);
      EXPECT_EQ(fp8_of_float(format, std::nextafter(middle, INFINITY)), code + 1);
      EXPECT_EQ(fp8_of_float(format, -middle), even | 0x80);
    }
  }
}

TEST(Fp8, beyond_the_largest_is_the_largest_and_nan_is_nan) {
  for (const float value : {449.0f, 464.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(fp8_of_float(Fp8::kE4m3, value), 0x7e);
    EXPECT_EQ(fp8_of_float(Fp8::kE4m3, -value), 0xfe);
  }
  for (const float value : {57345.0f, 61440.0f, INFINITY}) {
    EXPECT_EQ(fp8_of_float(Fp8::kE5m2, value), 0x7b);
  }
  for (const Fp8 format : kBoth) EXPECT_EQ(fp8_of_float(format, NAN), kFp8NotANumber);
}

// 448 = 1.75 * 2^8. 1 fits 2^8 times, 1.75 too, anything above 1.75 only 2^7 times.
TEST(Fp8, the_scale_is_the_largest_power_of_two_that_keeps_the_largest_in_range) {
  const auto exponent = [](Fp8 format, float largest) {
    return fp8_exponent(format, std::bit_cast<uint32_t>(largest));
  };
  EXPECT_EQ(exponent(Fp8::kE4m3, 1.0f), 8);
  EXPECT_EQ(exponent(Fp8::kE4m3, 1.75f), 8);
  EXPECT_EQ(exponent(Fp8::kE4m3, std::nextafter(1.75f, 2.0f)), 7);
  EXPECT_EQ(exponent(Fp8::kE4m3, 448.0f), 0);
  EXPECT_EQ(exponent(Fp8::kE4m3, 449.0f), -1);
  EXPECT_EQ(exponent(Fp8::kE5m2, 1.0f), 15);
  EXPECT_EQ(exponent(Fp8::kE4m3, 0x1.fp127f), -120);
  EXPECT_EQ(exponent(Fp8::kE4m3, 0x1p-149f), 126);
  for (const float special : {0.0f, INFINITY, NAN}) EXPECT_EQ(exponent(Fp8::kE5m2, special), 0);
}

}  // namespace
}  // namespace ballast::kernels
