// The decoder of one rank, forward and backward, operation by operation: what the passes rewrite.
#include <map>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/decoder/attention.h"
#include "sim/graph/passes/decoder/decoder_experts.h"
#include "sim/spec/ranks/ring.h"

namespace ballast {

namespace {

// Emits the plain forward and backward of a run of layers.
class Decoder : private DecoderExperts {
 public:
  Decoder(const Model& rank, const Plan& plan, const StackFacts& facts, ChunkEnds ends)
      : DecoderExperts(rank, plan, facts, ends) {}

  Graph run() {
    for (int64_t i = 0; i < plan_.accumulation(); ++i) {
      micro_batch(static_cast<int16_t>(i));
      if (i == 0) reserve_for_rest();
    }
    if (plan_.routing_percent > 100) load_busiest_rank(graph_, model_, plan_);
    return std::move(graph_);
  }

 private:
  // The other micro-batches are like the first. Passes will add about half as many operations:
  // without room for them each would move all that is there.
  void reserve_for_rest() {
    const auto count = static_cast<size_t>(plan_.accumulation());
    graph_.step.ops.reserve(count * graph_.step.ops.size() * 3 / 2);
    graph_.tensors.reserve(count * graph_.tensors.size() * 3 / 2);
  }

  bool keeps_gate(int64_t layer) const {
    return facts_.keeps_gate && model_.activation == ActivationKind::kSwiGlu &&
           !model_.has_experts(layer);
  }

  bool repeats_heads() const {
    return facts_.keeps_repeated_heads && plan_.sequence == 1 && !is_divided() &&
           model_.kv_heads < model_.heads;
  }

  TensorId layer_forward(int64_t layer, int16_t micro, TensorId x, LayerSaved& saved) {
    const auto label = [&](ModuleKind kind) {
      return Label{static_cast<int16_t>(layer), kind, micro, -1};
    };
    const int64_t c = model_.hidden;
    saved.input = x;
    saved.norm1 = output(label(ModuleKind::kNorm1), c);
    saved.statistics1 = norm_statistics(label(ModuleKind::kNorm1));
    norm(label(ModuleKind::kNorm1), x, saved.norm1, saved.statistics1);
    qkv_forward(label(ModuleKind::kQkv), saved);
    attention_forward(label(ModuleKind::kCoreAttention), saved);
    saved.middle = output(label(ModuleKind::kAttentionOut), c);
    saved.attention_mask = mask(label(ModuleKind::kAttentionOut), split_tokens() * c);
    gemm(label(ModuleKind::kAttentionOut), saved.attention, model_.attention_width(), saved.middle,
         c, x, saved.attention_mask);
    saved.norm2 = output(label(ModuleKind::kNorm2), c);
    saved.statistics2 = norm_statistics(label(ModuleKind::kNorm2));
    norm(label(ModuleKind::kNorm2), saved.middle, saved.norm2, saved.statistics2);
    const int64_t wide = model_.fc1_width(layer);
    const int64_t ffn = model_.ffn_width(layer);
    const bool routed = model_.has_experts(layer);
    if (routed) route(label(ModuleKind::kRouter), saved);
    saved.fc1 = output(label(ModuleKind::kFc1), wide);
    if (routed) {
      experts_up(label(ModuleKind::kFc1), saved);
    } else {
      gemm(label(ModuleKind::kFc1), saved.norm2, c, saved.fc1, wide, -1);
    }
    activation_forward(label(ModuleKind::kActivation), saved);
    const TensorId y = output(label(ModuleKind::kFc2), c);
    saved.output_mask = mask(label(ModuleKind::kFc2), split_tokens() * c);
    if (saved.output_mask < 0 && facts_.recomputes_whole_layer) {
      // What makes a recomputed layer run to its end: the state of the random numbers.
      saved.output_mask =
          typed(TensorKind::kMask, Category::kActivations, label(ModuleKind::kFc2), 16, DType::kU8);
    }
    if (routed) {
      experts_down(label(ModuleKind::kFc2), saved, y);
    } else {
      gemm(label(ModuleKind::kFc2), saved.activation, ffn, y, c, saved.middle, saved.output_mask);
    }
    return y;
  }

  int64_t queries_width() const { return model_.heads * model_.head_size; }
  int64_t keys_width() const { return model_.qkv_width() - queries_width(); }

  void qkv_forward(Label label, LayerSaved& saved) {
    saved.qkv = output(label, is_divided() ? queries_width() : model_.qkv_width());
    if (model_.is_latent()) return latent_qkv(label, saved);
    gemm(label, saved.norm1, model_.hidden, saved.qkv, model_.qkv_width(), -1);
    if (!is_divided()) return;
    const TensorId pair =
        tensor(TensorKind::kKeysValues, Category::kActivations, label, tokens() * keys_width());
    graph_.step.ops.back().accesses.push_back(write(pair, Role::kKeysValues));
    std::vector<TensorId>& pairs = keys_values_[label.layer];
    if (part_ == 0) pairs.clear();
    pairs.push_back(pair);
    const int64_t first = first_seen(part(), model_.window_of(label.layer));
    while (parts_[saved.first_seen].end() <= first) ++saved.first_seen;
    saved.keys_values.assign(pairs.begin() + static_cast<std::ptrdiff_t>(saved.first_seen),
                             pairs.end());
  }

  // Of parts before the one under way, whose queries' gradients reach their keys and values; of its
  // own, what the parts after it have left.
  void add_key_gradients(Label label, const LayerSaved& saved, std::vector<Access>& accesses) {
    std::vector<TensorId>& sums = key_gradients_[label.layer];
    if (part_ + 1 == parts_.size()) sums.assign(parts_.size(), -1);
    for (size_t p = saved.first_seen; p < part_; ++p) {
      TensorId& sum = sums[p];
      if (sum < 0) {
        sum = typed(TensorKind::kKeyGradient, Category::kActivations, label,
                    part_tokens(plan_, parts_[p]) * keys_width(), DType::kF32);
      }
      accesses.push_back({sum, Role::kKeyGradient, first_write(sum), 0});
    }
    if (sums[part_] >= 0) accesses.push_back(read(sums[part_], Role::kKeyGradient));
  }

  bool is_gelu_of(int64_t bytes) const {
    return bytes > 0 && model_.activation == ActivationKind::kGeluTanh;
  }

  bool is_clamped() const { return model_.activation == ActivationKind::kClampedSwiGlu; }

  void activation_forward(Label label, LayerSaved& saved) {
    const int64_t wide = model_.fc1_width(label.layer);
    const int64_t ffn = model_.ffn_width(label.layer);
    saved.activation = output(label, ffn);
    const int64_t bias_pass = facts_.fusion == Fusion::kNone ? 2 * wide : 0;
    std::vector<Access> accesses = {read(saved.fc1, Role::kInput),
                                    write(saved.activation, Role::kOutput)};
    if (has_experts(label)) add_routing(accesses, saved);
    if (keeps_gate(label.layer)) {
      saved.gate = output(label, ffn);
      accesses.push_back(write(saved.gate, Role::kStatistics));
    }
    const int64_t gate_passes = saved.gate >= 0 ? 2 * ffn : 0;
    RowWork work = rows(ffn, wide + ffn + bias_pass + gate_passes, 12);
    if (is_gelu_of(facts_.activation_bytes)) {
      work.moved = {tokens() * wide * facts_.activation_bytes};
    }
    if (is_clamped()) work.moved = work.moved + Bytes{tokens() * wide * facts_.clamp_bytes};
    emit(OpKind::kActivation, Phase::kForward, label, work, std::move(accesses));
  }

  // dscores: of a layer with experts, where the gradients of their weights go; else -1.
  TensorId activation_backward(Label label, Label input, const LayerSaved& saved, TensorId da,
                               TensorId dscores) {
    const int64_t wide = model_.fc1_width(label.layer);
    const int64_t ffn = model_.ffn_width(label.layer);
    const TensorId dh = output_gradient(input, wide);
    std::vector<Access> accesses = {read(saved.fc1, Role::kInput), read(da, Role::kOutputGradient),
                                    write(dh, Role::kInputGradient)};
    if (has_experts(label)) {
      add_routing(accesses, saved);
      accesses.push_back({dscores, Role::kScratch, first_write(dscores), 0});
    }
    // The product's two gradients, then the activation's: two more values written, and read.
    if (saved.gate >= 0) accesses.push_back(read(saved.gate, Role::kStatistics));
    const bool joins = facts_.joins_gate && wide == 2 * ffn && !has_experts(label);
    const int64_t gate_passes = (saved.gate >= 0 ? 4 * ffn : 0) + (joins ? 4 * ffn : 0);
    RowWork work = rows(ffn, 2 * wide + ffn + gate_passes, 20);
    if (is_gelu_of(facts_.activation_backward_bytes)) {
      work.moved = {tokens() * wide * facts_.activation_backward_bytes};
    }
    if (is_clamped()) {
      work.moved = work.moved + Bytes{tokens() * wide * facts_.clamp_backward_bytes};
    }
    emit(OpKind::kActivation, Phase::kBackward, label, work, std::move(accesses));
    return dh;
  }

  // From the gradient of the layer's output to that of the second norm's.
  TensorId feed_forward_backward(int64_t layer, int16_t micro, const LayerSaved& saved,
                                 TensorId dy) {
    const auto label = [&](ModuleKind kind) {
      return Label{static_cast<int16_t>(layer), kind, micro, -1};
    };
    const int64_t c = model_.hidden;
    const Label fc1 = label(ModuleKind::kFc1);
    const Label activation = label(ModuleKind::kActivation);
    const Label norm = label(ModuleKind::kNorm2);
    if (model_.has_experts(layer)) {
      const ExpertGradients gradients =
          experts_down_backward(label(ModuleKind::kFc2), activation, saved, dy);
      const TensorId dh =
          activation_backward(activation, fc1, saved, gradients.activation, gradients.scores);
      return experts_up_backward(fc1, label(ModuleKind::kRouter), norm, saved, gradients, dh);
    }
    const TensorId da = gemm_backward(label(ModuleKind::kFc2), activation, saved.activation,
                                      model_.ffn_width(layer), dy, c, saved.output_mask);
    const TensorId dh = activation_backward(activation, fc1, saved, da, -1);
    return gemm_backward(fc1, norm, saved.norm2, c, dh, model_.fc1_width(layer));
  }

  void attention_forward(Label label, LayerSaved& saved) {
    saved.attention = output(label, model_.attention_width());
    std::vector<Access> accesses = {read(saved.qkv, Role::kInput),
                                    write(saved.attention, Role::kOutput)};
    for (const TensorId pair : saved.keys_values) accesses.push_back(read(pair, Role::kKeysValues));
    if (eager()) {
      for (const TensorId kept : make_scores(label, saved)) {
        accesses.push_back(write(kept, Role::kStatistics));
      }
    } else {
      saved.log_sum_exp = typed(TensorKind::kLogSumExp, Category::kActivations, label,
                                tokens() * model_.heads, DType::kF32);
      accesses.push_back(write(saved.log_sum_exp, Role::kStatistics));
    }
    if (repeats_heads()) {
      // The rest of them: the kernel's keys and values take the place of the product's.
      const int64_t rest = 2 * (model_.heads - model_.kv_heads) * model_.head_size;
      saved.repeated = output(label, rest);
      accesses.push_back(write(saved.repeated, Role::kStatistics));
    }
    if (weight(label) >= 0) accesses.push_back(read(weight(label), Role::kWeight));
    emit(OpKind::kAttention, Phase::kForward, label,
         attention_work(model_, plan_, facts_, Phase::kForward, label.layer, part()),
         std::move(accesses));
  }

  // Softmax output and, with dropout, its mask and what is left: 5 bytes a score in 16 bits
  // (arXiv 2205.05198, section 4.1).
  std::vector<TensorId> make_scores(Label label, LayerSaved& saved) {
    saved.scores = tensor(TensorKind::kScores, Category::kActivations, label,
                          scores_count(model_, plan_, part()));
    if (!facts_.dropout) return {saved.scores};
    saved.dropped_scores = tensor(TensorKind::kScores, Category::kActivations, label,
                                  scores_count(model_, plan_, part()));
    saved.scores_mask = mask(label, scores_count(model_, plan_, part()));
    return {saved.scores, saved.dropped_scores, saved.scores_mask};
  }

  TensorId attention_backward(Label label, Label input, const LayerSaved& saved, TensorId dout) {
    const TensorId dqkv = output_gradient(input, model_.qkv_width());
    std::vector<Access> accesses = {read(saved.qkv, Role::kInput)};
    for (const TensorId pair : saved.keys_values) accesses.push_back(read(pair, Role::kKeysValues));
    if (is_divided()) add_key_gradients(label, saved, accesses);
    if (saved.repeated >= 0) accesses.push_back(read(saved.repeated, Role::kStatistics));
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
         attention_work(model_, plan_, facts_, Phase::kBackward, label.layer, part()),
         std::move(accesses));
    return dqkv;
  }

  TensorId layer_backward(int64_t layer, int16_t micro, const LayerSaved& saved, TensorId dy) {
    const auto label = [&](ModuleKind kind) {
      return Label{static_cast<int16_t>(layer), kind, micro, -1};
    };
    const int64_t c = model_.hidden;
    const TensorId dn2 = feed_forward_backward(layer, micro, saved, dy);
    const TensorId dmiddle =
        norm_backward(label(ModuleKind::kNorm2), label(ModuleKind::kAttentionOut), saved.middle,
                      saved.statistics2, dn2, dy);
    const TensorId dattention =
        gemm_backward(label(ModuleKind::kAttentionOut), label(ModuleKind::kCoreAttention),
                      saved.attention, model_.attention_width(), dmiddle, c, saved.attention_mask);
    const TensorId dqkv = attention_backward(label(ModuleKind::kCoreAttention),
                                             label(ModuleKind::kQkv), saved, dattention);
    const Label qkv = label(ModuleKind::kQkv);
    const Label norm1 = label(ModuleKind::kNorm1);
    const TensorId dn1 = model_.is_latent()
                             ? latent_qkv_backward(qkv, norm1, saved, dqkv)
                             : gemm_backward(qkv, norm1, saved.norm1, c, dqkv, model_.qkv_width());
    const Label below = layer > 0
                            ? Label{static_cast<int16_t>(layer - 1), ModuleKind::kFc2, micro, -1}
                            : Label{-1, ModuleKind::kEmbedding, micro, -1};
    return norm_backward(label(ModuleKind::kNorm1), below, saved.input, saved.statistics1, dn1,
                         dmiddle);
  }

  // Leaves the logits' gradient in their place, or makes the copies that the stack makes. Of
  // `count` tokens.
  void loss(Label label, TensorId batch, TensorId logits, int64_t count) {
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
    } else if (facts_.loss == LossPrecision::kCompiled) {
      copies = 1;
      values_moved = 4 * model_.vocab;
    } else if (facts_.loss != LossPrecision::kInPlace) {
      copies = 3;
      values_moved = 16 * model_.vocab;
    }
    if (facts_.loss_bytes > 0)
      values_moved = facts_.loss_bytes * model_.vocab / size_of(plan_.dtype);
    const bool narrow = pure_16_bit(plan_, facts_) || facts_.loss == LossPrecision::kTorch ||
                        facts_.loss == LossPrecision::kCompiled;
    // One of 32 bits has the logits for its other half.
    const int64_t halves = facts_.loss == LossPrecision::kF32 ? 2 : 1;
    const int64_t wide = std::max<int64_t>(1, graph_.tensor(logits).elements / halves);
    for (int64_t copy = 0; copy < copies; ++copy) {
      accesses.push_back(write(typed(TensorKind::kPartial, Category::kWorkspace, label, wide,
                                     narrow ? plan_.dtype : DType::kF32),
                               Role::kScratch));
    }
    // What balances experts is of all tokens, and added once.
    if (balance() >= 0 && label.loss_chunk <= 0) {
      accesses.push_back(update(balance(), Role::kBalance));
    }
    emit(OpKind::kLoss, Phase::kForward, label, rows_of(count, model_.vocab, values_moved, 8),
         std::move(accesses));
  }

  // Of `count` tokens those that exist at once: a plan that cuts them says how many, not the
  // framework.
  int64_t logits_count(int64_t count) const {
    const int64_t values = count * facts_.logits_stride(model_.vocab);
    return div_ceil(values, plan_.loss_chunks > 1 ? 1 : facts_.loss_chunks);
  }

  // The gradient of what the head reads. Of a plan that cuts tokens into pieces each passes to the
  // end of the head's backward before the next one begins.
  TensorId head_and_loss(int16_t micro, TensorId batch, TensorId normed) {
    TensorId gradient = -1;
    for (int64_t i = 0; i < plan_.loss_chunks; ++i) {
      Label head{-1, ModuleKind::kHead, micro, -1};
      if (plan_.loss_chunks > 1) head.loss_chunk = static_cast<int16_t>(i);
      Label of_loss = head;
      of_loss.module = ModuleKind::kLoss;
      const int64_t count = loss_chunk_of(plan_, tokens(), i).count;
      const TensorId logits =
          tensor(TensorKind::kOutput, Category::kActivations, head, logits_count(count));
      const GemmWork work{count, model_.vocab, model_.hidden, plan_.dtype, false};
      emit(OpKind::kGemm, Phase::kForward, head, work,
           {read(normed, Role::kInput), read(weight(head), Role::kWeight),
            write(logits, Role::kOutput)});
      loss(of_loss, batch, logits, count);
      if (gradient < 0) {
        gradient = output_gradient({-1, ModuleKind::kFinalNorm, micro, -1}, model_.hidden);
      }
      BackwardOf backward{head, normed, logits, gradient};
      backward.rows = count;
      product_backward(backward, {model_.hidden, model_.vocab});
    }
    return gradient;
  }

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
    const bool has_layers = model_.layers > 0;  // else what the embedding made is at the top
    const Label top = {static_cast<int16_t>(model_.layers - 1),
                       has_layers ? ModuleKind::kFc2 : ModuleKind::kEmbedding, micro, -1};
    const int64_t c = model_.hidden;
    if (!ends_.last) {
      const TensorId dx = output_gradient(top, c);
      arrive(Phase::kBackward, top, dx);
      return dx;
    }
    const TensorId normed = output(label(ModuleKind::kFinalNorm), c);
    const TensorId stats = norm_statistics(label(ModuleKind::kFinalNorm));
    norm(label(ModuleKind::kFinalNorm), x, normed, stats);
    const TensorId dnormed = head_and_loss(micro, batch, normed);
    return norm_backward(label(ModuleKind::kFinalNorm), top, x, stats, dnormed, -1);
  }

  template <class Body>
  void for_parts(const Body& body) {
    for (size_t p = 0; p < parts_.size(); ++p) {
      begin_part(p);
      body(p);
    }
  }
  template <class Body>
  void for_parts_back(const Body& body) {
    for (size_t p = parts_.size(); p-- > 0;) {
      begin_part(p);
      body(p);
    }
  }

  void end_of_backward(int16_t micro, TensorId batch, TensorId dx) {
    if (!ends_.first) return;
    const Label label{-1, ModuleKind::kEmbedding, micro, -1};
    emit(OpKind::kEmbedding, Phase::kBackward, label, rows(model_.hidden, 3 * model_.hidden, 1),
         {read(batch, Role::kTokens), read(dx, Role::kOutputGradient), gradient(label)});
  }

  // A layer at a time, whose parts pass one after another, back in reverse order: what attention
  // keeps of a layer for its later parts is gone before the next layer begins.
  void layer_by_layer(int16_t micro, TensorId batch) {
    std::vector<TensorId> x(parts_.size());
    for_parts([&](size_t p) { x[p] = first_input(micro, batch); });
    std::vector<std::vector<LayerSaved>> saved = nothing_saved();
    for (int64_t i = 0; i < model_.layers; ++i) {
      std::vector<LayerSaved>& of_layer = saved[static_cast<size_t>(i)];
      for_parts([&](size_t p) { x[p] = layer_forward(i, micro, x[p], of_layer[p]); });
    }
    std::vector<TensorId> dx(parts_.size());
    for_parts_back([&](size_t p) { dx[p] = end_of_forward(micro, batch, x[p]); });
    for (int64_t i = model_.layers - 1; i >= 0; --i) {
      const std::vector<LayerSaved>& of_layer = saved[static_cast<size_t>(i)];
      for_parts_back([&](size_t p) { dx[p] = layer_backward(i, micro, of_layer[p], dx[p]); });
      // What is reduced beside the backward is added by the hook that reduces it.
      if (is_last(micro) && plan_.replicas() > 1) add_apart(micro, i);
    }
    for_parts_back([&](size_t p) { end_of_backward(micro, batch, dx[p]); });
  }

  // Where other stages wait for parts: each goes through all layers before the next one does. What
  // ends the forward belongs to the backward of its part, so that one part's logits exist at once.
  void part_by_part(int16_t micro, TensorId batch) {
    std::vector<TensorId> x(parts_.size());
    std::vector<std::vector<LayerSaved>> saved = nothing_saved();
    for_parts([&](size_t p) {
      x[p] = first_input(micro, batch);
      for (int64_t i = 0; i < model_.layers; ++i) {
        x[p] = layer_forward(i, micro, x[p], saved[static_cast<size_t>(i)][p]);
      }
    });
    for_parts_back([&](size_t p) {
      TensorId dx = end_of_forward(micro, batch, x[p]);
      for (int64_t i = model_.layers - 1; i >= 0; --i) {
        dx = layer_backward(i, micro, saved[static_cast<size_t>(i)][p], dx);
      }
      end_of_backward(micro, batch, dx);
    });
  }

  // By layer and part.
  std::vector<std::vector<LayerSaved>> nothing_saved() const {
    return std::vector<std::vector<LayerSaved>>(static_cast<size_t>(model_.layers),
                                                std::vector<LayerSaved>(parts_.size()));
  }

  void micro_batch(int16_t micro) {
    const Label label{-1, ModuleKind::kEmbedding, micro, -1};
    TensorId batch = -1;
    if (ends_.first || ends_.last) batch = load_batch(label);
    start_balance(micro);
    const bool is_whole = ends_.first && ends_.last;
    is_whole ? layer_by_layer(micro, batch) : part_by_part(micro, batch);
    add_apart(micro, std::nullopt);
  }

  bool is_last(int16_t micro) const { return micro + 1 == plan_.accumulation(); }

  TensorId load_batch(Label label) {
    // Behind each piece of a sequence the token that its last one is to predict.
    const int64_t pieces = ring_piece_count(plan_.context_balance, plan_.context) / plan_.context;
    const int64_t ids = plan_.tokens_per_micro_batch() + *plan_.micro_batch * pieces;
    const TensorId batch = typed(TensorKind::kTokens, Category::kData, label, ids, DType::kI32);
    emit(OpKind::kLoadBatch, Phase::kForward, label,
         CopyWork{bytes_of(ids, DType::kI32), CopyDirection::kHostToDevice},
         {write(batch, Role::kTokens)})
        .lane = lane_of(0, LaneKind::kCopyIn);
    graph_.step.ops.back().label.subsequence = graph_.tensor(batch).label.subsequence = -1;
    return batch;
  }

  // By layer and part.
  std::map<int16_t, std::vector<TensorId>> keys_values_, key_gradients_;
};

}  // namespace

Graph build_chunk(const Model& rank, const Plan& plan, const StackFacts& facts, ChunkEnds ends) {
  return Decoder(rank, plan, facts, ends).run();
}

}  // namespace ballast
