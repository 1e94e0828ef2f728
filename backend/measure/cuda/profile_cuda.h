// Profile of a GPU: measures it, its link and the CPU beside it, the way the CUDA device uses them.
// What it finds is a Machine named "here" and timed operations for the cost model.
//
// The protocol is in backend/measure/cuda/profile_cuda_timing.h, what each probe means in
// docs/profile.md. Every number says under which clocks, power and temperature it was measured. A
// probe that cannot run says why; what it would have measured comes from a shipped profile of the
// same GPU, marked as not measured, or else there is no machine. Will not do: store anything (cli),
// or predict.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_runtime.h"
#include "backend/measure/cuda/profile_cuda_kernels.h"
#include "backend/measure/cuda/profile_cuda_timing.h"
#include "backend/measure/cuda/profile_nvml.h"
#include "backend/measure/profile.h"
#include "sim/spec/model.h"

namespace ballast {

struct CudaProfileOptions : ProfileOptions {
  std::string device = "cuda:0";
  // Whose products and layers are timed.
  std::vector<Model> models;
  GemmAlgorithmStore algorithms;  // of products, as training takes them
  // A machine with this GPU (by the driver's name for it, and its memory), for what cannot be
  // measured; may be null.
  std::function<std::optional<Machine>(const std::string& gpu, Bytes memory)> shipped;
};

// What the profile runs on.
struct CudaProfileParts {
  std::unique_ptr<CudaRuntime> runtime;
  std::function<std::unique_ptr<CudaProbeKernels>(CudaRuntime&)> make_kernels;
  std::unique_ptr<GpuMonitor> monitor;
  SecondsNow now;
  // How whole operations are timed: device, or what makes one.
  TrainerOptions trainer;
  std::string bound = {};  // to which CPUs the threads that measure are; empty: to none
};

// Takes less than three minutes. Throws Error "no CUDA device: ..." where there is none, for
// options out of range, and where a number is missing that nothing else can tell, naming its probe.
Profile profile_cuda(const CudaProfileOptions& options);
Profile profile_cuda(const CudaProfileOptions& options, CudaProfileParts parts);

}  // namespace ballast
