// A ring of pinned host buffers that batches pass through on their way to the GPU: one is filled
// while others are being copied from. A buffer is not handed out again before its copy is done.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/cuda/cuda_lanes.h"
#include "backend/cuda/cuda_runtime.h"

namespace ballast {

class StagingRing {
 public:
  struct Size {
    size_t buffers = 0;  // at least 1
    Bytes each;
  };
  // `stream` is the one that copies; `wait` how the host waits (cuda_lanes.h).
  StagingRing(CudaRuntime& runtime, const Size& size, CudaStream stream, CudaWait wait = nullptr);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // The next buffer; waits on the calling thread while it is still being copied from.
  std::span<std::byte> take();
  // Copies what was taken to `to`, `bytes` from the start of the buffer.
  void send(void* to, Bytes bytes);

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    CudaEvent copied;
    bool used = false;
  };
  CudaRuntime& runtime_;
  Bytes each_;
  CudaStream stream_;
  CudaWait wait_;
  std::byte* memory_ = nullptr;
  std::vector<Buffer> buffers_;
  size_t next_ = 0;
};

}  // namespace ballast
