// The decoder's modules and the optimizer's kernels on a GPU: operations to kernels/cuda, matrix
// products to cuBLASLt (or whatever multiplies, in tests), attention to cuDNN where it is there.
//
// The same modules as backend/host/transformer.h, from the same roles of tensors. Products take the
// bias, and the residual or what is accumulated, in their epilogue, and leave the gradient of a
// bias where the library offers that; where a module's matrices lie side by side without biases
// between (q, k and v; gate and up) they are one product. Factors of products in fp8 are rounded
// right before (cuda_fp8.h). Scratch of the largest operation is taken once; all modules run on one
// stream. Activations are operations of their own in the graph (their input and output may be kept,
// offloaded or computed again apart), so no product computes one in its epilogue.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/cuda/cuda_fp8.h"
#include "backend/cuda/cuda_math.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_products.h"
#include "backend/cuda/libraries/cuda_attention.h"
#include "backend/execute/rank_place.h"
#include "backend/host/linear_layout.h"
#include "backend/host/transformer.h"
#include "kernels/cuda/cuda_kernels.h"

namespace ballast {

class CudaTransformer : public CudaMath {
 public:
  // Takes its scratch from the runtime, which must outlive it. `place`: of one of several ranks,
  // which may have some of the heads, columns and vocabulary.
  CudaTransformer(const Training& training, const RankPlace& place, CudaRuntime& runtime,
                  std::unique_ptr<CudaProducts> products, std::unique_ptr<CudaAttention> attention);

  void module(const Op& op, const OperationArguments& arguments, int32_t step,
              CudaStream stream) override;
  void loss(const Op& op, const OperationArguments& arguments, int32_t step, const Loss& loss,
            CudaStream stream) override;
  void tell_loss(const Op& op, const OperationArguments& arguments, int32_t step, std::byte* told,
                 CudaStream stream) override;
  void merge_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                  const std::byte* told, CudaStream stream) override;
  void norm_apart(const Op& op, const OperationArguments& arguments, int32_t step, float* gradient,
                  CudaStream stream) override;
  void cast(const CastRange& range, CudaStream stream) override;
  void casts(const std::vector<CastRange>& ranges, CudaStream stream) override;
  void sums(const SumRange& range, CudaStream stream) override;
  void add(const Addition& addition, CudaStream stream) override;
  void recorded_adam(const kernels::cuda::RecordedStep& step, kernels::cuda::RecordedPart part,
                     CudaStream stream) override;
  void adam(const kernels::AdamArrays& arrays, const kernels::AdamConstants& constants,
            CudaStream stream) override;
  Bytes library_memory() const override { return products_->workspace() + attention_->workspace(); }
  void hold(CudaStream stream) override;
  std::vector<std::string> notes() const override { return attention_->notes(); }

 private:
  // An operation with its arguments at hand.
  struct Call {
    const Op& op;
    const OperationArguments& arguments;
    int32_t step;
    CudaStream stream;
    Argument find(Role role) const { return arguments.find(op, role, step); }
    Fp8Codes codes() const {
      return {find(Role::kCodes).data, find(Role::kGradientCodes).data,
              find(Role::kWeightCodes).data};
    }
    kernels::cuda::Stream native() const {
      return static_cast<kernels::cuda::Stream>(stream.native);
    }
  };

  void embedding(const Call& call);
  void norm(const Call& call);
  void norm_backward(const Call& call, const kernels::cuda::Array& gradient,
                     kernels::cuda::Write write);
  void attention(const Call& call);
  void activation(const Call& call);
  void gemm(const Call& call);
  void multiply(const Call& call, const CudaGemm& gemm, Fp8Matrix matrix);
  void linear_forward(const Call& call);
  // Rows of a product's output.
  struct Rows {
    int64_t first = 0;
    int64_t count = 0;
    bool adds = true;  // bias and residual, whose rows are these
  };
  // A sum over ranks has the bias and the residual of each row once, from one of them.
  std::vector<Rows> rows_of(const Call& call) const;
  void linear_rows(const Call& call, const Rows& rows);
  void linear_backward_input(const Call& call);
  void linear_backward_weight(const Call& call);
  // Lets the product of a weight's gradient leave that of the bias too, if there is such a one.
  bool leaves_sums(const Call& call, CudaGemm& product, void* sums);

  // Of a micro-batch's tokens those of an operation of head or loss.
  LossChunk chunk_of(const Op& op) const;
  kernels::cuda::EmbeddingShape embedding_shape() const;
  kernels::cuda::NormShape norm_shape(const Op& op) const;
  kernels::cuda::AttentionShape attention_shape(const Op& op) const;
  kernels::cuda::ActivationShape activation_shape(const Op& op) const;
  kernels::cuda::ClassifierRows classifier_rows(const Op& op) const;
  kernels::cuda::ClassifierShare classifier_share(const Call& call, Role role) const;
  transformer::LinearLayout layout_of(ModuleKind kind) const;
  Bytes scratch_of(const Op& op) const;
  Bytes largest_scratch() const;
  void fill_rope();
  const float* rope() const { return reinterpret_cast<const float*>(rope_.data()); }

  const Model model_;  // of this rank
  const Plan& plan_;
  const RankPlace place_;
  const transformer::VocabularyPart vocabulary_;
  const Graph& graph_;
  CudaRuntime& runtime_;
  std::unique_ptr<CudaProducts> products_;
  std::unique_ptr<CudaAttention> attention_;
  CudaMemory rope_;                 // empty where positions are learned
  CudaMemory scratch_;              // of the operation that runs
  CudaMemory losses_;               // by token, where head and loss take them in pieces; else empty
  std::optional<CudaMemory> held_;  // what hold() computes on, from its first call on
};

}  // namespace ballast
