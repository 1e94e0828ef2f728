// CUDA's execution of a block, on one thread of the host: so that the very sources of kernels/cuda
// are run and tested where there is no GPU.
//
// Each thread of a block is a fiber that runs until it must wait for others: at a barrier, or in
// an instruction that its warp executes together (shuffle, mma, ldmatrix). The block's fibers take
// turns in an order that tests choose, because a missing barrier shows in one order and not in
// another. What goes wrong on a GPU silently is an error here: threads that wait for others that
// never come, rows of ldmatrix that are not aligned, copies that are read before they were waited
// for (until then their destination holds NaN), dynamic shared memory that is read before it is
// written (NaN too). Will not do: caches, timing, other blocks at the same time.
//
// Under the thread sanitizer each thread of a block is a thread to it too, which nothing orders but
// barriers, __syncwarp and the block's begin and end: what only the order of turns keeps apart is
// reported as a race. Shuffles, mma and ldmatrix order no memory on a GPU, and so none here.
//
// Include before a .cu file, which then compiles as C++.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

namespace emulation {

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};

struct Launch {
  int64_t x = 1, y = 1, z = 1;
  int64_t threads = 1;
  int64_t shared_bytes = 0;
};

// Runs body once for every thread of every block, block after block. One call at a time.
void run(const Launch&, const std::function<void()>& body);

// What a kernel, or a clear, is handed over with: the stream, as the launcher had it.
struct Handed {
  void* stream = nullptr;
  const char* name = "";
};
// Does what was handed over, in its turn; where there is no queue it is done at once, on the thread
// that hands it over. A whole GPU that is played has one (tests/cuda/virtual).
using Queue = void (*)(const Handed&, std::function<void()> work);
void set_queue(Queue);
void launch(const Handed&, const Launch&, std::function<void()> body);

// In which order the fibers of a block take their turns. kRising: all in step, thread 0 first.
// kFalling: the last warp runs as far as it can before the one before it begins, its last lane
// first. kShuffled: warps as there, warps and lanes in an order that changes.
enum class Order { kRising, kFalling, kShuffled };
void set_order(Order);

// Of the fiber that runs.
extern Dimensions thread_index, block_index, block_dimensions, grid_dimensions;

void barrier();
void barrier_of_warp();
// Passes 8 bytes to the 32 lanes of the warp and returns what they all passed.
const uint64_t* exchange(uint64_t value);

// A result of the special function unit at the edge of what the PTX ISA allows it to miss: up to
// `ulps` units above or below, by the bits of the value; denormals are 0.
inline float off_by(float value, int ulps) {
  if (std::abs(value) < 0x1p-126f) return std::copysign(0.0f, value);
  if (!std::isfinite(value)) return value;
  const auto bits = std::bit_cast<uint32_t>(value);
  const int miss = static_cast<int>((bits >> 3) % static_cast<uint32_t>(2 * ulps + 1)) - ulps;
  const float missed = std::bit_cast<float>(bits + static_cast<uint32_t>(miss));
  return std::isfinite(missed) ? missed : value;
}

void clear(const Handed&, void* memory, int64_t bytes);
unsigned char* dynamic_shared();
uint16_t half_from_float(float value);
float float_from_half(uint16_t half);
uint32_t pack_pair(float low, float high, bool bf16);
void multiply_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bf16);
void load_matrices(uint32_t (&r)[4], const void* row);
void load_matrices_transposed(uint32_t (&r)[4], const void* row);
void start_copy(void* shared, const void* from, uint32_t bytes);
void close_copies();
void wait_for_copies(int pending);

template <class T>
T shuffle_xor(T value, int distance) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t raw = 0;
  std::memcpy(&raw, &value, sizeof(T));
  const uint64_t from = exchange(raw)[(thread_index.x % 32) ^ static_cast<unsigned>(distance)];
  std::memcpy(&value, &from, sizeof(T));
  return value;
}

template <class T>
T shuffle(T value, int lane) {
  uint64_t raw = 0;
  std::memcpy(&raw, &value, sizeof(T));
  const uint64_t from = exchange(raw)[lane];
  std::memcpy(&value, &from, sizeof(T));
  return value;
}

}  // namespace emulation

// The words of CUDA that kernels use, at the global scope where CUDA has them.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define blockDim emulation::block_dimensions
#define gridDim emulation::grid_dimensions

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline void __syncthreads() { emulation::barrier(); }
inline void __syncwarp() { emulation::barrier_of_warp(); }
template <class T>
T __shfl_xor_sync(uint32_t, T value, int distance) {
  return emulation::shuffle_xor(value, distance);
}
template <class T>
T __shfl_sync(uint32_t, T value, int lane) {
  return emulation::shuffle(value, lane);
}
inline int atomicAdd(int* address, int value) {
  return std::atomic_ref<int>(*address).fetch_add(value, std::memory_order_relaxed);
}

inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 |
                               static_cast<uint32_t>(low));
}
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
