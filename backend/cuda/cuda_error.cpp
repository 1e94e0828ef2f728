#include "backend/cuda/cuda_error.h"

#include <fmt/format.h>

#include "sim/base/error.h"

namespace ballast {

namespace {

const char* remedy_of(CudaFault fault) {
  switch (fault) {
    case CudaFault::kMemory:
      return "choose a plan that needs less memory, or end what else uses it";
    case CudaFault::kDriver:
      return "update the driver";
    case CudaFault::kDevice:
      return "see what nvidia-smi says of the device";
    case CudaFault::kOther:
      break;
  }
  return "run again with CUDA_LAUNCH_BLOCKING=1, which names the operation that failed, or under "
         "compute-sanitizer";
}

}  // namespace

void throw_cuda_error(const CudaAttempt& attempt, const std::string& failure, CudaFault fault) {
  std::string text = fmt::format("cuda {}", attempt.operation);
  if (attempt.bytes.count >= 0) text += fmt::format(" of {} bytes", attempt.bytes.count);
  if (!attempt.on.empty()) text += " " + attempt.on;
  if (attempt.in_range != nullptr) text += fmt::format(", in '{}'", attempt.in_range);
  throw Error(text, failure, remedy_of(fault));
}

}  // namespace ballast
