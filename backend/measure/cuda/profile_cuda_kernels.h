// The kernels that the profile of a GPU times, as an interface: one real (those of kernels/cuda,
// and cuBLASLt), one in the tests that takes nominal times.
//
// Every call enqueues and returns; addresses are the device's. Throws Error that names kernel and
// stream where a launch is refused. Will not do: time, or allocate for others.
#pragma once

#include <memory>

#include "backend/cuda/cuda_products.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/libraries/cuda_attention.h"
#include "backend/cuda/libraries/gemm_algorithms.h"
#include "kernels/cuda/cuda_kernels.h"

namespace ballast {

class CudaProbeKernels {
 public:
  virtual ~CudaProbeKernels() = default;

  virtual void empty(CudaStream stream) = 0;
  virtual void copy(const kernels::cuda::CopyProbe& copy, CudaStream stream) = 0;
  virtual void triad(const kernels::cuda::TriadProbe& triad, CudaStream stream) = 0;
  virtual void cast_across_link(const kernels::cuda::Cast& cast, CudaStream stream) = 0;
  virtual void arithmetic(const kernels::cuda::ArithmeticProbe& arithmetic, CudaStream stream) = 0;

  virtual Bytes scratch_of(const kernels::cuda::AttentionForward& forward) = 0;
  virtual Bytes scratch_of(const kernels::cuda::AttentionBackward& backward) = 0;
  virtual void attention(const kernels::cuda::AttentionForward& forward, CudaStream stream) = 0;
  virtual void attention(const kernels::cuda::AttentionBackward& backward, CudaStream stream) = 0;

  virtual CudaProducts& products() = 0;
};

std::unique_ptr<CudaProbeKernels> launched_kernels(std::unique_ptr<CudaProducts> products,
                                                   std::unique_ptr<CudaAttention> attention);

// Those with cuBLASLt, and cuDNN where it is there, as a training has them. Their workspaces are
// taken from the runtime, which must outlive them.
std::unique_ptr<CudaProbeKernels> make_probe_kernels(CudaRuntime& runtime,
                                                     const GemmAlgorithmStore& algorithms);

}  // namespace ballast
