// Memory of a CUDA device, and host memory pinned for it, that is given back when its owner goes.
#pragma once

#include <cstddef>
#include <string>

#include "backend/cuda/cuda_runtime.h"
#include "sim/base/error.h"

namespace ballast {

enum class CudaMemoryKind : uint8_t {
  kDevice,
  kPinned,  // on the host
};

class CudaMemory {
 public:
  // Throws Error where it is not to be had. No bytes: no memory.
  CudaMemory(CudaRuntime& runtime, CudaMemoryKind kind, Bytes bytes, const std::string& what)
      : runtime_(runtime), kind_(kind), bytes_(bytes) {
    if (bytes.count == 0) return;
    data_ = kind == CudaMemoryKind::kDevice ? runtime.allocate(bytes, what)
                                            : runtime.allocate_pinned(bytes, what);
  }
  ~CudaMemory() {
    if (data_ == nullptr) return;
    try {
      if (kind_ == CudaMemoryKind::kDevice) {
        runtime_.free(data_);
      } else {
        runtime_.free_pinned(data_);
      }
    } catch (const Error&) {
      // The device has failed, which whoever used it was told; its driver frees the rest.
    }
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  Bytes bytes() const { return bytes_; }

 private:
  CudaRuntime& runtime_;
  CudaMemoryKind kind_;
  Bytes bytes_;
  void* data_ = nullptr;
};

// Pins host memory that lives longer than this. Where the device shares the CPU's page tables the
// driver only backs it, which it must be: a page that the device were the first to touch would come
// to lie in the device's own memory.
class CudaPin {
 public:
  CudaPin(CudaRuntime& runtime, void* memory, Bytes bytes, const std::string& what)
      : runtime_(runtime) {
    if (bytes.count == 0) return;
    runtime.pin(memory, bytes, what);
    memory_ = memory;
  }
  ~CudaPin() {
    if (memory_ == nullptr) return;
    try {
      runtime_.unpin(memory_);
    } catch (const Error&) {
      // As above.
    }
  }
  CudaPin(const CudaPin&) = delete;
  CudaPin& operator=(const CudaPin&) = delete;

 private:
  CudaRuntime& runtime_;
  void* memory_ = nullptr;
};

}  // namespace ballast
