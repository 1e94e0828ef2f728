// The AVX-512 table (F, BW, VL, DQ; no AVX512_BF16, whose conversion flushes denormals).
//
// Bound: memory. A step moves 28 bytes a parameter, 448 a vector of 16: at 30 GB/s a core that is
// 15 ns or some 60 cycles, while square root and division take about 20 and the rest about 15.

// GCC 12 takes the deliberately undefined operands inside its own intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "kernels/tables.h"
#include "kernels/vector_loops.h"
#include "kernels/vector_undo.h"

namespace ballast::kernels {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  using Mask = __mmask16;

  static constexpr int64_t lanes() { return 16; }
  static Mask first(int64_t n) { return static_cast<Mask>((1u << n) - 1u); }

  static F load(All, const float* p) { return _mm512_loadu_ps(p); }
  static F load(Mask k, const float* p) { return _mm512_maskz_loadu_ps(k, p); }
  static void store(All, float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store(Mask k, float* p, F x) { _mm512_mask_storeu_ps(p, k, x); }

  static __m256i load_16(All, const uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m256i load_16(Mask k, const uint16_t* p) { return _mm256_maskz_loadu_epi16(k, p); }
  static void store_16(All, uint16_t* p, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
  }
  static void store_16(Mask k, uint16_t* p, __m256i x) { _mm256_mask_storeu_epi16(p, k, x); }

  template <class Lanes>
  static F load_bf16(Lanes lanes, const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16(lanes, p)), 16));
  }
  template <class Lanes>
  static F load_f16(Lanes lanes, const uint16_t* p) {
    return _mm512_cvtph_ps(load_16(lanes, p));
  }
  // Nearest even: add 0x7fff, and one more where the kept part is odd. NaN: quiet bit set.
  template <class Lanes>
  static void store_bf16(Lanes lanes, uint16_t* p, F x) {
    const I bits = _mm512_castps_si512(x);
    const Mask odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const I half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const I rounded = _mm512_mask_add_epi32(half, odd, half, _mm512_set1_epi32(1));
    const Mask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const I result = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    store_16(lanes, p, upper_words(result));
  }
  static __m256i upper_words(I x) {
    const I odd_words = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015,
                                         0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(odd_words, x));
  }
  static constexpr bool kRoundsManyAtOnce = false;
  template <class Lanes>
  static void store_f16(Lanes lanes, uint16_t* p, F x) {
    store_16(lanes, p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static F set(float x) { return _mm512_set1_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F select(Mask k, F yes, F no) { return _mm512_mask_blend_ps(k, no, yes); }
  static Mask is_finite(F x) {
    constexpr int kNanOrInfinite = 0x99;  // quiet NaN, +Inf, -Inf, signalling NaN
    return static_cast<Mask>(~_mm512_fpclass_ps_mask(x, kNanOrInfinite));
  }

  static F number_or_minus_infinity(F x) {  // a maximum with a NaN is the second operand
    return _mm512_max_ps(x, _mm512_set1_ps(-__builtin_inff()));
  }
  static bool all_below(I x, uint32_t end) { return _mm512_cmpge_epu32_mask(x, set_int(end)) == 0; }

  static I bits(F x) { return _mm512_castps_si512(x); }
  static F floats(I x) { return _mm512_castsi512_ps(x); }
  static I set_int(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I sub_or_zero(Mask k, I a, I b) { return _mm512_maskz_sub_epi32(k, a, b); }
  static I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
  static I max_int(I a, I b) { return _mm512_max_epu32(a, b); }
  static Mask less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static I select(Mask k, I yes, I no) { return _mm512_mask_blend_epi32(k, no, yes); }
  static void store_int(uint32_t* p, I x) { _mm512_storeu_si512(p, x); }
  static I byte(uint32_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  // 64 differences plus `range` as bytes, in the order that packing gives, whose quarters hold four
  // values of one vector, four of the next. Those below -range or above range exceed 2 * range.
  static I pack_digits(const uint32_t* p, uint32_t range) {
    const I low = _mm512_packs_epi32(_mm512_loadu_si512(p), _mm512_loadu_si512(p + 16));
    const I high = _mm512_packs_epi32(_mm512_loadu_si512(p + 32), _mm512_loadu_si512(p + 48));
    return _mm512_add_epi8(_mm512_packs_epi16(low, high), byte(range));
  }
  // Writes 64 codes of undo_codes.h, past the caches where they fill a line, since few steps are
  // undone. Bit i of the result is set where parameter i escapes.
  static uint64_t make_codes(Differences d, uint8_t* codes) {
    static_assert(15 * (2 * kUndoRangeM + 1) == kUndoEscaped);
    const I digit_w = pack_digits(d.w, kUndoRangeW);
    const I digit_v = pack_digits(d.v, kUndoRangeV);
    const I digit_m = pack_digits(d.m, kUndoRangeM);
    const __mmask64 fits = _mm512_mask_cmple_epu8_mask(
        _mm512_cmple_epu8_mask(digit_w, byte(2 * kUndoRangeW)), digit_v, byte(2 * kUndoRangeV));
    // The sum saturates at kUndoEscaped, and it does so where digit_m exceeds its range.
    const I m2 = _mm512_adds_epu8(digit_m, digit_m);
    const I m5 = _mm512_adds_epu8(_mm512_adds_epu8(m2, m2), digit_m);
    const I vm = _mm512_adds_epu8(m5, digit_v);
    const I vm3 = _mm512_adds_epu8(_mm512_adds_epu8(vm, vm), vm);
    const I escaped = byte(kUndoEscaped);
    const I code = _mm512_mask_adds_epu8(escaped, fits, vm3, digit_w);
    // Word 4 q + k holds four values of vector k, quarter q.
    const I order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const I result = _mm512_permutexvar_epi32(order, code);
    if (reinterpret_cast<uintptr_t>(codes) % sizeof(I) == 0) {
      _mm512_stream_si512(reinterpret_cast<I*>(codes), result);
    } else {
      _mm512_storeu_si512(codes, result);
    }
    return _mm512_cmpeq_epi8_mask(result, escaped);
  }
  // What take_digits makes of kUndoEscaped, with those of w and v 0.
  static constexpr uint32_t kEscapedDigitM = 16;
  // The differences that 64 codes stand for. Bit i of the result is set where parameter i escaped.
  // 16 h + l = 15 h + (h + l): what is left of h + l by 15 stands for the digits of w and v.
  static uint64_t take_digits(const uint8_t* codes, Digits& d) {
    const auto table = [](int8_t (*entry)(int)) {
      int8_t values[64];
      for (int k = 0; k < 64; ++k) values[k] = entry(k % 16);
      return _mm512_loadu_si512(values);
    };
    const I code = _mm512_loadu_si512(codes);
    const I high = _mm512_and_si512(_mm512_srli_epi16(code, 4), byte(15));
    const I sum = _mm512_add_epi8(_mm512_and_si512(code, byte(15)), high);
    const __mmask64 carry = _mm512_cmpgt_epi8_mask(sum, byte(14));
    const I left = _mm512_mask_sub_epi8(sum, carry, sum, byte(15));
    const I without_carry = _mm512_sub_epi8(high, byte(kUndoRangeM));
    _mm512_store_si512(d.m,
                       _mm512_mask_sub_epi8(without_carry, carry, high, byte(kUndoRangeM - 1)));
    _mm512_store_si512(d.w, _mm512_shuffle_epi8(table([](int k) { return w_of_left(k); }), left));
    _mm512_store_si512(d.v, _mm512_shuffle_epi8(table([](int k) { return v_of_left(k); }), left));
    return _mm512_cmpeq_epi8_mask(code, byte(kUndoEscaped));
  }
  static I load_signed_bytes(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void copy_line(const void* src, void* dst) {
    _mm512_stream_si512(static_cast<__m512i*>(dst), _mm512_loadu_si512(src));
  }
  static void end_streaming() { _mm_sfence(); }

  using D = __m512d;
  static D load_doubles(const double* p) { return _mm512_load_pd(p); }
  static void store_doubles(double* p, D x) { _mm512_store_pd(p, x); }
  static D low_doubles(F x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
  static D high_doubles(F x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
  static D fma_doubles(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }

  static constexpr int64_t kStripLanes = 64;
  template <Format K>
  static void add_squares(const void* values, int64_t first_value, int64_t end, double* sums) {
    add_squares_in_four<Avx512, K>(values, first_value, end, sums);
  }
};

}  // namespace

constinit const Table kAvx512Table = table_of<Avx512>("avx512");

}  // namespace ballast::kernels
