// The operations of layers with experts: see host_modules.h.
#include "backend/host/experts/transformer_experts.h"
#include "backend/host/host_modules.h"
#include "backend/host/linear_layout.h"
#include "backend/host/module_views.h"

namespace ballast {

using transformer::ConstView;
using transformer::View;

int64_t HostModules::sent_rows() const {
  return plan_.tokens_per_micro_batch() * model_.experts_per_token;
}

transformer::Routed HostModules::routed(const Call& call) const {
  if (sent_ != nullptr) {
    const ExpertExchanges::Sent& sent = sent_->sent(call.op.label);
    return {{}, {sent.experts.data(), DType::kI32, sent.rows(), 1}, sent.weights.data()};
  }
  const int64_t tokens = plan_.tokens_per_micro_batch();
  return {view(call.find(Role::kStatistics), tokens, model_.experts),
          view(call.find(Role::kRouting), tokens, model_.experts_per_token)};
}

View HostModules::expert_rows(const Call& call, Role role, ExpertArray array,
                              int64_t columns) const {
  const Argument argument = call.find(role);
  if (sent_ == nullptr) return part(argument, 0, sent_rows(), columns);
  return {sent_->rows(call.op.label, array, argument, columns), argument.tensor->dtype,
          sent_->sent(call.op.label).rows(), columns};
}

View HostModules::weight_gradients(const Call& call) const {
  if (sent_ == nullptr) {
    return view(call.find(Role::kScratch), plan_.tokens_per_micro_batch(), model_.experts);
  }
  ExpertExchanges::Sent& sent = sent_->sent(call.op.label);
  return {sent.weight_gradients.data(), DType::kF32, sent.rows(), 1};
}

void HostModules::expert_gemm(const Call& call) const {
  const Op& op = call.op;
  const GemmWork& work = std::get<GemmWork>(op.work);
  const ModuleKind kind = op.label.module;
  const bool up = kind == ModuleKind::kFc1;
  const ExpertArray in = up ? ExpertArray::kSent : ExpertArray::kActivation;
  const ExpertArray din = up ? ExpertArray::kSentGradient : ExpertArray::kActivationGradient;
  const ExpertArray dout = up ? ExpertArray::kFc1Gradient : ExpertArray::kMadeGradient;
  const transformer::Routed routing = routed(call);
  const transformer::ExpertRows rows = transformer::expert_rows(experts_, routing.choice);
  const bool biased = !up && model_.mlp_bias;
  if (op.phase == Phase::kBackwardWeight) {
    const View dy = expert_rows(call, Role::kOutputGradient, dout, work.m);
    const View gradient = flat(call.find(Role::kParameterGradient));
    transformer::experts_backward_weight(experts_, kind, dy,
                                         expert_rows(call, Role::kInput, in, work.n), rows,
                                         gradient, work.accumulate);
    if (biased) {
      transformer::weighted_biases_backward(experts_, routing, dy, gradient, work.accumulate);
    }
    return;
  }
  const View params = flat(call.find(Role::kWeight));
  if (op.phase == Phase::kBackwardInput) {
    const View dy = expert_rows(call, Role::kOutputGradient, dout, work.k);
    transformer::experts_backward_input(experts_, kind, dy, rows, params,
                                        expert_rows(call, Role::kInputGradient, din, work.n));
    if (biased) {
      transformer::bias_weights_backward(experts_, routing, dy, params, weight_gradients(call));
    }
    return;
  }
  const View y =
      expert_rows(call, Role::kOutput, up ? ExpertArray::kFc1 : ExpertArray::kMade, work.n);
  transformer::experts_forward(experts_, kind, expert_rows(call, Role::kInput, in, work.k), rows,
                               params, y);
  if (biased) transformer::add_weighted_biases(experts_, routing, params, y);
}

// Of arrays that also hold what the routed experts read or make, the part behind it.
void HostModules::shared_gemm(const Call& call) const {
  const Op& op = call.op;
  const GemmWork& work = std::get<GemmWork>(op.work);
  const ModuleKind kind = op.label.module;
  const bool up = kind == ModuleKind::kFc1;
  const int64_t wide = sent_rows() * model_.expert_ffn * (up ? model_.gates() : 1);
  const int64_t before_x = up ? 0 : wide;
  const int64_t before_y = up ? wide : 0;
  if (op.phase == Phase::kBackwardWeight) {
    return shared_gradient(call, part(call.find(Role::kOutputGradient), before_y, work.k, work.m),
                           part(call.find(Role::kInput), before_x, work.k, work.n));
  }
  const View params = flat(call.find(Role::kWeight));
  if (op.phase == Phase::kBackwardInput) {
    transformer::shared_backward_input(
        experts_, kind, part(call.find(Role::kOutputGradient), before_y, work.m, work.k), params,
        part(call.find(Role::kInputGradient), before_x, work.m, work.n));
    return;
  }
  transformer::shared_forward(experts_, kind,
                              part(call.find(Role::kInput), before_x, work.m, work.k), params,
                              view(call.find(Role::kResidual), work.m, work.n),
                              part(call.find(Role::kOutput), before_y, work.m, work.n));
}

// Ranks that share experts all have those that every token passes: each module's are summed over
// them here, and exchanged with the experts beside them.
void HostModules::shared_gradient(const Call& call, const View& dy, const View& x) const {
  const ModuleKind kind = call.op.label.module;
  const bool accumulates = std::get<GemmWork>(call.op.work).accumulate;
  const Argument gradient = call.find(Role::kParameterGradient);
  if (sent_ == nullptr) {
    return transformer::shared_backward_weight(experts_, kind, dy, x, flat(gradient), accumulates);
  }
  Model shared = experts_;  // with nothing before the shared ones
  shared.experts = 0;
  const int64_t count =
      transformer::expert_layout(shared, kind, transformer::kSharedExperts).parameters;
  std::vector<float> sums(static_cast<size_t>(count));
  transformer::shared_backward_weight(shared, kind, dy, x, {sums.data(), DType::kF32, 1, count},
                                      false);
  exchanges_->sum(call.op.lane, expert_group(plan_), sums);
  transformer::put_gradient(sums, part(gradient, gradient.tensor->elements - count, 1, count),
                            accumulates);
}

void HostModules::expert_activation(const Call& call) const {
  const transformer::Routed routing = routed(call);
  const int64_t tokens = plan_.tokens_per_micro_batch();
  const int64_t sent = sent_rows();
  const int64_t ffn = model_.expert_ffn;
  const int64_t wide = model_.gates() * ffn;
  const int64_t shared = model_.shared_ffn();
  const int64_t shared_wide = model_.gates() * shared;
  const Argument h = call.find(Role::kInput);
  const View rows = expert_rows(call, Role::kInput, ExpertArray::kFc1, wide);
  if (forward(call.op)) {
    const Argument a = call.find(Role::kOutput);
    transformer::experts_activation_forward(
        experts_, routing, rows, expert_rows(call, Role::kOutput, ExpertArray::kActivation, ffn));
    if (shared == 0) return;
    transformer::shared_activation_forward(model_, part(h, sent * wide, tokens, shared_wide),
                                           part(a, sent * ffn, tokens, shared));
    return;
  }
  const Argument da = call.find(Role::kOutputGradient);
  const Argument dh = call.find(Role::kInputGradient);
  transformer::experts_activation_backward(
      experts_, routing, rows,
      expert_rows(call, Role::kOutputGradient, ExpertArray::kActivationGradient, ffn),
      expert_rows(call, Role::kInputGradient, ExpertArray::kFc1Gradient, wide),
      weight_gradients(call), call.find(Role::kScratch).adds);
  if (shared == 0) return;
  transformer::shared_activation_backward(model_, part(h, sent * wide, tokens, shared_wide),
                                          part(da, sent * ffn, tokens, shared),
                                          part(dh, sent * wide, tokens, shared_wide));
}

// Where a token's rows go: forward to the experts, or to the ranks that have them.
void HostModules::send_to_experts(const Call& call, const transformer::Routed& routed,
                                  const transformer::ExpertRows& rows) const {
  transformer::send_rows(rows, view(call.find(Role::kInput), rows.tokens, model_.hidden),
                         view(call.find(Role::kOutput), rows.count(), model_.hidden));
  if (sent_ == nullptr) return;
  const float* const weights =
      transformer::choice_weights<float>(model_, routed.scores, routed.choice);
  std::vector<float> by_row(static_cast<size_t>(rows.count()));
  for (int64_t i = 0; i < rows.count(); ++i) {
    by_row[static_cast<size_t>(rows.of_token[i])] = weights[i];
  }
  sent_->routed(call.op.label, {rows.first, static_cast<size_t>(rows.experts + 1)}, by_row);
}

void HostModules::permute(const Call& call) const {
  const Op& op = call.op;
  const int64_t tokens = plan_.tokens_per_micro_batch();
  const int64_t c = model_.hidden;
  const transformer::Routed routed{
      view(call.find(Role::kStatistics), tokens, model_.experts),
      view(call.find(Role::kRouting), tokens, model_.experts_per_token)};
  const Argument balance = call.find(Role::kBalance);
  auto* sums = reinterpret_cast<double*>(balance.data);
  if (op.label.module == ModuleKind::kRouter && forward(op)) {
    const View choice = view(call.find(Role::kRouting), tokens, model_.experts_per_token);
    transformer::choose_experts(model_, routed.scores, flat(call.find(Role::kWeight)), choice);
    if (sums != nullptr) {
      transformer::add_balance(model_, routed.scores, choice, !balance.adds, sums);
    }
  }
  const transformer::ExpertRows rows = transformer::expert_rows(model_, routed.choice);
  if (op.label.module == ModuleKind::kRouter) {
    if (forward(op)) return send_to_experts(call, routed, rows);
    const Argument dx = call.find(Role::kInputGradient);
    const View to = view(dx, tokens, c);
    transformer::sum_rows(rows, view(call.find(Role::kOutputGradient), rows.count(), c),
                          dx.adds ? ConstView(to) : ConstView(), to);
    const View dscores = view(call.find(Role::kScratch), tokens, model_.experts);
    if (sent_ != nullptr) {
      transformer::put_weight_gradients(rows, sent_->weight_gradients(op.label), dscores);
    }
    transformer::scores_backward(model_, routed.scores, routed.choice, sums, dscores);
    return;
  }
  if (forward(op)) {
    const Argument y = call.find(Role::kOutput);
    const Argument start = y.adds ? y : call.find(Role::kResidual);
    transformer::sum_rows(rows, view(call.find(Role::kInput), rows.count(), c),
                          view(start, tokens, c), view(y, tokens, c));
    return;
  }
  transformer::send_rows(rows, view(call.find(Role::kOutputGradient), tokens, c),
                         view(call.find(Role::kInputGradient), rows.count(), c));
}

}  // namespace ballast
