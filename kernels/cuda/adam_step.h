// One parameter's AdamW step, with the bits of kernels/reference. For .cu files only.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/step_constants.h"

namespace ballast::kernels::cuda {

__device__ __forceinline__ bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7fffffffu) < 0x7f800000u;
}

// What the master falls by, times the learning rate: reference.cpp's direction.
__device__ __forceinline__ float direction(const StepConstants& c, float m, float v) {
  return __fdiv_rn(__fmul_rn(c.bias_correction1, m),
                   __fmaf_rn(__fsqrt_rn(v), c.bias_correction2, c.epsilon));
}

// reference.cpp's adam_step, line by line.
__device__ __forceinline__ void step(const StepConstants& c, float gradient, float& w, float& m,
                                     float& v) {
  const float g = __fmul_rn(c.gradient_scale, gradient);
  if (!is_finite(g)) return;  // left alone
  m = __fmaf_rn(c.beta1, m, __fmul_rn(c.one_minus_beta1, g));
  v = __fmaf_rn(c.beta2, v, __fmul_rn(__fmul_rn(c.one_minus_beta2, g), g));
  w = __fsub_rn(w, __fmul_rn(c.learning_rate, __fmaf_rn(c.weight_decay, w, direction(c, m, v))));
}

}  // namespace ballast::kernels::cuda
