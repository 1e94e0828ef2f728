// What a GPU does by itself: launches, streams that wait for one another, memory, arithmetic,
// matrix products and attention.
//
// Will not do: copies to and from the CPU (profile_cuda_copies), or whole operations of training
// (profile_operations).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/measure/cuda/profile_cuda_kernels.h"
#include "backend/measure/cuda/profile_cuda_timing.h"
#include "backend/train/trainer.h"

namespace ballast {

class CudaCompute {
 public:
  struct Extent {
    Bytes largest_move;            // read, and written, by one probe of the memory
    int64_t square = 0;            // side of the largest square product
    std::vector<int64_t> lengths;  // of sequences, tokens; ascending
    int64_t attention_tokens = 0;  // of all sequences together; at least each length
    int64_t attention_width = 0;   // heads times head size
    int32_t arithmetic_rounds = 0;
    ProbeLimits limits;
  };
  // All must outlive this.
  CudaCompute(CudaRuntime& runtime, CudaProbeKernels& kernels, CudaStopwatch& watch,
              CudaWorkspace& workspace, const Extent& extent);

  // The least that an operation of a stream takes: an empty kernel between two events, as the
  // device runs each, in a row, with the host ahead. And how long the host takes to enqueue one.
  struct LaunchTimes {
    Duration least;
    Duration host;
  };
  LaunchTimes launch();
  // From the end of a kernel on one stream to the start of one on another stream that waits for it,
  // beyond what the next kernel of the same stream would wait.
  Duration handover();

  // Bytes read and written per second, by size of what one array holds.
  struct MemoryRates {
    double copy = 0;   // one read, one written
    double triad = 0;  // two read, one written
    Bytes each;        // of one array
  };
  MemoryRates memory();
  // Multiplications and additions of fp32 per second, a fused one as two.
  double arithmetic();

  // Product of op.work (GemmWork), its operands as op.phase has them stored in a model whose
  // weights are [out, in]. Its operands change from repeat to repeat where they would fit the
  // caches. Fill the workspace first. Throws Error where they do not fit the workspace. A work of
  // e4m3 is the product of codes alone, without their rounding, to bf16; forward alone.
  Timing product(const Op& op, const ProbeLimits& limits);
  bool fits(const GemmWork& work) const;
  // Of square products of this format, the best rate in FLOP/s.
  double best_product(DType dtype);

  // Rates in FLOP/s by length as AttentionRates counts them. In bf16; fill the workspace first.
  struct AttentionPoint {
    int64_t length = 0;
    double forward = 0;
    double backward = 0;
  };
  // Stops early at `deadline`, but not before the first.
  std::vector<AttentionPoint> attention(int64_t head_size, double deadline);

 private:
  // A 1 in device memory, out of the workspace's inputs: every factor of codes has a scale.
  const float* scale_of_codes();
  // Keeps the stream busy for some milliseconds.
  void hold();
  struct AttentionCase {
    kernels::cuda::AttentionForward forward;
    kernels::cuda::AttentionBackward backward;
    double flops = 0;  // of the forward
  };
  AttentionCase attention_case(int64_t head_size, int64_t length);

  CudaRuntime& runtime_;
  CudaProbeKernels& kernels_;
  CudaStopwatch& watch_;
  CudaWorkspace& workspace_;
  Extent extent_;
  int holds_ = 0;  // copies that last long enough; 0: not known yet
};

}  // namespace ballast
