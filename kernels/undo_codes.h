// How one parameter's undo is written down: a byte, and for the rare outlier an escape.
//
// The step is inverted arithmetically from its results and the gradient; the inverse misses the
// old value by a few units in the last place. The difference of the bit patterns, old minus
// estimate modulo 2^32, restores the old bits whatever they were, so it needs no proof, only room:
//   code    (w + 1) + 3 * ((v + 2) + 5 * (m + 8))   |w| <= 1, |v| <= 2, |m| <= 8: 0 .. 254
//           255: the parameter has an escape; escapes follow each other in order
//   escape  16 bits (w + 1) + 3 * ((v + 127) + 255 * (m + 42))   |w| <= 1, |v| <= 127, |m| <= 42
//           or 65534 and 32 bits: w + 31 in 6 bits, v + 4095 and m + 4095 in 13 bits each
//           or 65535 and the three differences
// A first moment may nearly cancel, so that m has a long tail (2 % beyond 4 units, 1 % beyond 8);
// a second one cannot, and from the fourth step of a run on v is hardly ever beyond 2.
// Internal linkage throughout, as in step_constants.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace ballast::kernels {
namespace {

constexpr uint32_t kUndoEscaped = 255;
constexpr uint32_t kUndoRangeW = 1, kUndoRangeV = 2, kUndoRangeM = 8;
constexpr uint32_t kUndoDigitsW = 2 * kUndoRangeW + 1, kUndoDigitsV = 2 * kUndoRangeV + 1;
static_assert(kUndoDigitsW * kUndoDigitsV * (2 * kUndoRangeM + 1) <= kUndoEscaped);

// One word each for master, moment1 and moment2: bit patterns, or differences of such.
struct ThreeWords {
  uint32_t w, m, v;
};

// d in [-range, range], as a two's complement difference.
inline bool undo_fits(uint32_t d, uint32_t range) { return d + range <= 2 * range; }

struct EscapeMedium {
  static constexpr uint32_t kMarker = 65534, kW = 31, kVm = 4095;
};
struct EscapeShort {
  static constexpr uint32_t kV = 127, kM = 42;
  static_assert(3 * (2 * kV + 1) * (2 * kM + 1) <= EscapeMedium::kMarker);
};
constexpr uint32_t kEscapeFull = 65535;

template <class T>
inline uint8_t* put(uint8_t* out, T value) {
  __builtin_memcpy(out, &value, sizeof(T));
  return out + sizeof(T);
}
template <class T>
inline const uint8_t* take(const uint8_t* in, T* value) {
  __builtin_memcpy(value, in, sizeof(T));
  return in + sizeof(T);
}

// Appends the escape of one parameter; returns where the next begins. Which of the two shorter
// forms it is no processor can guess, so both are made and the branch is only for the longest. May
// write up to kEscapeMediumBytes beyond what it appends.
constexpr int64_t kEscapeShortBytes = 2, kEscapeMediumBytes = 6;
inline uint8_t* put_escape(uint8_t* out, const ThreeWords& d) {
  const bool is_short = undo_fits(d.w, kUndoRangeW) & undo_fits(d.v, EscapeShort::kV) &
                        undo_fits(d.m, EscapeShort::kM);
  const bool is_medium = undo_fits(d.w, EscapeMedium::kW) & undo_fits(d.v, EscapeMedium::kVm) &
                         undo_fits(d.m, EscapeMedium::kVm);
  if (!is_medium) return put(put(out, static_cast<uint16_t>(kEscapeFull)), d);
  const uint32_t digits =
      (d.w + kUndoRangeW) + kUndoDigitsW * ((d.v + EscapeShort::kV) +
                                            (2 * EscapeShort::kV + 1) * (d.m + EscapeShort::kM));
  put(out, static_cast<uint16_t>(is_short ? digits : EscapeMedium::kMarker));
  put(out + kEscapeShortBytes, (d.w + EscapeMedium::kW) | ((d.v + EscapeMedium::kVm) << 6) |
                                   ((d.m + EscapeMedium::kVm) << 19));
  return out + (is_short ? kEscapeShortBytes : kEscapeMediumBytes);
}

// Reads one escape; returns where the next begins.
inline const uint8_t* take_escape(const uint8_t* in, ThreeWords* d) {
  uint16_t head = 0;
  in = take(in, &head);
  if (head == kEscapeFull) return take(in, d);
  if (head == EscapeMedium::kMarker) {
    uint32_t packed = 0;
    in = take(in, &packed);
    d->w = (packed & 63u) - EscapeMedium::kW;
    d->v = ((packed >> 6) & 8191u) - EscapeMedium::kVm;
    d->m = (packed >> 19) - EscapeMedium::kVm;
    return in;
  }
  const uint32_t above_w = head / kUndoDigitsW;
  d->w = head % kUndoDigitsW - kUndoRangeW;
  d->v = above_w % (2 * EscapeShort::kV + 1) - EscapeShort::kV;
  d->m = above_w / (2 * EscapeShort::kV + 1) - EscapeShort::kM;
  return in;
}

}  // namespace
}  // namespace ballast::kernels
