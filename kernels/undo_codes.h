// How one parameter's undo is written down: a byte, and for the rare outlier an escape.
//
// The step is inverted arithmetically from its results and the gradient; the inverse misses the
// old value by a few units in the last place. The difference of the bit patterns, old minus
// estimate modulo 2^32, restores the old bits whatever they were, so it needs no proof, only room:
//   code    (w + 1) + 3 * ((v + 2) + 5 * (m + 8))   |w| <= 1, |v| <= 2, |m| <= 8: 0 .. 254
//           255: the parameter has an escape; escapes follow each other in order
//   escape  16 bits, the usual form: as a code, with |m| <= 1023 in place of 8
//                    or the wide one: 30705 + (w + 1) + 3 * ((v + 127) + 255 * (m + 22)),
//                    |w| <= 1, |v| <= 127, |m| <= 22
//           or 65534 and 32 bits: w + 31 in 6 bits, v + 4095 and m + 4095 in 13 bits each
//           or 65535 and the three differences
// A first moment may nearly cancel, so that m has a long tail (2 % beyond 4 units, 1 % beyond 8,
// and as 1/m from there on): the usual form reaches far there, and comes from the same sum as the
// code. A second moment cannot cancel, and from the fourth step of a run on v is hardly ever
// beyond 2. Internal linkage throughout, as in step_constants.h.
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
constexpr bool undo_fits(uint32_t d, uint32_t range) { return d + range <= 2 * range; }

// Of the two forms of 16 bits the usual one has the digits of a code, with a longer one for the
// first moment; the wide one is for second moments that grew.
struct EscapeUsual {
  static constexpr uint32_t kM = 1023;
  static constexpr uint32_t kEnd = kUndoDigitsW * kUndoDigitsV * (2 * kM + 1);
};
struct EscapeWide {
  static constexpr uint32_t kV = 127, kM = 22;
  static constexpr uint32_t kDigitsV = 2 * kV + 1;
  static constexpr uint32_t kEnd = EscapeUsual::kEnd + kUndoDigitsW * kDigitsV * (2 * kM + 1);
};
struct EscapeMedium {
  static constexpr uint32_t kMarker = 65534, kW = 31, kVm = 4095;
};
static_assert(EscapeWide::kEnd <= EscapeMedium::kMarker);
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

// The code of differences within its ranges; the usual escape is that much above it.
constexpr uint32_t undo_code(const ThreeWords& d) {
  return (d.w + kUndoRangeW) +
         kUndoDigitsW * ((d.v + kUndoRangeV) + kUndoDigitsV * (d.m + kUndoRangeM));
}
constexpr uint32_t kUsualAboveCode = kUndoDigitsW * kUndoDigitsV * (EscapeUsual::kM - kUndoRangeM);

constexpr int64_t kEscapeShortBytes = 2;  // of the usual and the wide form

constexpr bool escape_is_usual(const ThreeWords& d) {
  return undo_fits(d.w, kUndoRangeW) && undo_fits(d.v, kUndoRangeV) &&
         undo_fits(d.m, EscapeUsual::kM);
}

// The 16 bits that an escape begins with: all of a short one, or the name of a longer form.
constexpr uint32_t escape_head(const ThreeWords& d) {
  if (escape_is_usual(d)) return undo_code(d) + kUsualAboveCode;
  if (undo_fits(d.w, kUndoRangeW) && undo_fits(d.v, EscapeWide::kV) &&
      undo_fits(d.m, EscapeWide::kM)) {
    return EscapeUsual::kEnd + (d.w + kUndoRangeW) +
           kUndoDigitsW * ((d.v + EscapeWide::kV) + EscapeWide::kDigitsV * (d.m + EscapeWide::kM));
  }
  const bool medium = undo_fits(d.w, EscapeMedium::kW) && undo_fits(d.v, EscapeMedium::kVm) &&
                      undo_fits(d.m, EscapeMedium::kVm);
  return medium ? EscapeMedium::kMarker : kEscapeFull;
}

// The 32 bits that follow the head of the medium form, and back.
constexpr uint32_t pack_medium(const ThreeWords& d) {
  return (d.w + EscapeMedium::kW) | ((d.v + EscapeMedium::kVm) << 6) |
         ((d.m + EscapeMedium::kVm) << 19);
}
constexpr ThreeWords unpack_medium(uint32_t packed) {
  return {(packed & 63u) - EscapeMedium::kW, (packed >> 19) - EscapeMedium::kVm,
          ((packed >> 6) & 8191u) - EscapeMedium::kVm};
}

// Appends the escape of one parameter; returns where the next begins.
inline uint8_t* put_escape(uint8_t* out, const ThreeWords& d) {
  const uint32_t head = escape_head(d);
  out = put(out, static_cast<uint16_t>(head));
  if (head == EscapeMedium::kMarker) return put(out, pack_medium(d));
  return head == kEscapeFull ? put(out, d) : out;
}

// What differences with digits of w and v, and one of m above them, stand for.
constexpr ThreeWords of_digits(uint32_t digits, uint32_t range_v, uint32_t range_m) {
  const uint32_t above_w = digits / kUndoDigitsW, digits_v = 2 * range_v + 1;
  return {digits % kUndoDigitsW - kUndoRangeW, above_w / digits_v - range_m,
          above_w % digits_v - range_v};
}

// What a head stands for that is all of its escape.
constexpr ThreeWords of_short_head(uint32_t head) {
  if (head < EscapeUsual::kEnd) return of_digits(head, kUndoRangeV, EscapeUsual::kM);
  return of_digits(head - EscapeUsual::kEnd, EscapeWide::kV, EscapeWide::kM);
}

// The differences of w and v by what a code leaves when divided by 15; 15 itself counts as 0.
constexpr int8_t w_of_left(int left) {
  return static_cast<int8_t>(left % 15 % 3 - static_cast<int>(kUndoRangeW));
}
constexpr int8_t v_of_left(int left) {
  return static_cast<int8_t>(left % 15 / 3 - static_cast<int>(kUndoRangeV));
}

// Reads one escape; returns where the next begins. Nearly all are of the usual form.
inline const uint8_t* take_escape(const uint8_t* in, ThreeWords* d) {
  uint16_t head = 0;
  in = take(in, &head);
  if (__builtin_expect(head < EscapeUsual::kEnd, 1)) {
    *d = of_digits(head, kUndoRangeV, EscapeUsual::kM);
    return in;
  }
  if (head == kEscapeFull) return take(in, d);
  if (head == EscapeMedium::kMarker) {
    uint32_t packed = 0;
    in = take(in, &packed);
    *d = unpack_medium(packed);
    return in;
  }
  *d = of_short_head(head);
  return in;
}

}  // namespace
}  // namespace ballast::kernels
