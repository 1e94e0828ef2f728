#include "tests/backend/decoder.h"

#include <algorithm>
#include <cmath>

#include "backend/execute/operation_arguments.h"
#include "backend/host/experts/transformer_experts.h"
#include "backend/host/linear_layout.h"
#include "kernels/kernels.h"
#include "sim/base/error.h"
#include "tests/tiny.h"

namespace ballast::transformer {
namespace {

// Offsets and sizes of one module in the flat parameters, and its arrays of one layer.
class Step {
 public:
  Step(const Model& model, Shape shape, std::span<const int32_t> tokens, const Array& parameters,
       const GradientsSoFar& so_far)
      : model_(model),
        shape_(shape),
        tokens_(tokens),
        parameters_(parameters),
        modules_(modules_of(model)),
        type_(parameters.dtype),
        factor_(so_far.factor),
        adds_(so_far.before != nullptr),
        loss_chunks_(so_far.loss_chunks),
        gradients_(adds_ ? *so_far.before
                         : zeros(so_far.dtype.value_or(type_), 1, parameters.count())) {}

  StepResult run() {
    StepResult result;
    forward();
    result.logits = logits_;
    Array dx = tokens_by(model_.hidden);
    for (int64_t i = 0; i < loss_chunks_; ++i) result.loss += head_and_loss(i, dx);
    if (balance_ != nullptr) {
      const double factor = factor_ * static_cast<double>(shape_.tokens());
      result.loss += balance_loss(model_, balanced_rows_, factor, balance_);
    }
    backward(std::move(dx));
    result.gradients = std::move(gradients_);
    return result;
  }

 private:
  struct Layer {
    Array input, norm1, statistics1, qkv, attention, log_sum_exp;
    Array middle, norm2, statistics2, h, a;
    Array query, query_normed, query_statistics;  // latent attention
    Array key, key_normed, key_statistics;
    Array scores, choice, sent;  // of layers with experts
    Routed routed() const { return {scores.view(), choice.view()}; }
  };

  const Module& module_of(ModuleKind kind, int64_t layer) const {
    // A tied head has the embedding's array.
    if (kind == ModuleKind::kHead && model_.tied_embeddings) kind = ModuleKind::kEmbedding;
    const auto found = std::find_if(modules_.begin(), modules_.end(), [&](const Module& m) {
      return m.kind == kind && m.layer == layer;
    });
    CHECK(found != modules_.end());
    return *found;
  }
  ConstView parameters(ModuleKind kind, int64_t layer = -1) const {
    const Module& module = module_of(kind, layer);
    return {parameters_.bytes.data() + module.flat_offset * size_of(type_), type_, 1, module.count};
  }
  View gradients(ModuleKind kind, int64_t layer = -1) {
    const Module& module = module_of(kind, layer);
    const DType type = gradients_.dtype;
    return {gradients_.bytes.data() + module.flat_offset * size_of(type), type, 1, module.count};
  }
  Array tokens_by(int64_t columns) const { return zeros(type_, shape_.tokens(), columns); }
  int64_t sent_rows() const { return shape_.tokens() * model_.experts_per_token; }
  // Of core attention, where it has parameters.
  AttentionOf attention_of(int64_t layer) const {
    const ConstView params = parameters(ModuleKind::kCoreAttention, layer);
    return {layer, params.columns > 0 ? params : ConstView()};
  }
  // What the routed experts read or make in an array, and what the shared ones do.
  ConstView sent_part(const Array& all, int64_t columns) const {
    return {all.bytes.data(), type_, sent_rows(), columns};
  }
  View sent_part(Array& all, int64_t columns) const {
    return {all.bytes.data(), type_, sent_rows(), columns};
  }
  ConstView shared_part(const Array& all, int64_t sent_columns, int64_t columns) const {
    return {all.bytes.data() + sent_rows() * sent_columns * size_of(type_), type_, shape_.tokens(),
            columns};
  }
  View shared_part(Array& all, int64_t sent_columns, int64_t columns) const {
    return {all.bytes.data() + sent_rows() * sent_columns * size_of(type_), type_, shape_.tokens(),
            columns};
  }
  Array statistics(int64_t rows, int64_t columns) const {
    return zeros(type_ == DType::kF64 ? DType::kF64 : DType::kF32, rows, columns);
  }

  void forward() {
    Array x = tokens_by(model_.hidden);
    embedding_forward(model_, shape_, tokens_.data(), parameters(ModuleKind::kEmbedding), x.view());
    for (int64_t i = 0; i < model_.layers; ++i) x = forward_layer(i, std::move(x));
    final_input_ = std::move(x);
    final_norm_ = tokens_by(model_.hidden);
    final_statistics_ = statistics(shape_.tokens(), 2);
    norm_forward(model_, final_input_.view(), parameters(ModuleKind::kFinalNorm),
                 final_norm_.view(), final_statistics_.view());
    logits_ = tokens_by(model_.vocab);
    linear_forward(model_, ModuleKind::kHead, final_norm_.view(), parameters(ModuleKind::kHead), {},
                   logits_.view());
  }

  Array forward_layer(int64_t i, Array x) {
    Layer layer;
    layer.input = std::move(x);
    layer.norm1 = tokens_by(model_.hidden);
    layer.statistics1 = statistics(shape_.tokens(), 2);
    norm_forward(model_, layer.input.view(), parameters(ModuleKind::kNorm1, i), layer.norm1.view(),
                 layer.statistics1.view());
    layer.qkv = tokens_by(model_.qkv_width());
    if (model_.is_latent()) {
      forward_latents(i, layer);
    } else {
      linear_forward(model_, ModuleKind::kQkv, layer.norm1.view(), parameters(ModuleKind::kQkv, i),
                     {}, layer.qkv.view());
    }
    layer.attention = tokens_by(model_.attention_width());
    layer.log_sum_exp = statistics(shape_.sequences * model_.heads, shape_.length);
    attention_forward(model_, shape_, layer.qkv.view(), layer.attention.view(),
                      layer.log_sum_exp.view(), attention_of(i));
    layer.middle = tokens_by(model_.hidden);
    linear_forward(model_, ModuleKind::kAttentionOut, layer.attention.view(),
                   parameters(ModuleKind::kAttentionOut, i), layer.input.view(),
                   layer.middle.view());
    layer.norm2 = tokens_by(model_.hidden);
    layer.statistics2 = statistics(shape_.tokens(), 2);
    norm_forward(model_, layer.middle.view(), parameters(ModuleKind::kNorm2, i), layer.norm2.view(),
                 layer.statistics2.view());
    Array out = model_.has_experts(i) ? forward_experts(i, layer) : forward_dense(i, layer);
    layers_.push_back(std::move(layer));
    return out;
  }

  ConstView part_of(ConstView all, int64_t first, int64_t count) const {
    return {static_cast<const std::byte*>(all.data) + first * size_of(all.dtype), all.dtype, 1,
            count};
  }
  View part_of(View all, int64_t first, int64_t count) const {
    return {static_cast<std::byte*>(all.data) + first * size_of(all.dtype), all.dtype, 1, count};
  }

  void forward_latents(int64_t i, Layer& layer) {
    const LatentLayout layout = latent_layout(model_);
    const ConstView params = parameters(ModuleKind::kQkv, i);
    const Array* from = &layer.norm1;
    if (model_.query_rank > 0) {
      layer.query = tokens_by(model_.query_rank);
      latent_forward(model_, LatentProduct::kQueryDown, layer.norm1.view(), params, {},
                     layer.query.view());
      layer.query_normed = tokens_by(model_.query_rank);
      layer.query_statistics = statistics(shape_.tokens(), 2);
      norm_forward(model_, layer.query.view(),
                   part_of(params, layout.query_norm, model_.query_rank), layer.query_normed.view(),
                   layer.query_statistics.view(), kLatentNormEpsilon);
      from = &layer.query_normed;
    }
    latent_forward(model_, LatentProduct::kQueryUp, from->view(), params, {}, layer.qkv.view());
    layer.key = tokens_by(model_.kv_rank + model_.rope_size);
    latent_forward(model_, LatentProduct::kKeyDown, layer.norm1.view(), params, {},
                   layer.key.view());
    layer.key_normed = tokens_by(model_.kv_rank);
    layer.key_statistics = statistics(shape_.tokens(), 2);
    norm_forward(model_, layer.key.view(), part_of(params, layout.key_norm, model_.kv_rank),
                 layer.key_normed.view(), layer.key_statistics.view(), kLatentNormEpsilon);
    latent_forward(model_, LatentProduct::kKeyUp, layer.key_normed.view(), params, layer.key.view(),
                   layer.qkv.view());
  }

  // Gradient by norm1, from that of a product's result; adds to dx.
  void backward_latent(LatentProduct product, int64_t i, const Array& dy, const Array& x, Array& dx,
                       bool adds_to_dx) {
    latent_backward_weight(model_, product, dy.view(), x.view(), gradients(ModuleKind::kQkv, i),
                           adds_);
    latent_backward_input(model_, product, dy.view(), parameters(ModuleKind::kQkv, i), dx.view(),
                          adds_to_dx);
  }

  Array backward_latents(int64_t i, const Layer& layer, const Array& dqkv) {
    const LatentLayout layout = latent_layout(model_);
    const ConstView params = parameters(ModuleKind::kQkv, i);
    const View dparams = gradients(ModuleKind::kQkv, i);
    Array dx = tokens_by(model_.hidden);
    if (model_.query_rank > 0) {
      Array dnormed = tokens_by(model_.query_rank);
      Array dmade = tokens_by(model_.query_rank);
      backward_latent(LatentProduct::kQueryUp, i, dqkv, layer.query_normed, dnormed, false);
      norm_backward(model_, layer.query.view(), layer.query_statistics.view(),
                    part_of(params, layout.query_norm, model_.query_rank), dnormed.view(), {},
                    dmade.view(), part_of(dparams, layout.query_norm, model_.query_rank), adds_);
      backward_latent(LatentProduct::kQueryDown, i, dmade, layer.norm1, dx, false);
    } else {
      backward_latent(LatentProduct::kQueryUp, i, dqkv, layer.norm1, dx, false);
    }
    Array dnormed = tokens_by(model_.kv_rank);
    Array dmade = tokens_by(model_.kv_rank + model_.rope_size);
    backward_latent(LatentProduct::kKeyUp, i, dqkv, layer.key_normed, dnormed, false);
    norm_backward(model_, layer.key.view(), layer.key_statistics.view(),
                  part_of(params, layout.key_norm, model_.kv_rank), dnormed.view(), {},
                  dmade.view(), part_of(dparams, layout.key_norm, model_.kv_rank), adds_);
    latent_rotary_backward(model_, dqkv.view(), dmade.view());
    backward_latent(LatentProduct::kKeyDown, i, dmade, layer.norm1, dx, true);
    return dx;
  }

  Array forward_experts(int64_t i, Layer& layer) {
    const int64_t ffn = model_.expert_ffn;
    const int64_t wide = model_.gates() * ffn;
    const int64_t shared = model_.shared_ffn();
    const ConstView fc1 = parameters(ModuleKind::kFc1, i);
    const ConstView fc2 = parameters(ModuleKind::kFc2, i);
    layer.scores = tokens_by(model_.experts);
    linear_forward(model_, ModuleKind::kRouter, layer.norm2.view(),
                   parameters(ModuleKind::kRouter, i), {}, layer.scores.view());
    layer.choice = zeros(DType::kI32, shape_.tokens(), model_.experts_per_token);
    choose_experts(model_, layer.scores.view(), parameters(ModuleKind::kRouter, i),
                   layer.choice.view());
    if (model_.balance_loss > 0) {
      balance_sums_.resize(static_cast<size_t>(2 * model_.experts));
      balance_ = balance_sums_.data();
      add_balance(model_, layer.scores.view(), layer.choice.view(), balanced_rows_ == 0, balance_);
      balanced_rows_ += shape_.tokens();
    }
    const ExpertRows rows = expert_rows(model_, layer.choice.view());
    layer.sent = zeros(type_, sent_rows(), model_.hidden);
    send_rows(rows, layer.norm2.view(), layer.sent.view());
    layer.h = tokens_by(model_.fc1_width(i));
    experts_forward(model_, ModuleKind::kFc1, layer.sent.view(), rows, fc1,
                    sent_part(layer.h, wide));
    layer.a = tokens_by(model_.ffn_width(i));
    if (shared > 0) {
      shared_forward(model_, ModuleKind::kFc1, layer.norm2.view(), fc1, {},
                     shared_part(layer.h, wide, model_.gates() * shared));
      shared_activation_forward(model_, shared_part(layer.h, wide, model_.gates() * shared),
                                shared_part(layer.a, ffn, shared));
    }
    experts_activation_forward(model_, layer.routed(), sent_part(layer.h, wide),
                               sent_part(layer.a, ffn));
    Array out = layer.middle;
    if (shared > 0) {
      shared_forward(model_, ModuleKind::kFc2, shared_part(layer.a, ffn, shared), fc2, out.view(),
                     out.view());
    }
    Array made = zeros(type_, sent_rows(), model_.hidden);
    experts_forward(model_, ModuleKind::kFc2, sent_part(layer.a, ffn),
                    expert_rows(model_, layer.choice.view()), fc2, made.view());
    if (model_.mlp_bias) add_weighted_biases(model_, layer.routed(), fc2, made.view());
    sum_rows(expert_rows(model_, layer.choice.view()), made.view(), out.view(), out.view());
    return out;
  }

  Array forward_dense(int64_t i, Layer& layer) {
    layer.h = tokens_by(model_.fc1_width());
    linear_forward(model_, ModuleKind::kFc1, layer.norm2.view(), parameters(ModuleKind::kFc1, i),
                   {}, layer.h.view());
    layer.a = tokens_by(model_.ffn);
    activation_forward(model_, layer.h.view(), layer.a.view());
    Array out = layer.middle;  // the residual is added in place
    linear_forward(model_, ModuleKind::kFc2, layer.a.view(), parameters(ModuleKind::kFc2, i),
                   out.view(), out.view());
    return out;
  }

  // Gradient of a linear module's parameters, and of its input.
  Array backward_linear(ModuleKind kind, int64_t layer, const Array& dy, const Array& x) {
    linear_backward_weight(model_, kind, dy.view(), x.view(), gradients(kind, layer), adds_);
    Array dx = tokens_by(x.columns);
    linear_backward_input(model_, kind, dy.view(), parameters(kind, layer), dx.view());
    return dx;
  }

  // Of piece `chunk` of the tokens, whose rows of dx it writes: its share of the mean loss.
  double head_and_loss(int64_t chunk, Array& dx) {
    const int64_t tokens = shape_.tokens();
    const int64_t first = tokens * chunk / loss_chunks_;
    const int64_t count = tokens * (chunk + 1) / loss_chunks_ - first;
    const auto rows = [&](Array& all) {
      const View whole = all.view();
      std::byte* const begin = all.bytes.data() + first * all.columns * size_of(type_);
      return View{begin, whole.dtype, count, whole.columns};
    };
    const double mean =
        loss_forward_backward(model_, shape_, tokens_.data(), rows(logits_), factor_, first);
    linear_backward_weight(model_, ModuleKind::kHead, rows(logits_), rows(final_norm_),
                           gradients(ModuleKind::kHead), adds_ || chunk > 0);
    linear_backward_input(model_, ModuleKind::kHead, rows(logits_), parameters(ModuleKind::kHead),
                          rows(dx));
    return mean * (static_cast<double>(count) / static_cast<double>(tokens));
  }

  void backward(Array dx) {
    norm_backward(model_, final_input_.view(), final_statistics_.view(),
                  parameters(ModuleKind::kFinalNorm), dx.view(), {}, dx.view(),
                  gradients(ModuleKind::kFinalNorm), adds_);
    for (int64_t i = model_.layers - 1; i >= 0; --i) backward_layer(i, dx);
    embedding_backward(model_, shape_, tokens_.data(), dx.view(), gradients(ModuleKind::kEmbedding),
                       adds_ || model_.tied_embeddings);
  }

  // dx: gradient by the layer's output, replaced by that of its input.
  void backward_layer(int64_t i, Array& dx) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const Array dnorm2 =
        model_.has_experts(i) ? backward_experts(i, layer, dx) : backward_dense(i, layer, dx);
    norm_backward(model_, layer.middle.view(), layer.statistics2.view(),
                  parameters(ModuleKind::kNorm2, i), dnorm2.view(), dx.view(), dx.view(),
                  gradients(ModuleKind::kNorm2, i), adds_);
    const Array dattention = backward_linear(ModuleKind::kAttentionOut, i, dx, layer.attention);
    Array dqkv = tokens_by(model_.qkv_width());
    const AttentionOf attention = attention_of(i);
    attention_backward(
        model_, shape_, layer.qkv.view(), layer.attention.view(), layer.log_sum_exp.view(),
        dattention.view(), dqkv.view(), attention,
        attention.params.data == nullptr ? View() : gradients(ModuleKind::kCoreAttention, i),
        adds_);
    const Array dnorm1 = model_.is_latent()
                             ? backward_latents(i, layer, dqkv)
                             : backward_linear(ModuleKind::kQkv, i, dqkv, layer.norm1);
    norm_backward(model_, layer.input.view(), layer.statistics1.view(),
                  parameters(ModuleKind::kNorm1, i), dnorm1.view(), dx.view(), dx.view(),
                  gradients(ModuleKind::kNorm1, i), adds_);
  }

  Array backward_dense(int64_t i, const Layer& layer, const Array& dx) {
    const Array da = backward_linear(ModuleKind::kFc2, i, dx, layer.a);
    Array dh = tokens_by(model_.fc1_width());
    activation_backward(model_, layer.h.view(), da.view(), dh.view());
    return backward_linear(ModuleKind::kFc1, i, dh, layer.norm2);
  }

  Array backward_experts(int64_t i, const Layer& layer, const Array& dy) {
    const int64_t ffn = model_.expert_ffn;
    const int64_t wide = model_.gates() * ffn;
    const int64_t shared = model_.shared_ffn();
    const ConstView fc1 = parameters(ModuleKind::kFc1, i);
    const ConstView fc2 = parameters(ModuleKind::kFc2, i);
    const View dfc1 = gradients(ModuleKind::kFc1, i);
    const View dfc2 = gradients(ModuleKind::kFc2, i);
    const auto rows = [&] { return expert_rows(model_, layer.choice.view()); };
    Array sorted = zeros(type_, sent_rows(), model_.hidden);
    send_rows(rows(), dy.view(), sorted.view());
    Array dscores = tokens_by(model_.experts);
    Array da = tokens_by(model_.ffn_width(i));
    Array dh = tokens_by(model_.fc1_width(i));
    experts_backward_weight(model_, ModuleKind::kFc2, sorted.view(), sent_part(layer.a, ffn),
                            rows(), dfc2, adds_);
    experts_backward_input(model_, ModuleKind::kFc2, sorted.view(), rows(), fc2,
                           sent_part(da, ffn));
    if (model_.mlp_bias) {
      weighted_biases_backward(model_, layer.routed(), sorted.view(), dfc2, adds_);
      bias_weights_backward(model_, layer.routed(), sorted.view(), fc2, dscores.view());
    }
    experts_activation_backward(model_, layer.routed(), sent_part(layer.h, wide),
                                sent_part(da, ffn), sent_part(dh, wide), dscores.view(),
                                model_.mlp_bias);
    Array dsent = zeros(type_, sent_rows(), model_.hidden);
    experts_backward_weight(model_, ModuleKind::kFc1, sent_part(dh, wide), layer.sent.view(),
                            rows(), dfc1, adds_);
    experts_backward_input(model_, ModuleKind::kFc1, sent_part(dh, wide), rows(), fc1,
                           dsent.view());
    Array dx = tokens_by(model_.hidden);
    if (shared > 0) {
      const View dh_shared = shared_part(dh, wide, model_.gates() * shared);
      shared_backward_weight(model_, ModuleKind::kFc2, dy.view(), shared_part(layer.a, ffn, shared),
                             dfc2, adds_);
      shared_backward_input(model_, ModuleKind::kFc2, dy.view(), fc2, shared_part(da, ffn, shared));
      shared_activation_backward(model_, shared_part(layer.h, wide, model_.gates() * shared),
                                 shared_part(da, ffn, shared), dh_shared);
      shared_backward_weight(model_, ModuleKind::kFc1, dh_shared, layer.norm2.view(), dfc1, adds_);
      shared_backward_input(model_, ModuleKind::kFc1, dh_shared, fc1, dx.view());
    }
    sum_rows(rows(), dsent.view(), dx.view(), dx.view());
    scores_backward(model_, layer.scores.view(), layer.choice.view(), balance_, dscores.view());
    linear_backward_weight(model_, ModuleKind::kRouter, dscores.view(), layer.norm2.view(),
                           gradients(ModuleKind::kRouter, i), adds_);
    linear_backward_input(model_, ModuleKind::kRouter, dscores.view(),
                          parameters(ModuleKind::kRouter, i), dx.view(), true);
    return dx;
  }

  const Model& model_;
  Shape shape_;
  std::span<const int32_t> tokens_;
  const Array& parameters_;
  std::vector<Module> modules_;
  DType type_;
  double factor_;
  bool adds_;
  int64_t loss_chunks_;
  Array gradients_;
  std::vector<Layer> layers_;
  Array final_input_, final_norm_, final_statistics_, logits_;
  std::vector<double> balance_sums_;
  double* balance_ = nullptr;
  int64_t balanced_rows_ = 0;
};

}  // namespace

Array zeros(DType dtype, int64_t rows, int64_t columns) {
  return {dtype, rows, columns,
          std::vector<std::byte>(static_cast<size_t>(rows * columns * size_of(dtype)))};
}

Array array_of(std::span<const double> values, DType dtype, int64_t rows, int64_t columns) {
  CHECK(static_cast<int64_t>(values.size()) == rows * columns);
  Array array = zeros(dtype, rows, columns);
  if (dtype == DType::kF64) {
    std::copy(values.begin(), values.end(), reinterpret_cast<double*>(array.bytes.data()));
    return array;
  }
  const std::vector<float> floats(values.begin(), values.end());
  kernels::reference().cast(floats.data(), kernels::Format::kF32, array.bytes.data(),
                            format_of(dtype), array.count());
  return array;
}

std::vector<double> values_of(const Array& array) {
  const auto count = static_cast<size_t>(array.count());
  if (array.dtype == DType::kF64) {
    const auto* from = reinterpret_cast<const double*>(array.bytes.data());
    return {from, from + count};
  }
  std::vector<float> floats(count);
  kernels::reference().cast(array.bytes.data(), format_of(array.dtype), floats.data(),
                            kernels::Format::kF32, array.count());
  return {floats.begin(), floats.end()};
}

Array converted(const Array& array, DType dtype) {
  return array_of(values_of(array), dtype, array.rows, array.columns);
}

Array random_array(const Uniform& uniform, DType dtype, int64_t rows, int64_t columns) {
  std::vector<double> values(static_cast<size_t>(rows * columns));
  uint32_t state = uniform.seed * 2654435761u + 12345u;
  for (double& value : values) {
    state = state * 1664525u + 1013904223u;
    value = uniform.centre +
            uniform.spread * static_cast<double>(static_cast<int32_t>(state)) * 0x1p-31;
  }
  return array_of(values, dtype, rows, columns);
}

double largest_magnitude(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

Model gpt2_like() { return tiny::gpt2({.ffn = 12, .vocab = 11, .positions = 7}); }

constexpr tiny::Widths kGrouped = {
    .hidden = 8, .heads = 4, .kv_heads = 2, .head_size = 4, .ffn = 12, .vocab = 11, .positions = 7};
Model llama_like() { return tiny::llama(kGrouped); }
Model qwen2_like() { return tiny::qwen2(kGrouped); }
Model without_query_latent() {
  Model model = tiny::deepseek_v3(kGrouped);
  model.query_rank = 0;
  model.normalised_choice = false;
  model.interleaved_rope = false;
  return model;
}
std::vector<Model> newer_models() {
  return {tiny::qwen3(kGrouped),   tiny::mixtral(kGrouped),     tiny::qwen3_moe(kGrouped),
          tiny::gpt_oss(kGrouped), tiny::deepseek_v3(kGrouped), without_query_latent()};
}

std::vector<int32_t> some_tokens(const Model& model, Shape shape) {
  std::vector<int32_t> tokens(static_cast<size_t>(shape.sequences * (shape.length + 1)));
  uint32_t state = 7;
  for (int32_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(model.vocab));
  }
  return tokens;
}

Array some_parameters(const Model& model, DType dtype) {
  std::vector<double> flat;
  uint32_t seed = 1;
  for (const Module& module : modules_of(model)) {
    for (const Parameter& parameter : module.parameters) {
      const bool around_one = !parameter.is_matrix && parameter.name.ends_with("weight");
      const Uniform uniform{around_one ? 1.0 : 0.0, 0.5, seed++};
      const std::vector<double> values =
          values_of(random_array(uniform, dtype, 1, parameter.count()));
      flat.insert(flat.end(), values.begin(), values.end());
    }
  }
  return array_of(flat, dtype, 1, static_cast<int64_t>(flat.size()));
}

StepResult run_step(const Model& model, Shape shape, std::span<const int32_t> tokens,
                    const Array& parameters) {
  return run_step(model, shape, tokens, parameters,
                  {1.0 / static_cast<double>(shape.tokens()), nullptr});
}

StepResult run_step(const Model& model, Shape shape, std::span<const int32_t> tokens,
                    const Array& parameters, const GradientsSoFar& gradients) {
  return Step(model, shape, tokens, parameters, gradients).run();
}

}  // namespace ballast::transformer
