// A library of matrix products that has several algorithms for each, as an interface: one real
// (gemm_cublaslt.h), one in the tests. Who takes which, and how often it is asked, is
// chosen_products.h's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_products.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/libraries/gemm_algorithms.h"

namespace ballast {

// The power of two up to 256 that an address is a multiple of; 256 where there is none.
uint32_t alignment_of(const void* address);

// Products that differ in nothing but addresses (of the same alignment) and values.
class PreparedGemm {
 public:
  virtual ~PreparedGemm() = default;
  // The likely fastest first; none where the library has none that gives the same bits every time.
  virtual std::vector<GemmAlgorithm> candidates(int most) = 0;
  // Whether it is one of this library for these products, within the workspace that there is.
  virtual bool accepts(const GemmAlgorithm& algorithm) = 0;
  // Enqueues. Throws Error that names shape and stream where the library refuses.
  virtual void run(const CudaGemm& gemm, const GemmAlgorithm& algorithm, CudaStream stream) = 0;
};

class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;
  // Of the GPU and the library's version: what algorithms are good for.
  virtual std::string machine() const = 0;
  // What it holds on the GPU.
  virtual Bytes workspace() const { return {}; }
  virtual std::unique_ptr<PreparedGemm> prepare(const CudaGemm& gemm) = 0;
};

}  // namespace ballast
