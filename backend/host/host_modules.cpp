#include "backend/host/host_modules.h"

#include <algorithm>
#include <cstring>

#include "backend/execute/module_dispatch.h"
#include "backend/host/linear_layout.h"
#include "backend/host/module_views.h"
#include "backend/host/transformer.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

using transformer::ConstView;
using transformer::Shape;
using transformer::View;

transformer::LatentProduct latent_product(ChainPart part) {
  switch (part) {
    case ChainPart::kQueryDown:
      return transformer::LatentProduct::kQueryDown;
    case ChainPart::kQueryUp:
      return transformer::LatentProduct::kQueryUp;
    case ChainPart::kKeyDown:
      return transformer::LatentProduct::kKeyDown;
    case ChainPart::kKeyUp:
      return transformer::LatentProduct::kKeyUp;
    case ChainPart::kWhole:
      break;
  }
  CHECK(false && "a part of latent attention");
}

}  // namespace

transformer::VocabularyPart vocabulary_part(const Model& rank, int64_t whole, const Plan& plan,
                                            const RankPlace& place) {
  transformer::VocabularyPart part;
  if (plan.tensor == 1) return part;
  part.first = place.tensor * rank.vocab;
  part.count = std::min(rank.vocab, whole - part.first);
  part.all = whole;
  part.adds_positions = place.tensor == 0;
  return part;
}

HostModules::HostModules(const Model& model, int64_t whole_vocabulary, const Plan& plan,
                         RankPlace place, const RankExchanges* exchanges,
                         const ExpertExchanges* experts)
    : model_(model),
      attention_(attention_model(model, plan)),
      experts_(own_experts(model, plan)),
      plan_(plan),
      place_(place),
      exchanges_(exchanges),
      sent_(experts),
      vocabulary_(vocabulary_part(model, whole_vocabulary, plan, place)),
      parts_(subsequences_of(plan, model)) {}

void HostModules::module(const Op& op, const OperationArguments& arguments, int32_t step) const {
  const Call call{op, arguments, step};
  dispatch_module(
      op.kind, [&] { embedding(call); }, [&] { norm(call); }, [&] { gemm(call); },
      [&] { attention(call); }, [&] { activation(call); }, [&] { permute(call); });
}

Shape HostModules::shape_of(const Op& op) const {
  if (op.label.subsequence < 0) {
    const std::vector<Subsequence> pieces = pieces_of(plan_, place_);
    const int64_t second = pieces.size() > 1 ? pieces.back().begin : -1;
    const int64_t sequences = *plan_.micro_batch * std::ssize(pieces);
    return {sequences, pieces.front().length, 0, 0, pieces.front().begin, second};
  }
  const Subsequence& part = parts_[static_cast<size_t>(op.label.subsequence)];
  return {*plan_.micro_batch, part.length, part.begin, plan_.sequence_length};
}

View HostModules::chunk_rows(const Call& call, const Argument& all, int64_t rows,
                             int64_t columns) const {
  if (call.op.label.loss_chunk < 0) return view(all, rows, columns);
  return part(all, chunk_of(call.op).begin * columns, rows, columns);
}

void HostModules::embedding(const Call& call) const {
  const Op& op = call.op;
  const Shape shape = shape_of(op);
  const auto* tokens = reinterpret_cast<const int32_t*>(call.find(Role::kTokens).data);
  if (forward(op)) {
    const Argument weight = call.find(Role::kWeight);
    transformer::embedding_forward(model_, shape, tokens, view(weight, 1, weight.tensor->elements),
                                   view(call.find(Role::kOutput), shape.tokens(), model_.hidden),
                                   vocabulary_);
    return;
  }
  const Argument gradient = call.find(Role::kParameterGradient);
  transformer::embedding_backward(
      model_, shape, tokens, view(call.find(Role::kOutputGradient), shape.tokens(), model_.hidden),
      view(gradient, 1, gradient.tensor->elements), gradient.adds, vocabulary_);
}

// In fp32, whatever the gradients are stored in: added to them and rounded once.
void HostModules::sum_gradient(
    const Call& call, const Argument& gradient,
    const std::function<void(transformer::View gradient)>& backward) const {
  std::vector<float> sums(static_cast<size_t>(gradient.tensor->elements));
  backward({sums.data(), DType::kF32, 1, std::ssize(sums)});
  exchanges_->sum(call.op.lane, tensor_group(plan_), sums);
  transformer::put_gradient(sums, flat(gradient), gradient.adds);
}

void HostModules::norm(const Call& call) const {
  const Op& op = call.op;
  if (op.label.part != ChainPart::kWhole) return latent_norm(call);
  if (forward(op)) {
    const int64_t rows = std::get<RowWork>(op.work).rows;
    const int64_t columns = std::get<RowWork>(op.work).columns;
    transformer::norm_forward(
        model_, view(call.find(Role::kInput), rows, columns), flat(call.find(Role::kWeight)),
        view(call.find(Role::kOutput), rows, columns), view(call.find(Role::kStatistics), rows, 2));
    return;
  }
  const Argument gradient = call.find(Role::kParameterGradient);
  if (sums_over_ranks() && plan_.tensor_sequence) {
    return sum_gradient(call, gradient, [&](View to) { norm_backward(call, to, false); });
  }
  norm_backward(call, flat(gradient), gradient.adds);
}

void HostModules::norm_backward(const Call& call, View gradient, bool adds) const {
  const int64_t rows = std::get<RowWork>(call.op.work).rows;
  const int64_t columns = std::get<RowWork>(call.op.work).columns;
  transformer::norm_backward(model_, view(call.find(Role::kInput), rows, columns),
                             view(call.find(Role::kStatistics), rows, 2),
                             flat(call.find(Role::kWeight)),
                             view(call.find(Role::kOutputGradient), rows, columns),
                             view(call.find(Role::kResidualGradient), rows, columns),
                             view(call.find(Role::kInputGradient), rows, columns), gradient, adds);
}

void HostModules::norm_apart(const Op& op, const OperationArguments& arguments, int32_t step,
                             std::span<float> gradient) const {
  norm_backward({op, arguments, step}, {gradient.data(), DType::kF32, 1, std::ssize(gradient)},
                false);
}

void HostModules::gemm(const Call& call) const {
  const Op& op = call.op;
  const GemmWork& work = std::get<GemmWork>(op.work);
  const ModuleKind kind = op.label.module;
  const bool feeds_forward = kind == ModuleKind::kFc1 || kind == ModuleKind::kFc2;
  if (work.experts > 0) return expert_gemm(call);
  if (op.label.part != ChainPart::kWhole) return latent_gemm(call);
  if (feeds_forward && model_.has_experts(op.label.layer)) return shared_gemm(call);
  if (op.phase == Phase::kBackwardWeight) {
    const Argument gradient = call.find(Role::kParameterGradient);
    // A tied head writes only its share of the embedding's gradient; the embedding adds the rest.
    if (kind == ModuleKind::kHead && model_.tied_embeddings && !gradient.adds) {
      std::memset(gradient.data, 0, static_cast<size_t>(gradient.tensor->bytes().count));
    }
    transformer::linear_backward_weight(
        model_, kind, view(call.find(Role::kOutputGradient), work.k, work.m),
        chunk_rows(call, call.find(Role::kInput), work.k, work.n), flat(gradient), gradient.adds);
    return;
  }
  if (kind == ModuleKind::kQkv && op.label.subsequence >= 0 && forward(op)) return part_qkv(call);
  const bool is_row_parallel = kind == ModuleKind::kAttentionOut || kind == ModuleKind::kFc2;
  if (sums_over_ranks() && is_row_parallel && forward(op)) return row_parallel(call);
  const Argument weight = call.find(Role::kWeight);
  const View params = view(weight, 1, weight.tensor->elements);
  if (op.phase == Phase::kBackwardInput) {
    const Argument to = call.find(Role::kInputGradient);
    transformer::linear_backward_input(
        model_, kind, view(call.find(Role::kOutputGradient), work.m, work.k), params,
        chunk_rows(call, to, work.m, work.n), to.adds && op.label.loss_chunk < 0);
    return;
  }
  transformer::linear_forward(model_, kind,
                              chunk_rows(call, call.find(Role::kInput), work.m, work.k), params,
                              view(call.find(Role::kResidual), work.m, work.n),
                              view(call.find(Role::kOutput), work.m, work.n));
}

// Whoever has a token's residual adds it and the bias: the first rank, or, of tokens that ranks
// share between products, the rank whose they are.
void HostModules::row_parallel(const Call& call) const {
  const GemmWork& work = std::get<GemmWork>(call.op.work);
  const View params = flat(call.find(Role::kWeight));
  const Argument x = call.find(Role::kInput);
  const Argument y = call.find(Role::kOutput);
  const int64_t rows = plan_.tensor_sequence ? div_exact(work.m, plan_.tensor) : work.m;
  const View residual = view(call.find(Role::kResidual), rows, work.n);
  for (int64_t first = 0; first < work.m; first += rows) {
    const bool adds = plan_.tensor_sequence ? first == place_.tensor * rows : place_.tensor == 0;
    transformer::linear_forward(model_, call.op.label.module, part(x, first * work.k, rows, work.k),
                                params, adds ? residual : View{},
                                part(y, first * work.n, rows, work.n), adds);
  }
}

void HostModules::latent_gemm(const Call& call) const {
  const Op& op = call.op;
  const GemmWork& work = std::get<GemmWork>(op.work);
  const transformer::LatentProduct product = latent_product(op.label.part);
  const bool up = op.label.part == ChainPart::kQueryUp || op.label.part == ChainPart::kKeyUp;
  // What goes up is a part of qkv's columns.
  const auto made = [&](const Argument& y, int64_t rows, int64_t columns) {
    return view(y, rows, up ? model_.qkv_width() : columns);
  };
  if (op.phase == Phase::kBackwardWeight) {
    transformer::latent_backward_weight(model_, product,
                                        made(call.find(Role::kOutputGradient), work.k, work.m),
                                        view(call.find(Role::kInput), work.k, work.n),
                                        flat(call.find(Role::kParameterGradient)), work.accumulate);
    return;
  }
  const View params = flat(call.find(Role::kWeight));
  if (op.phase == Phase::kBackwardInput) {
    const Argument dx = call.find(Role::kInputGradient);
    transformer::latent_backward_input(model_, product,
                                       made(call.find(Role::kOutputGradient), work.m, work.k),
                                       params, view(dx, work.m, work.n), dx.adds);
    return;
  }
  transformer::latent_forward(
      model_, product, view(call.find(Role::kInput), work.m, work.k), params,
      view(call.find(Role::kResidual), work.m, model_.kv_rank + model_.rope_size),
      made(call.find(Role::kOutput), work.m, work.n));
}

void HostModules::latent_norm(const Call& call) const {
  const Op& op = call.op;
  const RowWork& work = std::get<RowWork>(op.work);
  const transformer::LatentLayout layout = transformer::latent_layout(model_);
  const bool of_keys = op.label.part == ChainPart::kKeyDown;
  const int64_t offset = of_keys ? layout.key_norm : layout.query_norm;
  const int64_t width = work.columns + (of_keys ? model_.rope_size : 0);
  const View x = view(call.find(Role::kInput), work.rows, width);
  const View statistics = view(call.find(Role::kStatistics), work.rows, 2);
  const View params = part(call.find(Role::kWeight), offset, 1, work.columns);
  if (forward(op)) {
    transformer::norm_forward(model_, x, params,
                              view(call.find(Role::kOutput), work.rows, work.columns), statistics,
                              transformer::kLatentNormEpsilon);
    return;
  }
  const View dx = view(call.find(Role::kInputGradient), work.rows, width);
  // The products before have written other parts of the module's gradient, which is that of one
  // micro-batch where ranks sum it after each.
  const Argument gradient = call.find(Role::kParameterGradient);
  const bool adds = op.label.micro_batch > 0 && gradient.tensor->kind != TensorKind::kFullGradient;
  transformer::norm_backward(model_, x, statistics, params,
                             view(call.find(Role::kOutputGradient), work.rows, work.columns), {},
                             dx, part(gradient, offset, 1, work.columns), adds);
  if (!of_keys) return;
  const View dqkv = view(call.find(Role::kResidualGradient), work.rows, model_.qkv_width());
  transformer::latent_rotary_backward(model_, dqkv, dx);
}

void HostModules::part_qkv(const Call& call) const {
  const GemmWork& work = std::get<GemmWork>(call.op.work);
  const Argument q = call.find(Role::kOutput);
  const int64_t queries = model_.heads * model_.head_size;
  transformer::part_qkv_forward(model_, view(call.find(Role::kInput), work.m, work.k),
                                flat(call.find(Role::kWeight)), view(q, work.m, queries),
                                view(call.find(Role::kKeysValues), work.m, work.n - queries));
}

void HostModules::part_attention(const Call& call) const {
  const Op& op = call.op;
  const Shape shape = shape_of(op);
  const int64_t queries = model_.heads * model_.head_size;
  const int64_t pair = model_.qkv_width() - queries;
  const auto rows = [&](const Argument& argument) {
    return view(argument, argument.tensor->elements / pair, pair);
  };
  transformer::PartOfAttention part;
  part.q = view(call.find(Role::kInput), shape.tokens(), queries);
  for (const Argument& argument : call.arguments.all(op, Role::kKeysValues, call.step)) {
    part.keys_values.push_back(rows(argument));
  }
  const View out = view(call.find(Role::kOutput), shape.tokens(), model_.attention_width());
  const View log_sum_exp =
      view(call.find(Role::kStatistics), shape.sequences * model_.heads, shape.length);
  const transformer::AttentionOf attention{op.label.layer, flat(call.find(Role::kWeight))};
  if (forward(op)) {
    transformer::part_attention_forward(model_, shape, part.q, part.keys_values, out, log_sum_exp,
                                        attention);
    return;
  }
  for (const Argument& sums : call.arguments.all(op, Role::kKeyGradient, call.step)) {
    if (part.before.size() + 1 < part.keys_values.size()) {
      part.before.push_back({rows(sums), sums.adds});
    } else {
      part.after = rows(sums);
    }
  }
  const Argument gradient = call.find(Role::kParameterGradient);
  const auto backward = [&](View to, bool adds) {
    transformer::part_attention_backward(
        model_, shape, part,
        {out, log_sum_exp,
         view(call.find(Role::kOutputGradient), shape.tokens(), model_.attention_width())},
        view(call.find(Role::kInputGradient), shape.tokens(), model_.qkv_width()), attention, to,
        adds);
  };
  if (sums_over_ranks() && model_.qk_norm) {
    return sum_gradient(call, gradient, [&](View to) { backward(to, false); });
  }
  backward(flat(gradient), gradient.adds);
}

void HostModules::attention(const Call& call) const {
  const Op& op = call.op;
  if (op.label.subsequence >= 0) return part_attention(call);
  if (plan_.context > 1) return ring_attention(call);
  const AttentionWork& work = std::get<AttentionWork>(op.work);
  const Model& model = attention_;
  const Shape shape{work.sequences, work.length};
  const View qkv = view(call.find(Role::kInput), shape.tokens(), model.qkv_width());
  const View out = view(call.find(Role::kOutput), shape.tokens(), model.attention_width());
  const View log_sum_exp =
      view(call.find(Role::kStatistics), work.sequences * work.heads, work.length);
  const transformer::AttentionOf attention{op.label.layer, flat(call.find(Role::kWeight))};
  if (forward(op)) {
    transformer::attention_forward(model, shape, qkv, out, log_sum_exp, attention);
    return;
  }
  const View dout = view(call.find(Role::kOutputGradient), shape.tokens(), model.attention_width());
  const View dqkv = view(call.find(Role::kInputGradient), shape.tokens(), model.qkv_width());
  const Argument gradient = call.find(Role::kParameterGradient);
  const auto backward = [&](View to, bool adds) {
    transformer::attention_backward(model, shape, qkv, out, log_sum_exp, dout, dqkv, attention, to,
                                    adds);
  };
  // Sinks are of heads; norms of queries and keys all heads share.
  if (sums_over_ranks() && model.qk_norm) {
    return sum_gradient(call, gradient, [&](View to) { backward(to, false); });
  }
  backward(flat(gradient), gradient.adds);
}

void HostModules::activation(const Call& call) const {
  const Op& op = call.op;
  if (model_.has_experts(op.label.layer)) return expert_activation(call);
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

void HostModules::loss_sums(const Op& op, const OperationArguments& arguments, int32_t step) const {
  const Argument to = arguments.find(op, Role::kDestination, step);
  tell_loss(op, arguments, step, to.data);
  const auto bytes = static_cast<size_t>(to.tensor->bytes().count);
  merge_loss(op, arguments, step, exchanges_->all_of(op.lane, {to.data, bytes}).data());
}

void HostModules::tell_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                            std::byte* told) const {
  const Call call{op, arguments, step};
  const LossChunk chunk = chunk_of(op);
  const auto* tokens = reinterpret_cast<const int32_t*>(call.find(Role::kTokens).data);
  transformer::loss_sums(model_, shape_of(op), tokens,
                         view(call.find(Role::kSource), chunk.count, model_.vocab), vocabulary_,
                         {told, DType::kF32, chunk.count, 3}, chunk.begin);
}

void HostModules::merge_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                             const std::byte* told) const {
  const Argument to = arguments.find(op, Role::kDestination, step);
  const int64_t bytes = to.tensor->bytes().count;
  const View sums = view(to, chunk_of(op).count, 3);
  std::memcpy(to.data, told, static_cast<size_t>(bytes));
  for (int64_t rank = 1; rank < plan_.tensor; ++rank) {
    transformer::add_loss_sums({told + rank * bytes, DType::kF32, sums.rows, sums.columns}, sums);
  }
}

double HostModules::loss(const Op& op, const OperationArguments& arguments, int32_t step,
                         double gradient_factor) const {
  const Call call{op, arguments, step};
  const Shape shape = shape_of(op);
  const auto* tokens = reinterpret_cast<const int32_t*>(call.find(Role::kTokens).data);
  const LossChunk chunk = chunk_of(op);
  const double share =
      static_cast<double>(chunk.count) / static_cast<double>(plan_.tokens_per_micro_batch());
  const View logits = view(call.find(Role::kOutput), chunk.count, model_.vocab);
  if (sums_over_ranks()) {
    return share * transformer::shared_loss_forward_backward(
                       model_, shape, tokens, logits, vocabulary_,
                       view(call.find(Role::kStatistics), chunk.count, 3), gradient_factor,
                       chunk.begin);
  }
  const double mean = share * transformer::loss_forward_backward(model_, shape, tokens, logits,
                                                                 gradient_factor, chunk.begin);
  const Argument balance = call.find(Role::kBalance);
  if (balance.data == nullptr) return mean;
  int64_t rows = 0;
  for (int64_t layer = 0; layer < model_.layers; ++layer) {
    rows += model_.has_experts(layer) ? shape.tokens() : 0;
  }
  // The factor folds 1 / tokens, which is in the mean over rows already.
  const double factor = gradient_factor * static_cast<double>(shape.tokens());
  return mean +
         transformer::balance_loss(model_, rows, factor, reinterpret_cast<double*>(balance.data));
}

}  // namespace ballast
