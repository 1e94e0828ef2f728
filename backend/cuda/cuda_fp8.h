// Matrix products whose factors are rounded to 8 bits right before, each with one scale of its own
// ("just-in-time" scaling: from the largest value that is there, not from those of steps before, so
// a step depends on nothing but its inputs).
//
// Activations and weights become e4m3, gradients of outputs e5m2 (arXiv 2209.05433, section 3).
// What tensor cores of Hopper want of 8-bit factors, both with the summed side next to each other,
// is done on the way.
#pragma once

#include "backend/cuda/cuda_products.h"

namespace ballast {

// Which of a product's factors, in out = a b, is the gradient of an output.
enum class GradientFactor : uint8_t { kNone, kA, kB };

struct Fp8Product {
  CudaGemm gemm;  // of 16-bit operands
  GradientFactor gradient = GradientFactor::kNone;
  std::byte* codes = nullptr;    // codes_layout(m, n, k).whole bytes, aligned to 256
  std::byte* scratch = nullptr;  // fp8_scratch_bytes()
};
Bytes fp8_scratch_bytes();

// Enqueues two kernels for each factor, then one product by `products`. Throws Error as they do.
void multiply_in_fp8(const Fp8Product& product, CudaProducts& products, CudaStream stream);

}  // namespace ballast
