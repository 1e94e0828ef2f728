// The decoder of one rank, forward and backward, operation by operation: what the passes rewrite.
#include <map>
#include <set>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/attention.h"

namespace ballast {

namespace {

// Emits the plain forward and backward. Tensors are made by shape, operations by module; the
// letters of the shapes are those of sim/spec/model.h.
class PlainBuilder {
 public:
  // `model`: of one rank.
  PlainBuilder(const Model& model, const Plan& plan, const StackFacts& facts, ChunkEnds ends)
      : model_(model), plan_(plan), facts_(facts), ends_(ends) {
    facts_.dropout = facts.dropout && model.architecture == "gpt2";
    graph_.modules = modules_of(model);
    graph_.lanes = kLaneKinds;
    weight_.resize(graph_.modules.size(), -1);
    gradient_.resize(graph_.modules.size(), -1);
    for (size_t i = 0; i < graph_.modules.size(); ++i) {
      Module& module = graph_.modules[i];
      if (plan_.expert > 1) keep_own_experts(module);
      index_[{module.layer, module.kind}] = i;
      if (module.count == 0 || !holds(module)) continue;
      const Label label{static_cast<int16_t>(module.layer), module.kind, -1, -1};
      weight_[i] = tensor(TensorKind::kWeight, Category::kWeights, label, module.count);
      gradient_[i] =
          typed(TensorKind::kGradient, Category::kGradients, label, module.count, gradient_type());
    }
  }

  // Of a module's experts a rank holds its share.
  void keep_own_experts(Module& module) const {
    int64_t routed = 0;
    for (const Product& product : products_of(model_, module.kind, module.layer)) {
      if (product.copies > 1) routed += product.in * product.out * product.copies;
    }
    module.count -= routed - div_ceil(routed, plan_.expert);
    if (routed > 0) module.parameters.clear();
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
    TensorId router = -1, sent = -1;  // layers with experts: their scores, and what each receives
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

  // Products of a module for one token, and how many tokens pass them: several for experts and
  // latent attention.
  std::vector<Product> products(Label label, int64_t in, int64_t out) const {
    const bool several = (label.module == ModuleKind::kQkv && model_.is_latent()) ||
                         (has_experts(label) && is_routed(label.module));
    return several ? products_of(model_, label.module, label.layer)
                   : std::vector<Product>{{in, out}};
  }
  static bool is_routed(ModuleKind kind) {
    return kind == ModuleKind::kRouter || kind == ModuleKind::kFc1 || kind == ModuleKind::kFc2;
  }
  bool has_experts(Label label) const {
    return label.layer >= 0 && model_.has_experts(label.layer);
  }

  void gemm(Label label, TensorId x, int64_t in, TensorId y, int64_t out, TensorId residual,
            TensorId kept = -1) {
    Access result = write(y, Role::kOutput);
    for (const Product& product : products(label, in, out)) {
      std::vector<Access> accesses = {read(x, Role::kInput), read(weight(label), Role::kWeight),
                                      result};
      if (residual >= 0) accesses.push_back(read(residual, Role::kResidual));
      if (kept >= 0) accesses.push_back(write(kept, Role::kStatistics));
      emit(OpKind::kGemm, Phase::kForward, label,
           GemmWork{tokens() * product.active, product.out, product.in, plan_.dtype, false},
           std::move(accesses));
      result.mode = AccessMode::kReadWrite;
      residual = kept = -1;
    }
  }

  struct BackwardOf {
    Label label;
    TensorId x = -1, dy = -1, dx = -1;
    TensorId kept = -1;
  };
  // The gradient of the input, which is made here.
  TensorId gemm_backward(Label label, Label input, TensorId x, int64_t in, TensorId dy, int64_t out,
                         TensorId kept = -1) {
    const BackwardOf of{label, x, dy, output_gradient(input, in), kept};
    for (const Product& product : products(label, in, out)) product_backward(of, product);
    return of.dx;
  }

  // Weight gradient first: it is what the optimizer waits for. But where ranks exchange gradients
  // of inputs, those first: the exchange runs beside the weight gradient.
  void product_backward(const BackwardOf& of, const Product& product) {
    const Access dw = gradient(of.label);
    const int64_t rows = tokens() * product.active;
    std::vector<Access> accesses = {read(of.dy, Role::kOutputGradient), read(of.x, Role::kInput),
                                    dw};
    if (of.kept >= 0) accesses.push_back(read(of.kept, Role::kStatistics));
    const auto weight_gradient = [&] {
      emit(OpKind::kGemm, Phase::kBackwardWeight, of.label,
           GemmWork{product.out, product.in, rows, plan_.dtype, dw.mode == AccessMode::kReadWrite},
           accesses);
    };
    const bool exchanges = plan_.tensor > 1 && facts_.tensor_overlap != Overlap::kNone;
    if (!exchanges) weight_gradient();
    emit(OpKind::kGemm, Phase::kBackwardInput, of.label,
         GemmWork{rows, product.in, product.out, plan_.dtype, false},
         {read(of.dy, Role::kOutputGradient),
          read(weight(of.label), Role::kWeight),
          {of.dx, Role::kInputGradient, first_write(of.dx), 0}});
    if (exchanges) weight_gradient();
  }
  // Several products of a module add up in one gradient.
  AccessMode first_write(TensorId id) {
    return written_.insert(id).second ? AccessMode::kWrite : AccessMode::kReadWrite;
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
    const TensorId to = add_tensor(graph_, graph_.tensors[static_cast<size_t>(from)]);
    const CollectiveWork work{CollectiveKind::kAllToAll,
                              graph_.tensors[static_cast<size_t>(from)].bytes(), plan_.expert,
                              plan_.tensor * plan_.sequence * plan_.context};
    graph_.step.ops.push_back(collective_op(
        work, phase, label, {read(from, Role::kSource), write(to, Role::kDestination)}));
    return to;
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
    emit(OpKind::kActivation, Phase::kForward, label(ModuleKind::kActivation),
         rows(ffn, wide + ffn + bias_pass, 12),
         {read(saved.fc1, Role::kInput), write(saved.activation, Role::kOutput)});
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
    emit(OpKind::kActivation, Phase::kBackward, label(ModuleKind::kActivation),
         rows(ffn, 2 * wide + ffn, 20),
         {read(saved.fc1, Role::kInput), read(da, Role::kOutputGradient),
          write(dh, Role::kInputGradient)});
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
  StackFacts facts_;
  ChunkEnds ends_;
  Graph graph_;
  std::vector<TensorId> weight_;  // by module, -1 where it has no parameters
  std::vector<TensorId> gradient_;
  std::map<std::pair<int64_t, ModuleKind>, size_t> index_;
  std::set<TensorId> written_;  // gradients of inputs that have had their first writer
};

}  // namespace

Graph build_chunk(const Model& rank, const Plan& plan, const StackFacts& facts, ChunkEnds ends) {
  return PlainBuilder(rank, plan, facts, ends).run();
}

}  // namespace ballast
