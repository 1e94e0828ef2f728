// Matrix products whose factors are rounded to 8 bits right before, each with one scale of its own
// ("just-in-time" scaling: from the largest value that is there, not from those of steps before, so
// a step depends on nothing but its inputs).
//
// Activations and weights become e4m3, gradients of outputs e5m2 (arXiv 2209.05433, section 3).
// What tensor cores of Hopper want of 8-bit factors, both with the summed side next to each other,
// is done on the way. A gradient that two products take is rounded once, in both orders
// (Rounding::kForNext), and so is a weight for all products of a step where the plan keeps its
// codes (WeightCodes::kMakes).
#pragma once

#include "backend/cuda/cuda_products.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// Which of a product's factors, in out = a b, is the gradient of an output.
enum class GradientFactor : uint8_t { kNone, kA, kB };
// Of the matrices that an operation multiplies, one after another. b is a weight where the
// operation's is not that of the weight's gradient.
struct Fp8Matrix {
  GradientFactor gradient = GradientFactor::kNone;
  size_t index = 0;
  int64_t column = 0;  // of the operation's whole output, or its gradient, where the matrix begins
};

// Where codes are, aligned to 256 bytes.
struct Fp8Codes {
  std::byte* own = nullptr;          // codes_layout().whole bytes
  std::byte* of_gradient = nullptr;  // gradient_codes_layout().whole bytes, where two share them
  std::byte* of_weight = nullptr;    // weight_codes_layout().whole bytes, where all share them
};

struct Fp8Product {
  CudaGemm gemm;  // of 16-bit operands
  Fp8Matrix matrix;
  Fp8Codes codes;
  std::byte* scratch = nullptr;  // fp8_scratch_bytes()
};
Bytes fp8_scratch_bytes();

// Enqueues two kernels for each factor that has no codes yet, then one product by `products`;
// `work` is the operation's. Throws Error as they do.
void multiply_in_fp8(const Fp8Product& product, const GemmWork& work, CudaProducts& products,
                     CudaStream stream);

}  // namespace ballast
