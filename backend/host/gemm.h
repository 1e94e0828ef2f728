// Dense matrix products of the host device, in fp32 and fp64.
//
// The fp32 product is compiled once per instruction set (Eigen, backend/gemm/) and chosen at
// start-up. gemm() is that product tile by tile of C, on the threads that are lent to the caller
// (compute_threads.h); the tiles follow from the sizes alone, so the same arguments give the same
// bits on the same machine. Will not do: convert storage formats, or start threads.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ballast {

// C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + (accumulate ? C : 0), all row-major. `lda` is the
// distance in elements between the stored rows of A: A is stored [m,k], or [k,m] if transpose_a.
// C overlaps neither A nor B. No alignment is required.
template <class Real>
struct GemmArguments {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const Real* a = nullptr;
  int64_t lda = 0;
  bool transpose_a = false;
  const Real* b = nullptr;
  int64_t ldb = 0;
  bool transpose_b = false;
  Real* c = nullptr;
  int64_t ldc = 0;
  Real alpha = 1;
  bool accumulate = false;
};

// One compiled fp32 product, on the calling thread.
struct GemmTable {
  std::string_view name;  // baseline, avx2, avx512
  void (*gemm)(const GemmArguments<float>&);
};

// Those that this machine can run, slowest first; gemm() uses the last.
std::span<const GemmTable> gemm_tables();

// C[m,n] = op(A) * op(B) + (accumulate ? C : 0): factors in bf16, sums in fp32, layouts as above.
//
// Every element of C is one chain of sums, whatever tile or thread it falls to: from C, or from 0,
// the terms are added in pairs (0 and 1, 2 and 3, ...), of each pair the second first, and every
// addition rounds once, to nearest even. Factors below 2^-126 count as 0, and so do such sums. That
// is the processor's VDPBF16PS. No factor may be NaN or infinite and expected to show in which.
struct Bf16Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const uint16_t* a = nullptr;
  int64_t lda = 0;
  bool transpose_a = false;
  const uint16_t* b = nullptr;
  int64_t ldb = 0;
  bool transpose_b = false;
  float* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;
};

// Whether this machine multiplies bf16 so; where it does not, factors are converted and multiplied
// in fp32.
bool multiplies_bf16();
// Requires multiplies_bf16(). In tiles, as below.
void gemm(const Bf16Product& arguments);

void gemm(const GemmArguments<float>& arguments);
void gemm(const GemmArguments<double>& arguments);

}  // namespace ballast
