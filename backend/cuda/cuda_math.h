// What a GPU computes for the CUDA device: the modules of the decoder and the optimizer's path, on
// streams. One real (transformer_cuda.cpp), one in the tests that notes what it is asked to do.
//
// Every call enqueues and returns; what is read and written are device addresses. Throws Error that
// names the operation and the stream where a launch is refused. One call at a time on a stream;
// several streams at once. Will not do: copies (cuda_runtime.h), or know the executor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/libraries/gemm_algorithms.h"
#include "backend/execute/bucket_ranges.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/rank_place.h"
#include "backend/train/training_device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernels.h"

namespace ballast {

class CudaMath {
 public:
  virtual ~CudaMath() = default;

  // A forward or backward of a module (embedding, norm, matrix product, attention, activation).
  virtual void module(const Op& op, const OperationArguments& arguments, int32_t step,
                      CudaStream stream) = 0;

  struct Loss {
    double gradient_factor = 1;  // on the gradient of each token's loss
    double* mean = nullptr;      // where the mean loss goes, in pinned memory
  };
  // Replaces logits by their gradient. Of pieces of the tokens (Plan::loss_chunks) the mean is
  // there after the last one.
  virtual void loss(const Op& op, const OperationArguments& arguments, int32_t step,
                    const Loss& loss, CudaStream stream) = 0;

  // Of ranks that share the vocabulary, on the stream that exchanges: what this one tells of its
  // logits, [tokens, 3] in fp32, and what all have told, one after another, merged to where the
  // loss finds it.
  virtual void tell_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                         std::byte* told, CudaStream stream) = 0;
  virtual void merge_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                          const std::byte* told, CudaStream stream) = 0;
  // The backward of a norm that ranks have some of the tokens of each: as module(), but for the
  // gradient of its parameters, which goes to `gradient`, where nothing was.
  virtual void norm_apart(const Op& op, const OperationArguments& arguments, int32_t step,
                          float* gradient, CudaStream stream) = 0;

  virtual void cast(const CastRange& range, CudaStream stream) = 0;
  // All of an operation; those that cross the link in as few kernels as can be.
  virtual void casts(const std::vector<CastRange>& ranges, CudaStream stream) {
    for (const CastRange& range : ranges) cast(range, stream);
  }
  virtual void sums(const SumRange& range, CudaStream stream) = 0;
  // to[i] += from[i], in fp32, rounded to the format of both.
  struct Addition {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    kernels::Format format{};
    int64_t count = 0;  // values
  };
  virtual void add(const Addition& addition, CudaStream stream) = 0;
  virtual void adam(const kernels::AdamArrays& arrays, const kernels::AdamConstants& constants,
                    CudaStream stream) = 0;
  // One that can be taken back exactly.
  virtual void recorded_adam(const kernels::cuda::RecordedStep& step,
                             kernels::cuda::RecordedPart part, CudaStream stream) = 0;

  // What of its memory the profile of a GPU counts too (Gpu::reserved): workspaces of libraries.
  virtual Bytes library_memory() const { return {}; }

  // Keeps the stream busy for some tenths of a millisecond (TrainingDevice::hold).
  virtual void hold(CudaStream) {}

  // What runs otherwise than one may take for granted, and why; a line each.
  virtual std::vector<std::string> notes() const { return {}; }
};

// Allocates its scratch on `runtime` and knows the training's shapes; both must outlive it.
// `place`: of one of several ranks.
std::unique_ptr<CudaMath> make_cuda_math(const Training& training, const RankPlace& place,
                                         CudaRuntime& runtime,
                                         const GemmAlgorithmStore& algorithms);

}  // namespace ballast
