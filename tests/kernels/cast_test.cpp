// The 16-bit conversions: the reference against their definition, the tables against the reference.

#include <atomic>
#include <gtest/gtest.h>
#include <thread>

#include "kernels/reference/convert.h"
#include "tests/kernels/inputs.h"

namespace ballast::kernels::testing {
namespace {

// All 2^32 inputs to bf16; to f16, whose gaps are all tested above, every 61st. Emulated processors
// take hours for that and look at every 4093rd, as do sanitizers, which seek other faults.
#if defined(__aarch64__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kStrideBf16 = 4093, kStrideF16 = 4093;
#else
constexpr uint64_t kStrideBf16 = 1, kStrideF16 = 61;
#endif

TEST(cast, known_values_round_as_written_on_paper) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(float_of(0x3f808000)), 0x3f80);  // tie, even stays
  EXPECT_EQ(f32_to_bf16(float_of(0x3f818000)), 0x3f82);  // tie, odd goes up
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(float_of(0x00000001)), 0x0000);
  EXPECT_EQ(f32_to_bf16(float_of(0x7f800001)), 0x7fc0);  // signalling NaN stays NaN
  EXPECT_EQ(f32_to_f16(1.0f), 0x3c00);
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);    // tie, even stays
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 0x0002);  // tie, odd goes up
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_f16(0x1.ffep-15f), 0x0400);  // rounds up into the normal numbers
}

// Widening is exact, so that a 16-bit value must come back, a NaN made quiet.
TEST(cast, every_16_bit_value_survives_the_way_to_f32_and_back) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto value = static_cast<uint16_t>(i);
    const uint16_t bf16_quiet = (value & 0x7fff) > 0x7f80 ? 0x40 : 0;
    const uint16_t f16_quiet = (value & 0x7fff) > 0x7c00 ? 0x200 : 0;
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(value)), value | bf16_quiet);
    ASSERT_EQ(f32_to_f16(f16_to_f32(value)), value | f16_quiet);
  }
}

// Between neighbours a < b with a even or odd: below the middle gives a, above gives b, the middle
// the even one. The middle and its f32 neighbours are exact, so these are all rounding cases.
TEST(cast, every_gap_between_16_bit_neighbours_rounds_to_nearest_even) {
  const auto check = [](auto widen, auto narrow, uint16_t last_finite) {
    for (uint16_t a = 0; a < last_finite; ++a) {
      const auto b = static_cast<uint16_t>(a + 1);
      const float middle = static_cast<float>((double{widen(a)} + double{widen(b)}) / 2);
      const uint16_t even = a % 2 == 0 ? a : b;
      ASSERT_EQ(narrow(middle), even) << a;
      ASSERT_EQ(narrow(float_of(bits_of(middle) - 1)), a) << a;
      ASSERT_EQ(narrow(float_of(bits_of(middle) + 1)), b) << a;
      ASSERT_EQ(narrow(-middle), even | 0x8000) << a;
    }
  };
  check(bf16_to_f32, f32_to_bf16, 0x7f7f);
  check(f16_to_f32, f32_to_f16, 0x7bff);
}

int64_t wrong_in_range(const Table& table, Format format, uint64_t begin, uint64_t end) {
  constexpr size_t kChunk = 4096;
  const uint64_t stride = format == Format::kBf16 ? kStrideBf16 : kStrideF16;
  std::vector<float> in(kChunk);
  std::vector<uint16_t> out(kChunk);
  int64_t wrong = 0;
  for (uint64_t at = begin; at < end; at += kChunk * stride) {
    for (size_t i = 0; i < kChunk; ++i) in[i] = float_of(static_cast<uint32_t>(at + i * stride));
    table.cast(in.data(), Format::kF32, out.data(), format, kChunk);
    for (size_t i = 0; i < kChunk; ++i) {
      const uint16_t expected = format == Format::kBf16 ? f32_to_bf16(in[i]) : f32_to_f16(in[i]);
      wrong += out[i] != expected ? 1 : 0;
    }
  }
  return wrong;
}

TEST(cast, all_f32_inputs_give_the_16_bits_of_the_reference) {
  constexpr uint64_t kInputs = uint64_t{1} << 32;
  for (const Table* table : vector_tables()) {
    for (const Format format : {Format::kBf16, Format::kF16}) {
      std::atomic<int64_t> wrong = 0;
      std::thread lower([&] { wrong += wrong_in_range(*table, format, 0, kInputs / 2); });
      wrong += wrong_in_range(*table, format, kInputs / 2, kInputs);
      lower.join();
      EXPECT_EQ(wrong, 0) << table->name << " " << name_of(format);
    }
  }
}

template <class From, class To>
void check_pair(const Table& table, Format from, Format to) {
  Source source(7);
  for (const int64_t count : lengths()) {
    for (const int64_t shift : {0, 1, 3}) {
      Guarded<From> in(count, shift);
      for (From& value : in.values()) {
        if constexpr (sizeof(From) == 4) value = source.next(Values::kAnyBits);
        if constexpr (sizeof(From) == 2) value = static_cast<From>(source.bits());
      }
      Guarded<To> expected(count, shift + 1), out(count, shift + 1);
      reference().cast(in.data(), from, expected.data(), to, count);
      table.cast(in.data(), from, out.data(), to, count);
      EXPECT_TRUE(out.guards_are_intact());
      for (int64_t i = 0; i < count; ++i) {
        const To a = expected.values()[i], b = out.values()[i];
        ASSERT_EQ(std::memcmp(&a, &b, sizeof(To)), 0)
            << table.name << " " << name_of(from) << " to " << name_of(to) << " value " << i;
      }
    }
  }
}

TEST(cast, every_pair_of_formats_at_every_length_equals_the_reference) {
  for (const Table* table : available()) {
    for (const Format from : kFormats) {
      for (const Format to : kFormats) {
        const bool wide_from = from == Format::kF32, wide_to = to == Format::kF32;
        if (wide_from && wide_to) check_pair<float, float>(*table, from, to);
        if (wide_from && !wide_to) check_pair<float, uint16_t>(*table, from, to);
        if (!wide_from && wide_to) check_pair<uint16_t, float>(*table, from, to);
        if (!wide_from && !wide_to) check_pair<uint16_t, uint16_t>(*table, from, to);
      }
    }
  }
}

}  // namespace
}  // namespace ballast::kernels::testing
