#include "backend/host/host_modules.h"

#include <cstring>

#include "backend/execute/module_dispatch.h"
#include "backend/host/transformer.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

using transformer::ConstView;
using transformer::Shape;
using transformer::View;

bool forward(const Op& op) { return !is_backward(op.phase); }

// A tensor as [rows, columns]; without data where the role is absent.
View view(const Argument& argument, int64_t rows, int64_t columns) {
  return {argument.data, argument.tensor ? argument.tensor->dtype : DType::kF32, rows, columns};
}

}  // namespace

void HostModules::module(const Op& op, const OperationArguments& arguments, int32_t step) const {
  const Call call{op, arguments, step};
  dispatch_module(
      op.kind, [&] { embedding(call); }, [&] { norm(call); }, [&] { gemm(call); },
      [&] { attention(call); }, [&] { activation(call); });
}

void HostModules::embedding(const Call& call) const {
  const Op& op = call.op;
  const Shape shape{*plan_.micro_batch, plan_.sequence_length};
  const auto* tokens = reinterpret_cast<const int32_t*>(call.find(Role::kTokens).data);
  if (forward(op)) {
    const Argument weight = call.find(Role::kWeight);
    transformer::embedding_forward(model_, shape, tokens, view(weight, 1, weight.tensor->elements),
                                   view(call.find(Role::kOutput), shape.tokens(), model_.hidden));
    return;
  }
  const Argument gradient = call.find(Role::kParameterGradient);
  transformer::embedding_backward(
      model_, shape, tokens, view(call.find(Role::kOutputGradient), shape.tokens(), model_.hidden),
      view(gradient, 1, gradient.tensor->elements), gradient.adds);
}

void HostModules::norm(const Call& call) const {
  const Op& op = call.op;
  const int64_t rows = std::get<RowWork>(op.work).rows;
  const int64_t columns = std::get<RowWork>(op.work).columns;
  const Argument weight = call.find(Role::kWeight);
  const View x = view(call.find(Role::kInput), rows, columns);
  const View statistics = view(call.find(Role::kStatistics), rows, 2);
  const View params = view(weight, 1, weight.tensor->elements);
  if (forward(op)) {
    transformer::norm_forward(model_, x, params, view(call.find(Role::kOutput), rows, columns),
                              statistics);
    return;
  }
  const Argument gradient = call.find(Role::kParameterGradient);
  transformer::norm_backward(model_, x, statistics, params,
                             view(call.find(Role::kOutputGradient), rows, columns),
                             view(call.find(Role::kResidualGradient), rows, columns),
                             view(call.find(Role::kInputGradient), rows, columns),
                             view(gradient, 1, gradient.tensor->elements), gradient.adds);
}

void HostModules::gemm(const Call& call) const {
  const Op& op = call.op;
  const GemmWork& work = std::get<GemmWork>(op.work);
  const ModuleKind kind = op.label.module;
  if (op.phase == Phase::kBackwardWeight) {
    const Argument gradient = call.find(Role::kParameterGradient);
    // A tied head writes only its share of the embedding's gradient; the embedding adds the rest.
    if (kind == ModuleKind::kHead && model_.tied_embeddings && !gradient.adds) {
      std::memset(gradient.data, 0, static_cast<size_t>(gradient.tensor->bytes().count));
    }
    transformer::linear_backward_weight(
        model_, kind, view(call.find(Role::kOutputGradient), work.k, work.m),
        view(call.find(Role::kInput), work.k, work.n), view(gradient, 1, gradient.tensor->elements),
        gradient.adds);
    return;
  }
  const Argument weight = call.find(Role::kWeight);
  const View params = view(weight, 1, weight.tensor->elements);
  if (op.phase == Phase::kBackwardInput) {
    transformer::linear_backward_input(
        model_, kind, view(call.find(Role::kOutputGradient), work.m, work.k), params,
        view(call.find(Role::kInputGradient), work.m, work.n));
    return;
  }
  transformer::linear_forward(model_, kind, view(call.find(Role::kInput), work.m, work.k), params,
                              view(call.find(Role::kResidual), work.m, work.n),
                              view(call.find(Role::kOutput), work.m, work.n));
}

void HostModules::attention(const Call& call) const {
  const Op& op = call.op;
  const AttentionWork& work = std::get<AttentionWork>(op.work);
  const Shape shape{work.sequences, work.length};
  const View qkv = view(call.find(Role::kInput), shape.tokens(), model_.qkv_width());
  const View out = view(call.find(Role::kOutput), shape.tokens(), model_.attention_width());
  const View log_sum_exp =
      view(call.find(Role::kStatistics), work.sequences * work.heads, work.length);
  if (forward(op)) {
    transformer::attention_forward(model_, shape, qkv, out, log_sum_exp);
    return;
  }
  transformer::attention_backward(
      model_, shape, qkv, out, log_sum_exp,
      view(call.find(Role::kOutputGradient), shape.tokens(), model_.attention_width()),
      view(call.find(Role::kInputGradient), shape.tokens(), model_.qkv_width()));
}

void HostModules::activation(const Call& call) const {
  const Op& op = call.op;
  const int64_t rows = std::get<RowWork>(op.work).rows;
  const View h = view(call.find(Role::kInput), rows, model_.fc1_width());
  if (forward(op)) {
    transformer::activation_forward(model_, h, view(call.find(Role::kOutput), rows, model_.ffn));
    return;
  }
  transformer::activation_backward(model_, h,
                                   view(call.find(Role::kOutputGradient), rows, model_.ffn),
                                   view(call.find(Role::kInputGradient), rows, model_.fc1_width()));
}

double HostModules::loss(const Op& op, const OperationArguments& arguments, int32_t step,
                         double gradient_factor) const {
  const Call call{op, arguments, step};
  const Shape shape{*plan_.micro_batch, plan_.sequence_length};
  const auto* tokens = reinterpret_cast<const int32_t*>(call.find(Role::kTokens).data);
  return transformer::loss_forward_backward(
      model_, shape, tokens, view(call.find(Role::kOutput), shape.tokens(), model_.vocab),
      gradient_factor);
}

}  // namespace ballast
