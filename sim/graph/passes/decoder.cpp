// The decoder of one rank, forward and backward, operation by operation: what the passes rewrite.
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/attention.h"
#include "sim/graph/passes/decoder_ops.h"

namespace ballast {

namespace {

// Emits the plain forward and backward of a run of layers.
class Decoder : private DecoderOps {
 public:
  Decoder(const Model& rank, const Plan& plan, const StackFacts& facts, ChunkEnds ends)
      : DecoderOps(rank, plan, facts, ends) {}

  Graph run() {
    for (int64_t i = 0; i < plan_.accumulation(); ++i) micro_batch(static_cast<int16_t>(i));
    return std::move(graph_);
  }

 private:
  // Tensors that a layer's backward reads.
  struct LayerSaved {
    TensorId input, norm1, statistics1, qkv, attention, log_sum_exp, middle, norm2, statistics2,
        fc1, activation;
    TensorId gate = -1;
    TensorId router = -1, sent = -1;  // layers with experts: their scores, and what each receives
    TensorId scores = -1, dropped_scores = -1, scores_mask = -1;
    TensorId attention_mask = -1, output_mask = -1;
  };

  bool keeps_gate(int64_t layer) const {
    return facts_.keeps_gate && model_.activation == ActivationKind::kSwiGlu &&
           !model_.has_experts(layer);
  }

  // --- layers with experts -------------------------------------------------------------------

  // Tokens times the experts that each is sent to, the shared ones not counted.
  int64_t sent_rows() const { return tokens() * model_.experts_per_token; }
  TensorId sent_tensor(TensorKind kind, Label label) {
    return tensor(kind, Category::kActivations, label, sent_rows() * model_.hidden);
  }
  // To the ranks that hold the experts, or back.
  TensorId exchange(TensorId from, Phase phase, Label label) {
    if (plan_.expert == 1) return from;
    const TensorId to = add_tensor(graph_, graph_.tensor(from));
    const CollectiveWork work{CollectiveKind::kAllToAll, graph_.tensor(from).bytes(), plan_.expert,
                              plan_.tensor * plan_.sequence * plan_.context};
    graph_.step.ops.push_back(
        collective_op(LaneKind::kExpertNetwork, work, phase, label,
                      {read(from, Role::kSource), write(to, Role::kDestination)}));
    // Beside the computation of another micro-batch, which is not told apart here: nobody waits.
    return facts_.expert_overlap == Overlap::kFull ? from : to;
  }
  // Rows of tokens put in the order of experts, or put back and summed.
  void permute(Phase phase, Label label, std::vector<Access> accesses) {
    emit(OpKind::kActivation, phase, label,
         rows_of(sent_rows(), model_.hidden, 2 * model_.hidden, 2), std::move(accesses));
  }

  void route(Label label, LayerSaved& saved) {
    saved.router = output(label, model_.experts);
    gemm(label, saved.norm2, model_.hidden, saved.router, model_.experts, -1);
    const TensorId sorted = sent_tensor(TensorKind::kOutput, label);
    permute(Phase::kForward, label,
            {read(saved.norm2, Role::kInput), read(saved.router, Role::kStatistics),
             write(sorted, Role::kOutput)});
    saved.sent = exchange(sorted, Phase::kForward, label);
  }

  TensorId experts_down(Label label, const LayerSaved& saved, TensorId y) {
    const TensorId made = sent_tensor(TensorKind::kPartial, label);
    gemm(label, saved.activation, model_.expert_ffn, made, model_.hidden, -1, saved.output_mask);
    const TensorId back = exchange(made, Phase::kForward, label);
    permute(Phase::kForward, label,
            {read(back, Role::kInput), read(saved.router, Role::kStatistics),
             read(saved.middle, Role::kResidual), write(y, Role::kOutput)});
    return y;
  }

  // From the gradient of the layer's output to that of the experts' products.
  TensorId experts_down_backward(Label label, const LayerSaved& saved, TensorId dy) {
    const TensorId sorted = sent_tensor(TensorKind::kOutputGradient, label);
    permute(Phase::kBackward, label,
            {read(dy, Role::kOutputGradient), read(saved.router, Role::kStatistics),
             write(sorted, Role::kInputGradient)});
    return exchange(sorted, Phase::kBackward, label);
  }

  // From the gradient of what the experts received to that of the norm, the router's with it.
  TensorId route_backward(Label label, Label input, const LayerSaved& saved, TensorId dsent) {
    const TensorId back = exchange(dsent, Phase::kBackward, label);
    const TensorId dscores = output_gradient(label, model_.experts);
    const TensorId dx = output_gradient(input, model_.hidden);
    first_write(dx);
    permute(Phase::kBackward, label,
            {read(back, Role::kOutputGradient), read(saved.router, Role::kStatistics),
             write(dscores, Role::kScratch), write(dx, Role::kInputGradient)});
    const BackwardOf of{label, saved.norm2, dscores, dx, -1};
    for (const Product& product : products(label, model_.hidden, model_.experts)) {
      product_backward(of, product);
    }
    return dx;
  }

  TensorId layer_forward(int64_t layer, int16_t micro, TensorId x, LayerSaved& saved) {
    const auto label = [&](ModuleKind kind) {
      return Label{static_cast<int16_t>(layer), kind, micro, -1};
    };
    const int64_t c = model_.hidden;
    saved.input = x;
    saved.norm1 = output(label(ModuleKind::kNorm1), c);
    saved.statistics1 = statistics(label(ModuleKind::kNorm1));
    norm(label(ModuleKind::kNorm1), x, saved.norm1, saved.statistics1);
    saved.qkv = output(label(ModuleKind::kQkv), model_.qkv_width());
    gemm(label(ModuleKind::kQkv), saved.norm1, c, saved.qkv, model_.qkv_width(), -1);
    attention_forward(label(ModuleKind::kCoreAttention), saved);
    saved.middle = output(label(ModuleKind::kAttentionOut), c);
    saved.attention_mask = mask(label(ModuleKind::kAttentionOut), split_tokens() * c);
    gemm(label(ModuleKind::kAttentionOut), saved.attention, model_.attention_width(), saved.middle,
         c, x, saved.attention_mask);
    saved.norm2 = output(label(ModuleKind::kNorm2), c);
    saved.statistics2 = statistics(label(ModuleKind::kNorm2));
    norm(label(ModuleKind::kNorm2), saved.middle, saved.norm2, saved.statistics2);
    const int64_t wide = model_.fc1_width(layer);
    const int64_t ffn = model_.ffn_width(layer);
    const bool routed = model_.has_experts(layer);
    if (routed) route(label(ModuleKind::kRouter), saved);
    saved.fc1 = output(label(ModuleKind::kFc1), wide);
    gemm(label(ModuleKind::kFc1), routed ? saved.sent : saved.norm2, c, saved.fc1, wide, -1);
    saved.activation = output(label(ModuleKind::kActivation), ffn);
    const int64_t bias_pass = facts_.fusion == Fusion::kNone ? 2 * wide : 0;
    std::vector<Access> accesses = {read(saved.fc1, Role::kInput),
                                    write(saved.activation, Role::kOutput)};
    if (keeps_gate(layer)) {
      saved.gate = output(label(ModuleKind::kActivation), ffn);
      accesses.push_back(write(saved.gate, Role::kStatistics));
    }
    const int64_t gate_passes = saved.gate >= 0 ? 2 * ffn : 0;
    emit(OpKind::kActivation, Phase::kForward, label(ModuleKind::kActivation),
         rows(ffn, wide + ffn + bias_pass + gate_passes, 12), std::move(accesses));
    const TensorId y = output(label(ModuleKind::kFc2), c);
    saved.output_mask = mask(label(ModuleKind::kFc2), split_tokens() * c);
    if (saved.output_mask < 0 && facts_.recomputes_whole_layer) {
      // What makes a recomputed layer run to its end: the state of the random numbers.
      saved.output_mask =
          typed(TensorKind::kMask, Category::kActivations, label(ModuleKind::kFc2), 16, DType::kU8);
    }
    if (routed) return experts_down(label(ModuleKind::kFc2), saved, y);
    gemm(label(ModuleKind::kFc2), saved.activation, ffn, y, c, saved.middle, saved.output_mask);
    return y;
  }

  void attention_forward(Label label, LayerSaved& saved) {
    saved.attention = output(label, model_.attention_width());
    std::vector<Access> accesses = {read(saved.qkv, Role::kInput),
                                    write(saved.attention, Role::kOutput)};
    if (eager()) {
      for (const TensorId kept : make_scores(label, saved)) {
        accesses.push_back(write(kept, Role::kStatistics));
      }
    } else {
      saved.log_sum_exp = typed(TensorKind::kLogSumExp, Category::kActivations, label,
                                tokens() * model_.heads, DType::kF32);
      accesses.push_back(write(saved.log_sum_exp, Role::kStatistics));
    }
    if (weight(label) >= 0) accesses.push_back(read(weight(label), Role::kWeight));
    emit(OpKind::kAttention, Phase::kForward, label,
         attention_work(model_, plan_, facts_, Phase::kForward, label.layer), std::move(accesses));
  }

  // Softmax output and, with dropout, its mask and what is left: 5 bytes a score in 16 bits
  // (arXiv 2205.05198, section 4.1).
  std::vector<TensorId> make_scores(Label label, LayerSaved& saved) {
    saved.scores =
        tensor(TensorKind::kScores, Category::kActivations, label, scores_count(model_, plan_));
    if (!facts_.dropout) return {saved.scores};
    saved.dropped_scores =
        tensor(TensorKind::kScores, Category::kActivations, label, scores_count(model_, plan_));
    saved.scores_mask = mask(label, scores_count(model_, plan_));
    return {saved.scores, saved.dropped_scores, saved.scores_mask};
  }

  TensorId attention_backward(Label label, Label input, const LayerSaved& saved, TensorId dout) {
    const TensorId dqkv = output_gradient(input, model_.qkv_width());
    std::vector<Access> accesses = {read(saved.qkv, Role::kInput)};
    if (eager()) {
      for (const TensorId kept : {saved.scores, saved.dropped_scores, saved.scores_mask}) {
        if (kept >= 0) accesses.push_back(read(kept, Role::kStatistics));
      }
    } else {
      accesses.push_back(read(saved.attention, Role::kOutput));
      accesses.push_back(read(saved.log_sum_exp, Role::kStatistics));
    }
    accesses.push_back(read(dout, Role::kOutputGradient));
    accesses.push_back(write(dqkv, Role::kInputGradient));
    if (weight(label) >= 0) {
      accesses.push_back(read(weight(label), Role::kWeight));
      accesses.push_back(gradient(label));
    }
    emit(OpKind::kAttention, Phase::kBackward, label,
         attention_work(model_, plan_, facts_, Phase::kBackward, label.layer), std::move(accesses));
    return dqkv;
  }

  TensorId layer_backward(int64_t layer, int16_t micro, const LayerSaved& saved, TensorId dy) {
    const auto label = [&](ModuleKind kind) {
      return Label{static_cast<int16_t>(layer), kind, micro, -1};
    };
    const int64_t c = model_.hidden;
    const int64_t wide = model_.fc1_width(layer);
    const int64_t ffn = model_.ffn_width(layer);
    const bool routed = model_.has_experts(layer);
    TensorId dy_of_experts = dy;
    if (routed) dy_of_experts = experts_down_backward(label(ModuleKind::kFc2), saved, dy);
    const TensorId da = gemm_backward(label(ModuleKind::kFc2), label(ModuleKind::kActivation),
                                      saved.activation, ffn, dy_of_experts, c, saved.output_mask);
    const TensorId dh = output_gradient(label(ModuleKind::kFc1), wide);
    std::vector<Access> accesses = {read(saved.fc1, Role::kInput), read(da, Role::kOutputGradient),
                                    write(dh, Role::kInputGradient)};
    // The product's two gradients, then the activation's: two more values written, and read.
    if (saved.gate >= 0) accesses.push_back(read(saved.gate, Role::kStatistics));
    const int64_t gate_passes = saved.gate >= 0 ? 4 * ffn : 0;
    emit(OpKind::kActivation, Phase::kBackward, label(ModuleKind::kActivation),
         rows(ffn, 2 * wide + ffn + gate_passes, 20), std::move(accesses));
    TensorId dn2 = -1;
    if (routed) {
      const TensorId dsent = sent_tensor(TensorKind::kOutputGradient, label(ModuleKind::kRouter));
      const BackwardOf of{label(ModuleKind::kFc1), saved.sent, dh, dsent, -1};
      for (const Product& product : products(of.label, c, wide)) product_backward(of, product);
      dn2 = route_backward(label(ModuleKind::kRouter), label(ModuleKind::kNorm2), saved, dsent);
    } else {
      dn2 = gemm_backward(label(ModuleKind::kFc1), label(ModuleKind::kNorm2), saved.norm2, c, dh,
                          wide);
    }
    const TensorId dmiddle =
        norm_backward(label(ModuleKind::kNorm2), label(ModuleKind::kAttentionOut), saved.middle,
                      saved.statistics2, dn2, dy);
    const TensorId dattention =
        gemm_backward(label(ModuleKind::kAttentionOut), label(ModuleKind::kCoreAttention),
                      saved.attention, model_.attention_width(), dmiddle, c, saved.attention_mask);
    const TensorId dqkv = attention_backward(label(ModuleKind::kCoreAttention),
                                             label(ModuleKind::kQkv), saved, dattention);
    const TensorId dn1 = gemm_backward(label(ModuleKind::kQkv), label(ModuleKind::kNorm1),
                                       saved.norm1, c, dqkv, model_.qkv_width());
    const Label below = layer > 0
                            ? Label{static_cast<int16_t>(layer - 1), ModuleKind::kFc2, micro, -1}
                            : Label{-1, ModuleKind::kEmbedding, micro, -1};
    return norm_backward(label(ModuleKind::kNorm1), below, saved.input, saved.statistics1, dn1,
                         dmiddle);
  }

  // Leaves the logits' gradient in their place, or makes the copies that the stack makes.
  void loss(Label label, TensorId batch, TensorId logits) {
    std::vector<Access> accesses = {read(batch, Role::kTokens), update(logits, Role::kOutput)};
    // In values of 16 bits: a copy is written and read once as 32 bits.
    int64_t values_moved = 2 * model_.vocab;
    int64_t copies = 0;
    if (facts_.loss == LossPrecision::kF32) {
      copies = 1;
      values_moved = 6 * model_.vocab;
    } else if (facts_.loss == LossPrecision::kF32Copies) {
      // Where nothing is kept in 32 bits the copies are of 16.
      copies = 2;
      values_moved = 10 * model_.vocab;
    } else if (facts_.loss != LossPrecision::kInPlace) {
      copies = 3;
      values_moved = 16 * model_.vocab;
    }
    if (facts_.loss_bytes > 0)
      values_moved = facts_.loss_bytes * model_.vocab / size_of(plan_.dtype);
    const bool narrow = pure_16_bit(plan_, facts_) || facts_.loss == LossPrecision::kTorch;
    const int64_t wide = logits_count() / (copies == 1 ? 2 : 1);  // whose other half is the logits
    for (int64_t copy = 0; copy < copies; ++copy) {
      accesses.push_back(write(typed(TensorKind::kPartial, Category::kWorkspace, label, wide,
                                     narrow ? plan_.dtype : DType::kF32),
                               Role::kScratch));
    }
    emit(OpKind::kLoss, Phase::kForward, label, rows(model_.vocab, values_moved, 8),
         std::move(accesses));
  }
  // Of the logits that exist at once.
  int64_t logits_count() const { return div_ceil(tokens() * model_.vocab, facts_.loss_chunks); }

  // What another stage sends, at no cost of its own here.
  void arrive(Phase phase, Label label, TensorId value) {
    emit(OpKind::kCollective, phase, label, std::monostate{}, {write(value, Role::kDestination)})
        .lane = lane_of(0, LaneKind::kPipelineNetwork);
  }

  TensorId first_input(int16_t micro, TensorId batch) {
    const Label label{-1, ModuleKind::kEmbedding, micro, -1};
    const int64_t c = model_.hidden;
    const TensorId x = output(label, c);
    if (!ends_.first) {
      arrive(Phase::kForward, label, x);
      return x;
    }
    emit(OpKind::kEmbedding, Phase::kForward, label, rows(c, 2 * c, 1),
         {read(batch, Role::kTokens), read(weight(label), Role::kWeight), write(x, Role::kOutput)});
    return x;
  }

  // Final norm, head and loss, and their backward: the gradient of what the layers left.
  TensorId end_of_forward(int16_t micro, TensorId batch, TensorId x) {
    const auto label = [&](ModuleKind kind) { return Label{-1, kind, micro, -1}; };
    const Label top = {static_cast<int16_t>(model_.layers - 1), ModuleKind::kFc2, micro, -1};
    const int64_t c = model_.hidden;
    if (!ends_.last) {
      const TensorId dx = output_gradient(top, c);
      arrive(Phase::kBackward, top, dx);
      return dx;
    }
    const TensorId normed = output(label(ModuleKind::kFinalNorm), c);
    const TensorId stats = statistics(label(ModuleKind::kFinalNorm));
    norm(label(ModuleKind::kFinalNorm), x, normed, stats);
    const TensorId logits = tensor(TensorKind::kOutput, Category::kActivations,
                                   label(ModuleKind::kHead), logits_count());
    gemm(label(ModuleKind::kHead), normed, c, logits, model_.vocab, -1);
    loss(label(ModuleKind::kLoss), batch, logits);
    const TensorId dnormed = gemm_backward(label(ModuleKind::kHead), label(ModuleKind::kFinalNorm),
                                           normed, c, logits, model_.vocab);
    return norm_backward(label(ModuleKind::kFinalNorm), top, x, stats, dnormed, -1);
  }

  void micro_batch(int16_t micro) {
    const Label label{-1, ModuleKind::kEmbedding, micro, -1};
    const int64_t c = model_.hidden;
    TensorId batch = -1;
    if (ends_.first || ends_.last) batch = load_batch(label);
    TensorId x = first_input(micro, batch);
    std::vector<LayerSaved> saved(static_cast<size_t>(model_.layers));
    for (int64_t i = 0; i < model_.layers; ++i) {
      x = layer_forward(i, micro, x, saved[static_cast<size_t>(i)]);
    }
    TensorId dx = end_of_forward(micro, batch, x);
    for (int64_t i = model_.layers - 1; i >= 0; --i) {
      dx = layer_backward(i, micro, saved[static_cast<size_t>(i)], dx);
    }
    if (ends_.first) {
      emit(OpKind::kEmbedding, Phase::kBackward, label, rows(c, 3 * c, 1),
           {read(batch, Role::kTokens), read(dx, Role::kOutputGradient), gradient(label)});
    }
    add_apart(micro);
  }

  TensorId load_batch(Label label) {
    const int64_t ids = tokens() + *plan_.micro_batch;
    const TensorId batch = typed(TensorKind::kTokens, Category::kData, label, ids, DType::kI32);
    emit(OpKind::kLoadBatch, Phase::kForward, label,
         CopyWork{bytes_of(ids, DType::kI32), CopyDirection::kHostToDevice},
         {write(batch, Role::kTokens)})
        .lane = lane_of(0, LaneKind::kCopyIn);
    return batch;
  }
};

}  // namespace

Graph build_chunk(const Model& rank, const Plan& plan, const StackFacts& facts, ChunkEnds ends) {
  return Decoder(rank, plan, facts, ends).run();
}

}  // namespace ballast
