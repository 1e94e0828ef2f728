#include "sim/graph/build.h"

#include <map>

#include "sim/graph/rewrite.h"

namespace ballast {

namespace {

// Emits the plain forward and backward. Tensors are made by shape, operations by module; the
// letters of the shapes are those of sim/spec/model.h.
class PlainBuilder {
 public:
  // `model`: of one rank.
  PlainBuilder(const Model& model, const Plan& plan, const StackFacts& facts, ChunkEnds ends)
      : model_(model), plan_(plan), facts_(facts), ends_(ends) {
    graph_.modules = modules_of(model);
    graph_.lanes = kLaneKinds;
    weight_.resize(graph_.modules.size(), -1);
    gradient_.resize(graph_.modules.size(), -1);
    for (size_t i = 0; i < graph_.modules.size(); ++i) {
      const Module& module = graph_.modules[i];
      index_[{module.layer, module.kind}] = i;
      if (module.count == 0 || !holds(module)) continue;
      const Label label{static_cast<int16_t>(module.layer), module.kind, -1, -1};
      weight_[i] = tensor(TensorKind::kWeight, Category::kWeights, label, module.count);
      gradient_[i] =
          typed(TensorKind::kGradient, Category::kGradients, label, module.count, gradient_type());
    }
  }

  // Whether a chunk with these ends has the module's weights.
  bool holds(const Module& module) const {
    if (module.layer >= 0) return true;
    if (module.kind != ModuleKind::kEmbedding) return ends_.last;
    return ends_.first || (ends_.last && model_.tied_embeddings);
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
    TensorId scores = -1, dropped_scores = -1, scores_mask = -1;
    TensorId attention_mask = -1, output_mask = -1;
  };

  int64_t tokens() const { return plan_.tokens_per_micro_batch(); }
  // Of norms and residuals on one rank.
  int64_t split_tokens() const {
    return plan_.tensor_sequence ? div_ceil(tokens(), plan_.tensor) : tokens();
  }
  bool eager() const { return facts_.attention.front() == AttentionKind::kEager; }
  DType gradient_type() const { return gradient_dtype(plan_, facts_); }
  // Passes over [T, C] that bias, dropout and residual take after a product.
  int64_t residual_passes() const {
    switch (facts_.fusion) {
      case Fusion::kIntoProducts:
        return 0;
      case Fusion::kOnePass:
        return 3;  // reads the product and the residual, writes the sum
      case Fusion::kNone:
        return facts_.dropout ? 7 : 5;  // bias in and out, dropout in and out, residual
    }
    return 0;
  }

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
  // What lies between tensor-parallel regions: norms and residuals.
  static bool is_split(ModuleKind kind) {
    return kind == ModuleKind::kEmbedding || kind == ModuleKind::kNorm1 ||
           kind == ModuleKind::kAttentionOut || kind == ModuleKind::kNorm2 ||
           kind == ModuleKind::kFc2 || kind == ModuleKind::kFinalNorm;
  }
  int64_t tokens_of(ModuleKind kind) const { return is_split(kind) ? split_tokens() : tokens(); }
  TensorId output(Label label, int64_t width) {
    return tensor(TensorKind::kOutput, Category::kActivations, label,
                  tokens_of(label.module) * width);
  }
  TensorId output_gradient(Label label, int64_t width) {
    return tensor(TensorKind::kOutputGradient, Category::kActivations, label,
                  tokens_of(label.module) * width);
  }
  TensorId statistics(Label label) {
    return typed(TensorKind::kNormStatistics, Category::kActivations, label, split_tokens() * 2,
                 DType::kF32);
  }
  // A dropout's mask of `elements` bytes, or -1 where nothing is dropped.
  TensorId mask(Label label, int64_t elements) {
    if (!facts_.dropout) return -1;
    return typed(TensorKind::kMask, Category::kActivations, label, elements, DType::kU8);
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
    if (label.module == ModuleKind::kHead && model_.tied_embeddings) return 0;
    const auto found = index_.find({label.layer, label.module});
    return found != index_.end() ? found->second : 0;
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
    return rows_of(tokens(), columns, values_moved, flops_per_value);
  }
  RowWork rows_of(int64_t count, int64_t columns, int64_t values_moved,
                  double flops_per_value) const {
    RowWork work;
    work.rows = count;
    work.columns = columns;
    work.dtype = plan_.dtype;
    work.moved = bytes_of(count * values_moved, plan_.dtype);
    work.flops = {flops_per_value * static_cast<double>(count * columns)};
    return work;
  }

  // `gemms`: products of the square that are made, 2 forward and 5 backward (of which eager
  // attention, which kept the scores, makes 4).
  AttentionWork attention_work(double gemms) const {
    AttentionWork work;
    work.sequences = *plan_.micro_batch;
    work.length = plan_.sequence_length;
    work.heads = div_ceil(model_.heads, plan_.sequence);
    work.kv_heads = div_ceil(model_.kv_heads, plan_.sequence);
    work.head_size = model_.head_size;
    work.dtype = plan_.dtype;
    if (eager()) return eager_work(work, gemms > 2);
    if (plan_.context > 1) gemms /= static_cast<double>(plan_.context);
    const auto length = static_cast<double>(work.length);
    // Each product of the causal half of [S, S] with D costs S*S*D.
    work.flops = {gemms * length * length *
                  static_cast<double>(work.head_size * work.heads * work.sequences)};
    const int64_t values = tokens() * (model_.qkv_width() + model_.attention_width());
    work.moved = bytes_of(gemms > 2 ? 2 * values + tokens() * model_.attention_width() : values,
                          plan_.dtype);
    // Rotary embedding as a pass of its own reads and writes queries and keys.
    if (facts_.fusion != Fusion::kIntoProducts && model_.position == PositionKind::kRope) {
      work.moved +=
          bytes_of(2 * tokens() * (model_.heads + model_.kv_heads) * model_.head_size, plan_.dtype);
    }
    return work;
  }

  // Passes over the scores, each [B, H, S, S] read or written once. Forward: written by the first
  // product, softmax (scale and mask with it) reads and writes, the second product reads. Backward:
  // written, softmax reads it and the scores and writes, three products read. Dropout reads and
  // writes once more and a byte of mask; unfused scaling and masking read and write each.
  AttentionWork eager_work(AttentionWork work, bool backward) const {
    work.kind = AttentionKind::kEager;
    const auto length = static_cast<double>(work.length);
    work.flops = {(backward ? 8 : 4) * length * length *
                  static_cast<double>(work.head_size * work.heads * work.sequences)};
    int64_t passes = backward ? 7 : 4;
    if (facts_.fusion == Fusion::kNone) passes += backward ? 2 : 4;
    const int64_t values = scores_count();
    work.moved = bytes_of(values * passes, plan_.dtype);
    if (facts_.dropout) work.moved += bytes_of(2 * values, plan_.dtype) + Bytes{values};
    return work;
  }
  int64_t scores_count() const {
    return *plan_.micro_batch * div_ceil(model_.heads, plan_.sequence) * plan_.sequence_length *
           plan_.sequence_length;
  }

  // Passes over [T, C] in 16 bits. LayerNorm is one kernel everywhere; RMSNorm as separate PyTorch
  // operations casts up (3), squares (4), takes the mean (2), scales (4), casts down (3) and
  // multiplies by the weight (2).
  int64_t norm_passes() const {
    return facts_.fusion == Fusion::kNone && model_.norm == NormKind::kRmsNorm ? 18 : 2;
  }
  // Every norm reads the sum of a residual and a product but the very first.
  static bool follows_residual(Label label) {
    return label.module != ModuleKind::kNorm1 || label.layer > 0;
  }

  void norm(Label label, TensorId x, TensorId out, TensorId stats) {
    const int64_t passes = norm_passes() + (follows_residual(label) ? residual_passes() : 0);
    emit(OpKind::kNorm, Phase::kForward, label,
         rows_of(split_tokens(), model_.hidden, passes * model_.hidden, 8),
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
    // The backward of the residual before: dropout and bias gradients read and write again.
    const int64_t passes = 2 * norm_passes() + (follows_residual(label) && facts_.dropout ? 3 : 0);
    emit(OpKind::kNorm, Phase::kBackward, label,
         rows_of(split_tokens(), model_.hidden, passes * model_.hidden, 14), std::move(accesses));
    return dx;
  }

  void gemm(Label label, TensorId x, int64_t in, TensorId y, int64_t out, TensorId residual,
            TensorId kept = -1) {
    std::vector<Access> accesses = {read(x, Role::kInput), read(weight(label), Role::kWeight),
                                    write(y, Role::kOutput)};
    if (residual >= 0) accesses.push_back(read(residual, Role::kResidual));
    if (kept >= 0) accesses.push_back(write(kept, Role::kStatistics));
    emit(OpKind::kGemm, Phase::kForward, label, GemmWork{tokens(), out, in, plan_.dtype, false},
         std::move(accesses));
  }
  // Weight gradient first: it is what the optimizer waits for. But where ranks exchange gradients
  // of inputs, those first: the exchange runs beside the weight gradient.
  TensorId gemm_backward(Label label, Label input, TensorId x, int64_t in, TensorId dy, int64_t out,
                         TensorId kept = -1) {
    const Access dw = gradient(label);
    std::vector<Access> accesses = {read(dy, Role::kOutputGradient), read(x, Role::kInput), dw};
    if (kept >= 0) accesses.push_back(read(kept, Role::kStatistics));
    const auto weight_gradient = [&] {
      emit(OpKind::kGemm, Phase::kBackwardWeight, label,
           GemmWork{out, in, tokens(), plan_.dtype, dw.mode == AccessMode::kReadWrite}, accesses);
    };
    const bool exchanges = plan_.tensor > 1 && facts_.tensor_overlap != Overlap::kNone;
    if (!exchanges) weight_gradient();
    const TensorId dx = output_gradient(input, in);
    emit(OpKind::kGemm, Phase::kBackwardInput, label,
         GemmWork{tokens(), in, out, plan_.dtype, false},
         {read(dy, Role::kOutputGradient), read(weight(label), Role::kWeight),
          write(dx, Role::kInputGradient)});
    if (exchanges) weight_gradient();
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
    saved.fc1 = output(label(ModuleKind::kFc1), model_.fc1_width());
    gemm(label(ModuleKind::kFc1), saved.norm2, c, saved.fc1, model_.fc1_width(), -1);
    saved.activation = output(label(ModuleKind::kActivation), model_.ffn);
    const int64_t bias_pass = facts_.fusion == Fusion::kNone ? 2 * model_.fc1_width() : 0;
    emit(OpKind::kActivation, Phase::kForward, label(ModuleKind::kActivation),
         rows(model_.ffn, model_.fc1_width() + model_.ffn + bias_pass, 12),
         {read(saved.fc1, Role::kInput), write(saved.activation, Role::kOutput)});
    const TensorId y = output(label(ModuleKind::kFc2), c);
    saved.output_mask = mask(label(ModuleKind::kFc2), split_tokens() * c);
    if (saved.output_mask < 0 && facts_.recomputes_whole_layer) {
      // What makes a recomputed layer run to its end: the state of the random numbers.
      saved.output_mask =
          typed(TensorKind::kMask, Category::kActivations, label(ModuleKind::kFc2), 16, DType::kU8);
    }
    gemm(label(ModuleKind::kFc2), saved.activation, model_.ffn, y, c, saved.middle,
         saved.output_mask);
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
    emit(OpKind::kAttention, Phase::kForward, label, attention_work(2), std::move(accesses));
  }

  // Softmax output and, with dropout, its mask and what is left: 5 bytes a score in 16 bits
  // (arXiv 2205.05198, section 4.1).
  std::vector<TensorId> make_scores(Label label, LayerSaved& saved) {
    saved.scores = tensor(TensorKind::kScores, Category::kActivations, label, scores_count());
    if (!facts_.dropout) return {saved.scores};
    saved.dropped_scores =
        tensor(TensorKind::kScores, Category::kActivations, label, scores_count());
    saved.scores_mask = mask(label, scores_count());
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
    emit(OpKind::kAttention, Phase::kBackward, label, attention_work(5), std::move(accesses));
    return dqkv;
  }

  TensorId layer_backward(int64_t layer, int16_t micro, const LayerSaved& saved, TensorId dy) {
    const auto label = [&](ModuleKind kind) {
      return Label{static_cast<int16_t>(layer), kind, micro, -1};
    };
    const int64_t c = model_.hidden;
    const TensorId da = gemm_backward(label(ModuleKind::kFc2), label(ModuleKind::kActivation),
                                      saved.activation, model_.ffn, dy, c, saved.output_mask);
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
    }
    const bool pure = pure_16_bit(plan_, facts_);
    const int64_t wide = logits_count() / (copies == 1 ? 2 : 1);  // whose other half is the logits
    for (int64_t copy = 0; copy < copies; ++copy) {
      accesses.push_back(write(typed(TensorKind::kPartial, Category::kWorkspace, label, wide,
                                     pure ? plan_.dtype : DType::kF32),
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
        .lane = lane_of(0, LaneKind::kNetwork);
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
    if (!ends_.first) return;
    emit(OpKind::kEmbedding, Phase::kBackward, label, rows(c, 3 * c, 1),
         {read(batch, Role::kTokens), read(dx, Role::kOutputGradient), gradient(label)});
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

  const Model& model_;
  const Plan& plan_;
  const StackFacts& facts_;
  ChunkEnds ends_;
  Graph graph_;
  std::vector<TensorId> weight_;  // by module, -1 where it has no parameters
  std::vector<TensorId> gradient_;
  std::map<std::pair<int64_t, ModuleKind>, size_t> index_;
};

}  // namespace

Model rank_model(const Model& model, const Plan& plan) {
  Model rank = model;
  if (plan.tensor == 1) return rank;
  rank.heads = div_ceil(model.heads, plan.tensor);
  rank.kv_heads = div_ceil(model.kv_heads, plan.tensor);
  rank.ffn = div_ceil(model.ffn, plan.tensor);
  rank.vocab = div_ceil(model.vocab, plan.tensor);
  return rank;
}

Graph build_plain(const Model& model, const Plan& plan) {
  return build_plain(model, plan, StackFacts{});
}

Graph build_plain(const Model& model, const Plan& plan, const StackFacts& facts) {
  Graph graph = build_chunk(rank_model(model, plan), plan, facts, {});
  graph.buckets = buckets_of(graph.modules, plan.optimizer);
  add_bucket_state(graph, plan, facts);
  return graph;
}

Graph build_chunk(const Model& rank, const Plan& plan, const StackFacts& facts, ChunkEnds ends) {
  return PlainBuilder(rank, plan, facts, ends).run();
}

Graph build(const Model& model, const Plan& plan) { return build(model, plan, StackFacts{}); }

Graph build(const Model& model, const Plan& plan, const StackFacts& facts) {
  check(plan, model);
  CHECK(plan.micro_batch && plan.activations && plan.weights.flow_share &&
        plan.optimizer.gpu_buckets);
  if (plan.pipeline > 1) return build_pipeline(model, plan, facts);
  Graph graph = build_plain(model, plan, facts);
  verify(graph);
  graph = tensor_pass(std::move(graph), model, plan, facts);
  verify(graph);
  graph = sequence_pass(std::move(graph), plan);
  verify(graph);
  graph = checkpoint_pass(std::move(graph), plan);
  verify(graph);
  graph = gather_pass(std::move(graph), plan, facts);
  verify(graph);
  graph = residency_pass(std::move(graph), plan);
  verify(graph);
  graph = optimizer_pass(std::move(graph), plan, facts);
  verify(graph);
  graph = shard_pass(std::move(graph), plan);
  verify(graph);
  link(graph);
  return graph;
}

}  // namespace ballast
