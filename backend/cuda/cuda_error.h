// The message of a call to CUDA that failed: what was attempted, on what, and what to do.
#pragma once

#include <string>

#include "sim/base/units.h"

namespace ballast {

struct CudaAttempt {
  const char* operation = "";      // "copy"
  Bytes bytes{-1};                 // negative: none
  std::string on{};                // "on stream upload", "for the arena"
  const char* in_range = nullptr;  // the operation of the graph that was being handed over
};

enum class CudaFault : uint8_t { kMemory, kDriver, kDevice, kOther };

// Throws Error "cuda copy of 64 bytes on stream upload, in 'optimizer bucket 3 copy': FAILURE;
// REMEDY".
[[noreturn]] void throw_cuda_error(const CudaAttempt& attempt, const std::string& failure,
                                   CudaFault fault);

}  // namespace ballast
