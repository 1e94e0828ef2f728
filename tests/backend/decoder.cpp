#include "tests/backend/decoder.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "sim/base/error.h"
#include "tests/tiny.h"

namespace ballast::transformer {
namespace {

kernels::Format format_of(DType dtype) {
  CHECK(dtype != DType::kF64 && dtype != DType::kI32);
  if (dtype == DType::kF32) return kernels::Format::kF32;
  return dtype == DType::kBf16 ? kernels::Format::kBf16 : kernels::Format::kF16;
}

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
        gradients_(adds_ ? *so_far.before : zeros(type_, 1, parameters.count())) {}

  StepResult run() {
    StepResult result;
    forward();
    result.logits = logits_;
    result.loss = loss_forward_backward(model_, shape_, tokens_.data(), logits_.view(), factor_);
    backward();
    result.gradients = std::move(gradients_);
    return result;
  }

 private:
  struct Layer {
    Array input, norm1, statistics1, qkv, attention, log_sum_exp;
    Array middle, norm2, statistics2, h, a;
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
    return {gradients_.bytes.data() + module.flat_offset * size_of(type_), type_, 1, module.count};
  }
  Array tokens_by(int64_t columns) const { return zeros(type_, shape_.tokens(), columns); }
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
    linear_forward(model_, ModuleKind::kQkv, layer.norm1.view(), parameters(ModuleKind::kQkv, i),
                   {}, layer.qkv.view());
    layer.attention = tokens_by(model_.attention_width());
    layer.log_sum_exp = statistics(shape_.sequences * model_.heads, shape_.length);
    attention_forward(model_, shape_, layer.qkv.view(), layer.attention.view(),
                      layer.log_sum_exp.view());
    layer.middle = tokens_by(model_.hidden);
    linear_forward(model_, ModuleKind::kAttentionOut, layer.attention.view(),
                   parameters(ModuleKind::kAttentionOut, i), layer.input.view(),
                   layer.middle.view());
    layer.norm2 = tokens_by(model_.hidden);
    layer.statistics2 = statistics(shape_.tokens(), 2);
    norm_forward(model_, layer.middle.view(), parameters(ModuleKind::kNorm2, i), layer.norm2.view(),
                 layer.statistics2.view());
    layer.h = tokens_by(model_.fc1_width());
    linear_forward(model_, ModuleKind::kFc1, layer.norm2.view(), parameters(ModuleKind::kFc1, i),
                   {}, layer.h.view());
    layer.a = tokens_by(model_.ffn);
    activation_forward(model_, layer.h.view(), layer.a.view());
    Array out = layer.middle;  // the residual is added in place
    linear_forward(model_, ModuleKind::kFc2, layer.a.view(), parameters(ModuleKind::kFc2, i),
                   out.view(), out.view());
    layers_.push_back(std::move(layer));
    return out;
  }

  // Gradient of a linear module's parameters, and of its input.
  Array backward_linear(ModuleKind kind, int64_t layer, const Array& dy, const Array& x) {
    linear_backward_weight(model_, kind, dy.view(), x.view(), gradients(kind, layer), adds_);
    Array dx = tokens_by(x.columns);
    linear_backward_input(model_, kind, dy.view(), parameters(kind, layer), dx.view());
    return dx;
  }

  void backward() {
    Array dx = backward_linear(ModuleKind::kHead, -1, logits_, final_norm_);
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
    const Array da = backward_linear(ModuleKind::kFc2, i, dx, layer.a);
    Array dh = tokens_by(model_.fc1_width());
    activation_backward(model_, layer.h.view(), da.view(), dh.view());
    const Array dnorm2 = backward_linear(ModuleKind::kFc1, i, dh, layer.norm2);
    norm_backward(model_, layer.middle.view(), layer.statistics2.view(),
                  parameters(ModuleKind::kNorm2, i), dnorm2.view(), dx.view(), dx.view(),
                  gradients(ModuleKind::kNorm2, i), adds_);
    const Array dattention = backward_linear(ModuleKind::kAttentionOut, i, dx, layer.attention);
    Array dqkv = tokens_by(model_.qkv_width());
    attention_backward(model_, shape_, layer.qkv.view(), layer.attention.view(),
                       layer.log_sum_exp.view(), dattention.view(), dqkv.view());
    const Array dnorm1 = backward_linear(ModuleKind::kQkv, i, dqkv, layer.norm1);
    norm_backward(model_, layer.input.view(), layer.statistics1.view(),
                  parameters(ModuleKind::kNorm1, i), dnorm1.view(), dx.view(), dx.view(),
                  gradients(ModuleKind::kNorm1, i), adds_);
  }

  const Model& model_;
  Shape shape_;
  std::span<const int32_t> tokens_;
  const Array& parameters_;
  std::vector<Module> modules_;
  DType type_;
  double factor_;
  bool adds_;
  Array gradients_;
  std::vector<Layer> layers_;
  Array final_input_, final_norm_, final_statistics_, logits_;
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
    const bool is_norm = module.kind == ModuleKind::kNorm1 || module.kind == ModuleKind::kNorm2 ||
                         module.kind == ModuleKind::kFinalNorm;
    for (const Parameter& parameter : module.parameters) {
      const bool around_one = is_norm && parameter.offset == 0;
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
