// Forward and backward of the decoder's modules on the CPU: operations to backend/host/transformer,
// roles of tensors to its arguments.
//
// Will not do: start threads, or order operations.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/execute/operation_arguments.h"
#include "backend/host/transformer_experts.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

class HostModules {
 public:
  // Both must outlive this.
  HostModules(const Model& model, const Plan& plan)
      : model_(model), plan_(plan), parts_(subsequences_of(plan, model)) {}

  // Embedding, norm, matrix product, attention, activation, or tokens' way to experts and back.
  void module(const Op& op, const OperationArguments& arguments, int32_t step) const;
  // Mean loss in nats, of a part of the sequences over its own tokens; logits become their gradient
  // times the factor.
  double loss(const Op& op, const OperationArguments& arguments, int32_t step,
              double gradient_factor) const;

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
  void embedding(const Call& call) const;
  void norm(const Call& call) const;
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
  void activation(const Call& call) const;
  void expert_activation(const Call& call) const;
  void permute(const Call& call) const;
  transformer::Routed routed(const Call& call) const;
  // Tokens times the experts of each, whose rows come before those of the shared experts.
  int64_t sent_rows() const;

  const Model& model_;
  const Plan& plan_;
  std::vector<Subsequence> parts_;
};

}  // namespace ballast
