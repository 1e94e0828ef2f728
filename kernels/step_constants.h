// What one AdamW step derives from its constants, once for all parameters.
//
// Everything here has internal linkage: each instruction set compiles its own copy with its own
// flags, and a copy that the linker shared could put AVX code into a machine without AVX.
#pragma once

#include "kernels/kernels.h"

namespace ballast::kernels {
namespace {

struct StepConstants {
  float beta1, one_minus_beta1, inverse_beta1;
  float beta2, one_minus_beta2, inverse_beta2;
  float bias_correction1, bias_correction2;
  float epsilon, learning_rate, weight_decay, gradient_scale;
  float undo_rate;  // learning_rate / (1 - learning_rate * weight_decay)
  // Gradients whose magnitude, read as an integer, is below that stay finite once scaled; a few
  // more may. 0: none is known to.
  uint32_t finite_gradients;
};

[[maybe_unused]] uint32_t finite_gradients(float scale) {
  constexpr float kLargest = 3.40282347e+38f;
  const float magnitude = scale < 0.0f ? -scale : scale;
  if (!(magnitude <= kLargest)) return 0;  // none: times an infinite scale 0 is not finite either
  const float largest = magnitude <= 1.0f ? kLargest : kLargest / magnitude;
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &largest, sizeof(bits));
  return magnitude <= 1.0f ? bits + 1 : bits;  // the quotient itself may have been rounded up
}

[[maybe_unused]] StepConstants step_constants(const AdamConstants& c) {
  return {.beta1 = c.beta1,
          .one_minus_beta1 = 1.0f - c.beta1,
          .inverse_beta1 = 1.0f / c.beta1,
          .beta2 = c.beta2,
          .one_minus_beta2 = 1.0f - c.beta2,
          .inverse_beta2 = 1.0f / c.beta2,
          .bias_correction1 = c.bias_correction1,
          .bias_correction2 = c.bias_correction2,
          .epsilon = c.epsilon,
          .learning_rate = c.learning_rate,
          .weight_decay = c.weight_decay,
          .gradient_scale = c.gradient_scale,
          .undo_rate = c.learning_rate / (1.0f - c.learning_rate * c.weight_decay),
          .finite_gradients = finite_gradients(c.gradient_scale)};
}

}  // namespace
}  // namespace ballast::kernels
