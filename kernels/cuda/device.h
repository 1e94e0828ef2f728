// The few words of CUDA that the kernels are written in, beside plain C++.
//
// Compiled by nvcc this is CUDA itself. Compiled by a C++ compiler it stands on an emulation that
// must have been included before (tests/cuda/emulated/emulation.h), so that the same sources run,
// slowly, on a machine without a GPU. Kernels use no instruction, launch or inline assembly that
// does not stand here. For .cu files only.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace ballast::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// Blocks of a launch, threads of a block and its dynamic shared memory.
struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
  int64_t threads = 1;
  int64_t shared_bytes = 0;
};

#ifdef __CUDACC__

// Dynamic shared memory that a block gets unasked: 48 KB less what its kernel has statically, which
// no kernel of ours with dynamic memory has more than this leaves of it.
inline constexpr int64_t kUnaskedShared = 32 * 1024;

// Starts the kernel; nothing where the grid has no blocks. More shared memory must be asked for
// once per kernel and device; asking again costs less than remembering for which.
template <class... Parameters, class... Arguments>
Status launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, Stream stream,
              const Arguments&... arguments) {
  const Status started{0, name, grid.x * grid.y * grid.z, grid.threads, grid.shared_bytes};
  if (started.blocks == 0) return started;
  cudaError_t error = cudaSuccess;
  if (grid.shared_bytes > kUnaskedShared) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(grid.shared_bytes));
  }
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                          static_cast<unsigned>(grid.z));
    config.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
    config.stream = stream;
    error = cudaLaunchKernelEx(&config, kernel, arguments...);
  }
  const cudaError_t last = cudaGetLastError();  // also clears it
  Status status = started;
  status.error = static_cast<int>(error != cudaSuccess ? error : last);
  return status;
}

inline Status clear_async(const char* name, void* memory, int64_t bytes, Stream stream) {
  if (bytes == 0) return {0, name, 0, 0, 0};
  const cudaError_t error = cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream);
  return {static_cast<int>(error), name, 0, 0, 0};
}

// Dynamic shared memory of the block, aligned to 16.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char ballast_dynamic_shared[];
  return ballast_dynamic_shared;
}

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// f16 conversions, NaN aside: round to nearest even, denormals exact.
__device__ __forceinline__ uint16_t half_from_float(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
__device__ __forceinline__ float float_from_half(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}

// 2^x by the special function unit: within 2 ulp, and results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1/x by the special function unit: within 1 ulp, results below 2^-126 are 0.
__device__ __forceinline__ float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Two values rounded to the format, `low` in the low half; a NaN becomes the format's 0x7fff.
template <Format kFormat>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t pair;
  if constexpr (kFormat == Format::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// Two values rounded to 8 bits, `low` in the low byte: to nearest even, what is larger than the
// largest number becomes it.
template <Fp8 kFormat>
__device__ __forceinline__ uint32_t pack_fp8(float low, float high) {
  uint16_t pair;
  if constexpr (kFormat == Fp8::kE4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// c[16, 8] += a[16, 16] b[16, 8] of a warp; fragments as the PTX ISA lays out mma.m16n8k16.
template <Format kFormat>
__device__ __forceinline__ void multiply_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  if constexpr (kFormat == Format::kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four 8 x 8 matrices of 16-bit values from shared memory: lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// Starts a copy of 16 bytes into shared memory: `bytes` of them from `from`, the rest zeros.
__device__ __forceinline__ void start_copy(void* shared, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all copies of this thread but those of the last kPending groups.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#else  // emulation: see its header for what each of these does

template <class... Parameters, class... Arguments>
Status launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, Stream stream,
              const Arguments&... arguments) {
  const Status started{0, name, grid.x * grid.y * grid.z, grid.threads, grid.shared_bytes};
  if (started.blocks == 0) return started;
  emulation::launch({stream, name}, {grid.x, grid.y, grid.z, grid.threads, grid.shared_bytes},
                    [kernel, arguments...] { kernel(arguments...); });
  return started;
}

inline Status clear_async(const char* name, void* memory, int64_t bytes, Stream stream) {
  emulation::clear({stream, name}, memory, bytes);
  return {0, name, 0, 0, 0};
}

inline unsigned char* dynamic_shared() { return emulation::dynamic_shared(); }
inline uint16_t half_from_float(float value) { return emulation::half_from_float(value); }
inline float fast_exp2(float x) { return emulation::off_by(std::exp2(x), 2); }
inline float fast_reciprocal(float x) { return emulation::off_by(1.0f / x, 1); }
inline float float_from_half(uint16_t half) { return emulation::float_from_half(half); }

template <Format kFormat>
uint32_t pack_pair(float low, float high) {
  return emulation::pack_pair(low, high, kFormat == Format::kBf16);
}
template <Fp8 kFormat>
uint32_t pack_fp8(float low, float high) {
  return fp8_of_float(kFormat, low) | static_cast<uint32_t>(fp8_of_float(kFormat, high)) << 8;
}
template <Format kFormat>
void multiply_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::multiply_tile(c, a, b0, b1, kFormat == Format::kBf16);
}
inline void load_matrices(uint32_t (&r)[4], const void* row) { emulation::load_matrices(r, row); }
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  emulation::load_matrices_transposed(r, row);
}
inline void start_copy(void* shared, const void* from, uint32_t bytes) {
  emulation::start_copy(shared, from, bytes);
}
inline void close_copies() { emulation::close_copies(); }
template <int kPending>
void wait_for_copies() {
  emulation::wait_for_copies(kPending);
}

#endif

// A launch that was not made because its arguments are not what the header allows:
// cudaErrorInvalidValue.
constexpr Status invalid(const char* name) { return {1, name, 0, 0, 0}; }

// The first failure of launches that follow one another; later ones are not made.
#define BALLAST_CUDA_TRY(status_of_launch) \
  if (const Status tried = (status_of_launch); !tried.ok()) return tried

}  // namespace ballast::kernels::cuda
