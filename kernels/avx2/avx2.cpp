// The AVX2 table (AVX2, FMA, F16C).
//
// Bound: memory. A step moves 28 bytes a parameter, 224 a vector of 8: at 30 GB/s a core that is
// 7.5 ns or some 30 cycles, while square root and division take about 10 and the rest about 15.

#include <immintrin.h>

#include "kernels/tables.h"
#include "kernels/vector_compact.h"
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

  static bool has_nan(F x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }

  static I bits(F x) { return _mm256_castps_si256(x); }
  static I bits_or_zero_if_nan(F x) {
    return bits(_mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q)));
  }
  static F floats(I x) { return _mm256_castsi256_ps(x); }
  static I set_int(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I sub_or_zero(Mask k, I a, I b) { return _mm256_and_si256(bits(k), sub(a, b)); }
  static I mul_int(I a, I b) { return _mm256_mullo_epi32(a, b); }
  static I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
  static I bit_xor(I a, I b) { return _mm256_xor_si256(a, b); }
  static I min_int(I a, I b) { return _mm256_min_epu32(a, b); }
  static I max_int(I a, I b) { return _mm256_max_epu32(a, b); }
  static I count_up() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static Mask at_most(I a, I b) { return floats(_mm256_cmpeq_epi32(_mm256_min_epu32(a, b), a)); }
  static Mask less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static I select(Mask k, I yes, I no) { return _mm256_blendv_epi8(no, yes, bits(k)); }
  template <int N>
  static I shift_left(I a) {
    return _mm256_slli_epi32(a, N);
  }
  template <int N>
  static I shift_right(I a) {
    return _mm256_srli_epi32(a, N);
  }
  static I mul_small(I a, I b) { return _mm256_mullo_epi16(a, b); }
  static void store_int(uint32_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<I*>(p), x); }
  static I word(uint32_t x) { return _mm256_set1_epi16(static_cast<short>(x)); }
  // 16 differences as words, clamped to their range, in the order that packing gives.
  static I pack_words(const uint32_t* p) {
    const I* from = reinterpret_cast<const I*>(p);
    return _mm256_packs_epi32(_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1));
  }
  static I words_fit(I x, uint32_t range) {
    const I digit = _mm256_add_epi16(x, word(range));
    return _mm256_cmpeq_epi16(_mm256_min_epu16(digit, word(2 * range)), digit);
  }
  // Of 16 parameters: the codes as words, in the order that packing gives, and to memory the usual
  // escapes, in theirs. Returns which have a code or the usual escape.
  static I make_words(const uint32_t* w, const uint32_t* m, const uint32_t* v, uint16_t* escapes,
                      I* codes) {
    const I w16 = pack_words(w), m16 = pack_words(m), v16 = pack_words(v);
    const I usual = _mm256_and_si256(
        words_fit(w16, kUndoRangeW),
        _mm256_and_si256(words_fit(v16, kUndoRangeV), words_fit(m16, EscapeUsual::kM)));
    const I of_v = _mm256_mullo_epi16(v16, word(kUndoDigitsW));
    const I of_m = _mm256_mullo_epi16(m16, word(kUndoDigitsW * kUndoDigitsV));
    const I code = _mm256_add_epi16(_mm256_add_epi16(w16, word(undo_code({0, 0, 0}))),
                                    _mm256_add_epi16(of_v, of_m));
    // Packing went by 128-bit halves: four values of one vector, four of the other.
    const I escape = _mm256_add_epi16(code, word(kUsualAboveCode));
    _mm256_storeu_si256(reinterpret_cast<I*>(escapes), _mm256_permute4x64_epi64(escape, 0xd8));
    *codes = _mm256_min_epu16(_mm256_or_si256(code, _mm256_xor_si256(usual, word(0xffff))),
                              word(kUndoEscaped));
    return usual;
  }
  static MadeCodes make_32_codes(const uint32_t* w, const uint32_t* m, const uint32_t* v,
                                 uint8_t* codes, uint16_t* escapes) {
    I low, high;
    const I usual_low = make_words(w, m, v, escapes, &low);
    const I usual_high = make_words(w + 16, m + 16, v + 16, escapes + 16, &high);
    // Word 4 h + k holds four values of vector k, half h.
    const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const I result = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    if (reinterpret_cast<uintptr_t>(codes) % sizeof(I) == 0) {
      _mm256_stream_si256(reinterpret_cast<I*>(codes), result);
    } else {
      _mm256_storeu_si256(reinterpret_cast<I*>(codes), result);
    }
    const I escaped = _mm256_set1_epi8(static_cast<char>(kUndoEscaped));
    const int which = _mm256_movemask_epi8(_mm256_cmpeq_epi8(result, escaped));
    return {static_cast<uint32_t>(which),
            _mm256_movemask_epi8(_mm256_and_si256(usual_low, usual_high)) == -1};
  }
  // Writes 64 codes of undo_codes.h, past the caches where they fill half a line, since few steps
  // are undone, and what each parameter's usual escape would be.
  static MadeCodes make_codes(const Differences& d, uint8_t* codes, uint16_t* escapes) {
    const MadeCodes low = make_32_codes(d.w, d.m, d.v, codes, escapes);
    const MadeCodes high = make_32_codes(d.w + 32, d.m + 32, d.v + 32, codes + 32, escapes + 32);
    return {low.escaped | high.escaped << 32, low.usual && high.usual};
  }
  static __m128i low_words(I x) {
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  }
  static void store_bytes(All, uint8_t* p, I x) {
    const __m128i words = low_words(x);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }
  static void store_bytes(First t, uint8_t* p, I x) {
    uint8_t values[8];
    store_bytes(All{}, values, x);
    for (int64_t j = 0; j < t.n; ++j) p[j] = values[j];
  }
  template <class Lanes>
  static void store_words(Lanes lanes, uint16_t* p, I x) {
    store_16(lanes, p, low_words(x));
  }
  static I load_bytes(All, const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static I load_bytes(First t, const uint8_t* p) {
    uint8_t values[8] = {};
    for (int64_t j = 0; j < t.n; ++j) values[j] = p[j];
    return load_bytes(All{}, values);
  }
  static uint64_t equal_in_64(const uint8_t* p, uint8_t value) {
    const I wanted = _mm256_set1_epi8(static_cast<char>(value));
    const I* from = reinterpret_cast<const I*>(p);
    const I low = _mm256_cmpeq_epi8(_mm256_loadu_si256(from), wanted);
    const I high = _mm256_cmpeq_epi8(_mm256_loadu_si256(from + 1), wanted);
    return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
           static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
  }
  static void copy_line(const void* src, void* dst) {
    const I* from = static_cast<const I*>(src);
    I* to = static_cast<I*>(dst);
    const I low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
  }
  static void end_streaming() { _mm_sfence(); }

  template <Format K, class Lanes>
  static void add_squares(Lanes lanes, const void* values, int64_t i, __m256d& low, __m256d& high) {
    const F x = load_as_f32<Avx2, K>(lanes, values, i);
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    low = _mm256_fmadd_pd(a, a, low);
    high = _mm256_fmadd_pd(b, b, high);
  }
  template <Format K>
  static double sum_of_squares(const void* values, int64_t count) {
    __m256d s0 = _mm256_setzero_pd(), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + kNormLanes <= count; i += kNormLanes) {
      add_squares<K>(All{}, values, i, s0, s1);
      add_squares<K>(All{}, values, i + 8, s2, s3);
    }
    const int64_t left = count - i;
    if (left > 0) add_squares<K>(first(left < 8 ? left : 8), values, i, s0, s1);
    if (left > 8) add_squares<K>(first(left - 8), values, i + 8, s2, s3);
    double sums[kNormLanes];
    _mm256_storeu_pd(sums, s0);
    _mm256_storeu_pd(sums + 4, s1);
    _mm256_storeu_pd(sums + 8, s2);
    _mm256_storeu_pd(sums + 12, s3);
    return sum_lanes(sums);
  }
};

}  // namespace

constinit const Table kAvx2Table = {
    .name = "avx2",
    .adam_step = adam_step<Avx2>,
    .adam_step_compact = adam_step_compact<Avx2>,
    .sum_of_squares = sum_of_squares<Avx2>,
    .cast = cast<Avx2>,
    .adam_step_with_undo = adam_step_with_undo<Avx2>,
    .adam_undo = adam_undo<Avx2>,
    .scale = scale<Avx2>,
    .copy_streaming = copy_streaming<Avx2>,
};

}  // namespace ballast::kernels
