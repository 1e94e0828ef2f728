// The kernels of attention that store no scores, each with a rate of its own.
//
// Will not do: say how fast (profiles/kernels), or which graph an attention has (AttentionKind).
#pragma once

#include <cstdint>
#include <string_view>

namespace ballast {

// Implementations of attention that never store the scores, each with its own rate. kFlash1 is
// FlashAttention 1 (arXiv 2205.14135), kTriton the tutorial kernel of Triton, kFlash2 arXiv
// 2307.08691, kFlash3 arXiv 2407.08608 (Hopper alone), kFlash4 its CuTe successor (Blackwell),
// kCudnn9_13 cuDNN 9.13 (September 2025; later ones are faster on Blackwell), kCudnn that of 2026.
enum class AttentionKernel : uint8_t {
  kFlash1,
  kTriton,
  kFlash2,
  kFlash3,
  kFlash4,
  kCudnn9_13,
  kCudnn
};
inline constexpr int kAttentionKernels = 7;
std::string_view to_string(AttentionKernel value);  // "flash1", "triton", ...

}  // namespace ballast
