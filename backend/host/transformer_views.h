// How the decoder's modules read and write storage of any format: inside them everything is Real,
// fp32 or (for gradient checks, where all arrays are) fp64.
//
// Scratch belongs to the calling thread and grows to the largest need. Will not do: compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/execute/operation_arguments.h"
#include "backend/host/compute_threads.h"
#include "backend/host/transformer.h"
#include "kernels/kernels.h"
#include "sim/base/error.h"

namespace ballast::transformer {

// Each use has a slot of its own, so that two arrays of one call never share memory.
enum class Slot : uint8_t {
  kInput,
  kOutput,
  kParameters,
  kGradient,
  kResidual,
  kSums,
  kBiasSums,
  kPacked,
  kPackedGradient,
  kScores,
  kScoreGradients,
  kHeadOutput,
  kTokenOrder,
  kHeadSums,
  kHeadParts,
  kRowStarts,
  kRowsOfTokens,
  kRowWeights,
  kScoreRow,
  kCount,
};

// At least `bytes` bytes of this thread's slot, aligned to 64. Valid until the next call for the
// same slot with more bytes; contents are kept between calls of no more bytes.
void* scratch_bytes(Slot slot, int64_t bytes);

template <class Real>
Real* scratch(Slot slot, int64_t count) {
  return static_cast<Real*>(scratch_bytes(slot, count * static_cast<int64_t>(sizeof(Real))));
}

template <class Real>
constexpr DType kStored = DType::kF32;
template <>
inline constexpr DType kStored<double> = DType::kF64;

inline int64_t elements(const ConstView& view) { return view.rows * view.columns; }

// Calls call(float or double) by what an array is computed in.
template <class Call>
void in_real_of(const ConstView& view, const Call& call) {
  if (view.dtype == DType::kF64) return call(double{});
  call(float{});
}

// Rows [begin, begin + count).
inline View rows_of(const View& view, int64_t begin, int64_t count) {
  CHECK(begin >= 0 && begin + count <= view.rows);
  auto* data = static_cast<std::byte*>(view.data) + begin * view.columns * size_of(view.dtype);
  return {data, view.dtype, count, view.columns};
}
inline ConstView rows_of(const ConstView& view, int64_t begin, int64_t count) {
  CHECK(begin >= 0 && begin + count <= view.rows);
  const auto* data =
      static_cast<const std::byte*>(view.data) + begin * view.columns * size_of(view.dtype);
  return {data, view.dtype, count, view.columns};
}

inline const std::byte* address(const ConstView& view, int64_t element) {
  return static_cast<const std::byte*>(view.data) + element * size_of(view.dtype);
}
inline std::byte* address(const View& view, int64_t element) {
  return static_cast<std::byte*>(view.data) + element * size_of(view.dtype);
}

// A row is converted at once; arrays are divided over the caller's threads.
template <class Body>
void in_ranges(int64_t count, const Body& body) {
  if (count < 2 * kByValue.least) return body(int64_t{0}, count);
  for_ranges(count, kByValue, body);
}

// Elements [first, first + count) in row-major order, converted, into `to`.
template <class Real>
void copy_in(const ConstView& from, int64_t first, int64_t count, Real* to) {
  CHECK(first >= 0 && first + count <= elements(from));
  if (from.dtype == kStored<Real>) {
    std::memcpy(to, address(from, first), static_cast<size_t>(count) * sizeof(Real));
  } else if constexpr (sizeof(Real) == sizeof(float)) {
    const kernels::Format format = format_of(from.dtype);
    in_ranges(count, [&](int64_t begin, int64_t end) {
      kernels::best().cast(address(from, first + begin), format, to + begin, kernels::Format::kF32,
                           end - begin);
    });
  } else {
    CHECK(false && "fp64 arithmetic is for fp64 storage");
  }
}

template <class Real>
void copy_out(const Real* from, const View& to, int64_t first, int64_t count) {
  CHECK(first >= 0 && first + count <= elements(to));
  if (to.dtype == kStored<Real>) {
    std::memcpy(address(to, first), from, static_cast<size_t>(count) * sizeof(Real));
  } else if constexpr (sizeof(Real) == sizeof(float)) {
    const kernels::Format format = format_of(to.dtype);
    in_ranges(count, [&](int64_t begin, int64_t end) {
      kernels::best().cast(from + begin, kernels::Format::kF32, address(to, first + begin), format,
                           end - begin);
    });
  } else {
    CHECK(false && "fp64 arithmetic is for fp64 storage");
  }
}

// Elements to read: the stored array itself where it holds Real, else a converted copy in `slot`.
template <class Real>
const Real* load(const ConstView& view, int64_t first, int64_t count, Slot slot) {
  CHECK(first >= 0 && first + count <= elements(view));
  if (view.dtype == kStored<Real>) return reinterpret_cast<const Real*>(address(view, first));
  Real* copy = scratch<Real>(slot, count);
  copy_in(view, first, count, copy);
  return copy;
}

// Where to compute elements before finish() rounds them into the view: the stored array itself
// where it holds Real. In scratch they are uninitialised.
template <class Real>
Real* target(const View& view, int64_t first, int64_t count, Slot slot) {
  CHECK(first >= 0 && first + count <= elements(view));
  if (view.dtype == kStored<Real>) return reinterpret_cast<Real*>(address(view, first));
  return scratch<Real>(slot, count);
}
template <class Real>
void finish(const Real* computed, const View& view, int64_t first, int64_t count) {
  if (view.dtype != kStored<Real>) copy_out(computed, view, first, count);
}

// Writes `sums` to the elements, or adds them in Real and rounds once. Overwrites `sums`.
template <class Real>
void write_sums(Real* sums, const View& view, int64_t first, int64_t count, bool accumulate);

inline void clear(const View& view, int64_t first, int64_t count) {
  CHECK(first >= 0 && first + count <= elements(view));
  std::memset(address(view, first), 0, static_cast<size_t>(count * size_of(view.dtype)));
}

}  // namespace ballast::transformer
