// Attention by a library's kernels, as an interface: one real (cudnn_attention.h), one in the tests
// that works the sums out one by one.
//
// What a library does must depend on its arguments alone, so that a repeated pass gives the same
// bits; where it has only kernels that add by atomics, it has none for us. Will not do: rotate
// positions, divide the work, or choose between the library and our kernels (cuda_attention.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backend/cuda/cuda_runtime.h"
#include "kernels/cuda/cuda_kernels.h"

namespace ballast {

enum class AttentionDirection : uint8_t { kForward, kBackward };

// A causal pass over some of the sequences and heads of a batch. All rows lie a whole row of their
// array apart: q and k `query_stride` values, v and the gradients of all three shape.width(), out
// and dout heads * head_size; log_sum_exp is [sequences * heads, length].
struct AttentionPass {
  AttentionDirection direction = AttentionDirection::kForward;
  kernels::cuda::AttentionShape shape;  // of the arrays
  kernels::Format format = kernels::Format::kBf16;
  int64_t query_stride = 0;
  // Of the arrays, what one run works on, from where its pointers point.
  int64_t sequences = 0;
  int64_t kv_heads = 0;  // with all query heads that share them

  int64_t group() const { return shape.heads / shape.kv_heads; }
  friend bool operator==(const AttentionPass&, const AttentionPass&) = default;
};

// Of the first sequence and head of a run, on the device. The forward writes out and log_sum_exp;
// the backward reads them and dout, and writes dq, dk and dv.
struct AttentionArrays {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* log_sum_exp = nullptr;
  const void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  std::byte* workspace = nullptr;  // aligned to 256
};

class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // With its version, for messages.
  virtual std::string name() const = 0;
  // The workspace that a run of the pass needs; nothing where the library has no kernel for it that
  // gives the same bits every time. Plans are kept, so a second call is cheap.
  virtual std::optional<Bytes> workspace(const AttentionPass& pass) = 0;
  // Why there is nothing; requires that workspace() was asked.
  virtual std::string refusal(const AttentionPass& pass) const = 0;
  // Enqueues. Requires a workspace of the size above. Throws Error that names pass and stream where
  // the library refuses. One call at a time.
  virtual void run(const AttentionPass& pass, const AttentionArrays& arrays, CudaStream stream) = 0;
};

// What was found on this machine: a library, or why there is none. Neither where none is asked for.
struct OpenedAttention {
  std::unique_ptr<AttentionLibrary> library;
  std::string why_not;
};

}  // namespace ballast
