#include "backend/measure/cuda/profile_cuda_extent.h"

#include <algorithm>

namespace ballast {

namespace {

CudaProfileExtent quick_extent() {
  CudaProfileExtent extent;
  extent.workspace = {16 * kMi};
  extent.held = {16 * kKi};
  extent.copies = {{256 * kKi}, {64 * kKi}, {3, 20, 0.01, 0.05}};
  extent.compute = {.largest_move = {1 * kMi},
                    .square = 512,
                    .lengths = {128, 256},
                    .attention_tokens = 512,
                    .attention_width = 256,
                    .arithmetic_rounds = 64,
                    .limits = {3, 20, 0.01, 0.05}};
  extent.largest_bucket = 256 * kKi;
  extent.cpu_limits = {3, 20, 0.01, 0.05};
  extent.together_seconds = 0.02;
  extent.product_limits = {2, 4, 0.001, 0.05};
  extent.product_tokens = {128};
  extent.head_sizes = {64};
  extent.largest_width = 64;
  extent.largest_layer = 100'000;
  extent.case_seconds = 0.01;
  return extent;
}

CudaProfileExtent full_extent() {
  CudaProfileExtent extent;
  extent.workspace = {10 * kGi};
  extent.held = {64 * kMi};
  extent.copies = {{256 * kMi}, {64 * kMi}, {5, 200, 0.12, 0.01}};
  extent.compute = {.largest_move = {1 * kGi},
                    .square = 8192,
                    .lengths = {512, 1024, 2048, 4096, 8192, 16384},
                    .attention_tokens = 16384,
                    .attention_width = 2048,
                    .arithmetic_rounds = 16384,
                    .limits = {8, 100, 0.25, 0.01}};
  extent.largest_bucket = 64 * kMi;
  extent.cpu_limits = {5, 100, 0.1, 0.01};
  extent.together_seconds = 0.5;
  extent.product_limits = {6, 24, 0.02, 0.02};
  extent.product_tokens = {1024, 2048, 4096, 8192, 16384};
  extent.head_sizes = {64, 128};
  extent.largest_width = 1024;
  extent.largest_layer = 1'000'000'000;
  extent.case_seconds = 0.3;
  return extent;
}

}  // namespace

CudaProfileExtent cuda_profile_extent(ProfileEffort effort, const FreeMemory& free) {
  CudaProfileExtent extent = effort == ProfileEffort::kQuick ? quick_extent() : full_extent();
  extent.workspace = std::min(extent.workspace, Bytes{free.gpu.count / 2});
  // Three buffers of copies, and a bucket's state, must leave most of the memory to others.
  while (extent.copies.largest.count > 256 * kKi &&
         8 * extent.copies.largest.count > free.cpu.count) {
    extent.copies.largest.count /= 4;
  }
  extent.copies.largest_pageable = std::min(extent.copies.largest_pageable, extent.copies.largest);
  constexpr int64_t kStateBytes = 16;  // of a parameter
  while (extent.largest_bucket > 64 * kKi &&
         4 * kStateBytes * extent.largest_bucket > free.cpu.count) {
    extent.largest_bucket /= 4;
  }
  return extent;
}

}  // namespace ballast
