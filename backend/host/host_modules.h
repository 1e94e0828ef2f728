// Forward and backward of the decoder's modules on the CPU: operations to backend/host/transformer,
// roles of tensors to its arguments.
//
// Will not do: start threads, or order operations.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/execute/expert_exchanges.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/rank_exchanges.h"
#include "backend/execute/rank_place.h"
#include "backend/host/experts/transformer_experts.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Which ids of the vocabulary a tensor-parallel rank has. `rank`: its model; `whole`: ids of all.
transformer::VocabularyPart vocabulary_part(const Model& rank, int64_t whole, const Plan& plan,
                                            const RankPlace& place);

class HostModules {
 public:
  // Of a rank that is alone. Both must outlive this.
  HostModules(const Model& model, const Plan& plan)
      : HostModules(model, model.vocab, plan, {}, nullptr, nullptr) {}
  // `model`: of one tensor-parallel rank; `whole_vocabulary`: of all of them. exchanges: with the
  // other ranks, and experts: with those that share experts; null where there are none. All must
  // outlive this.
  HostModules(const Model& model, int64_t whole_vocabulary, const Plan& plan, RankPlace place,
              const RankExchanges* exchanges, const ExpertExchanges* experts);

  // Embedding, norm, matrix product, attention, activation, or tokens' way to experts and back.
  void module(const Op& op, const OperationArguments& arguments, int32_t step) const;
  // Mean loss in nats over the micro-batch's tokens, of a part or piece of them its share; logits
  // become their gradient times the factor.
  double loss(const Op& op, const OperationArguments& arguments, int32_t step,
              double gradient_factor) const;
  // What ranks that share the vocabulary tell each other of logits, before the loss.
  void loss_sums(const Op& op, const OperationArguments& arguments, int32_t step) const;
  // The same in two parts, for whoever brings what they tell to the others: what this rank tells,
  // and what all have told, one after another, merged to where the operation has it.
  void tell_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                 std::byte* told) const;
  void merge_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                  const std::byte* told) const;
  // The backward of a norm of some of the tokens, whose parameters' gradient other ranks have the
  // rest of: as fp32 in `gradient`, where nothing was.
  void norm_apart(const Op& op, const OperationArguments& arguments, int32_t step,
                  std::span<float> gradient) const;

 private:
  // An operation with its arguments at hand.
  struct Call {
    const Op& op;
    const OperationArguments& arguments;
    int32_t step;
    Argument find(Role role) const { return arguments.find(op, role, step); }
  };
  // Of the sequences, or of their part that an operation is of.
  transformer::Shape shape_of(const Op& op) const;
  // Of those tokens the ones whose logits an operation of head or loss has.
  LossChunk chunk_of(const Op& op) const {
    return loss_chunk_of(plan_, shape_of(op).tokens(), op.label.loss_chunk);
  }
  // What a product reads of all tokens, or its gradient: the rows of its piece.
  transformer::View chunk_rows(const Call& call, const Argument& all, int64_t rows,
                               int64_t columns) const;
  void embedding(const Call& call) const;
  void norm(const Call& call) const;
  void norm_backward(const Call& call, transformer::View gradient, bool adds) const;
  // Of parameters that every tensor-parallel rank has whole, gradients of what each has of the
  // tokens or heads: summed over the ranks. `backward` writes them into the view that it is given.
  void sum_gradient(const Call& call, const Argument& gradient,
                    const std::function<void(transformer::View gradient)>& backward) const;
  // A product whose result ranks sum: its bias and residual are added by one of them.
  void row_parallel(const Call& call) const;
  void gemm(const Call& call) const;
  // Of the experts of a layer, and of those that it shares.
  void expert_gemm(const Call& call) const;
  void shared_gemm(const Call& call) const;
  // Of the chains of latent attention.
  void latent_gemm(const Call& call) const;
  void latent_norm(const Call& call) const;
  void attention(const Call& call) const;
  // Of parts of the sequences: queries apart from keys and values.
  void part_qkv(const Call& call) const;
  void part_attention(const Call& call) const;
  // Of a ring of two ranks (backend/host/attention/host_modules_ring.cpp).
  class Ring;
  void ring_attention(const Call& call) const;
  void activation(const Call& call) const;
  void expert_activation(const Call& call) const;
  void permute(const Call& call) const;
  void send_to_experts(const Call& call, const transformer::Routed& routed,
                       const transformer::ExpertRows& rows) const;
  // Of the rows that this rank's experts have.
  transformer::Routed routed(const Call& call) const;
  // Those of an argument.
  transformer::View expert_rows(const Call& call, Role role, ExpertArray array,
                                int64_t columns) const;
  // The gradients of their weights.
  transformer::View weight_gradients(const Call& call) const;
  void shared_gradient(const Call& call, const transformer::View& dy,
                       const transformer::View& x) const;
  // Tokens times the experts of each, whose rows come before those of the shared experts.
  int64_t sent_rows() const;

  bool sums_over_ranks() const { return plan_.tensor > 1; }

  const Model& model_;
  Model attention_;  // of the heads that this rank has of whole sequences
  Model experts_;    // with the experts that this rank has
  const Plan& plan_;
  RankPlace place_;
  const RankExchanges* exchanges_;
  const ExpertExchanges* sent_;
  transformer::VocabularyPart vocabulary_;
  std::vector<Subsequence> parts_;
};

}  // namespace ballast
