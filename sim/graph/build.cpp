#include "sim/graph/build.h"

#include "sim/graph/rewrite.h"

namespace ballast {

namespace {

// Emits the plain forward and backward. Tensors are made by shape, operations by module; the
// letters of the shapes are those of sim/spec/model.h.
class PlainBuilder {
 public:
  PlainBuilder(const Model& model, const Plan& plan) : model_(model), plan_(plan) {
    graph_.modules = modules_of(model);
    graph_.lanes = kLaneKinds;
    weight_.resize(graph_.modules.size(), -1);
    gradient_.resize(graph_.modules.size(), -1);
    for (size_t i = 0; i < graph_.modules.size(); ++i) {
      const Module& module = graph_.modules[i];
      if (module.count == 0) continue;
      const Label label{static_cast<int16_t>(module.layer), module.kind, -1, -1};
      weight_[i] = tensor(TensorKind::kWeight, Category::kWeights, label, module.count);
      gradient_[i] = tensor(TensorKind::kGradient, Category::kGradients, label, module.count);
    }
  }

  Graph run() {
    for (int64_t i = 0; i < plan_.accumulation(); ++i) micro_batch(static_cast<int16_t>(i));
    return std::move(graph_);
  }

 private:
  // Tensors that a layer's backward reads.
  struct LayerSaved {
    TensorId input, norm1, statistics1, qkv, attention, log_sum_exp, middle, norm2, statistics2,
        fc1, activation;
  };

  int64_t tokens() const { return *plan_.micro_batch * plan_.sequence_length; }

  TensorId tensor(TensorKind kind, Category category, Label label, int64_t elements) {
    return typed(kind, category, label, elements, plan_.dtype);
  }
  TensorId typed(TensorKind kind, Category category, Label label, int64_t elements, DType dtype) {
    Tensor t;
    t.kind = kind;
    t.category = category;
    t.place = Place::kHbm;
    t.dtype = dtype;
    t.label = label;
    t.elements = elements;
    return add_tensor(graph_, t);
  }
  TensorId output(Label label, int64_t width) {
    return tensor(TensorKind::kOutput, Category::kActivations, label, tokens() * width);
  }
  TensorId output_gradient(Label label, int64_t width) {
    return tensor(TensorKind::kOutputGradient, Category::kActivations, label, tokens() * width);
  }
  TensorId statistics(Label label) {
    return typed(TensorKind::kNormStatistics, Category::kActivations, label, tokens() * 2,
                 DType::kF32);
  }

  Op& emit(OpKind kind, Phase phase, Label label, Work work, std::vector<Access> accesses) {
    Op op;
    op.kind = kind;
    op.phase = phase;
    op.lane = lane_of(0, LaneKind::kCompute);
    op.label = label;
    op.work = std::move(work);
    op.accesses = std::move(accesses);
    graph_.step.ops.push_back(std::move(op));
    return graph_.step.ops.back();
  }

  // Index of a module; the head of a tied model is the embedding.
  size_t module_index(Label label) const {
    if (label.layer >= 0) {
      return 1 + static_cast<size_t>(label.layer) * 8 +
             (static_cast<size_t>(label.module) - static_cast<size_t>(ModuleKind::kNorm1));
    }
    const size_t after = 1 + static_cast<size_t>(model_.layers) * 8;
    switch (label.module) {
      case ModuleKind::kFinalNorm:
        return after;
      case ModuleKind::kHead:
        return model_.tied_embeddings ? 0 : after + 1;
      default:
        return 0;
    }
  }
  TensorId weight(Label label) const { return weight_[module_index(label)]; }

  // The first writer of a gradient in a step overwrites it, the later ones add.
  Access gradient(Label label) {
    const size_t index = module_index(label);
    const bool adds =
        label.micro_batch > 0 || (label.module == ModuleKind::kEmbedding && model_.tied_embeddings);
    return {gradient_[index], Role::kParameterGradient,
            adds ? AccessMode::kReadWrite : AccessMode::kWrite, 0};
  }

  RowWork rows(int64_t columns, int64_t values_moved, double flops_per_value) const {
    RowWork work;
    work.rows = tokens();
    work.columns = columns;
    work.dtype = plan_.dtype;
    work.moved = bytes_of(tokens() * values_moved, plan_.dtype);
    work.flops = {flops_per_value * static_cast<double>(tokens() * columns)};
    return work;
  }

  AttentionWork attention_work(double gemms) const {
    AttentionWork work;
    work.sequences = *plan_.micro_batch;
    work.length = plan_.sequence_length;
    work.heads = model_.heads;
    work.kv_heads = model_.kv_heads;
    work.head_size = model_.head_size;
    work.dtype = plan_.dtype;
    const auto length = static_cast<double>(work.length);
    // Each product of the causal half of [S, S] with D costs S*S*D.
    work.flops = {gemms * length * length *
                  static_cast<double>(work.head_size * work.heads * work.sequences)};
    const int64_t values = tokens() * (model_.qkv_width() + model_.attention_width());
    work.moved = bytes_of(gemms > 2 ? 2 * values + tokens() * model_.attention_width() : values,
                          plan_.dtype);
    return work;
  }

  void norm(Label label, TensorId x, TensorId out, TensorId stats) {
    emit(OpKind::kNorm, Phase::kForward, label, rows(model_.hidden, 2 * model_.hidden, 8),
         {read(x, Role::kInput), read(weight(label), Role::kWeight), write(out, Role::kOutput),
          write(stats, Role::kStatistics)});
  }
  // The gradient of the norm's input, the residual's gradient added.
  TensorId norm_backward(Label label, Label input, TensorId x, TensorId stats, TensorId dout,
                         TensorId residual_gradient) {
    const TensorId dx = output_gradient(input, model_.hidden);
    std::vector<Access> accesses = {read(x, Role::kInput),
                                    read(stats, Role::kStatistics),
                                    read(weight(label), Role::kWeight),
                                    read(dout, Role::kOutputGradient),
                                    write(dx, Role::kInputGradient),
                                    gradient(label)};
    if (residual_gradient >= 0) {
      accesses.push_back(read(residual_gradient, Role::kResidualGradient));
    }
    emit(OpKind::kNorm, Phase::kBackward, label, rows(model_.hidden, 4 * model_.hidden, 14),
         std::move(accesses));
    return dx;
  }

  void gemm(Label label, TensorId x, int64_t in, TensorId y, int64_t out, TensorId residual) {
    std::vector<Access> accesses = {read(x, Role::kInput), read(weight(label), Role::kWeight),
                                    write(y, Role::kOutput)};
    if (residual >= 0) accesses.push_back(read(residual, Role::kResidual));
    emit(OpKind::kGemm, Phase::kForward, label, GemmWork{tokens(), out, in, plan_.dtype, false},
         std::move(accesses));
  }
  // Weight gradient first: it is what the optimizer waits for.
  TensorId gemm_backward(Label label, Label input, TensorId x, int64_t in, TensorId dy,
                         int64_t out) {
    const Access dw = gradient(label);
    emit(OpKind::kGemm, Phase::kBackwardWeight, label,
         GemmWork{out, in, tokens(), plan_.dtype, dw.mode == AccessMode::kReadWrite},
         {read(dy, Role::kOutputGradient), read(x, Role::kInput), dw});
    const TensorId dx = output_gradient(input, in);
    emit(OpKind::kGemm, Phase::kBackwardInput, label,
         GemmWork{tokens(), in, out, plan_.dtype, false},
         {read(dy, Role::kOutputGradient), read(weight(label), Role::kWeight),
          write(dx, Role::kInputGradient)});
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
    gemm(label(ModuleKind::kAttentionOut), saved.attention, model_.attention_width(), saved.middle,
         c, x);
    saved.norm2 = output(label(ModuleKind::kNorm2), c);
    saved.statistics2 = statistics(label(ModuleKind::kNorm2));
    norm(label(ModuleKind::kNorm2), saved.middle, saved.norm2, saved.statistics2);
    saved.fc1 = output(label(ModuleKind::kFc1), model_.fc1_width());
    gemm(label(ModuleKind::kFc1), saved.norm2, c, saved.fc1, model_.fc1_width(), -1);
    saved.activation = output(label(ModuleKind::kActivation), model_.ffn);
    emit(OpKind::kActivation, Phase::kForward, label(ModuleKind::kActivation),
         rows(model_.ffn, model_.fc1_width() + model_.ffn, 12),
         {read(saved.fc1, Role::kInput), write(saved.activation, Role::kOutput)});
    const TensorId y = output(label(ModuleKind::kFc2), c);
    gemm(label(ModuleKind::kFc2), saved.activation, model_.ffn, y, c, saved.middle);
    return y;
  }

  void attention_forward(Label label, LayerSaved& saved) {
    saved.attention = output(label, model_.attention_width());
    saved.log_sum_exp = typed(TensorKind::kLogSumExp, Category::kActivations, label,
                              tokens() * model_.heads, DType::kF32);
    std::vector<Access> accesses = {read(saved.qkv, Role::kInput),
                                    write(saved.attention, Role::kOutput),
                                    write(saved.log_sum_exp, Role::kStatistics)};
    if (weight(label) >= 0) accesses.push_back(read(weight(label), Role::kWeight));
    emit(OpKind::kAttention, Phase::kForward, label, attention_work(2), std::move(accesses));
  }

  TensorId attention_backward(Label label, Label input, const LayerSaved& saved, TensorId dout) {
    const TensorId dqkv = output_gradient(input, model_.qkv_width());
    std::vector<Access> accesses = {
        read(saved.qkv, Role::kInput), read(saved.attention, Role::kOutput),
        read(saved.log_sum_exp, Role::kStatistics), read(dout, Role::kOutputGradient),
        write(dqkv, Role::kInputGradient)};
    if (weight(label) >= 0) {
      accesses.push_back(read(weight(label), Role::kWeight));
      accesses.push_back(gradient(label));
    }
    emit(OpKind::kAttention, Phase::kBackward, label, attention_work(5), std::move(accesses));
    return dqkv;
  }

  TensorId layer_backward(int64_t layer, int16_t micro, const LayerSaved& saved, TensorId dy) {
    const auto label = [&](ModuleKind kind) {
      return Label{static_cast<int16_t>(layer), kind, micro, -1};
    };
    const int64_t c = model_.hidden;
    const TensorId da = gemm_backward(label(ModuleKind::kFc2), label(ModuleKind::kActivation),
                                      saved.activation, model_.ffn, dy, c);
    const TensorId dh = output_gradient(label(ModuleKind::kFc1), model_.fc1_width());
    emit(OpKind::kActivation, Phase::kBackward, label(ModuleKind::kActivation),
         rows(model_.ffn, 2 * model_.fc1_width() + model_.ffn, 20),
         {read(saved.fc1, Role::kInput), read(da, Role::kOutputGradient),
          write(dh, Role::kInputGradient)});
    const TensorId dn2 = gemm_backward(label(ModuleKind::kFc1), label(ModuleKind::kNorm2),
                                       saved.norm2, c, dh, model_.fc1_width());
    const TensorId dmiddle =
        norm_backward(label(ModuleKind::kNorm2), label(ModuleKind::kAttentionOut), saved.middle,
                      saved.statistics2, dn2, dy);
    const TensorId dattention =
        gemm_backward(label(ModuleKind::kAttentionOut), label(ModuleKind::kCoreAttention),
                      saved.attention, model_.attention_width(), dmiddle, c);
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

  void micro_batch(int16_t micro) {
    const auto label = [&](ModuleKind kind) { return Label{-1, kind, micro, -1}; };
    const int64_t c = model_.hidden;
    const int64_t ids = *plan_.micro_batch * (plan_.sequence_length + 1);
    const TensorId batch = typed(TensorKind::kTokens, Category::kData,
                                 label(ModuleKind::kEmbedding), ids, DType::kI32);
    emit(OpKind::kLoadBatch, Phase::kForward, label(ModuleKind::kEmbedding),
         CopyWork{bytes_of(ids, DType::kI32), CopyDirection::kHostToDevice},
         {write(batch, Role::kTokens)})
        .lane = lane_of(0, LaneKind::kCopyIn);
    TensorId x = output(label(ModuleKind::kEmbedding), c);
    emit(OpKind::kEmbedding, Phase::kForward, label(ModuleKind::kEmbedding), rows(c, 2 * c, 1),
         {read(batch, Role::kTokens), read(weight(label(ModuleKind::kEmbedding)), Role::kWeight),
          write(x, Role::kOutput)});
    std::vector<LayerSaved> saved(static_cast<size_t>(model_.layers));
    for (int64_t i = 0; i < model_.layers; ++i) {
      x = layer_forward(i, micro, x, saved[static_cast<size_t>(i)]);
    }
    const TensorId normed = output(label(ModuleKind::kFinalNorm), c);
    const TensorId stats = statistics(label(ModuleKind::kFinalNorm));
    norm(label(ModuleKind::kFinalNorm), x, normed, stats);
    const TensorId logits = output(label(ModuleKind::kHead), model_.vocab);
    gemm(label(ModuleKind::kHead), normed, c, logits, model_.vocab, -1);
    // The loss leaves the logits' gradient in their place.
    emit(OpKind::kLoss, Phase::kForward, label(ModuleKind::kLoss),
         rows(model_.vocab, 2 * model_.vocab, 8),
         {read(batch, Role::kTokens), update(logits, Role::kOutput)});

    const TensorId dnormed = gemm_backward(label(ModuleKind::kHead), label(ModuleKind::kFinalNorm),
                                           normed, c, logits, model_.vocab);
    const Label top = {static_cast<int16_t>(model_.layers - 1), ModuleKind::kFc2, micro, -1};
    TensorId dx = norm_backward(label(ModuleKind::kFinalNorm), top, x, stats, dnormed, -1);
    for (int64_t i = model_.layers - 1; i >= 0; --i) {
      dx = layer_backward(i, micro, saved[static_cast<size_t>(i)], dx);
    }
    emit(OpKind::kEmbedding, Phase::kBackward, label(ModuleKind::kEmbedding), rows(c, 3 * c, 1),
         {read(batch, Role::kTokens), read(dx, Role::kOutputGradient),
          gradient(label(ModuleKind::kEmbedding))});
  }

  const Model& model_;
  const Plan& plan_;
  Graph graph_;
  std::vector<TensorId> weight_;  // by module, -1 where it has no parameters
  std::vector<TensorId> gradient_;
};

}  // namespace

Graph build_plain(const Model& model, const Plan& plan) {
  Graph graph = PlainBuilder(model, plan).run();
  graph.buckets = buckets_of(graph.modules, plan.optimizer);
  add_bucket_state(graph, plan);
  return graph;
}

Graph build(const Model& model, const Plan& plan) {
  check(plan, model);
  CHECK(plan.micro_batch && plan.activations && plan.weights.flow_share &&
        plan.optimizer.gpu_buckets);
  Graph graph = build_plain(model, plan);
  verify(graph);
  graph = checkpoint_pass(std::move(graph), plan);
  verify(graph);
  graph = residency_pass(std::move(graph), plan);
  verify(graph);
  graph = optimizer_pass(std::move(graph), plan);
  verify(graph);
  graph = shard_pass(std::move(graph), plan);
  verify(graph);
  link(graph);
  return graph;
}

}  // namespace ballast
