// Products of bf16 by the processor's own instruction (VDPBF16PS); run only where the dispatcher
// finds it.
//
// A is read in place where its pairs of columns lie side by side, else copied into panels; B is
// copied into panels of two vectors, pair by pair, which twelve rows of A use while they are in the
// cache. Everything has internal linkage and nothing of std is instantiated, as in row_loops.h.

#include <cstdint>
#include <immintrin.h>

#include "backend/host/gemm/units.h"

namespace ballast {
namespace {

constexpr int64_t kRows = 12;     // with two vectors each, as many sums as there are registers for
constexpr int64_t kColumns = 32;  // of a panel of B: two vectors
constexpr int64_t kLanes = 16;
// Of rows, columns and terms that are copied at a time; a panel of so many terms is 24 KiB.
constexpr int64_t kBlock = 384;
static_assert(kBf16Workspace == 2 * kBlock * kBlock && kBlock % (2 * kRows) == 0 &&
              kBlock % kColumns == 0);

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

__mmask16 lanes(int64_t count) {
  return count >= kLanes ? __mmask16(0xffff)
         : count <= 0    ? __mmask16(0)
                         : __mmask16((1u << count) - 1u);
}

// Columns of two rows, as pairs: what of the second row is missing is 0.
__m512i pairs_of_rows(const uint16_t* first, const uint16_t* second, __mmask16 mask) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, first));
  if (second == nullptr) return low;
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, second));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// Terms [0, terms) of `width` columns, stored term by term, as panels of `panel` columns. A panel
// holds pair after pair; columns beyond the last are 0.
template <int64_t kPanel>
void pack_rows(const uint16_t* from, int64_t stride, int64_t terms, int64_t width, uint16_t* to) {
  const int64_t pairs = (terms + 1) / 2;
  for (int64_t column = 0; column < width; column += kPanel) {
    for (int64_t p = 0; p < pairs; ++p) {
      const uint16_t* first = from + 2 * p * stride + column;
      const uint16_t* second = 2 * p + 1 < terms ? first + stride : nullptr;
      for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
        const int64_t kept = least(kPanel - lane, kLanes);
        const __mmask16 mask = lanes(least(width - column - lane, kept));
        const uint16_t* const next = second == nullptr ? nullptr : second + lane;
        const __m512i both =
            mask == 0 ? _mm512_setzero_si512() : pairs_of_rows(first + lane, next, mask);
        _mm512_mask_storeu_epi32(to + 2 * lane, lanes(kept), both);
      }
      to += 2 * kPanel;
    }
  }
}

// Sixteen vectors of sixteen words, transposed.
void transpose(__m512i (&v)[kLanes]) {
  __m512i t[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Terms [0, terms) of `width` columns, stored column by column, as panels of kColumns.
void pack_columns(const uint16_t* from, int64_t stride, int64_t terms, int64_t width,
                  uint16_t* to) {
  const int64_t pairs = (terms + 1) / 2;
  for (int64_t column = 0; column < width; column += kColumns) {
    for (int64_t lane = 0; lane < kColumns; lane += kLanes) {
      for (int64_t p = 0; p < pairs; p += kLanes) {
        const int64_t left = terms - 2 * p;
        const __mmask32 mask = left >= 32 ? __mmask32(~0u) : __mmask32((1u << left) - 1u);
        __m512i v[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const int64_t at = column + lane + i;
          v[i] = at < width ? _mm512_maskz_loadu_epi16(mask, from + at * stride + 2 * p)
                            : _mm512_setzero_si512();
        }
        transpose(v);
        for (int64_t i = 0; i < least(kLanes, pairs - p); ++i) {
          _mm512_storeu_si512(to + 2 * ((p + i) * kColumns + lane), v[i]);
        }
      }
    }
    to += 2 * pairs * kColumns;
  }
}

// Rows of A as pairs: the distance of rows and that of pairs, in elements.
struct Pairs {
  const uint16_t* data;
  int64_t row, pair;
};

inline __m512bh broadcast(const uint16_t* pair) {
  int32_t both;
  __builtin_memcpy(&both, pair, sizeof both);
  return (__m512bh)_mm512_set1_epi32(both);
}

// `kCount` rows of C by one panel of B; `last`: of an odd number of terms, which is read alone.
template <int kCount>
void add_products(const Pairs& a, int64_t pairs, bool last, const uint16_t* b, float* c,
                  int64_t ldc, int64_t width, bool accumulate) {
  const __mmask16 left = lanes(width), right = lanes(width - kLanes);
  __m512 sums[kCount][2];
  for (int i = 0; i < kCount; ++i) {
    sums[i][0] = accumulate ? _mm512_maskz_loadu_ps(left, c + i * ldc) : _mm512_setzero_ps();
    sums[i][1] =
        accumulate ? _mm512_maskz_loadu_ps(right, c + i * ldc + kLanes) : _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < pairs; ++p, b += 2 * kColumns) {
    const auto first = (__m512bh)_mm512_loadu_si512(b);
    const auto second = (__m512bh)_mm512_loadu_si512(b + 2 * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      const __m512bh x = broadcast(a.data + i * a.row + p * a.pair);
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], x, first);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], x, second);
    }
  }
  if (last) {
    const auto first = (__m512bh)_mm512_loadu_si512(b);
    const auto second = (__m512bh)_mm512_loadu_si512(b + 2 * kLanes);
    for (int i = 0; i < kCount; ++i) {
      const uint16_t pair[2] = {a.data[i * a.row + pairs * a.pair], 0};
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], broadcast(pair), first);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], broadcast(pair), second);
    }
  }
  for (int i = 0; i < kCount; ++i) {
    _mm512_mask_storeu_ps(c + i * ldc, left, sums[i][0]);
    _mm512_mask_storeu_ps(c + i * ldc + kLanes, right, sums[i][1]);
  }
}

using AddProducts = void (*)(const Pairs&, int64_t, bool, const uint16_t*, float*, int64_t, int64_t,
                             bool);
constexpr AddProducts kAddProducts[kRows] = {add_products<1>,  add_products<2>,  add_products<3>,
                                             add_products<4>,  add_products<5>,  add_products<6>,
                                             add_products<7>,  add_products<8>,  add_products<9>,
                                             add_products<10>, add_products<11>, add_products<12>};

// One block of C by one block of terms.
struct Block {
  int64_t row, rows, column, columns, term, terms;
};

void multiply_block(const Bf16Product& g, const Block& at, const uint16_t* packed_b,
                    uint16_t* packed_a, bool accumulate) {
  const int64_t pairs = (at.terms + 1) / 2;
  if (g.transpose_a) {
    pack_rows<kRows>(g.a + at.term * g.lda + at.row, g.lda, at.terms, at.rows, packed_a);
  }
  for (int64_t column = 0; column < at.columns; column += kColumns) {
    const uint16_t* const b = packed_b + 2 * pairs * column;
    for (int64_t row = 0; row < at.rows; row += kRows) {
      const Pairs a = g.transpose_a ? Pairs{packed_a + 2 * pairs * row, 2, 2 * kRows}
                                    : Pairs{g.a + (at.row + row) * g.lda + at.term, g.lda, 2};
      // A copy has a whole last pair.
      const bool last = !g.transpose_a && at.terms % 2 != 0;
      float* const c = g.c + (at.row + row) * g.ldc + at.column + column;
      kAddProducts[least(kRows, at.rows - row) - 1](a, last ? pairs - 1 : pairs, last, b, c, g.ldc,
                                                    at.columns - column, accumulate);
    }
  }
}

void multiply(const Bf16Product& g, uint16_t* workspace) {
  for (int64_t column = 0; column < g.n; column += kBlock) {
    for (int64_t term = 0; term < g.k; term += kBlock) {
      Block at{};
      at.column = column, at.columns = least(kBlock, g.n - column);
      at.term = term, at.terms = least(kBlock, g.k - term);
      if (g.transpose_b) {
        pack_columns(g.b + column * g.ldb + term, g.ldb, at.terms, at.columns, workspace);
      } else {
        pack_rows<kColumns>(g.b + term * g.ldb + column, g.ldb, at.terms, at.columns, workspace);
      }
      for (int64_t row = 0; row < g.m; row += kBlock) {
        at.row = row, at.rows = least(kBlock, g.m - row);
        multiply_block(g, at, workspace, workspace + kBlock * kBlock, g.accumulate || term > 0);
      }
    }
  }
}

}  // namespace

constexpr Bf16Gemm kGemmAvx512Bf16 = multiply;

}  // namespace ballast
