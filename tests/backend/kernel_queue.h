// What mathematics that runs on the threads of streams is handed to: a runtime that plays a GPU.
#pragma once

#include <functional>
#include <string>

#include "backend/cuda/cuda_runtime.h"

namespace ballast::tests {

class KernelQueue {
 public:
  virtual ~KernelQueue() = default;
  // Runs `work` on the stream's thread, in its turn.
  virtual void enqueue(CudaStream stream, const std::string& what, std::function<void()> work) = 0;
};

}  // namespace ballast::tests
