// What an effort costs: sizes and repeats of every probe of a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/measure/cuda/profile_cuda_compute.h"
#include "backend/measure/cuda/profile_cuda_copies.h"
#include "backend/measure/profile.h"

namespace ballast {

struct CudaProfileExtent {
  Bytes workspace;
  Bytes held;  // see CudaStopwatch
  CudaCopies::Extent copies;
  CudaCompute::Extent compute;
  int64_t largest_bucket = 0;  // parameters, of the CPU's optimizer
  ProbeLimits cpu_limits;
  double together_seconds = 0;
  ProbeLimits product_limits;           // of each of the models' products
  std::vector<int64_t> product_tokens;  // of a micro-batch
  std::vector<int64_t> head_sizes;
  int64_t largest_width = 0;  // of the small models whose operations are timed
  int64_t largest_layer = 0;  // parameters
  double case_seconds = 0;
};

// What is free before the profile.
struct FreeMemory {
  Bytes gpu;
  Bytes cpu;
};
// Sizes leave most of the memory to others.
CudaProfileExtent cuda_profile_extent(ProfileEffort effort, const FreeMemory& free);

}  // namespace ballast
