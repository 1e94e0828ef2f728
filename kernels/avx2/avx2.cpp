// The AVX2 table (AVX2, FMA, F16C).
//
// Bound: memory. A step moves 28 bytes a parameter, 224 a vector of 8: at 30 GB/s a core that is
// 7.5 ns or some 30 cycles, while square root and division take about 10 and the rest about 15.

#include <immintrin.h>

#include "kernels/tables.h"
#include "kernels/vector_loops.h"
#include "kernels/vector_undo.h"

namespace ballast::kernels {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  using Mask = __m256;  // all bits of a lane set or none

  struct First {
    int64_t n;
  };

  static constexpr int64_t lanes() { return 8; }
  static First first(int64_t n) { return {n}; }
  static I mask_of(First t) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(t.n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static F load(All, const float* p) { return _mm256_loadu_ps(p); }
  static F load(First t, const float* p) { return _mm256_maskload_ps(p, mask_of(t)); }
  static void store(All, float* p, F x) { _mm256_storeu_ps(p, x); }
  static void store(First t, float* p, F x) { _mm256_maskstore_ps(p, mask_of(t), x); }

  static __m128i load_16(All, const uint16_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static __m128i load_16(First t, const uint16_t* p) {  // AVX2 has no 16-bit mask: value by value
    uint16_t values[8] = {};
    for (int64_t j = 0; j < t.n; ++j) values[j] = p[j];
    return load_16(All{}, values);
  }
  static void store_16(All, uint16_t* p, __m128i x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
  }
  static void store_16(First t, uint16_t* p, __m128i x) {
    uint16_t values[8];
    store_16(All{}, values, x);
    for (int64_t j = 0; j < t.n; ++j) p[j] = values[j];
  }

  template <class Lanes>
  static F load_bf16(Lanes lanes, const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(lanes, p)), 16));
  }
  template <class Lanes>
  static F load_f16(Lanes lanes, const uint16_t* p) {
    return _mm256_cvtph_ps(load_16(lanes, p));
  }
  // Nearest even: add 0x7fff, and one more where the kept part is odd. NaN: quiet bit set.
  template <class Lanes>
  static void store_bf16(Lanes lanes, uint16_t* p, F x) {
    const I bits = _mm256_castps_si256(x);
    const I kept = _mm256_srli_epi32(bits, 16);
    const I odd = _mm256_and_si256(kept, _mm256_set1_epi32(1));
    const I half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const I rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const I quiet = _mm256_or_si256(kept, _mm256_set1_epi32(0x40));
    const I nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const I result = _mm256_blendv_epi8(rounded, quiet, nan);
    store_16(lanes, p, low_words(result));
  }
  static constexpr bool kRoundsManyAtOnce = true;
  // 64 values, two vectors at a time and taking none for NaN: their sum says if one was.
  static void store_64_bf16(uint16_t* to, const float* from) {
    const auto rounded = [](F x) {
      const I odd = _mm256_and_si256(_mm256_srli_epi32(bits(x), 16), _mm256_set1_epi32(1));
      const I half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
      return _mm256_srli_epi32(_mm256_add_epi32(bits(x), half), 16);
    };
    F sum = set(0.0f);
    for (int64_t i = 0; i < 64; i += 16) {
      const F low = load(All{}, from + i), high = load(All{}, from + i + 8);
      sum = add(add(sum, low), high);
      const I words = _mm256_packus_epi32(rounded(low), rounded(high));
      _mm256_storeu_si256(reinterpret_cast<I*>(to + i), _mm256_permute4x64_epi64(words, 0xd8));
    }
    if (__builtin_expect(_mm256_movemask_ps(is_finite(sum)) != 0xff, 0)) {
      for (int64_t i = 0; i < 64; i += lanes()) store_bf16(All{}, to + i, load(All{}, from + i));
    }
  }
  template <class Lanes>
  static void store_f16(Lanes lanes, uint16_t* p, F x) {
    store_16(lanes, p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static F set(float x) { return _mm256_set1_ps(x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F select(Mask k, F yes, F no) { return _mm256_blendv_ps(no, yes, k); }
  static Mask is_finite(F x) {  // x - x is 0 if x is finite, else NaN
    return _mm256_cmp_ps(_mm256_sub_ps(x, x), _mm256_setzero_ps(), _CMP_EQ_OQ);
  }

  static F number_or_minus_infinity(F x) {  // a maximum with a NaN is the second operand
    return _mm256_max_ps(x, _mm256_set1_ps(-__builtin_inff()));
  }
  static bool all_below(I x, uint32_t end) {  // neither above 2^31
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(set_int(end), x)) == -1;
  }

  static I bits(F x) { return _mm256_castps_si256(x); }
  static F floats(I x) { return _mm256_castsi256_ps(x); }
  static I set_int(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I sub_or_zero(Mask k, I a, I b) { return _mm256_and_si256(bits(k), sub(a, b)); }
  static I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
  static I max_int(I a, I b) { return _mm256_max_epu32(a, b); }
  static Mask less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static I select(Mask k, I yes, I no) { return _mm256_blendv_epi8(no, yes, bits(k)); }
  static void store_int(uint32_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<I*>(p), x); }
  static I byte(uint32_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
  // 32 differences plus `range` as bytes, in the order that packing gives, whose halves hold four
  // values of one vector, four of the next. Those below -range or above range exceed 2 * range.
  static I pack_digits(const uint32_t* p, uint32_t range) {
    const I* from = reinterpret_cast<const I*>(p);
    const I low = _mm256_packs_epi32(_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1));
    const I high = _mm256_packs_epi32(_mm256_loadu_si256(from + 2), _mm256_loadu_si256(from + 3));
    return _mm256_add_epi8(_mm256_packs_epi16(low, high), byte(range));
  }
  static uint32_t make_32_codes(const uint32_t* w, const uint32_t* m, const uint32_t* v,
                                uint8_t* codes) {
    const I digit_w = pack_digits(w, kUndoRangeW);
    const I digit_v = pack_digits(v, kUndoRangeV);
    const I digit_m = pack_digits(m, kUndoRangeM);
    const I beyond = _mm256_or_si256(_mm256_adds_epu8(digit_w, byte(127 - 2 * kUndoRangeW)),
                                     _mm256_adds_epu8(digit_v, byte(127 - 2 * kUndoRangeV)));
    // The sum saturates at kUndoEscaped, and it does so where digit_m exceeds its range.
    const I m2 = _mm256_adds_epu8(digit_m, digit_m);
    const I m5 = _mm256_adds_epu8(_mm256_adds_epu8(m2, m2), digit_m);
    const I vm = _mm256_adds_epu8(m5, digit_v);
    const I vm3 = _mm256_adds_epu8(_mm256_adds_epu8(vm, vm), vm);
    const I code = _mm256_adds_epu8(vm3, digit_w);
    const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const I escaped = byte(kUndoEscaped);
    const I result = _mm256_permutevar8x32_epi32(_mm256_blendv_epi8(code, escaped, beyond), order);
    if (reinterpret_cast<uintptr_t>(codes) % sizeof(I) == 0) {
      _mm256_stream_si256(reinterpret_cast<I*>(codes), result);
    } else {
      _mm256_storeu_si256(reinterpret_cast<I*>(codes), result);
    }
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(result, escaped)));
  }
  // Writes 64 codes of undo_codes.h, past the caches where they fill half a line, since few steps
  // are undone. Bit i of the result is set where parameter i escapes.
  static uint64_t make_codes(Differences d, uint8_t* codes) {
    static_assert(15 * (2 * kUndoRangeM + 1) == kUndoEscaped);
    const uint64_t low = make_32_codes(d.w, d.m, d.v, codes);
    const uint64_t high = make_32_codes(d.w + 32, d.m + 32, d.v + 32, codes + 32);
    return low | high << 32;
  }
  // 16 h + l = 15 h + (h + l): what is left of h + l by 15 stands for the digits of w and v.
  static uint32_t take_32_digits(const uint8_t* codes, int8_t* w, int8_t* m, int8_t* v) {
    const auto table = [](int8_t (*entry)(int)) {
      int8_t values[32];
      for (int k = 0; k < 32; ++k) values[k] = entry(k % 16);
      return _mm256_loadu_si256(reinterpret_cast<const I*>(values));
    };
    const auto store = [](int8_t* p, I x) { _mm256_store_si256(reinterpret_cast<I*>(p), x); };
    const I code = _mm256_loadu_si256(reinterpret_cast<const I*>(codes));
    const I high = _mm256_and_si256(_mm256_srli_epi16(code, 4), byte(15));
    const I sum = _mm256_add_epi8(_mm256_and_si256(code, byte(15)), high);
    const I carry = _mm256_cmpgt_epi8(sum, byte(14));  // -1 where there is one
    const I left = _mm256_sub_epi8(sum, carry);        // its low half: sum - 15
    store(m, _mm256_sub_epi8(_mm256_sub_epi8(high, byte(kUndoRangeM)), carry));
    store(w, _mm256_shuffle_epi8(table([](int k) { return w_of_left(k); }), left));
    store(v, _mm256_shuffle_epi8(table([](int k) { return v_of_left(k); }), left));
    const I escaped = _mm256_cmpeq_epi8(code, byte(kUndoEscaped));
    return static_cast<uint32_t>(_mm256_movemask_epi8(escaped));
  }
  // What take_digits makes of kUndoEscaped, with those of w and v 0.
  static constexpr uint32_t kEscapedDigitM = 16;
  // The differences that 64 codes stand for. Bit i of the result is set where parameter i escaped.
  static uint64_t take_digits(const uint8_t* codes, Digits& d) {
    const uint64_t low = take_32_digits(codes, d.w, d.m, d.v);
    const uint64_t high = take_32_digits(codes + 32, d.w + 32, d.m + 32, d.v + 32);
    return low | high << 32;
  }
  static I load_signed_bytes(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static __m128i low_words(I x) {
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  }
  static void copy_line(const void* src, void* dst) {
    const I* from = static_cast<const I*>(src);
    I* to = static_cast<I*>(dst);
    const I low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
  }
  static void end_streaming() { _mm_sfence(); }

  using D = __m256d;
  static D load_doubles(const double* p) { return _mm256_load_pd(p); }
  static void store_doubles(double* p, D x) { _mm256_store_pd(p, x); }
  static D low_doubles(F x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
  static D high_doubles(F x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
  static D fma_doubles(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }

  static constexpr int64_t kStripLanes = 32;
  template <Format K>
  static void add_squares(const void* values, int64_t first_value, int64_t end, double* sums) {
    add_squares_in_four<Avx2, K>(values, first_value, end, sums);
  }
};

}  // namespace

constinit const Table kAvx2Table = table_of<Avx2>("avx2");

}  // namespace ballast::kernels
