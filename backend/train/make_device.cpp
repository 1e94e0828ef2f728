#include "backend/train/make_device.h"

#include <charconv>
#include <string_view>

#include "backend/cuda/cuda_math.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/device_cuda.h"
#include "backend/host/device_host.h"

namespace ballast {

int cuda_index_of(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  if (device == "host") return -1;
  if (device == "cuda") return 0;
  int index = -1;
  if (device.starts_with(kPrefix)) {
    const char* const end = device.data() + device.size();
    const auto [at, code] = std::from_chars(device.data() + kPrefix.size(), end, index);
    if (code != std::errc() || at != end) index = -1;
  }
  if (index < 0) {
    throw Error("--device " + device, "no such device", "use host, or cuda:0 for the first GPU");
  }
  return index;
}

std::unique_ptr<TrainingDevice> make_device(const std::string& device, const Training& training,
                                            const DeviceOptions& options,
                                            const ControlState& state) {
  const int index = cuda_index_of(device);
  if (index < 0) return std::make_unique<HostDevice>(training, options, state);
  CudaParts parts;
  parts.runtime = open_cuda_runtime(index);
  parts.free_before = parts.runtime->free_memory();
  parts.math = make_cuda_math(training, *parts.runtime, options.gemm_algorithms);
  return std::make_unique<CudaDevice>(training, options, state, std::move(parts));
}

}  // namespace ballast
