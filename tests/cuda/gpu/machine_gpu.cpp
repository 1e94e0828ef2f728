#include <cuda_runtime.h>
#include <stdexcept>

#include "tests/cuda/machine.h"

namespace ballast::kernels::cuda::testing {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

}  // namespace

std::string missing_machine() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(error);
  return count == 0 ? "no GPU" : "";
}

void* allocate(int64_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
  return memory;
}

void release(void* memory) { cudaFree(memory); }

void copy_in(void* device, const void* host, int64_t bytes) {
  check(cudaMemcpy(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "copy in");
}

void copy_out(void* host, const void* device, int64_t bytes) {
  check(cudaDeviceSynchronize(), "kernels");
  check(cudaMemcpy(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), "copy out");
}

void set_thread_order(int) {}

}  // namespace ballast::kernels::cuda::testing
