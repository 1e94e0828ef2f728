// What a build without the CUDA toolkit has instead of cuda_runtime.cpp and gemm_cublaslt.cpp.
#include "backend/cuda/cuda_math.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/measure/cuda/profile_cuda_kernels.h"
#include "sim/base/error.h"

namespace ballast {

bool cuda_is_built() { return false; }

std::unique_ptr<CudaRuntime> open_cuda_runtime(int) {
  throw Error("no CUDA device", "this program was built without the CUDA toolkit",
              "build it where CMake finds CUDA 13, or use --device host");
}

std::unique_ptr<CudaMath> make_cuda_math(const Training&, const RankPlace&, CudaRuntime&,
                                         const GemmAlgorithmStore&) {
  CHECK(false && "no runtime was opened");
}

std::unique_ptr<CudaProbeKernels> make_probe_kernels(CudaRuntime&, const GemmAlgorithmStore&) {
  CHECK(false && "no runtime was opened");
}

}  // namespace ballast
