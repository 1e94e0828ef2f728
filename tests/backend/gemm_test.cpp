// The GEMM and the row loops of every instruction set that this machine has, against fp64.
//
// Sizes straddle the vector widths (4, 8, 16) and the register tiles, starts are misaligned, and
// what lies beyond a row is NaN, so that a stray read poisons the result.

#include "backend/host/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "backend/host/transformer_rows.h"

namespace ballast {
namespace {

using transformer::row_loop_tables;
using transformer::row_loops;
using transformer::RowLoops;

constexpr double kRoundoff = 0x1p-24;  // of fp32
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> values(size_t count, uint32_t seed) {
  std::vector<float> out(count);
  uint32_t state = seed * 2654435761u + 1u;
  for (float& value : out) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return out;
}

// A stored matrix whose rows lie `padding` elements of NaN apart, after `offset` elements.
struct Matrix {
  int64_t rows, columns, stride;
  size_t offset;
  std::vector<float> elements;
  float* data() { return elements.data() + offset; }
  float at(int64_t row, int64_t column) const {
    return elements[offset + static_cast<size_t>(row * stride + column)];
  }
};

Matrix matrix(int64_t rows, int64_t columns, size_t offset, uint32_t seed) {
  const int64_t stride = columns + 3;
  Matrix m{rows, columns, stride, offset, {}};
  m.elements.assign(offset + static_cast<size_t>(rows * stride), kNan);
  const std::vector<float> inside = values(static_cast<size_t>(rows * columns), seed);
  for (int64_t i = 0; i < rows * columns; ++i) {
    m.data()[i / columns * stride + i % columns] = inside[static_cast<size_t>(i)];
  }
  return m;
}

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
};

Matrix multiply(const GemmTable& table, const Case& c, size_t offset) {
  Matrix a = c.transpose_a ? matrix(c.k, c.m, offset, 1) : matrix(c.m, c.k, offset, 1);
  Matrix b = c.transpose_b ? matrix(c.n, c.k, offset, 2) : matrix(c.k, c.n, offset, 2);
  Matrix out = matrix(c.m, c.n, offset, 3);
  GemmArguments<float> g;
  g.m = c.m, g.n = c.n, g.k = c.k;
  g.a = a.data(), g.lda = a.stride, g.transpose_a = c.transpose_a;
  g.b = b.data(), g.ldb = b.stride, g.transpose_b = c.transpose_b;
  g.c = out.data(), g.ldc = out.stride;
  g.alpha = 0.5f, g.accumulate = c.accumulate;
  table.gemm(g);
  return out;
}

// |error| <= (k + 2) u sum |a b| for any order of the sum (Higham, Accuracy and Stability of
// Numerical Algorithms, 2nd ed., eq. 3.5).
void expect_product(const GemmTable& table, const Case& c) {
  const Matrix a = c.transpose_a ? matrix(c.k, c.m, 1, 1) : matrix(c.m, c.k, 1, 1);
  const Matrix b = c.transpose_b ? matrix(c.n, c.k, 1, 2) : matrix(c.k, c.n, 1, 2);
  const Matrix before = matrix(c.m, c.n, 1, 3);
  const Matrix out = multiply(table, c, 1);
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = c.accumulate ? static_cast<double>(before.at(i, j)) : 0.0;
      double magnitude = std::abs(sum);
      for (int64_t l = 0; l < c.k; ++l) {
        const double x = static_cast<double>(c.transpose_a ? a.at(l, i) : a.at(i, l));
        const double y = static_cast<double>(c.transpose_b ? b.at(j, l) : b.at(l, j));
        sum += 0.5 * x * y;
        magnitude += std::abs(0.5 * x * y);
      }
      const double bound = static_cast<double>(c.k + 2) * kRoundoff * magnitude;
      ASSERT_NEAR(static_cast<double>(out.at(i, j)), sum, bound)
          << table.name << " " << c.m << "x" << c.n << "x" << c.k << " at " << i << "," << j;
    }
    for (int64_t j = c.n; j < out.stride; ++j) ASSERT_TRUE(std::isnan(out.at(i, j)));
  }
}

TEST(Gemm, every_instruction_set_multiplies_every_shape_and_transpose) {
  constexpr std::array<int64_t, 8> kSizes = {1, 2, 7, 16, 17, 49, 65, 130};
  for (const GemmTable& table : gemm_tables()) {
    for (size_t i = 0; i < kSizes.size() * kSizes.size() * kSizes.size(); ++i) {
      const size_t bits = i % 8;  // walks through transposes and accumulation
      expect_product(table, {kSizes[i / 64], kSizes[i / 8 % 8], kSizes[(i + i / 8 + i / 64) % 8],
                             (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Gemm, bits_depend_on_neither_alignment_nor_repetition) {
  for (const GemmTable& table : gemm_tables()) {
    for (const Case& c : {Case{65, 33, 130, false, true, false}, Case{1, 70, 40, true, false, true},
                          Case{70, 1, 40, false, false, false}, Case{5, 6, 7, true, true, true}}) {
      const Matrix first = multiply(table, c, 0);
      for (const size_t offset : {size_t{0}, size_t{1}, size_t{5}, size_t{16}}) {
        const Matrix again = multiply(table, c, offset);
        for (int64_t i = 0; i < c.m; ++i) {
          for (int64_t j = 0; j < c.n; ++j) ASSERT_EQ(first.at(i, j), again.at(i, j));
        }
      }
    }
  }
}

// --- Products of bf16 ------------------------------------------------------------------------

float widened(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

// Of every magnitude from 2^-6 to 2, and some zeros, with both signs.
std::vector<uint16_t> bf16_values(size_t count, uint32_t seed) {
  std::vector<uint16_t> out(count);
  uint32_t state = seed * 2654435761u + 1u;
  for (uint16_t& value : out) {
    state = state * 1664525u + 1013904223u;
    const uint32_t exponent = 121 + (state >> 8) % 8;
    value = static_cast<uint16_t>((state >> 31 << 15) | (exponent << 7) | (state >> 16 & 0x7f));
    if ((state >> 24) % 17 == 0) value = 0;
  }
  return out;
}

// Rows lie three elements apart, of NaN.
struct Bf16Matrix {
  int64_t rows, columns, stride;
  std::vector<uint16_t> elements;
  uint16_t at(int64_t row, int64_t column) const {
    return elements[static_cast<size_t>(row * stride + column)];
  }
};

Bf16Matrix bf16_matrix(int64_t rows, int64_t columns, uint32_t seed) {
  constexpr uint16_t kBf16Nan = 0x7fc0;
  const int64_t stride = columns + 3;
  Bf16Matrix m{rows, columns, stride, std::vector(static_cast<size_t>(rows * stride), kBf16Nan)};
  const std::vector<uint16_t> inside = bf16_values(static_cast<size_t>(rows * columns), seed);
  for (int64_t i = 0; i < rows * columns; ++i) {
    m.elements[static_cast<size_t>(i / columns * stride + i % columns)] =
        inside[static_cast<size_t>(i)];
  }
  return m;
}

// The chain that gemm.h promises.
float chain(const Bf16Matrix& a, const Bf16Matrix& b, const Case& c, int64_t i, int64_t j,
            float sum) {
  const auto term = [&](int64_t l) {
    if (l >= c.k) return;
    const float x = widened(c.transpose_a ? a.at(l, i) : a.at(i, l));
    const float y = widened(c.transpose_b ? b.at(j, l) : b.at(l, j));
    sum = std::fma(x, y, sum);
  };
  for (int64_t l = 0; l < c.k; l += 2) {
    term(l + 1);
    term(l);
  }
  return sum;
}

void expect_bf16_product(const Case& c) {
  const Bf16Matrix a = c.transpose_a ? bf16_matrix(c.k, c.m, 1) : bf16_matrix(c.m, c.k, 1);
  const Bf16Matrix b = c.transpose_b ? bf16_matrix(c.n, c.k, 2) : bf16_matrix(c.k, c.n, 2);
  const Matrix before = matrix(c.m, c.n, 1, 3);
  Matrix out = before;
  gemm(Bf16Product{c.m, c.n, c.k, a.elements.data(), a.stride, c.transpose_a, b.elements.data(),
                   b.stride, c.transpose_b, out.data(), out.stride, c.accumulate});
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      const float begin = c.accumulate ? before.at(i, j) : 0.0f;
      ASSERT_EQ(out.at(i, j), chain(a, b, c, i, j, begin))
          << c.m << "x" << c.n << "x" << c.k << " at " << i << "," << j;
    }
    for (int64_t j = c.n; j < out.stride; ++j) ASSERT_TRUE(std::isnan(out.at(i, j)));
  }
}

TEST(Bf16Gemm, every_element_is_one_chain_of_pairs_whatever_the_shape) {
  if (!multiplies_bf16()) GTEST_SKIP() << "this processor has no instruction for products of bf16";
  constexpr std::array<int64_t, 9> kSizes = {1, 2, 11, 12, 13, 31, 33, 65, 131};
  for (size_t i = 0; i < kSizes.size() * kSizes.size() * kSizes.size(); ++i) {
    const size_t bits = i % 8;  // walks through transposes and accumulation
    expect_bf16_product({kSizes[i / 81], kSizes[i / 9 % 9], kSizes[(i + i / 9 + i / 81) % 9],
                         (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
    if (HasFatalFailure()) return;
  }
  // Beyond a block of terms, of rows and of columns, and beyond a tile.
  for (const Case& c :
       {Case{400, 50, 391, false, true, true}, Case{30, 800, 770, true, false, false},
        Case{500, 900, 60, false, false, false}, Case{70, 33, 1201, true, true, true}}) {
    expect_bf16_product(c);
    if (HasFatalFailure()) return;
  }
}

// Sequences and experts cut rows where they like.
TEST(Bf16Gemm, rows_have_the_same_bits_alone) {
  if (!multiplies_bf16()) GTEST_SKIP() << "this processor has no instruction for products of bf16";
  constexpr int64_t kRows = 37, kColumns = 70, kTerms = 129;
  const Bf16Matrix a = bf16_matrix(kRows, kTerms, 5);
  const Bf16Matrix b = bf16_matrix(kColumns, kTerms, 6);
  std::vector<float> whole(kRows * kColumns), part(kColumns);
  gemm(Bf16Product{kRows, kColumns, kTerms, a.elements.data(), a.stride, false, b.elements.data(),
                   b.stride, true, whole.data(), kColumns, false});
  for (int64_t row = 0; row < kRows; ++row) {
    gemm(Bf16Product{1, kColumns, kTerms, a.elements.data() + row * a.stride, a.stride, false,
                     b.elements.data(), b.stride, true, part.data(), kColumns, false});
    for (int64_t j = 0; j < kColumns; ++j) {
      ASSERT_EQ(part[static_cast<size_t>(j)], whole[static_cast<size_t>(row * kColumns + j)]);
    }
  }
}

// Sums are where an order could creep in; the loops without sums treat every lane alike.
TEST(RowLoops, bits_of_sums_do_not_depend_on_alignment) {
  for (const RowLoops<float>* rows : row_loop_tables()) {
    for (const int64_t n : {5, 33, 200, 1500}) {
      std::vector<double> first;
      for (size_t offset = 0; offset < 17; ++offset) {
        std::vector<float> buffer(offset, 0.0f);
        const std::vector<float> inside = values(static_cast<size_t>(3 * n), 9);
        buffer.insert(buffer.end(), inside.begin(), inside.end());
        float* x = buffer.data() + offset;
        std::vector<double> sums;
        sums.push_back(static_cast<double>(rows->dot(x, x + n, n)));
        sums.push_back(static_cast<double>(rows->centred_moments(x, n).mean));
        sums.push_back(static_cast<double>(rows->centred_moments(x, n).mean_square));
        transformer::NormRow<float> row;
        transformer::NormRowGradient<float> gradient;
        row.x = x, row.weight = x + n, row.bias = x, row.mean = 0.5f, row.inverse_deviation = 2;
        std::vector<float> parameters(static_cast<size_t>(2 * n));
        gradient.dweight = parameters.data(), gradient.dbias = parameters.data() + n;
        gradient.dout = x + n, gradient.dx = x + 2 * n;
        rows->norm_gradient(row, gradient, n);
        sums.insert(sums.end(), x + 2 * n, x + 3 * n);
        sums.push_back(rows->softmax(x, n).sum);
        sums.insert(sums.end(), x, x + n);
        if (offset == 0) first = sums;
        ASSERT_EQ(first, sums) << rows->name << " length " << n << " offset " << offset;
      }
    }
  }
}

TEST(RowLoops, exponential_is_within_two_ulp_over_the_whole_range) {
  for (const RowLoops<float>* rows : row_loop_tables()) {
    std::vector<float> x;
    for (float value = -87.0f; value < 88.7f; value += 0.00137f) x.push_back(value);
    std::vector<float> p = x;  // attention_gradient turns scores into exp(scores - log_sum_exp)
    std::vector<float> unused(x.size());
    rows->attention_gradient(p.data(), unused.data(), 0.0f, 0.0f, static_cast<int64_t>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      worst = std::max(worst, std::abs(static_cast<double>(p[i]) - exact) / ulp);
    }
    EXPECT_LE(worst, 2.0) << rows->name;
  }
}

TEST(RowLoops, exponential_has_the_right_limits) {
  for (const RowLoops<float>* rows : row_loop_tables()) {
    for (size_t padding = 0; padding < 20; ++padding) {  // in the vector loop and in its tail
      std::vector<float> x(padding, 0.0f);
      x.insert(x.end(), {-kInfinity, -1e30f, -200.0f, 0.0f, 100.0f, 1e30f, kInfinity, kNan});
      std::vector<float> unused(x.size());
      const auto count = static_cast<int64_t>(x.size());
      rows->attention_gradient(x.data(), unused.data(), 0.0f, 0.0f, count);
      const float* p = x.data() + padding;
      EXPECT_EQ(p[0], 0.0f);
      EXPECT_EQ(p[1], 0.0f);
      EXPECT_EQ(p[2], 0.0f);
      EXPECT_EQ(p[3], 1.0f);
      EXPECT_EQ(p[4], kInfinity);
      EXPECT_EQ(p[5], kInfinity);
      EXPECT_EQ(p[6], kInfinity);
      EXPECT_TRUE(std::isnan(p[7]));
    }
  }
}

// gelu(x) = x * Phi(x): an error of Phi near one rounding shows as |x| u.
TEST(RowLoops, gelus_follow_erf_and_tanh) {
  std::vector<float> x;
  for (float value = -9.0f; value < 9.0f; value += 0.00037f) x.push_back(value);
  std::vector<float> a(x.size());
  for (const RowLoops<float>* rows : row_loop_tables()) {
    rows->gelu(x.data(), a.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = static_cast<double>(x[i]);
      const double exact = v * 0.5 * (1.0 + std::erf(v / std::sqrt(2.0)));
      ASSERT_NEAR(static_cast<double>(a[i]), exact, 4 * kRoundoff * std::abs(v)) << x[i];
    }
    rows->gelu_tanh(x.data(), a.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = static_cast<double>(x[i]);
      const double u = std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v);
      const double exact = 0.5 * v * (1.0 + std::tanh(u));
      ASSERT_NEAR(static_cast<double>(a[i]), exact, 4 * kRoundoff * std::abs(v)) << x[i];
    }
  }
}

TEST(RowLoops, softmax_of_large_and_of_invalid_values) {
  for (const RowLoops<float>* rows : row_loop_tables()) {
    std::vector<float> x = {1000.0f, 999.0f, -1000.0f};  // 1, 1/e, 0
    const auto sums = rows->softmax(x.data(), 3);
    EXPECT_EQ(sums.maximum, 1000.0f);
    EXPECT_EQ(x[0], 1.0f);
    EXPECT_NEAR(static_cast<double>(x[1]), std::exp(-1.0), 1e-7);
    EXPECT_EQ(x[2], 0.0f);
    EXPECT_NEAR(sums.sum, 1.0 + std::exp(-1.0), 1e-7);
    for (const float invalid : {kNan, kInfinity}) {  // an overflow must reach the loss
      std::vector<float> bad(40, 0.5f);
      bad[17] = invalid;
      EXPECT_TRUE(std::isnan(rows->softmax(bad.data(), 40).sum));
    }
  }
}

// Every loop at every length up to past four vectors of 16, against the fp64 table. Sums are at
// most 67 long, so 200 u of the value (or of 1) leaves room for their order.
class EveryLength : public testing::Test {
 protected:
  static constexpr int64_t kLongest = 67;
  static constexpr double kTolerance = 200 * kRoundoff;

  // Input number `seed` of 2n values, misaligned, followed by NaN.
  template <class Real>
  static std::vector<Real> input(int64_t n, uint32_t seed) {
    const std::vector<float> from = values(static_cast<size_t>(2 * n), seed);
    std::vector<Real> to(1 + static_cast<size_t>(2 * n) + 16, static_cast<Real>(kNan));
    std::copy(from.begin(), from.end(), to.begin() + 1);
    return to;
  }

  static void expect_near(float actual, double expected, std::string_view table, int64_t n) {
    EXPECT_NEAR(static_cast<double>(actual), expected,
                kTolerance * std::max(1.0, std::abs(expected)))
        << table << " length " << n;
  }

  // Runs body(rows, x, y, z, n) on both tables and expects equal y and z.
  template <class Body>
  static void expect_agreement(Body body) {
    for (const RowLoops<float>* rows : row_loop_tables()) {
      for (int64_t n = 1; n <= kLongest; ++n) {
        auto x = input<float>(n, 1), y = input<float>(n, 2), z = input<float>(n, 3);
        auto x64 = input<double>(n, 1), y64 = input<double>(n, 2), z64 = input<double>(n, 3);
        body(*rows, x.data() + 1, y.data() + 1, z.data() + 1, n);
        body(row_loops<double>(), x64.data() + 1, y64.data() + 1, z64.data() + 1, n);
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(std::isnan(y[i]), std::isnan(y64[i])) << rows->name << " length " << n;
          if (std::isnan(y[i])) continue;
          expect_near(y[i], y64[i], rows->name, n);
          expect_near(z[i], z64[i], rows->name, n);
        }
      }
    }
  }
};

TEST_F(EveryLength, elementwise_loops) {
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    rows.add(x, y, n);
    rows.scale(3, z, n);
  });
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    rows.gelu(x, y, n);
    rows.gelu_gradient(x, y, z, n);
  });
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    rows.gelu_tanh(x, y, n);
    rows.gelu_tanh_gradient(x, y, z, n);
  });
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    rows.swiglu(x, y, n);
    rows.swiglu_gradient(x, y, z, n);
  });
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    rows.rotate(x, y, z, y, n);
    rows.rotate_back(x, y + n, z, z, n);
  });
}

TEST_F(EveryLength, sums_and_norms) {
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    y[0] = rows.dot(x, z, n);
    z[0] = rows.plain_moments(x, n).mean_square;
    const auto moments = rows.centred_moments(x, n);
    y[1] = moments.mean;
    z[1] = moments.mean_square;
  });
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    transformer::NormRow<std::remove_reference_t<decltype(*x)>> row;
    row.x = x, row.weight = y, row.bias = z;
    row.mean = static_cast<std::remove_reference_t<decltype(*x)>>(0.25);
    row.inverse_deviation = 2;
    rows.norm(row, y, n);
    row.bias = nullptr, row.mean = 0;
    rows.norm(row, z, n);
  });
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    transformer::NormRow<std::remove_reference_t<decltype(*x)>> row;
    transformer::NormRowGradient<std::remove_reference_t<decltype(*x)>> gradient;
    row.x = x, row.weight = y, row.mean = 0, row.inverse_deviation = 2;
    gradient.dout = x + n, gradient.dx = z, gradient.dweight = z + n;
    rows.norm_gradient(row, gradient, n);
    gradient.residual = y, gradient.dx = y, gradient.dbias = z;
    rows.norm_gradient(row, gradient, n);
  });
  expect_agreement([](const auto& rows, auto* x, auto* y, auto* z, int64_t n) {
    y[0] = static_cast<std::remove_reference_t<decltype(*x)>>(rows.softmax(z, n).sum);
    rows.attention_gradient(y, x, 1, 0, n);
  });
}

}  // namespace
}  // namespace ballast
