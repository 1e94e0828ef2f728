// The step that records its undo, and the undo, over a vector type V (see vector_loops.h).
//
// Codes and escapes are those of undo_codes.h. What keeps a processor busy here is not the number
// of operations but what waits: for a root and a quotient, some hundred cycles, and for a wrong
// guess whether a parameter escapes. So the step takes 64 parameters at a time and
//   - computes the directions of the next 64 before it uses those of the last: nothing waits there;
//   - keeps the differences in the first cache, and makes codes of 64 at once in words;
//   - makes the usual escape of all 64 with their codes, and picks those that count: without a
//     branch on how many there are, unless they are many, or one has another form.
// The undo corrects escapes one block late for another reason: at once, it would wait until the
// block's stores have left the store buffer.
#pragma once

#include "kernels/undo_codes.h"
#include "kernels/vector_loops.h"
#include "kernels/vector_step.h"

namespace ballast::kernels {
namespace {

constexpr int64_t kUndoBlock = 128;  // parameters that the undo corrects at once
static_assert(kUndoBlock % kAtOnce == 0);
constexpr int64_t kWordsOfBlock = kUndoBlock / kAtOnce;
constexpr uint64_t kTopBit = uint64_t{1} << 63;  // set it, as a zero has no lowest bit

// What the digits 0 mean, for the code 255 too: 255 = 0 + 3 * (0 + 5 * 17).
constexpr ThreeWords kDigitsOfEscaped = {0, 17, 0};
static_assert(kDigitsOfEscaped.w +
                  kUndoDigitsW * (kDigitsOfEscaped.v + kUndoDigitsV * kDigitsOfEscaped.m) ==
              kUndoEscaped);

// What V::make_codes tells of 64 parameters: which have kUndoEscaped for a code, and whether all of
// these have the usual escape.
struct MadeCodes {
  uint64_t escaped;
  bool usual;
};

// Writes the positions of the set bits to `positions`, in order; returns how many. A word seldom
// has more than two, and how many no processor can guess: two are always written, so there must be
// room for two more than there are.
inline int64_t positions_of(const uint64_t* words, int64_t word_count, uint16_t* positions) {
  uint16_t* out = positions;
  for (int64_t j = 0; j < word_count; ++j) {
    const auto lowest = [j](uint64_t bits) {
      return static_cast<uint16_t>(64 * j + __builtin_ctzll(bits | kTopBit));
    };
    const uint64_t first = words[j], second = first & (first - 1);
    const int count = __builtin_popcountll(first);
    out[0] = lowest(first);
    out[1] = lowest(second);
    if (__builtin_expect(count > 2, 0)) {
      int k = 2;
      for (uint64_t more = second & (second - 1); more != 0; more &= more - 1) {
        out[k++] = lowest(more);
      }
    }
    out += count;
  }
  return out - positions;
}

// Appends escapes of any form, of the parameters whose bit is set; returns where the next begins.
inline uint8_t* put_escapes(uint8_t* out, uint64_t escaped, const Differences& d) {
  for (; escaped != 0; escaped &= escaped - 1) {
    const int i = __builtin_ctzll(escaped);
    out = put_escape(out, {d.w[i], d.m[i], d.v[i]});
  }
  return out;
}

// Writes the codes of 64 parameters and appends their escapes; returns where the next one begins.
// How many escape no processor can guess, but seldom more than six do: six are always written, for
// which there is room, as the 64 might all have had the longest form.
template <class V>
inline uint8_t* put_codes(uint8_t* codes, uint8_t* out, const Differences& d) {
  constexpr int kAlways = 6;
  alignas(64) uint16_t escapes[kAtOnce];
  const MadeCodes made = V::make_codes(d, codes, escapes);
  if (__builtin_expect(!made.usual, 0)) return put_escapes(out, made.escaped, d);
  const int count = __builtin_popcountll(made.escaped);
  uint64_t left = made.escaped;
  const auto next = [&escapes, &left] {
    const uint16_t escape = escapes[__builtin_ctzll(left | kTopBit)];
    left &= left - 1;
    return escape;
  };
  for (int k = 0; k < kAlways; ++k) put(out + kEscapeShortBytes * k, next());
  if (__builtin_expect(count > kAlways, 0)) {
    for (int k = kAlways; k < count; ++k) put(out + kEscapeShortBytes * k, next());
  }
  return out + kEscapeShortBytes * count;
}

// The last parameters of a step, begin .. a.count, fewer than 64.
template <class V, Format G, class W>
inline uint8_t* step_rest(const AdamArrays& a, const StepConstants& c, int64_t begin,
                          uint8_t* codes, uint8_t* out) {
  Differences d;
  const int64_t left = a.count - begin;
  for_vectors<V>(
      left, [&](auto lanes, int64_t j) { step_vector<V, G, W>(lanes, a, c, begin + j, d, j); });
  uint8_t made[kAtOnce];
  uint16_t escapes[kAtOnce];
  const uint64_t escaped = V::make_codes(d, made, escapes).escaped;
  __builtin_memcpy(codes + begin, made, static_cast<size_t>(left));
  return put_escapes(out, escaped & ((uint64_t{1} << left) - 1), d);
}

// Asks for the lines of the weights that will be written 512 parameters later: a store that misses
// holds up all behind it.
template <class W>
__attribute__((always_inline)) inline void prefetch_weights(const AdamArrays& a, int64_t i) {
  constexpr int64_t kAhead = 512, kLine = 64;
  if constexpr (W::kWritten) {
    const auto* from = static_cast<const char*>(a.weights) + (i + kAhead) * bytes_of(W::kFormat);
    for (int64_t at = 0; at < kAtOnce * bytes_of(W::kFormat); at += kLine) {
      __builtin_prefetch(from + at, 1);
    }
  }
}

template <class V, Format G, class W>
void step_with_undo_loop(const AdamArrays& arrays, const StepConstants& constants, uint8_t* codes,
                         uint8_t* escapes, int64_t* ends) {
  const AdamArrays a = arrays;
  const StepConstants c = constants;
  Differences differences[4];  // of three runs of 64 at a time
  alignas(64) float directions[2][kAtOnce];
  const int64_t whole = a.count / kAtOnce * kAtOnce;
  const auto of = [&differences](int64_t i) -> Differences& {
    return differences[i / kAtOnce % 4];
  };
  uint8_t* out = escapes;
  bool left = whole > 0 && begin_step<V, G, W>(a, c, 0, of(0), directions[0]);
  for (int64_t i = 0, turn = 0; i < whole + kAtOnce; i += kAtOnce, turn = 1 - turn) {
    const int64_t next = i + kAtOnce, before = i - kAtOnce;
    bool left_of_next = false;
    if (next < whole) {
      prefetch_weights<W>(a, next);
      left_of_next = begin_step<V, G, W>(a, c, next, of(next), directions[1 - turn]);
    }
    if (left) step_master<V, W>(a, c, i, of(i), directions[turn]);
    left = left_of_next;
    if (before >= 0) {
      out = put_codes<V>(codes + before, out, of(before));
      ends[before / kUndoTile] = out - escapes;
    }
  }
  if (whole < a.count) {
    out = step_rest<V, G, W>(a, c, whole, codes, out);
    ends[whole / kUndoTile] = out - escapes;
  }
  V::end_streaming();
}

inline float with_added_bits(float value, uint32_t difference) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  bits += difference;
  __builtin_memcpy(&value, &bits, sizeof(bits));
  return value;
}

// A block holds what code 255 decodes to where there are escapes: corrects that.
template <class V, class W>
const uint8_t* take_escapes(const uint8_t* in, const uint8_t* codes, const AdamArrays& arrays) {
  const AdamArrays a = arrays;
  uint64_t escaped[kWordsOfBlock] = {};
  int64_t j = 0;
  for (; j + kAtOnce <= a.count; j += kAtOnce) {
    escaped[j / kAtOnce] = V::equal_in_64(codes + j, kUndoEscaped);
  }
  for (; j < a.count; ++j) {
    escaped[j / kAtOnce] |= uint64_t{codes[j] == kUndoEscaped} << (j % kAtOnce);
  }
  uint16_t positions[kUndoBlock + 2];
  const int64_t count = positions_of(escaped, kWordsOfBlock, positions);
  for (int64_t k = 0; k < count; ++k) {
    const int64_t i = positions[k];
    ThreeWords d;
    in = take_escape(in, &d);
    const float w = with_added_bits(a.master[i], d.w + kUndoRangeW - kDigitsOfEscaped.w);
    a.master[i] = w;
    a.moment1[i] = with_added_bits(a.moment1[i], d.m + kUndoRangeM - kDigitsOfEscaped.m);
    a.moment2[i] = with_added_bits(a.moment2[i], d.v + kUndoRangeV - kDigitsOfEscaped.v);
    if constexpr (W::kWritten) {
      store_from_f32<V, W::kFormat>(V::first(1), a.weights, i, V::set(w));
    }
  }
  return in;
}

template <class V, Format G, class W>
inline void undo_block(const AdamArrays& a, const StepConstants& c, const uint8_t* codes) {
  for_vectors<V>(a.count, [=](auto lanes, int64_t i) {
    using F = typename V::F;
    using I = typename V::I;
    prefetch_streams<G>(a, i);
    const F g = scaled_gradient<V, G>(lanes, a, c, i);
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
void adam_step_with_undo(const AdamArrays& a, const AdamConstants& constants, uint8_t* codes,
                         uint8_t* escapes, int64_t* ends) {
  const StepConstants c = step_constants(constants);
  with_formats(
      a, [&]<Format G, class W>() { step_with_undo_loop<V, G, W>(a, c, codes, escapes, ends); });
}

template <class V>
void adam_undo(const AdamArrays& a, const AdamConstants& constants, const uint8_t* codes,
               const uint8_t* escapes) {
  const StepConstants c = step_constants(constants);
  with_formats(a, [&]<Format G, class W>() { undo_loop<V, G, W>(a, c, codes, escapes); });
}

}  // namespace
}  // namespace ballast::kernels
