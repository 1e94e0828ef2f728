// What became of a launch of kernels/cuda, as an Error.
#pragma once

#include <fmt/format.h>

#include "backend/cuda/cuda_runtime.h"
#include "kernels/cuda/cuda_kernels.h"
#include "sim/base/error.h"

namespace ballast {

inline kernels::cuda::Stream native_stream(CudaStream stream) {
  return static_cast<kernels::cuda::Stream>(stream.native);
}

// Throws Error that names kernel, stream and launch where it was refused.
inline void check_launch(const kernels::cuda::Status& status, CudaStream stream) {
  if (status.ok()) return;
  throw Error(fmt::format("cuda kernel {} on stream {}", status.kernel, stream.name),
              fmt::format("{} ({} blocks of {} threads, {} bytes of shared memory)", status.text(),
                          status.blocks, status.threads, status.shared_bytes),
              "run again with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer");
}

}  // namespace ballast
