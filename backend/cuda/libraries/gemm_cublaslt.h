// Matrix products on a GPU by cuBLASLt, for row-major matrices.
//
// cuBLASLt thinks in columns: a row-major C = A B is its C^T = B^T A^T, so A and B change places
// and nothing is transposed. Accumulates in fp32 (for fp32 storage without TF32); none of its
// algorithms that we take adds by atomics. 8-bit operands have one scale each, and are summed
// without fast accumulation. Sums of a factor are its epilogues BGRADA and BGRADB. Will not do:
// batches, rounding to 8 bits (cuda_fp8.h), or choose an algorithm (chosen_products.h).
#pragma once

#include <memory>

#include "backend/cuda/cuda_products.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/libraries/gemm_algorithms.h"

namespace ballast {

// Workspace is taken from the runtime, which must outlive them. Throws Error where the library does
// not start.
std::unique_ptr<CudaProducts> make_cublas_products(CudaRuntime& runtime, GemmAlgorithmStore store);

}  // namespace ballast
