// Forward and backward of the decoder's modules: roles to arguments of backend/transformer.
#include <cstring>

#include "backend/device_host.h"
#include "sim/graph/rewrite.h"

namespace ballast {

namespace {

using transformer::ConstView;
using transformer::Shape;
using transformer::View;

bool forward(const Op& op) { return !is_backward(op.phase); }

// A tensor as [rows, columns]; without data where the role is absent.
template <class Argument>
View view(const Argument& argument, int64_t rows, int64_t columns) {
  return {argument.data, argument.tensor ? argument.tensor->dtype : DType::kF32, rows, columns};
}

}  // namespace

void HostDevice::load_batch(const Op& op, int32_t step) {
  const Argument tokens = find(op, Role::kTokens, step);
  BatchRequest request;
  request.split = split_;
  request.step = step;
  request.micro_batch = op.label.micro_batch;
  request.sequences = *plan_.micro_batch;
  request.length = plan_.sequence_length;
  data_.batch(request, {reinterpret_cast<int32_t*>(tokens.data),
                        static_cast<size_t>(tokens.tensor->elements)});
}

void HostDevice::embedding(const Op& op, int32_t step) {
  const Shape shape{*plan_.micro_batch, plan_.sequence_length};
  const auto* tokens = reinterpret_cast<const int32_t*>(find(op, Role::kTokens, step).data);
  if (forward(op)) {
    const Argument weight = find(op, Role::kWeight, step);
    transformer::embedding_forward(
        model_, shape, tokens, view(weight, 1, weight.tensor->elements),
        view(find(op, Role::kOutput, step), shape.tokens(), model_.hidden));
    return;
  }
  const Argument gradient = find(op, Role::kParameterGradient, step);
  transformer::embedding_backward(
      model_, shape, tokens,
      view(find(op, Role::kOutputGradient, step), shape.tokens(), model_.hidden),
      view(gradient, 1, gradient.tensor->elements), gradient.adds);
}

void HostDevice::norm(const Op& op, int32_t step) {
  const int64_t rows = std::get<RowWork>(op.work).rows;
  const int64_t columns = std::get<RowWork>(op.work).columns;
  const Argument weight = find(op, Role::kWeight, step);
  const View x = view(find(op, Role::kInput, step), rows, columns);
  const View statistics = view(find(op, Role::kStatistics, step), rows, 2);
  const View params = view(weight, 1, weight.tensor->elements);
  if (forward(op)) {
    transformer::norm_forward(model_, x, params, view(find(op, Role::kOutput, step), rows, columns),
                              statistics);
    return;
  }
  const Argument gradient = find(op, Role::kParameterGradient, step);
  transformer::norm_backward(model_, x, statistics, params,
                             view(find(op, Role::kOutputGradient, step), rows, columns),
                             view(find(op, Role::kResidualGradient, step), rows, columns),
                             view(find(op, Role::kInputGradient, step), rows, columns),
                             view(gradient, 1, gradient.tensor->elements), gradient.adds);
}

void HostDevice::gemm(const Op& op, int32_t step) {
  const GemmWork& work = std::get<GemmWork>(op.work);
  const ModuleKind kind = op.label.module;
  if (op.phase == Phase::kBackwardWeight) {
    const Argument gradient = find(op, Role::kParameterGradient, step);
    // A tied head writes only its share of the embedding's gradient; the embedding adds the rest.
    if (kind == ModuleKind::kHead && model_.tied_embeddings && !gradient.adds) {
      std::memset(gradient.data, 0, static_cast<size_t>(gradient.tensor->bytes().count));
    }
    transformer::linear_backward_weight(
        model_, kind, view(find(op, Role::kOutputGradient, step), work.k, work.m),
        view(find(op, Role::kInput, step), work.k, work.n),
        view(gradient, 1, gradient.tensor->elements), gradient.adds);
    return;
  }
  const Argument weight = find(op, Role::kWeight, step);
  const View params = view(weight, 1, weight.tensor->elements);
  if (op.phase == Phase::kBackwardInput) {
    transformer::linear_backward_input(
        model_, kind, view(find(op, Role::kOutputGradient, step), work.m, work.k), params,
        view(find(op, Role::kInputGradient, step), work.m, work.n));
    return;
  }
  transformer::linear_forward(model_, kind, view(find(op, Role::kInput, step), work.m, work.k),
                              params, view(find(op, Role::kResidual, step), work.m, work.n),
                              view(find(op, Role::kOutput, step), work.m, work.n));
}

void HostDevice::attention(const Op& op, int32_t step) {
  const AttentionWork& work = std::get<AttentionWork>(op.work);
  const Shape shape{work.sequences, work.length};
  const View qkv = view(find(op, Role::kInput, step), shape.tokens(), model_.qkv_width());
  const View out = view(find(op, Role::kOutput, step), shape.tokens(), model_.attention_width());
  const View log_sum_exp =
      view(find(op, Role::kStatistics, step), work.sequences * work.heads, work.length);
  if (forward(op)) {
    transformer::attention_forward(model_, shape, qkv, out, log_sum_exp);
    return;
  }
  transformer::attention_backward(
      model_, shape, qkv, out, log_sum_exp,
      view(find(op, Role::kOutputGradient, step), shape.tokens(), model_.attention_width()),
      view(find(op, Role::kInputGradient, step), shape.tokens(), model_.qkv_width()));
}

void HostDevice::activation(const Op& op, int32_t step) {
  const int64_t rows = std::get<RowWork>(op.work).rows;
  const View h = view(find(op, Role::kInput, step), rows, model_.fc1_width());
  if (forward(op)) {
    transformer::activation_forward(model_, h,
                                    view(find(op, Role::kOutput, step), rows, model_.ffn));
    return;
  }
  transformer::activation_backward(
      model_, h, view(find(op, Role::kOutputGradient, step), rows, model_.ffn),
      view(find(op, Role::kInputGradient, step), rows, model_.fc1_width()));
}

void HostDevice::loss(const Op& op, int32_t step) {
  const Shape shape{*plan_.micro_batch, plan_.sequence_length};
  const auto* tokens = reinterpret_cast<const int32_t*>(find(op, Role::kTokens, step).data);
  double factor =
      control_.loss_scale(step) / static_cast<double>(shape.tokens() * plan_.accumulation());
  if (options_.gradient_factor) factor *= options_.gradient_factor(step);
  const double mean = transformer::loss_forward_backward(
      model_, shape, tokens, view(find(op, Role::kOutput, step), shape.tokens(), model_.vocab),
      factor);
  if (split_ == Split::kValidation) {
    evaluated_loss_ = mean;
  } else {
    control_.set_loss(step, op.label.micro_batch, mean);
  }
}

}  // namespace ballast
