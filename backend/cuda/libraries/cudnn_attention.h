// Causal attention by cuDNN's flash kernels, forward and backward, where the library is there.
//
// The operations are written out as a graph that cuDNN knows as attention and runs as one kernel
// (NVIDIA, cuDNN's documentation, "Fused Attention fprop" and "bprop"):
//   forward   s = q k^T / sqrt(D), -inf above the diagonal; p = exp(s - max s) / sum;
//             out = p v; log-sum-exp = max s + log sum
//   backward  p = exp(s - log-sum-exp); dv = p^T dout; dp = dout v^T;
//             ds = p (dp - rowsum(dout out)) / sqrt(D); dq = ds k; dk = ds^T q
// where dk and dv of a shared head are the sums over its query heads. dq is written by the product
// itself and not added up by atomics, which is what cuDNN's "deterministic" asks for on Hopper: its
// workspace holds ds, the square of the length for every head.
// Will not do: rotary positions, or a shape that the library refuses.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/libraries/attention_library.h"
#include "backend/cuda/libraries/cudnn_graph.h"
#include "backend/cuda/libraries/cudnn_library.h"

namespace ballast {

class CudnnAttention : public AttentionLibrary {
 public:
  // On the current device. Throws Error where the library does not start.
  explicit CudnnAttention(const CudnnFunctions& functions);
  // For a device that cuDNN's JSON describes: plans are made and not run.
  CudnnAttention(const CudnnFunctions& functions, const std::string& device);
  ~CudnnAttention() override;
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  std::string name() const override;
  std::optional<Bytes> workspace(const AttentionPass& pass) override;
  std::string refusal(const AttentionPass& pass) const override;
  void run(const AttentionPass& pass, const AttentionArrays& arrays, CudaStream stream) override;

 private:
  struct Prepared;
  const Prepared& prepared(const AttentionPass& pass);

  CudnnFunctions functions_;
  void* handle_ = nullptr;
  std::unique_ptr<CudnnDescriptor> device_;
  std::vector<std::unique_ptr<Prepared>> prepared_;
};

// That of cudnn_library_name(), if it is there and starts.
OpenedAttention open_cudnn_attention();

}  // namespace ballast
