// What a status says, and how many devices there are.

#include "kernels/cuda/device.h"

namespace ballast::kernels::cuda {

const char* Status::text() const { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // else the next launch would report it
    return 0;
  }
  return count;
}

}  // namespace ballast::kernels::cuda
