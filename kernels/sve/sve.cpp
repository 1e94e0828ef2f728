// The SVE table, for vectors of any length: Grace (Neoverse V2) has 4 pipes of 128 bits.
//
// Bound: memory. By LLVM's model of V2 a vector of 4 parameters with f32 gradients and bf16 weights
// takes 13.0 cycles, 9 of them for square root and division: at 3.4 GHz 1.05 parameters/ns a core,
// 75 on 72 cores. It moves 120 bytes, and 329 GB/s of LPDDR5X (profiles/machines/
// gh200-96gb-480gb.json) carry 11 parameters/ns, 500 nominal 17. The recorded step takes 21.5
// cycles, 46 parameters/ns, against 10.6. docs/kernels.md has the commands.

#include <arm_sve.h>

#include "kernels/tables.h"
#include "kernels/vector_loops.h"
#include "kernels/vector_undo.h"

namespace ballast::kernels {
namespace {

struct Sve {
  using F = svfloat32_t;
  using I = svuint32_t;
  using Mask = svbool_t;

  static int64_t lanes() { return static_cast<int64_t>(svcntw()); }
  static Mask first(int64_t n) { return svwhilelt_b32(int64_t{0}, n); }
  static Mask every() { return svptrue_b32(); }
  static Mask mask_of(All) { return every(); }
  static Mask mask_of(Mask k) { return k; }

  template <class Lanes>
  static F load(Lanes lanes, const float* p) {
    return svld1_f32(mask_of(lanes), p);
  }
  template <class Lanes>
  static void store(Lanes lanes, float* p, F x) {
    svst1_f32(mask_of(lanes), p, x);
  }
  template <class Lanes>
  static F load_bf16(Lanes lanes, const uint16_t* p) {
    return floats(shift_left<16>(svld1uh_u32(mask_of(lanes), p)));
  }
  // A 16-bit float stands in the lower half of each 32-bit lane.
  template <class Lanes>
  static F load_f16(Lanes lanes, const uint16_t* p) {
    const Mask k = mask_of(lanes);
    return svcvt_f32_f16_x(k, svreinterpret_f16_u32(svld1uh_u32(k, p)));
  }
  // Nearest even: add 0x7fff, and one more where the kept part is odd. NaN: quiet bit set.
  template <class Lanes>
  static void store_bf16(Lanes lanes, uint16_t* p, F x) {
    const I kept = shift_right<16>(bits(x));
    const I odd = svand_n_u32_x(every(), kept, 1);
    const I half = svadd_n_u32_x(every(), odd, 0x7fff);
    const I rounded = shift_right<16>(add(bits(x), half));
    const I quiet = svorr_n_u32_x(every(), kept, 0x40);
    const I result = svsel_u32(svcmpuo_f32(every(), x, x), quiet, rounded);
    svst1h_u32(mask_of(lanes), p, result);
  }
  static constexpr bool kRoundsManyAtOnce = false;
  template <class Lanes>
  static void store_f16(Lanes lanes, uint16_t* p, F x) {
    const I result = svreinterpret_u32_f16(svcvt_f16_f32_x(every(), x));
    svst1h_u32(mask_of(lanes), p, result);
  }

  static F set(float x) { return svdup_n_f32(x); }
  static F add(F a, F b) { return svadd_f32_x(every(), a, b); }
  static F sub(F a, F b) { return svsub_f32_x(every(), a, b); }
  static F mul(F a, F b) { return svmul_f32_x(every(), a, b); }
  static F div(F a, F b) { return svdiv_f32_x(every(), a, b); }
  static F sqrt(F a) { return svsqrt_f32_x(every(), a); }
  static F fma(F a, F b, F c) { return svmad_f32_x(every(), a, b, c); }
  static F select(Mask k, F yes, F no) { return svsel_f32(k, yes, no); }
  static Mask is_finite(F x) {  // also false for NaN
    return svaclt_n_f32(every(), x, __builtin_inff());
  }

  static F number_or_minus_infinity(F x) { return svmaxnm_n_f32_x(every(), x, -__builtin_inff()); }
  static bool all_below(I x, uint32_t end) {
    return !svptest_any(every(), svcmpge_n_u32(every(), x, end));
  }

  static I bits(F x) { return svreinterpret_u32_f32(x); }
  static F floats(I x) { return svreinterpret_f32_u32(x); }
  static I set_int(uint32_t x) { return svdup_n_u32(x); }
  static I add(I a, I b) { return svadd_u32_x(every(), a, b); }
  static I sub(I a, I b) { return svsub_u32_x(every(), a, b); }
  static I sub_or_zero(Mask k, I a, I b) { return svsub_u32_z(k, a, b); }
  static I bit_and(I a, I b) { return svand_u32_x(every(), a, b); }
  static I max_int(I a, I b) { return svmax_u32_x(every(), a, b); }
  static Mask less(F a, F b) { return svcmplt_f32(every(), a, b); }
  static I select(Mask k, I yes, I no) { return svsel_u32(k, yes, no); }
  template <int N>
  static I shift_left(I a) {
    return svlsl_n_u32_x(every(), a, N);
  }
  template <int N>
  static I shift_right(I a) {
    return svlsr_n_u32_x(every(), a, N);
  }
  static void store_int(uint32_t* p, I x) { svst1_u32(every(), p, x); }

  // Writes 64 codes of undo_codes.h. Bit i of the result is set where parameter i escapes.
  static uint64_t make_codes(Differences d, uint8_t* codes) {
    for (int64_t i = 0; i < kAtOnce; i += lanes()) {
      const Mask k = svwhilelt_b32(i, kAtOnce);
      const I digit_w = svadd_n_u32_x(k, svld1_u32(k, d.w + i), kUndoRangeW);
      const I digit_v = svadd_n_u32_x(k, svld1_u32(k, d.v + i), kUndoRangeV);
      const I digit_m = svadd_n_u32_x(k, svld1_u32(k, d.m + i), kUndoRangeM);
      const Mask fit = svcmple_n_u32(
          svcmple_n_u32(svcmple_n_u32(k, digit_w, 2 * kUndoRangeW), digit_v, 2 * kUndoRangeV),
          digit_m, 2 * kUndoRangeM);
      const I vm = svmla_n_u32_x(k, digit_v, digit_m, kUndoDigitsV);
      const I code = svmla_n_u32_x(k, digit_w, vm, kUndoDigitsW);
      svst1b_u32(k, codes + i, svsel_u32(fit, code, svdup_n_u32(kUndoEscaped)));
    }
    return equal_in_64(codes, kUndoEscaped);
  }
  // What take_digits makes of kUndoEscaped, with those of w and v 0.
  static constexpr uint32_t kEscapedDigitM = 17;
  // The differences that 64 codes stand for. Bit i of the result is set where parameter i escaped.
  // code / 15 and rest / 3 by multiplication, exact below 256: 137/2048, and 11/32 below 16.
  static uint64_t take_digits(const uint8_t* codes, Digits& d) {
    for (int64_t i = 0; i < kAtOnce; i += lanes()) {
      const Mask k = svwhilelt_b32(i, kAtOnce);
      const I code = svld1ub_u32(k, codes + i);
      const I digit_m = shift_right<11>(svmul_n_u32_x(k, code, 137));
      const I rest = svmls_n_u32_x(k, code, digit_m, 15);
      const I digit_v = shift_right<5>(svmul_n_u32_x(k, rest, 11));
      const I digit_w = svmls_n_u32_x(k, rest, digit_v, 3);
      store_signed_bytes(k, d.w + i, svsub_n_u32_x(k, digit_w, kUndoRangeW));
      store_signed_bytes(k, d.m + i, svsub_n_u32_x(k, digit_m, kUndoRangeM));
      store_signed_bytes(k, d.v + i, svsub_n_u32_x(k, digit_v, kUndoRangeV));
    }
    return equal_in_64(codes, kUndoEscaped);
  }
  static void store_signed_bytes(Mask k, int8_t* p, I x) {
    svst1b_s32(k, p, svreinterpret_s32_u32(x));
  }
  static I load_signed_bytes(const int8_t* p) {
    return svreinterpret_u32_s32(svld1sb_s32(every(), p));
  }
  // Bit i is set where p[i] == value, of 64 bytes. A quick look first: hits are rare.
  static uint64_t equal_in_64(const uint8_t* p, uint8_t value) {
    constexpr int64_t kBytes = 64;
    uint64_t hits = 0;
    for (int64_t i = 0; i < kBytes; i += static_cast<int64_t>(svcntb())) {
      const Mask k = svwhilelt_b8(i, kBytes);
      if (!svptest_any(k, svcmpeq_n_u8(k, svld1_u8(k, p + i), value))) continue;
      const int64_t end = i + static_cast<int64_t>(svcntb());
      for (int64_t j = i; j < end && j < kBytes; ++j) {
        hits |= static_cast<uint64_t>(p[j] == value) << j;
      }
    }
    return hits;
  }
  static void copy_line(const void* src, void* dst) {
    const auto* from = static_cast<const uint8_t*>(src);
    auto* to = static_cast<uint8_t*>(dst);
    for (int64_t i = 0; i < 64; i += static_cast<int64_t>(svcntb())) {
      const Mask k = svwhilelt_b8(i, int64_t{64});
      svstnt1_u8(k, to + i, svld1_u8(k, from + i));
    }
  }
  static void end_streaming() {}  // non-temporal stores keep the order of ordinary ones

  // Values i, i + 1, ... as doubles, as many as k says.
  template <Format K>
  static svfloat64_t load_as_f64(Mask k, const void* values, int64_t i) {
    if constexpr (K == Format::kF32) {
      const auto* p = static_cast<const uint32_t*>(values) + i;
      return svcvt_f64_f32_x(k, svreinterpret_f32_u64(svld1uw_u64(k, p)));
    }
    const svuint64_t x = svld1uh_u64(k, static_cast<const uint16_t*>(values) + i);
    if constexpr (K == Format::kBf16) {
      return svcvt_f64_f32_x(k, svreinterpret_f32_u64(svlsl_n_u64_x(k, x, 16)));
    }
    return svcvt_f64_f16_x(k, svreinterpret_f16_u64(x));
  }

  static constexpr int64_t kStripLanes = 16;

  // The strip's sums in 16 / kVectors doubles a vector. Vectors cannot stand in an array, so 8 have
  // names: the first kVectors are used.
  template <Format K, int kVectors>
  static void add_in_vectors(const void* values, int64_t first_value, int64_t end, double* sums) {
    constexpr int64_t kWidth = kStripLanes / kVectors;
    const Mask all = svwhilelt_b64(int64_t{0}, kWidth);
    const auto load_sums = [&](int k) {
      return k < kVectors ? svld1_f64(all, sums + k * kWidth) : svdup_n_f64(0);
    };
    svfloat64_t s0 = load_sums(0), s1 = load_sums(1), s2 = load_sums(2), s3 = load_sums(3);
    svfloat64_t s4 = load_sums(4), s5 = load_sums(5), s6 = load_sums(6), s7 = load_sums(7);
    for (int64_t i = first_value; i < end; i += kNormLanes) {
      const auto add_to = [&](svfloat64_t& sum, int64_t at) {
        const int64_t left = end - at < kWidth ? end - at : kWidth;
        const Mask k = svwhilelt_b64(int64_t{0}, left);
        const svfloat64_t x = load_as_f64<K>(k, values, at);
        sum = svmla_f64_m(k, sum, x, x);
      };
      add_to(s0, i);
      add_to(s1, i + kWidth);
      if constexpr (kVectors >= 4) {
        add_to(s2, i + 2 * kWidth);
        add_to(s3, i + 3 * kWidth);
      }
      if constexpr (kVectors >= 8) {
        add_to(s4, i + 4 * kWidth);
        add_to(s5, i + 5 * kWidth);
        add_to(s6, i + 6 * kWidth);
        add_to(s7, i + 7 * kWidth);
      }
    }
    svst1_f64(all, sums, s0);
    svst1_f64(all, sums + kWidth, s1);
    if constexpr (kVectors >= 4) {
      svst1_f64(all, sums + 2 * kWidth, s2);
      svst1_f64(all, sums + 3 * kWidth, s3);
    }
    if constexpr (kVectors >= 8) {
      svst1_f64(all, sums + 4 * kWidth, s4);
      svst1_f64(all, sums + 5 * kWidth, s5);
      svst1_f64(all, sums + 6 * kWidth, s6);
      svst1_f64(all, sums + 7 * kWidth, s7);
    }
  }
  template <Format K>
  static void add_squares(const void* values, int64_t first_value, int64_t end, double* sums) {
    const uint64_t doubles = svcntd();
    if (doubles >= 8) return add_in_vectors<K, 2>(values, first_value, end, sums);
    if (doubles >= 4) return add_in_vectors<K, 4>(values, first_value, end, sums);
    return add_in_vectors<K, 8>(values, first_value, end, sums);
  }
};

}  // namespace

constinit const Table kSveTable = table_of<Sve>("sve");

}  // namespace ballast::kernels
