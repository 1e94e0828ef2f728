// What the two ways to attention have in common: where q, k, v and their gradients lie.
#pragma once

#include "kernels/cuda/cuda_kernels.h"

namespace ballast::kernels::cuda {

// The rows of a head, `stride` values apart: of token 0 and head 0, heads lie side by side.
struct HeadRows {
  const void* data = nullptr;
  int64_t stride = 0;
};
struct HeadRowsOut {
  void* data = nullptr;
  int64_t stride = 0;
};

// One pass over all heads. q and k are rotated already; dq and dk are rotated back (rope not null)
// before they are rounded. Forward writes out and log_sum_exp; backward reads them and `delta`, the
// row sums of out * dout, fp32 [sequences * heads, length].
struct AttentionTask {
  AttentionShape shape;
  Format format = Format::kBf16;
  HeadRows q, k, v;
  HeadRowsOut out;
  float* log_sum_exp = nullptr;  // [sequences * heads, length]
  float score_scale = 1.0f;      // 1 / sqrt(head_size)

  HeadRows dout;
  const float* delta = nullptr;
  HeadRowsOut dq, dk, dv;
  const float* rope = nullptr;
  int64_t rope_positions = 0;
};

// Tensor cores: head sizes 64, 80, 96, 128, 16-bit formats, all rows aligned to 16 bytes.
Status flash_forward(const AttentionTask&, Stream);
Status flash_backward(const AttentionTask&, Stream);

// fp32 arithmetic, any format, head sizes up to kHeadSizeMax.
Status plain_forward(const AttentionTask&, Stream);
Status plain_backward(const AttentionTask&, Stream);

}  // namespace ballast::kernels::cuda
