// Matrix products whose factors are rounded to 8 bits right before, each with one scale of its own
// ("just-in-time" scaling: from the largest value that is there, not from those of steps before, so
// a step depends on nothing but its inputs).
//
// Activations and weights become e4m3, gradients of outputs e5m2 (arXiv 2209.05433, section 3).
// What tensor cores of Hopper want of 8-bit factors, both with the summed side next to each other,
// is done on the way. A gradient that two products take is rounded once, in both orders
// (Rounding::kForNext).
#pragma once

#include "backend/cuda/cuda_products.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// Which of a product's factors, in out = a b, is the gradient of an output.
enum class GradientFactor : uint8_t { kNone, kA, kB };
struct Fp8Gradient {
  GradientFactor factor = GradientFactor::kNone;
  size_t matrix = 0;   // of those of its operation, in their order
  int64_t column = 0;  // of the whole gradient, where this factor begins
};

struct Fp8Product {
  CudaGemm gemm;  // of 16-bit operands
  Fp8Gradient gradient;
  std::byte* codes = nullptr;           // codes_layout().whole bytes, aligned to 256
  std::byte* gradient_codes = nullptr;  // gradient_codes_layout().whole bytes, where two share them
  std::byte* scratch = nullptr;         // fp8_scratch_bytes()
};
Bytes fp8_scratch_bytes();

// Enqueues two kernels for each factor that has no codes yet, then one product by `products`;
// `work` is the operation's. Throws Error as they do.
void multiply_in_fp8(const Fp8Product& product, const GemmWork& work, CudaProducts& products,
                     CudaStream stream);

}  // namespace ballast
