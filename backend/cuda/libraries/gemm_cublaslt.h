// Matrix products on a GPU by cuBLASLt, for row-major matrices.
//
// cuBLASLt thinks in columns: a row-major C = A B is its C^T = B^T A^T, so A and B change places
// and nothing is transposed. Accumulates in fp32 (for fp32 storage without TF32). The algorithm of
// a shape is asked for once and kept, so the same shape gives the same bits as long as the library
// is the same; none of them adds by atomics. 8-bit operands have one scale each, and are summed
// without fast accumulation. Will not do: batches, or rounding to 8 bits (cuda_fp8.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_products.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/libraries/gemm_algorithms.h"

namespace ballast {

class CublasGemm : public CudaProducts {
 public:
  // Workspace is taken from the runtime, which must outlive this. Throws Error where the library
  // does not start.
  CublasGemm(CudaRuntime& runtime, GemmAlgorithmStore store);
  ~CublasGemm() override;
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;

  // Throws Error that names shape and stream where no algorithm fits or the launch is refused.
  void multiply(const CudaGemm& gemm, CudaStream stream) override;

  // Shapes that were looked up, for tests and messages.
  size_t cached() const { return algorithms_.size(); }

 private:
  struct Library;
  const GemmAlgorithm& algorithm_of(const CudaGemm& gemm, const std::string& key,
                                    CudaStream stream);

  std::unique_ptr<Library> library_;
  std::string machine_;  // GPU and version of the library
  GemmAlgorithmStore store_;
  CudaMemory workspace_;
  std::map<std::string, GemmAlgorithm> algorithms_;
};

}  // namespace ballast
