// The probes of `ballast profile`: how fast memory moves and arithmetic runs, and how long a launch
// takes.
//
// Bound: bytes, the fp32 units, and nothing.

#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;  // loads of 16 bytes that a thread has under way together

__global__ void __launch_bounds__(kThreads) copy_kernel(CopyProbe d) {
  const auto* from = static_cast<const uint4*>(d.from);
  auto* to = static_cast<uint4*>(d.to);
  const int64_t count = d.bytes / 16;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kAhead + threadIdx.x;
  uint4 values[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (first + i * kThreads < count) values[i] = from[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (first + i * kThreads < count) to[first + i * kThreads] = values[i];
  }
}

__global__ void __launch_bounds__(kThreads) triad_kernel(TriadProbe d) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (at >= d.count) return;
  float b[4], c[4];
  load<Format::kF32>(d.b, at, b);
  load<Format::kF32>(d.c, at, c);
  for (int i = 0; i < 4; ++i) b[i] = fmaf(d.factor, c[i], b[i]);
  store<Format::kF32>(d.a, at, b);
}

constexpr int kChains = 8;  // of FMAs in a thread that do not wait for one another

__global__ void __launch_bounds__(kThreads) arithmetic_kernel(ArithmeticProbe d) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kChains;
  if (at >= d.count) return;
  float x[kChains];
  load<Format::kF32>(d.values, at, x);
  for (int32_t round = 0; round < d.rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) x[i] = fmaf(d.factor, x[i], d.addend);
  }
  store<Format::kF32>(d.values, at, x);
}

__global__ void empty_kernel() {}

}  // namespace

Status copy_probe(const CopyProbe& d, Stream stream) {
  const Grid grid{.x = div_up(d.bytes / 16, kThreads * kAhead), .threads = kThreads};
  return launch("copy_probe", copy_kernel, grid, stream, d);
}

Status triad_probe(const TriadProbe& d, Stream stream) {
  const Grid grid{.x = div_up(d.count / 4, kThreads), .threads = kThreads};
  return launch("triad_probe", triad_kernel, grid, stream, d);
}

Status arithmetic_probe(const ArithmeticProbe& d, Stream stream) {
  const Grid grid{.x = div_up(d.count / kChains, kThreads), .threads = kThreads};
  return launch("arithmetic_probe", arithmetic_kernel, grid, stream, d);
}

Status empty_probe(Stream stream) { return launch("empty_probe", empty_kernel, Grid{}, stream); }

}  // namespace ballast::kernels::cuda
