// The machine under test: a GPU, or the emulation of one. Tests are written once over both.
//
// Memory begins as NaN, so that what a kernel did not write shows, and lies between guards, so that
// what it should not have written does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/cuda_kernels.h"

namespace ballast::kernels::cuda::testing {

// Why nothing can be run here; empty where it can.
std::string missing_machine();

void* allocate(int64_t bytes);
void release(void* memory);
// From and to the host, after everything that was launched before.
void copy_in(void* device, const void* host, int64_t bytes);
void copy_out(void* host, const void* device, int64_t bytes);

// In which order the emulation lets threads go on: 0, 1 or 2. A GPU has an order of its own.
inline constexpr int kOrders = 3;
void set_thread_order(int order);

}  // namespace ballast::kernels::cuda::testing
