// The step that records its undo, and the undo, over a vector type V (see vector_loops.h).
//
// Codes and escapes are those of undo_codes.h. The vector loops run over short blocks and have no
// branch on escapes. The step keeps the differences of a block in the first cache and makes codes
// of them 64 at a time, in bytes. The undo stores what the code 255 would decode to, and a scalar
// pass sees to the escapes one block later: at once it would wait for the block's stores.
#pragma once

#include "kernels/undo_codes.h"
#include "kernels/vector_loops.h"

namespace ballast::kernels {
namespace {

// Parameters of a block: its differences take 1.5 KiB, and whole vectors of every width fit.
constexpr int64_t kUndoBlock = 128;

// What the digits 0 mean, for the code 255 too: 255 = 0 + 3 * (0 + 5 * 17).
constexpr ThreeWords kDigitsOfEscaped = {0, 17, 0};
static_assert(kDigitsOfEscaped.w +
                  kUndoDigitsW * (kDigitsOfEscaped.v + kUndoDigitsV * kDigitsOfEscaped.m) ==
              kUndoEscaped);

// Differences of a block's parameters, old minus estimate.
struct BlockDifferences {
  uint32_t w[kUndoBlock + kLanesMax], m[kUndoBlock + kLanesMax], v[kUndoBlock + kLanesMax];
};
constexpr int64_t kCodesAtOnce = 64;  // codes made in one go, one bit each of a word of escapes
static_assert(kUndoBlock % kCodesAtOnce == 0);

// The inputs of a step that both directions share: p and q are what is added to the moments.
template <class V>
struct Added {
  using F = typename V::F;
  static F to_moment1(const StepConstants& c, F g) { return V::mul(V::set(c.one_minus_beta1), g); }
  static F to_moment2(const StepConstants& c, F g) {
    return V::mul(V::mul(V::set(c.one_minus_beta2), g), g);
  }
};

// The estimates of reference.cpp's estimate_old.
template <class V>
struct Estimate {
  using F = typename V::F;
  static F moment1(const StepConstants& c, F m, F p) {
    return V::mul(V::sub(m, p), V::set(c.inverse_beta1));
  }
  static F moment2(const StepConstants& c, F v, F q) {
    return V::mul(V::sub(v, q), V::set(c.inverse_beta2));
  }
  static F master(const StepConstants& c, F w, F u) {
    return V::add(w, V::mul(V::set(c.undo_rate), V::fma(V::set(c.weight_decay), w, u)));
  }
};

// Calls use(i) for every escaped code, in order.
template <class V, class Use>
inline void for_escaped(const uint8_t* codes, int64_t count, Use use) {
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (uint64_t hits = V::equal_in_64(codes + i, kUndoEscaped); hits != 0; hits &= hits - 1) {
      use(i + __builtin_ctzll(hits));
    }
  }
  for (; i < count; ++i) {
    if (codes[i] == kUndoEscaped) use(i);
  }
}

// Codes and escapes of one block of `count` parameters; returns where the next escape begins.
template <class V>
uint8_t* put_block(uint8_t* escapes, uint8_t* codes, int64_t count, const BlockDifferences& d) {
  for (int64_t i = 0; i < count; i += kCodesAtOnce) {
    uint8_t made[kCodesAtOnce];
    uint64_t escaped = 0;
    if (i + kCodesAtOnce <= count) {
      escaped = V::make_codes(d.w + i, d.m + i, d.v + i, codes + i);
    } else {
      const int64_t left = count - i;
      escaped = V::make_codes(d.w + i, d.m + i, d.v + i, made) & ((uint64_t{1} << left) - 1);
      __builtin_memcpy(codes + i, made, static_cast<size_t>(left));
    }
    for (; escaped != 0; escaped &= escaped - 1) {
      const int64_t at = i + __builtin_ctzll(escaped);
      escapes = put_escape(escapes, {d.w[at], d.m[at], d.v[at]});
    }
  }
  return escapes;
}

// One block of at most kUndoBlock parameters.
template <class V, Format G, class W>
inline void step_block(const AdamArrays& a, const StepConstants& c, BlockDifferences* d) {
  for_vectors<V>(a.count, [=](auto lanes, int64_t i) {
    using F = typename V::F;
    prefetch_streams<G>(a, i);
    const F g = V::mul(V::set(c.gradient_scale), load_as_f32<V, G>(lanes, a.gradient, i));
    const F w_old = V::load(lanes, a.master + i);
    const F m_old = V::load(lanes, a.moment1 + i);
    const F v_old = V::load(lanes, a.moment2 + i);
    const F p = Added<V>::to_moment1(c, g), q = Added<V>::to_moment2(c, g);
    const F m_new = V::fma(V::set(c.beta1), m_old, p);
    const F v_new = V::fma(V::set(c.beta2), v_old, q);
    const F u = direction<V>(c, m_new, v_new);
    const F s = V::mul(V::set(c.learning_rate), V::fma(V::set(c.weight_decay), w_old, u));
    const F w_new = V::sub(w_old, s);
    const auto finite = V::is_finite(g);
    const F w = V::select(finite, w_new, w_old);
    V::store(lanes, a.master + i, w);
    V::store(lanes, a.moment1 + i, V::select(finite, m_new, m_old));
    V::store(lanes, a.moment2 + i, V::select(finite, v_new, v_old));
    if constexpr (W::kWritten) store_from_f32<V, W::kFormat>(lanes, a.weights, i, w);

    const F w_near = Estimate<V>::master(c, w_new, u);
    const F m_near = Estimate<V>::moment1(c, m_new, p);
    const F v_near = Estimate<V>::moment2(c, v_new, q);
    // A parameter whose gradient is not finite did not change: its difference counts as zero.
    V::store_int(d->w + i, V::sub_or_zero(finite, V::bits(w_old), V::bits_or_zero_if_nan(w_near)));
    V::store_int(d->m + i, V::sub_or_zero(finite, V::bits(m_old), V::bits(m_near)));
    V::store_int(d->v + i, V::sub_or_zero(finite, V::bits(v_old), V::bits(v_near)));
  });
}

template <class V, Format G, class W>
uint8_t* step_with_undo_loop(const AdamArrays& arrays, const StepConstants& constants,
                             uint8_t* codes, uint8_t* escapes) {
  const StepConstants c = constants;
  BlockDifferences d;
  for (int64_t begin = 0; begin < arrays.count; begin += kUndoBlock) {
    const AdamArrays a = block<G, W>(arrays, begin, kUndoBlock);
    step_block<V, G, W>(a, c, &d);
    escapes = put_block<V>(escapes, codes + begin, a.count, d);
  }
  return escapes;
}

inline float with_added_bits(float value, uint32_t difference) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  bits += difference;
  __builtin_memcpy(&value, &bits, sizeof(bits));
  return value;
}

// The block holds what code 255 decoded to where there are escapes: corrects that.
template <class V, class W>
const uint8_t* take_escapes(const uint8_t* in, const uint8_t* codes, const AdamArrays& arrays) {
  const AdamArrays a = arrays;
  for_escaped<V>(codes, a.count, [&in, a](int64_t i) {
    ThreeWords d;
    in = take_escape(in, &d);
    const float w = with_added_bits(a.master[i], d.w + kUndoRangeW - kDigitsOfEscaped.w);
    a.master[i] = w;
    a.moment1[i] = with_added_bits(a.moment1[i], d.m + kUndoRangeM - kDigitsOfEscaped.m);
    a.moment2[i] = with_added_bits(a.moment2[i], d.v + kUndoRangeV - kDigitsOfEscaped.v);
    if constexpr (W::kWritten) {
      store_from_f32<V, W::kFormat>(V::first(1), a.weights, i, V::set(w));
    }
  });
  return in;
}

template <class V, Format G, class W>
inline void undo_block(const AdamArrays& a, const StepConstants& c, const uint8_t* codes) {
  for_vectors<V>(a.count, [=](auto lanes, int64_t i) {
    using F = typename V::F;
    using I = typename V::I;
    prefetch_streams<G>(a, i);
    const F g = V::mul(V::set(c.gradient_scale), load_as_f32<V, G>(lanes, a.gradient, i));
    const F w_new = V::load(lanes, a.master + i);
    const F m_new = V::load(lanes, a.moment1 + i);
    const F v_new = V::load(lanes, a.moment2 + i);
    const F w_near = Estimate<V>::master(c, w_new, direction<V>(c, m_new, v_new));
    const F m_near = Estimate<V>::moment1(c, m_new, Added<V>::to_moment1(c, g));
    const F v_near = Estimate<V>::moment2(c, v_new, Added<V>::to_moment2(c, g));

    // code / 15 and rest / 3 by multiplication, exact below 256: 137/2048, and 11/32 below 16.
    const I code = V::load_bytes(lanes, codes + i);
    const I digit_m = V::template shift_right<11>(V::mul_small(code, V::set_int(137)));
    const I rest = V::sub(code, V::mul_small(digit_m, V::set_int(15)));
    const I digit_v = V::template shift_right<5>(V::mul_small(rest, V::set_int(11)));
    const I digit_w = V::sub(rest, V::mul_small(digit_v, V::set_int(3)));
    const I d_w = V::sub(digit_w, V::set_int(kUndoRangeW));
    const I d_m = V::sub(digit_m, V::set_int(kUndoRangeM));
    const I d_v = V::sub(digit_v, V::set_int(kUndoRangeV));
    const F w_old = V::floats(V::add(V::bits_or_zero_if_nan(w_near), d_w));
    const F m_old = V::floats(V::add(V::bits(m_near), d_m));
    const F v_old = V::floats(V::add(V::bits(v_near), d_v));

    const auto finite = V::is_finite(g);
    const F w = V::select(finite, w_old, w_new);
    V::store(lanes, a.master + i, w);
    V::store(lanes, a.moment1 + i, V::select(finite, m_old, m_new));
    V::store(lanes, a.moment2 + i, V::select(finite, v_old, v_new));
    if constexpr (W::kWritten) store_from_f32<V, W::kFormat>(lanes, a.weights, i, w);
  });
}

template <class V, Format G, class W>
void undo_loop(const AdamArrays& arrays, const StepConstants& constants, const uint8_t* codes,
               const uint8_t* escapes) {
  const StepConstants c = constants;
  int64_t begin = 0;
  for (; begin < arrays.count; begin += kUndoBlock) {
    undo_block<V, G, W>(block<G, W>(arrays, begin, kUndoBlock), c, codes + begin);
    if (begin > 0) {
      const int64_t before = begin - kUndoBlock;
      escapes =
          take_escapes<V, W>(escapes, codes + before, block<G, W>(arrays, before, kUndoBlock));
    }
  }
  if (begin == 0) return;
  begin -= kUndoBlock;
  take_escapes<V, W>(escapes, codes + begin, block<G, W>(arrays, begin, kUndoBlock));
}

template <class V>
int64_t adam_step_with_undo(const AdamArrays& a, const AdamConstants& constants, uint8_t* codes,
                            uint8_t* escapes) {
  const StepConstants c = step_constants(constants);
  return with_formats(a, [&]<Format G, class W>() {
    return step_with_undo_loop<V, G, W>(a, c, codes, escapes) - escapes;
  });
}

template <class V>
void adam_undo(const AdamArrays& a, const AdamConstants& constants, const uint8_t* codes,
               const uint8_t* escapes) {
  const StepConstants c = step_constants(constants);
  with_formats(a, [&]<Format G, class W>() { undo_loop<V, G, W>(a, c, codes, escapes); });
}

}  // namespace
}  // namespace ballast::kernels
