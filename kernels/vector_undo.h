// The step that records its undo, and the undo, over a vector type V (see vector_loops.h).
//
// Codes and escapes are those of undo_codes.h. The step (vector_step.h) leaves differences in the
// first cache; 64 at a time they become codes, in bytes, and a bit each that says who escapes. What
// costs a processor more than the arithmetic is what it cannot guess, how many escape, and what it
// must wait for: so nothing is looked at when it was just computed (RecordWriter), and escapes are
// put and taken in runs. The undo takes what a code was taken for from all parameters and corrects
// those that escaped one run later: at once, that would wait until the run's stores have left the
// store buffer.
#pragma once

#include <type_traits>

#include "kernels/normal_deviates.h"
#include "kernels/undo_codes.h"
#include "kernels/vector_loops.h"
#include "kernels/vector_step.h"

namespace ballast::kernels {
namespace {

// Escapes are put and taken in runs of so many parameters. Nobody can guess how many a run has, so
// that each run costs a wrong guess; but the undo corrects parameters that must not have left the
// first cache by then.
constexpr int64_t kPutRun = 512, kTakeRun = 128;
static_assert(kPutRun % kAtOnce == 0 && kUndoTile % kPutRun == 0);
static_assert(kTakeRun % kAtOnce == 0 && kTakeRun <= kPutRun);

constexpr uint64_t kTopBit = uint64_t{1} << 63;  // set it, as a zero has no lowest bit

// Positions of the parameters of one run that escape, in order.
class Positions {
 public:
  // Adds the set bits, as positions from `begin` on. A word seldom has more than three: three are
  // always written.
  void add(uint64_t bits, int64_t begin) {
    const int count = __builtin_popcountll(bits);
    uint16_t* out = at_ + count_;
    for (int k = 0; k < kAlways; ++k) out[k] = next(bits, begin);
    if (__builtin_expect(count > kAlways, 0)) {
      for (int k = kAlways; k < count; ++k) out[k] = next(bits, begin);
    }
    count_ += count;
  }
  void clear() { count_ = 0; }
  const uint16_t* begin() const { return at_; }
  const uint16_t* end() const { return at_ + count_; }

 private:
  static constexpr int kAlways = 3;
  static uint16_t next(uint64_t& bits, int64_t begin) {
    const int lowest = __builtin_ctzll(bits | kTopBit);
    bits &= bits - 1;
    return static_cast<uint16_t>(begin + lowest);
  }
  uint16_t at_[kPutRun + kAlways];
  int64_t count_ = 0;
};

// The differences of the last parameters, at their position modulo kLength.
struct alignas(64) RecentDifferences {
  // At least those of a run and of 384 parameters more: 128 are being stepped, and codes and
  // escapes are looked at 128 parameters late each (RecordWriter).
  static constexpr int64_t kLength = 1024;
  static_assert(kLength >= kPutRun + 6 * kAtOnce);
  static int64_t place(int64_t i) { return i & (kLength - 1); }
  Differences at(int64_t i) { return {w + place(i), m + place(i), v + place(i)}; }
  ThreeWords words(int64_t i) const { return {w[place(i)], m[place(i)], v[place(i)]}; }
  // Apart by odd numbers of lines: where low bits of addresses agree, loads wait for stores.
  uint32_t w[kLength + 16], m[kLength + 16], v[kLength + 16];
};

// Appends the escapes of a run that begins at `begin`; returns where the next begins.
inline uint8_t* put_escapes(uint8_t* out, const Positions& escaped, const RecentDifferences& d,
                            int64_t begin) {
  for (const uint16_t i : escaped) {
    const ThreeWords words = d.words(begin + i);
    if (__builtin_expect(escape_is_usual(words), 1)) {
      out = put(out, static_cast<uint16_t>(undo_code(words) + kUsualAboveCode));
    } else {
      out = put_escape(out, words);
    }
  }
  return out;
}

// Makes codes and escapes of the differences, 64 parameters at a time and in order.
//
// Nothing is looked at when it was just computed. Codes are made of differences that have left the
// store buffer, 128 parameters later, and another 128 later is counted which of them escape: a
// processor that guessed a count wrong throws away all it began since, and learns of it only when
// the count is there, which at once would be behind all that waits for roots and quotients.
template <class V>
class RecordWriter {
 public:
  RecordWriter(uint8_t* codes, uint8_t* escapes, int64_t* ends)
      : codes_(codes), escapes_(escapes), out_(escapes), ends_(ends) {}

  // Of parameters i .. i + 63, after those before.
  BALLAST_INLINE void put(int64_t i) {
    if (i >= kLate) make(i - kLate);
  }
  // Of the last ones, fewer than 64 or none. count: of all parameters.
  void end(int64_t count) {
    const int64_t whole = count / kAtOnce * kAtOnce, left = count - whole;
    for (int64_t i = late(whole); i < whole; i += kAtOnce) make(i);
    if (left > 0) {
      uint8_t codes[kAtOnce];
      which(whole) = V::make_codes(recent.at(whole), codes) & ((uint64_t{1} << left) - 1);
      __builtin_memcpy(codes_ + whole, codes, static_cast<size_t>(left));
    }
    for (int64_t i = late(whole); i < count; i += kAtOnce) count_escapes(i);
    if (count % kPutRun != 0) end_run(count - 1);
  }

  RecentDifferences recent;

 private:
  static constexpr int64_t kLate = 2 * kAtOnce;

  static int64_t late(int64_t i) { return i < kLate ? 0 : i - kLate; }
  uint64_t& which(int64_t i) { return which_[i / kAtOnce % 4]; }
  BALLAST_INLINE void make(int64_t i) {
    which(i) = V::make_codes(recent.at(i), codes_ + i);
    if (i >= kLate) count_escapes(i - kLate);
  }
  void count_escapes(int64_t i) {
    escaped_.add(which(i), i % kPutRun);
    if ((i + kAtOnce) % kPutRun == 0) end_run(i);
  }
  // i: any parameter of the run.
  void end_run(int64_t i) {
    out_ = put_escapes(out_, escaped_, recent, i / kPutRun * kPutRun);
    escaped_.clear();
    ends_[i / kUndoTile] = out_ - escapes_;
  }

  uint8_t* codes_;
  uint8_t* escapes_;
  uint8_t* out_;
  int64_t* ends_;
  Positions escaped_;
  uint64_t which_[4];  // of the last 256 parameters: those that escape
};

template <class V, Format G, class W>
void step_with_undo_loop(const AdamArrays& arrays, const StepConstants& constants, uint8_t* codes,
                         uint8_t* escapes, int64_t* ends) {
  const AdamArrays a = arrays;
  const StepConstants c = constants;
  RecordWriter<V> record(codes, escapes, ends);
  const auto differences_at = [&record](int64_t i) { return record.recent.at(i); };
  const int64_t whole = a.count / kAtOnce * kAtOnce;
  step_by_64<V, G, W>(a, c, whole, differences_at, [&record](int64_t i) { record.put(i); });
  for_vectors<V>(a.count - whole, [&](auto lanes, int64_t j) {
    step_vector<V, G, W>(lanes, a, c, whole + j, differences_at(whole), j);
  });
  record.end(a.count);
  V::end_streaming();
}

inline float with_added_bits(float value, uint32_t difference) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  bits += difference;
  __builtin_memcpy(&value, &bits, sizeof(bits));
  return value;
}

// Parameters that escaped hold what their code was taken for: corrects them.
template <class V, class W>
const uint8_t* take_escapes(const uint8_t* in, const Positions& escaped, const AdamArrays& arrays,
                            int64_t begin) {
  const AdamArrays a = arrays;
  for (const uint16_t position : escaped) {
    const int64_t i = begin + position;
    ThreeWords d;
    in = take_escape(in, &d);
    const float w = with_added_bits(a.master[i], d.w + kUndoRangeW);
    a.master[i] = w;
    a.moment1[i] = with_added_bits(a.moment1[i], d.m + kUndoRangeM - V::kEscapedDigitM);
    a.moment2[i] = with_added_bits(a.moment2[i], d.v + kUndoRangeV);
    if constexpr (W::kWritten) {
      store_from_f32<V, W::kFormat>(V::first(1), a.weights, i, V::set(w));
    }
  }
  return in;
}

// The differences of 64 parameters as their codes tell them.
struct alignas(64) Digits {
  int8_t w[kAtOnce], m[kAtOnce], v[kAtOnce];
};

// Takes one vector back. kFinite: all its gradients are, and weights apart are the caller's.
template <class V, Format G, class W, bool kFinite, class Lanes>
inline void undo_vector(Lanes lanes, const AdamArrays& a, const StepConstants& c, int64_t i,
                        const Digits& digits, int64_t at) {
  using F = typename V::F;
  const F g = scaled_gradient<V, G>(lanes, a, c, i);
  const F w_new = V::load(lanes, a.master + i);
  const F m_new = V::load(lanes, a.moment1 + i);
  const F v_new = V::load(lanes, a.moment2 + i);
  const F w_near = Estimate<V>::master(c, w_new, direction<V>(c, m_new, v_new));
  const F m_near = Estimate<V>::moment1(c, m_new, Added<V>::to_moment1(c, g));
  const F v_near = Estimate<V>::moment2(c, v_new, Added<V>::to_moment2(c, g));
  const F w_old = V::floats(V::add(V::bits(w_near), V::load_signed_bytes(digits.w + at)));
  const F m_old = V::floats(V::add(V::bits(m_near), V::load_signed_bytes(digits.m + at)));
  const F v_old = V::floats(V::add(V::bits(v_near), V::load_signed_bytes(digits.v + at)));
  if constexpr (kFinite) {
    using Here = std::conditional_t<weights_stand_apart<V, W>(), NoWeights, W>;
    store_state<V, Here>(lanes, a, i, w_old, m_old, v_old);
  } else {
    const auto finite = V::is_finite(g);
    store_state<V, W>(lanes, a, i, V::select(finite, w_old, w_new), V::select(finite, m_old, m_new),
                      V::select(finite, v_old, v_new));
  }
}

template <class V, Format G, class W>
inline void undo_64(const AdamArrays& a, const StepConstants& c, int64_t i, const Digits& digits) {
  if (__builtin_expect(gradients_are_finite<V, G>(a, c, i), 1)) {
    for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
      prefetch_streams<G>(a, i + j);
      undo_vector<V, G, W, true>(All{}, a, c, i + j, digits, j);
    }
    store_weights<V, W>(a, i);
    return;
  }
  for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
    undo_vector<V, G, W, false>(All{}, a, c, i + j, digits, j);
  }
}

template <class V, Format G, class W>
void undo_loop(const AdamArrays& arrays, const StepConstants& constants, const uint8_t* codes,
               const uint8_t* escapes) {
  const AdamArrays a = arrays;
  const StepConstants c = constants;
  Positions escaped[2];  // of this run, and of the one before
  const auto of_run = [&escaped](int64_t run) -> Positions& { return escaped[run % 2]; };
  for (int64_t begin = 0, run = 0; begin < a.count; begin += kTakeRun, ++run) {
    Positions& here = of_run(run);
    here.clear();
    const int64_t end = begin + kTakeRun < a.count ? begin + kTakeRun : a.count;
    for (int64_t i = begin; i < end; i += kAtOnce) {
      Digits digits;
      if (i + kAtOnce <= end) {
        here.add(V::take_digits(codes + i, digits), i - begin);
        undo_64<V, G, W>(a, c, i, digits);
        continue;
      }
      const int64_t left = end - i;
      uint8_t last[kAtOnce] = {};
      __builtin_memcpy(last, codes + i, static_cast<size_t>(left));
      here.add(V::take_digits(last, digits), i - begin);
      for_vectors<V>(left, [&](auto lanes, int64_t j) {
        undo_vector<V, G, W, false>(lanes, a, c, i + j, digits, j);
      });
    }
    // One run late: at once, it would wait until the run's stores have left the store buffer.
    if (run > 0) {
      escapes = take_escapes<V, W>(escapes, of_run(run - 1), a, begin - kTakeRun);
    }
  }
  if (a.count == 0) return;
  const int64_t last_run = (a.count - 1) / kTakeRun;
  take_escapes<V, W>(escapes, of_run(last_run), a, last_run * kTakeRun);
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

// The table of an instruction set: every function over its vector type.
template <class V>
constexpr Table table_of(std::string_view name) {
  return {.name = name,
          .adam_step = adam_step<V>,
          .sum_of_squares = sum_of_squares<V>,
          .cast = cast<V>,
          .adam_step_with_undo = adam_step_with_undo<V>,
          .adam_undo = adam_undo<V>,
          .scale = scale<V>,
          .normals = normals_in_blocks,
          .copy_streaming = copy_streaming<V>};
}

}  // namespace
}  // namespace ballast::kernels
