// The step with compact moments over a vector type V (see vector_loops.h, compact_codes.h).
//
// A block of moments is widened, stepped and kept in the first cache; then, its largest values
// being known, it is rounded at random and stored.
#pragma once

#include "kernels/compact_codes.h"
#include "kernels/vector_loops.h"
#include "kernels/vector_step.h"

namespace ballast::kernels {
namespace {

struct MomentScratch {
  float m[kMomentBlock + kLanesMax], v[kMomentBlock + kLanesMax];
};

constexpr uint32_t kMagnitude = 0x7fffffffu;

// 32 random bits of the values place, place + 1, ...: hash32 of compact_codes.h.
template <class V>
inline typename V::I random_bits(uint32_t place) {
  typename V::I x = V::add(V::count_up(), V::set_int(place));
  x = V::bit_xor(x, V::template shift_right<16>(x));
  x = V::mul_int(x, V::set_int(kHashMultiplier1));
  x = V::bit_xor(x, V::template shift_right<15>(x));
  x = V::mul_int(x, V::set_int(kHashMultiplier2));
  return V::bit_xor(x, V::template shift_right<16>(x));
}

template <class V, class Lanes>
inline typename V::F load_moment(Lanes lanes, const uint8_t* codes, const MomentCode& form,
                                 uint32_t exponent) {
  using I = typename V::I;
  const I all = V::load_bytes(lanes, codes);
  const I code = V::bit_and(all, V::set_int(form.last));
  const I sign = V::template shift_left<24>(V::sub(all, code));
  const I bits =
      V::add(V::template shift_left<kFractionBits>(code), V::set_int(form.offset(exponent)));
  const auto zero = V::at_most(code, V::set_int(0));
  return V::floats(V::add(V::select(zero, V::set_int(0), bits), sign));
}

// Bits of the magnitude to a code, for both forms; `below` is what a magnitude under the smallest
// value becomes.
template <class V>
inline typename V::I encode_magnitude(typename V::I bits, typename V::I below,
                                      const MomentCode& form, uint32_t exponent,
                                      typename V::I random) {
  using I = typename V::I;
  const uint32_t smallest = (kSmallestCode << kFractionBits) + form.offset(exponent);
  const I rounding = V::bit_and(random, V::set_int(kRoundingMask));
  const I shifted = V::add(V::sub(bits, V::set_int(form.offset(exponent))), rounding);
  const I code = V::template shift_right<kFractionBits>(shifted);
  const I clamped = V::min_int(code, V::set_int(form.last));
  return V::select(V::at_most(V::set_int(smallest), bits), clamped, below);
}

template <class V, class Lanes>
inline void store_moment1(Lanes lanes, uint8_t* codes, typename V::F m, uint32_t exponent,
                          typename V::I random) {
  using I = typename V::I;
  const I bits = V::bit_and(V::bits(m), V::set_int(kMagnitude));
  const I sign = V::template shift_left<7>(V::template shift_right<31>(V::bits(m)));
  const typename V::F smallest =
      V::floats(V::set_int((kSmallestCode << kFractionBits) + kMoment1Code.offset(exponent)));
  const I one_to_two = V::add(V::template shift_right<9>(random), V::set_int(0x3f800000u));
  const typename V::F zero_to_one = V::sub(V::floats(one_to_two), V::set(1.0f));
  const auto up = V::less(V::mul(zero_to_one, smallest), V::floats(bits));
  const I below = V::select(up, V::set_int(kSmallestCode), V::set_int(0));
  V::store_bytes(lanes, codes,
                 V::add(sign, encode_magnitude<V>(bits, below, kMoment1Code, exponent, random)));
}

template <class V, class Lanes>
inline void store_moment2(Lanes lanes, uint8_t* codes, typename V::F v, uint32_t exponent,
                          typename V::I random) {
  using I = typename V::I;
  const I bits = V::bit_and(V::bits(v), V::set_int(kMagnitude));
  const auto zero = V::at_most(bits, V::set_int(0));
  const I below = V::select(zero, V::set_int(0), V::set_int(kSmallestCode));
  V::store_bytes(lanes, codes, encode_magnitude<V>(bits, below, kMoment2Code, exponent, random));
}

template <class V>
inline uint32_t exponent_of(const float* values, int64_t count) {
  typename V::I largest = V::set_int(0);
  for (int64_t i = 0; i < count; i += V::lanes()) {
    const typename V::F x = V::load(All{}, values + i);
    largest = V::max_int(largest, V::bit_and(V::bits(x), V::set_int(kMagnitude)));
  }
  uint32_t lanes[kLanesMax], result = 0;
  V::store_int(lanes, largest);
  for (int64_t j = 0; j < V::lanes(); ++j) result = lanes[j] > result ? lanes[j] : result;
  return block_exponent(result);
}

template <class V, class Lanes>
inline void store_bf16_at_random(Lanes lanes, uint16_t* out, typename V::F x,
                                 typename V::I random) {
  const typename V::I rounding = V::bit_and(random, V::set_int(0xffff));
  V::store_words(lanes, out, V::template shift_right<16>(V::add(V::bits(x), rounding)));
}

// Old values in, new values out. Where g is not finite nothing changes.
template <class V>
inline void step_values(const StepConstants& c, typename V::F g, typename V::F& w, typename V::F& m,
                        typename V::F& v) {
  using F = typename V::F;
  const F m_new = V::fma(V::set(c.beta1), m, V::mul(V::set(c.one_minus_beta1), g));
  const F v_new = V::fma(V::set(c.beta2), v, V::mul(V::mul(V::set(c.one_minus_beta2), g), g));
  const F u = direction<V>(c, m_new, v_new);
  const F s = V::mul(V::set(c.learning_rate), V::fma(V::set(c.weight_decay), w, u));
  const auto finite = V::is_finite(g);
  w = V::select(finite, V::sub(w, s), w);
  m = V::select(finite, m_new, m);
  v = V::select(finite, v_new, v);
}

// One block: its arrays and where its parameters stand in the run.
template <class V, Format G, class W>
void compact_block(const CompactArrays& a, const StepConstants& c, int64_t begin, int64_t count) {
  MomentScratch scratch;
  MomentScratch* kept = &scratch;
  const bool bytes = a.moment_format == MomentFormat::kBlock8;
  auto* bytes1 = static_cast<uint8_t*>(a.moment1) + begin;
  auto* bytes2 = static_cast<uint8_t*>(a.moment2) + begin;
  auto* words1 = static_cast<uint16_t*>(a.moment1) + begin;
  auto* words2 = static_cast<uint16_t*>(a.moment2) + begin;
  const uint32_t old1 =
      bytes ? block_exponent(uint32_t{a.exponents1[begin / kMomentBlock]} << 23) : kExponentMin;
  const uint32_t old2 =
      bytes ? block_exponent(uint32_t{a.exponents2[begin / kMomentBlock]} << 23) : kExponentMin;
  for_vectors<V>(count, [=](auto lanes, int64_t j) {
    using F = typename V::F;
    const int64_t i = begin + j;
    const F g = V::mul(V::set(c.gradient_scale), load_as_f32<V, G>(lanes, a.gradient, i));
    F w = V::load(lanes, a.master + i);
    F m = bytes ? load_moment<V>(lanes, bytes1 + j, kMoment1Code, old1)
                : V::load_bf16(lanes, words1 + j);
    F v = bytes ? load_moment<V>(lanes, bytes2 + j, kMoment2Code, old2)
                : V::load_bf16(lanes, words2 + j);
    step_values<V>(c, g, w, m, v);
    V::store(lanes, a.master + i, w);
    if constexpr (W::kWritten) store_from_f32<V, W::kFormat>(lanes, a.weights, i, w);
    V::store(All{}, kept->m + j, m);
    V::store(All{}, kept->v + j, v);
  });
  const uint32_t exponent1 = exponent_of<V>(scratch.m, count);
  const uint32_t exponent2 = exponent_of<V>(scratch.v, count);
  if (bytes) {
    a.exponents1[begin / kMomentBlock] = static_cast<uint8_t>(exponent1);
    a.exponents2[begin / kMomentBlock] = static_cast<uint8_t>(exponent2);
  }
  for_vectors<V>(count, [=](auto lanes, int64_t j) {
    using F = typename V::F;
    using I = typename V::I;
    const uint32_t place = a.seed + static_cast<uint32_t>(begin + j);
    const I random1 = random_bits<V>(place), random2 = random_bits<V>(place + kSeed2);
    const F m = V::load(All{}, kept->m + j), v = V::load(All{}, kept->v + j);
    if (bytes) {
      store_moment1<V>(lanes, bytes1 + j, m, exponent1, random1);
      store_moment2<V>(lanes, bytes2 + j, v, exponent2, random2);
    } else {
      store_bf16_at_random<V>(lanes, words1 + j, m, random1);
      store_bf16_at_random<V>(lanes, words2 + j, v, random2);
    }
  });
}

template <class V>
void adam_step_compact(const CompactArrays& a, const AdamConstants& constants) {
  const StepConstants c = step_constants(constants);
  with_formats(a, [&]<Format G, class W>() {
    for (int64_t begin = 0; begin < a.count; begin += kMomentBlock) {
      const int64_t left = a.count - begin;
      compact_block<V, G, W>(a, c, begin, left < kMomentBlock ? left : kMomentBlock);
    }
  });
}

}  // namespace
}  // namespace ballast::kernels
