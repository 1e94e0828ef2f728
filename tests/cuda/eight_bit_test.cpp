// Matrices rounded to 8 bits against the host's rounding, value by value.

#include "tests/cuda/arrays.h"

namespace ballast::kernels::cuda::testing {
namespace {

constexpr Fp8 kBoth[] = {Fp8::kE4m3, Fp8::kE5m2};
constexpr CodeOrder kOrdersOfCodes[] = {CodeOrder::kAsStored, CodeOrder::kTurned};

struct Rounded {
  std::vector<uint8_t> codes;
  float scale = 0;
  bool operator==(const Rounded&) const = default;
};

// Of `columns` columns from the start of each row of `stride` values.
struct Matrix {
  Format format = Format::kBf16;
  int64_t rows = 16, columns = 16, stride = 16;
  int64_t shift = 0;
  std::vector<float> values;
};

Rounded on_machine(const Matrix& m, Fp8 format, CodeOrder order) {
  const Values from(m.format, m.values, m.shift);
  const Memory codes(m.rows * m.columns), scale(4), scratch(round_matrix_scratch_bytes());
  RoundMatrix d;
  d.from = {from.data(), m.format};
  d.rows = m.rows, d.columns = m.columns, d.stride = m.stride;
  d.format = format, d.order = order;
  d.codes = static_cast<uint8_t*>(codes.data());
  d.scale = static_cast<float*>(scale.data());
  d.scratch = scratch.data();
  expect_launched(round_matrix(d, nullptr));
  return {codes.get(), scale.get_as<float>()[0]};
}

Rounded on_host(const Matrix& m, Fp8 format, CodeOrder order) {
  float largest = 0;
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t column = 0; column < m.columns; ++column) {
      largest =
          std::max(largest, std::fabs(m.values[static_cast<size_t>(row * m.stride + column)]));
    }
  }
  const int exponent = fp8_exponent(format, std::bit_cast<uint32_t>(largest));
  Rounded result{std::vector<uint8_t>(static_cast<size_t>(m.rows * m.columns)),
                 std::ldexp(1.0f, -exponent)};
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t column = 0; column < m.columns; ++column) {
      const float value = m.values[static_cast<size_t>(row * m.stride + column)];
      const int64_t at =
          order == CodeOrder::kTurned ? column * m.rows + row : row * m.columns + column;
      result.codes[static_cast<size_t>(at)] = fp8_of_float(format, std::ldexp(value, exponent));
    }
  }
  return result;
}

class eight_bit : public OnMachine {};

// The largest is 3 = 1.5 * 2: times 2^7 it is 384 of at most 448, e4m3's 0 1111 100; -1 becomes
// -128, 1 1110 000. Times 2^14 it is 49152 of 57344, e5m2's 0 11110 10; -1 is -2^14, 1 11101 00.
TEST_F(eight_bit, a_matrix_of_3_and_minus_1_is_scaled_to_the_largest_binade) {
  Matrix m;
  m.values.assign(256, 0.0f);
  m.values[0] = 3, m.values[1] = -1;
  const Rounded e4m3 = on_machine(m, Fp8::kE4m3, CodeOrder::kAsStored);
  EXPECT_EQ(e4m3.scale, 0x1p-7f);
  EXPECT_EQ(e4m3.codes[0], 0x7c);
  EXPECT_EQ(e4m3.codes[1], 0xf0);
  EXPECT_EQ(e4m3.codes[2], 0);
  const Rounded e5m2 = on_machine(m, Fp8::kE5m2, CodeOrder::kTurned);
  EXPECT_EQ(e5m2.scale, 0x1p-14f);
  EXPECT_EQ(e5m2.codes[0], 0x7a);
  EXPECT_EQ(e5m2.codes[16], 0xf4);  // the second column's first row
}

// One pass writes both orders, each as alone.
TEST_F(eight_bit, both_orders_of_one_pass_are_those_of_two) {
  for (const int64_t shift : {0, 1}) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{16, 16}, {80, 144}, {272, 64}}) {
      Matrix m{Format::kBf16, rows, columns, columns + 16 * shift, shift, {}};
      m.values = normal({0.1f, 0.02f, 7}, m.format, m.rows * m.stride);
      const Values from(m.format, m.values, m.shift);
      const Memory turned(rows * columns), stored(rows * columns), scale(4);
      const Memory scratch(round_matrix_scratch_bytes());
      RoundMatrix d;
      d.from = {from.data(), m.format};
      d.rows = rows, d.columns = columns, d.stride = m.stride;
      d.format = Fp8::kE5m2, d.order = CodeOrder::kTurned;
      d.codes = static_cast<uint8_t*>(turned.data());
      d.codes_as_stored = static_cast<uint8_t*>(stored.data());
      d.scale = static_cast<float*>(scale.data());
      d.scratch = scratch.data();
      expect_launched(round_matrix(d, nullptr));
      EXPECT_EQ(turned.get(), on_machine(m, d.format, CodeOrder::kTurned).codes);
      EXPECT_EQ(stored.get(), on_machine(m, d.format, CodeOrder::kAsStored).codes);
    }
  }
}

TEST_F(eight_bit, codes_are_the_hosts_for_any_shape_stride_alignment_and_format) {
  const Matrix shapes[] = {
      {Format::kBf16, 16, 16, 16, 0, {}},     {Format::kBf16, 48, 80, 80, 0, {}},
      {Format::kBf16, 64, 128, 200, 0, {}},   {Format::kBf16, 80, 16, 33, 0, {}},
      {Format::kF16, 16, 144, 160, 1, {}},    {Format::kF32, 32, 48, 48, 0, {}},
      {Format::kBf16, 144, 2064, 2064, 1, {}}};
  for (Matrix m : shapes) {
    m.values = normal({0.1f, 0.02f, 7}, m.format, m.rows * m.stride);
    for (const Fp8 format : kBoth) {
      for (const CodeOrder order : kOrdersOfCodes) {
        const Rounded actual = on_machine(m, format, order);
        const Rounded expected = on_host(m, format, order);
        EXPECT_EQ(actual.scale, expected.scale) << m.rows << " x " << m.columns;
        EXPECT_EQ(actual.codes, expected.codes) << m.rows << " x " << m.columns;
      }
    }
  }
}

// 33 x 32 tiles of 64 x 64 and 1,024 blocks: some blocks take a second tile, over what they wrote
// of the first. As one row it is 2.06 times what all blocks take at once.
TEST_F(eight_bit, codes_are_the_hosts_where_blocks_take_more_than_one_turn) {
  Matrix m{Format::kBf16, 2112, 2048, 2048, 0, {}};
  m.values = normal({0.1f, 0.02f, 9}, m.format, m.rows * m.stride);
  for (const CodeOrder order : kOrdersOfCodes) {
    const Rounded actual = on_machine(m, Fp8::kE4m3, order);
    EXPECT_TRUE(actual == on_host(m, Fp8::kE4m3, order)) << static_cast<int>(order);
  }
}

TEST_F(eight_bit, the_same_codes_come_every_time) {
  Matrix m{Format::kBf16, 96, 112, 128, 0, {}};
  m.values = normal({0, 1, 3}, m.format, m.rows * m.stride);
  for (const CodeOrder order : kOrdersOfCodes) {
    same_every_time([&] { return on_machine(m, Fp8::kE4m3, order).codes; });
  }
}

// Zeros have scale 1. The smallest bf16 number is 2^-133: it is multiplied by no more than 2^126,
// to 2^-7, which e4m3 holds (4 * 2^-9) and so does e5m2.
TEST_F(eight_bit, zeros_and_the_smallest_numbers_have_a_scale_that_is_a_number) {
  Matrix m;
  m.values.assign(256, 0.0f);
  EXPECT_EQ(on_machine(m, Fp8::kE4m3, CodeOrder::kAsStored).scale, 1.0f);
  m.values[5] = 0x1p-133f;
  for (const Fp8 format : kBoth) {
    const Rounded tiny = on_machine(m, format, CodeOrder::kAsStored);
    EXPECT_EQ(tiny.scale, 0x1p-126f);
    EXPECT_EQ(float_of_fp8(format, tiny.codes[5]), 0x1p-7f);
  }
}

TEST_F(eight_bit, what_is_not_finite_becomes_nan_and_the_rest_keeps_its_value) {
  for (const float special : {INFINITY, -INFINITY, NAN}) {
    Matrix m;
    m.values.assign(256, 2.0f);
    m.values[7] = special;
    for (const Fp8 format : kBoth) {
      for (const CodeOrder order : kOrdersOfCodes) {
        const Rounded result = on_machine(m, format, order);
        const size_t at = order == CodeOrder::kTurned ? 7 * 16 : 7;
        EXPECT_EQ(result.scale, 1.0f);
        EXPECT_TRUE(std::isnan(float_of_fp8(format, result.codes[at])));
        EXPECT_EQ(float_of_fp8(format, result.codes[0]), 2.0f);
      }
    }
  }
}

TEST_F(eight_bit, sides_that_are_no_sixteens_are_refused) {
  RoundMatrix d;
  d.rows = 16, d.columns = 24, d.stride = 24;
  EXPECT_FALSE(round_matrix(d, nullptr).ok());
}

}  // namespace
}  // namespace ballast::kernels::cuda::testing
