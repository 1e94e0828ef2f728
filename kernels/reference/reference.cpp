// The reference table: scalar code that says what every other table must compute, bit for bit.
//
// Bound: none intended. fmaf comes from the C library where the baseline has no fused
// multiply-add, so this runs at a few nanoseconds a parameter.

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"
#include "kernels/normal_deviates.h"
#include "kernels/reference/convert.h"
#include "kernels/step_constants.h"
#include "kernels/tables.h"
#include "kernels/undo_codes.h"

namespace ballast::kernels {
namespace {

float load(const void* values, Format format, int64_t i) {
  switch (format) {
    case Format::kF32:
      return static_cast<const float*>(values)[i];
    case Format::kBf16:
      return bf16_to_f32(static_cast<const uint16_t*>(values)[i]);
    case Format::kF16:
      return f16_to_f32(static_cast<const uint16_t*>(values)[i]);
  }
  return 0.0f;
}

void store(void* values, Format format, int64_t i, float value) {
  switch (format) {
    case Format::kF32:
      static_cast<float*>(values)[i] = value;
      return;
    case Format::kBf16:
      static_cast<uint16_t*>(values)[i] = f32_to_bf16(value);
      return;
    case Format::kF16:
      static_cast<uint16_t*>(values)[i] = f32_to_f16(value);
      return;
  }
}

// The part of the update that decay does not touch: u = m_hat / (sqrt(v_hat) + epsilon).
float direction(const StepConstants& c, float m, float v) {
  return (c.bias_correction1 * m) / std::fma(std::sqrt(v), c.bias_correction2, c.epsilon);
}

ThreeWords bits_at(const AdamArrays& a, int64_t i) {
  return {std::bit_cast<uint32_t>(a.master[i]), std::bit_cast<uint32_t>(a.moment1[i]),
          std::bit_cast<uint32_t>(a.moment2[i])};
}

void adam_step(const AdamArrays& a, const AdamConstants& constants) {
  const StepConstants c = step_constants(constants);
  for (int64_t i = 0; i < a.count; ++i) {
    float w = a.master[i];
    const float g = c.gradient_scale * load(a.gradient, a.gradient_format, i);
    if (std::isfinite(g)) {
      const float m = std::fma(c.beta1, a.moment1[i], c.one_minus_beta1 * g);
      const float v = std::fma(c.beta2, a.moment2[i], (c.one_minus_beta2 * g) * g);
      w -= c.learning_rate * std::fma(c.weight_decay, w, direction(c, m, v));
      a.master[i] = w;
      a.moment1[i] = m;
      a.moment2[i] = v;
    }
    if (a.weights != nullptr) store(a.weights, a.weights_format, i, w);
  }
}

// The values of before the step up to a few units in the last place, from those of after it. The
// subtracted terms of the moments are those that the step added, to the bit, and so is that of the
// master without decay: moments and masters that were zero come out as zero. A master estimated as
// NaN counts as -Inf: which NaN comes out depends on the order of operands.
ThreeWords estimate_old(const AdamArrays& a, const StepConstants& c, float g, int64_t i) {
  const float w = a.master[i], m = a.moment1[i], v = a.moment2[i];
  const float m_old = (m - c.one_minus_beta1 * g) * c.inverse_beta1;
  const float v_old = (v - (c.one_minus_beta2 * g) * g) * c.inverse_beta2;
  const float near = std::fma(c.undo_rate, std::fma(c.weight_decay, w, direction(c, m, v)), w);
  const float w_old = std::isnan(near) ? -std::numeric_limits<float>::infinity() : near;
  return {std::bit_cast<uint32_t>(w_old), std::bit_cast<uint32_t>(m_old),
          std::bit_cast<uint32_t>(v_old)};
}

void adam_step_with_undo(const AdamArrays& a, const AdamConstants& constants, uint8_t* codes,
                         uint8_t* escapes, int64_t* ends) {
  const StepConstants c = step_constants(constants);
  uint8_t* out = escapes;
  for (int64_t i = 0; i < a.count; ++i) {
    const ThreeWords old = bits_at(a, i);
    adam_step(slice(a, i, 1), constants);
    const float g = c.gradient_scale * load(a.gradient, a.gradient_format, i);
    // A parameter whose gradient is not finite did not change: its difference counts as zero.
    ThreeWords d = {};
    if (std::isfinite(g)) {
      const ThreeWords near = estimate_old(a, c, g, i);
      d = {old.w - near.w, old.m - near.m, old.v - near.v};
    }
    if (undo_fits(d.w, kUndoRangeW) && undo_fits(d.v, kUndoRangeV) && undo_fits(d.m, kUndoRangeM)) {
      codes[i] = static_cast<uint8_t>(undo_code(d));
    } else {
      codes[i] = kUndoEscaped;
      out = put_escape(out, d);
    }
    ends[i / kUndoTile] = out - escapes;
  }
}

void adam_undo(const AdamArrays& a, const AdamConstants& constants, const uint8_t* codes,
               const uint8_t* escapes) {
  const StepConstants c = step_constants(constants);
  for (int64_t i = 0; i < a.count; ++i) {
    const float g = c.gradient_scale * load(a.gradient, a.gradient_format, i);
    if (std::isfinite(g)) {
      const ThreeWords near = estimate_old(a, c, g, i);
      const uint32_t code = codes[i];
      ThreeWords d = {code % kUndoDigitsW - kUndoRangeW,
                      code / (kUndoDigitsW * kUndoDigitsV) - kUndoRangeM,
                      code / kUndoDigitsW % kUndoDigitsV - kUndoRangeV};
      if (code == kUndoEscaped) escapes = take_escape(escapes, &d);
      a.master[i] = std::bit_cast<float>(near.w + d.w);
      a.moment1[i] = std::bit_cast<float>(near.m + d.m);
      a.moment2[i] = std::bit_cast<float>(near.v + d.v);
    }
    if (a.weights != nullptr) store(a.weights, a.weights_format, i, a.master[i]);
  }
}

double sum_of_squares(const void* values, Format format, int64_t count) {
  double lanes[kNormLanes] = {};
  for (int64_t i = 0; i < count; ++i) {
    const double value = load(values, format, i);
    lanes[i % kNormLanes] += value * value;  // the product is exact: 24 + 24 bits fit in 53
  }
  for (int64_t half = kNormLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

void cast(const void* src, Format src_format, void* dst, Format dst_format, int64_t count) {
  if (src_format == dst_format) {
    std::memcpy(dst, src, static_cast<size_t>(count * bytes_of(src_format)));
    return;
  }
  for (int64_t i = 0; i < count; ++i) store(dst, dst_format, i, load(src, src_format, i));
}

void scale(void* values, Format format, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store(values, format, i, factor * load(values, format, i));
}

void copy(const void* src, void* dst, int64_t bytes) {
  std::memcpy(dst, src, static_cast<size_t>(bytes));
}

}  // namespace

constinit const Table kReferenceTable = {
    .name = "reference",
    .adam_step = adam_step,
    .sum_of_squares = sum_of_squares,
    .cast = cast,
    .adam_step_with_undo = adam_step_with_undo,
    .adam_undo = adam_undo,
    .scale = scale,
    .normals = normals_in_blocks,
    .copy_streaming = copy,
};

}  // namespace ballast::kernels
