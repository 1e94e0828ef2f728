// The operations and tensors that a decoder is made of: norms, products and their gradients.
//
// Tensors are made by shape, operations by module; the letters of the shapes are those of
// sim/spec/model.h.
//
// Will not do: say in what order they stand (sim/graph/passes/decoder/decoder.cpp).
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/module_index.h"

namespace ballast {

class DecoderOps {
 protected:
  // `model`: of one rank. References must outlive this object.
  DecoderOps(const Model& model, const Plan& plan, const StackFacts& facts, ChunkEnds ends);

  // A latent of attention: as it is made, and normalised.
  struct Latent {
    TensorId made = -1, normed = -1, statistics = -1;
  };
  // Tensors that a layer's backward reads.
  struct LayerSaved {
    TensorId input, norm1, statistics1, qkv, attention, log_sum_exp, middle, norm2, statistics2,
        fc1, activation;
    Latent query, key;                  // latent attention: what queries, keys and values come from
    TensorId router = -1, choice = -1;  // layers with experts: their scores, and what is chosen
    TensorId sent = -1;                 // what each of them receives
    TensorId scores = -1, dropped_scores = -1, scores_mask = -1;
    TensorId attention_mask = -1, output_mask = -1;
    TensorId repeated = -1;  // keys and values for all heads, where a framework keeps those
    TensorId gate = -1;      // of the activation, where a framework keeps its other half
    // Where sequences pass in parts, qkv has queries alone; these are the keys and values that they
    // see, part by part, their own last, and the first part of them.
    std::vector<TensorId> keys_values;
    size_t first_seen = 0;
  };

  // Whether a chunk with these ends has the module's weights.
  bool holds(const Module& module) const;
  // Of the part of the sequences that is under way.
  int64_t tokens() const {
    return is_divided() ? part_tokens(plan_, part()) : plan_.tokens_per_micro_batch();
  }
  bool is_divided() const { return parts_.size() > 1; }
  const Subsequence& part() const { return parts_[part_]; }
  // What is emitted from here on is of this part.
  void begin_part(size_t part) { part_ = part; }
  // Of norms and residuals on one rank.
  int64_t split_tokens() const;
  bool eager() const { return facts_.attention.front() == AttentionKind::kEager; }
  DType gradient_type() const { return gradient_dtype(plan_, facts_); }
  // Passes over [T, C] that bias, dropout and residual take after a product.
  int64_t residual_passes() const;
  TensorId tensor(TensorKind kind, Category category, Label label, int64_t elements);
  TensorId typed(TensorKind kind, Category category, Label label, int64_t elements, DType dtype);
  // What lies between tensor-parallel regions: norms and residuals.
  static bool is_split(ModuleKind kind);
  int64_t tokens_of(ModuleKind kind) const { return is_split(kind) ? split_tokens() : tokens(); }
  TensorId output(Label label, int64_t width);
  TensorId output_gradient(Label label, int64_t width);
  TensorId statistics(Label label);
  // Those of a norm over [T, C], with what a framework keeps of its input beside.
  TensorId norm_statistics(Label label);
  bool keeps_wide_norms() const {
    return facts_.keeps_wide_norms && model_.norm == NormKind::kRmsNorm;
  }
  // A dropout's mask of `elements` bytes, or -1 where nothing is dropped.
  TensorId mask(Label label, int64_t elements);
  Op& emit(OpKind kind, Phase phase, Label label, Work work, std::vector<Access> accesses);
  // Index of a module; the head of a tied model is the embedding.
  size_t module_index(Label label) const;
  TensorId weight(Label label) const { return weight_[module_index(label)]; }
  // The label, of the part that is under way.
  Label of_part(Label label) const;
  // The first writer of a gradient in a step overwrites it, the later ones add.
  Access gradient(Label label);
  // Whether a micro-batch writes gradients of its own, which are added to the wide ones behind its
  // backward: one that has none overwrites them (StackFacts::adds_gradients_apart).
  bool adds_apart() const;
  // Of a layer (-1: of what is outside the layers), or of all that are not added yet.
  void add_apart(int16_t micro, std::optional<int64_t> layer);
  RowWork rows(int64_t columns, int64_t values_moved, double flops_per_value) const;
  RowWork rows_of(int64_t count, int64_t columns, int64_t values_moved,
                  double flops_per_value) const;
  // Values that a norm of `width` moves for a token. In passes over them, of 16 bits: LayerNorm is
  // one kernel everywhere; RMSNorm as separate PyTorch operations casts up (3), squares (4), takes
  // the mean (2), scales (4), casts down (3) and multiplies by the weight (2).
  int64_t norm_values(Phase phase, int64_t width) const;
  // The same of what a framework makes once more before a norm's backward.
  int64_t repeated_norm_values(Label label) const;
  // Every norm reads the sum of a residual and a product but the very first.
  static bool follows_residual(Label label);
  void norm(Label label, TensorId x, TensorId out, TensorId stats);
  // The gradient of the norm's input, the residual's gradient added.
  TensorId norm_backward(Label label, Label input, TensorId x, TensorId stats, TensorId dout,
                         TensorId residual_gradient);
  bool has_experts(Label label) const;
  void gemm(Label label, TensorId x, int64_t in, TensorId y, int64_t out, TensorId residual,
            TensorId kept = -1);
  struct BackwardOf {
    Label label;
    TensorId x = -1, dy = -1, dx = -1;
    TensorId kept = -1;
    // Of experts' products: how many there are, the rows they have, and, where their biases are
    // weighted, the scores and where the gradients of the weights go.
    int64_t experts = 0;
    TensorId choice = -1, scores = -1, dscores = -1;
    bool follows = false;  // another product wrote other parts of the same gradients before
    int64_t rows = 0;      // 0: all tokens
  };
  // The gradient of the input, which is made here.
  TensorId gemm_backward(Label label, Label input, TensorId x, int64_t in, TensorId dy, int64_t out,
                         TensorId kept = -1);
  // Weight gradient first: it is what the optimizer waits for. But where ranks exchange gradients
  // of inputs, those first: the exchange runs beside the weight gradient.
  void product_backward(const BackwardOf& backward, const Product& product);
  // Whether the gradient of a weight is made by itself and added to that of earlier micro-batches
  // in a pass of its own (StackFacts::accumulate_bytes); the product and that pass.
  bool adds_behind_product(Label label) const;
  void add_behind_product(Label label, GemmWork work, std::vector<Access> accesses);
  // Several products of a module add up in one gradient.
  AccessMode first_write(TensorId id);

  const Model& model_;
  const Plan& plan_;
  StackFacts facts_;
  ChunkEnds ends_;
  std::vector<Subsequence> parts_;
  size_t part_ = 0;
  Graph graph_;
  std::vector<TensorId> weight_;  // by module, -1 where it has no parameters
  std::vector<TensorId> gradient_;
  std::vector<TensorId> apart_;  // by module, of the micro-batch that is under way
  ModuleIndex index_;
  std::set<TensorId> written_;  // gradients of inputs that have had their first writer
};

}  // namespace ballast
