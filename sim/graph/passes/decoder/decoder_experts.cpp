#include "sim/graph/passes/decoder/decoder_experts.h"

namespace ballast {

void DecoderExperts::start_balance(int16_t micro) {
  balanced_ = false;
  balance_ = -1;
  if (model_.experts == 0 || model_.balance_loss == 0) return;
  balance_ = typed(TensorKind::kBalance, Category::kWorkspace, {-1, ModuleKind::kLoss, micro, -1},
                   2 * model_.experts, DType::kF64);
}

TensorId DecoderExperts::sent_tensor(TensorKind kind, Label label) {
  return tensor(kind, Category::kActivations, label, sent_rows() * model_.hidden);
}

TensorId DecoderExperts::exchange(TensorId from, Phase phase, Label label) {
  if (plan_.expert == 1) return from;
  const TensorId to = add_tensor(graph_, graph_.tensor(from));
  // Where experts are split over the ranks that share sequences too, neighbours have them.
  const bool beside = plan_.data % plan_.expert == 0;
  const int64_t stride = beside ? plan_.tensor * plan_.sequence * plan_.context : plan_.tensor;
  CollectiveWork work{CollectiveKind::kAllToAll, graph_.tensor(from).bytes(), plan_.expert, stride};
  if (facts_.sends_tokens_once) {
    const bool grouped = model_.router == RouterKind::kSigmoid;
    work.once = {model_.experts, model_.experts_per_token, grouped ? model_.expert_groups : 1,
                 grouped ? model_.chosen_groups : 1};
    work.multiprocessors = facts_.once_multiprocessors;
  }
  graph_.step.ops.push_back(
      collective_op(LaneKind::kExpertNetwork, work, phase, label,
                    {read(from, Role::kSource), write(to, Role::kDestination)}));
  // Beside computation nobody waits for it here, but what expert_overlap_pass says.
  return facts_.expert_overlap == Overlap::kFull ? from : to;
}

void DecoderExperts::move_rows(OpKind kind, Phase phase, Label label, std::vector<Access> accesses,
                               int64_t bias_bytes) {
  RowWork work = rows_of(sent_rows(), model_.hidden, 2 * model_.hidden, 2);
  // What lies between this and the experts' products, half of it on either side of them.
  int64_t between = own_experts() > 1 ? facts_.sort_bytes : 0;
  if (plan_.products != ProductFormat::kAsStored) between += facts_.padding_bytes;
  if (model_.mlp_bias) between += 2 * bias_bytes;
  work.moved = work.moved + Bytes{sent_rows() * model_.hidden * between / 2};
  emit(kind, phase, label, work, std::move(accesses));
}

void DecoderExperts::product(Label label, const Product& product, int64_t experts,
                             std::vector<Access> accesses) {
  GemmWork work{tokens() * product.active, product.out, product.in, plan_.dtype, false};
  work.experts = experts;
  work.by_expert = experts > 0 && facts_.multiplies_by_expert;
  emit(OpKind::kGemm, Phase::kForward, label, work, std::move(accesses));
}

void DecoderExperts::route(Label label, LayerSaved& saved) {
  saved.router = output(label, model_.experts);
  gemm(label, saved.norm2, model_.hidden, saved.router, model_.experts, -1);
  saved.choice =
      typed(TensorKind::kRouting, Category::kActivations, label, sent_rows(), DType::kI32);
  const TensorId sorted = sent_tensor(TensorKind::kOutput, label);
  std::vector<Access> accesses = {
      read(saved.norm2, Role::kInput), read(saved.router, Role::kStatistics),
      write(saved.choice, Role::kRouting), write(sorted, Role::kOutput)};
  if (model_.router_bias && model_.router == RouterKind::kSigmoid) {
    accesses.push_back(read(weight(label), Role::kWeight));
  }
  if (balance_ >= 0) {
    accesses.push_back(balanced_ ? update(balance_, Role::kBalance)
                                 : write(balance_, Role::kBalance));
    balanced_ = true;
  }
  move_rows(OpKind::kPermute, Phase::kForward, label, std::move(accesses));
  saved.sent = exchange(sorted, Phase::kForward, label);
}

void DecoderExperts::experts_up(Label label, const LayerSaved& saved) {
  const std::vector<Product> each = products_of(model_, label.module, label.layer);
  product(label, each.front(), own_experts(),
          {read(saved.sent, Role::kInput), read(weight(label), Role::kWeight),
           write(saved.fc1, Role::kOutput), read(saved.choice, Role::kRouting)});
  if (each.size() == 1) return;
  product(label, each.back(), 0,
          {read(saved.norm2, Role::kInput), read(weight(label), Role::kWeight),
           update(saved.fc1, Role::kOutput)});
}

void DecoderExperts::add_routing(std::vector<Access>& accesses, const LayerSaved& saved) const {
  accesses.push_back(read(saved.router, Role::kStatistics));
  accesses.push_back(read(saved.choice, Role::kRouting));
}

void DecoderExperts::experts_down(Label label, const LayerSaved& saved, TensorId y) {
  const std::vector<Product> each = products_of(model_, label.module, label.layer);
  const bool shares = each.size() > 1;
  if (shares) {
    product(label, each.back(), 0,
            {read(saved.activation, Role::kInput), read(weight(label), Role::kWeight),
             read(saved.middle, Role::kResidual), write(y, Role::kOutput)});
  }
  const TensorId made = sent_tensor(TensorKind::kPartial, label);
  std::vector<Access> accesses = {read(saved.activation, Role::kInput),
                                  read(weight(label), Role::kWeight), write(made, Role::kOutput),
                                  read(saved.choice, Role::kRouting)};
  // Biases count as often as their weights say.
  if (model_.mlp_bias) accesses.push_back(read(saved.router, Role::kStatistics));
  if (saved.output_mask >= 0) accesses.push_back(write(saved.output_mask, Role::kStatistics));
  product(label, each.front(), own_experts(), std::move(accesses));
  const TensorId back = exchange(made, Phase::kForward, label);
  std::vector<Access> sums = {read(back, Role::kInput), read(saved.choice, Role::kRouting)};
  if (shares) {
    sums.push_back(update(y, Role::kOutput));
  } else {
    sums.push_back(read(saved.middle, Role::kResidual));
    sums.push_back(write(y, Role::kOutput));
  }
  move_rows(OpKind::kCombine, Phase::kForward, label, std::move(sums), facts_.expert_bias_bytes);
}

DecoderExperts::ExpertGradients DecoderExperts::experts_down_backward(Label label, Label activation,
                                                                      const LayerSaved& saved,
                                                                      TensorId dy) {
  const std::vector<Product> each = products_of(model_, label.module, label.layer);
  const TensorId sorted = sent_tensor(TensorKind::kOutputGradient, label);
  move_rows(OpKind::kPermute, Phase::kBackward, label,
            {read(dy, Role::kOutputGradient), read(saved.choice, Role::kRouting),
             write(sorted, Role::kInputGradient)},
            facts_.expert_bias_backward_bytes);
  ExpertGradients made;
  const Label router{label.layer, ModuleKind::kRouter, label.micro_batch, -1};
  made.scores = output_gradient(router, model_.experts);
  made.activation = output_gradient(activation, model_.ffn_width(label.layer));
  BackwardOf backward{label, saved.activation, exchange(sorted, Phase::kBackward, label),
                      made.activation, saved.output_mask};
  backward.experts = own_experts();
  backward.choice = saved.choice;
  if (model_.mlp_bias) {
    backward.scores = saved.router;
    backward.dscores = made.scores;
    first_write(made.scores);
  }
  product_backward(backward, each.front());
  if (each.size() == 1) return made;
  BackwardOf shared{label, saved.activation, dy, made.activation, saved.output_mask};
  shared.follows = true;
  product_backward(shared, each.back());
  return made;
}

TensorId DecoderExperts::experts_up_backward(Label label, Label router, Label norm,
                                             const LayerSaved& saved, const ExpertGradients& from,
                                             TensorId dh) {
  const std::vector<Product> each = products_of(model_, label.module, label.layer);
  BackwardOf backward{label, saved.sent, dh, sent_tensor(TensorKind::kOutputGradient, router), -1};
  backward.experts = own_experts();
  backward.choice = saved.choice;
  product_backward(backward, each.front());
  const TensorId dx = output_gradient(norm, model_.hidden);
  if (each.size() > 1) {
    BackwardOf shared{label, saved.norm2, dh, dx, -1};
    shared.follows = true;
    product_backward(shared, each.back());
  }
  const TensorId back = exchange(backward.dx, Phase::kBackward, router);
  std::vector<Access> accesses = {read(back, Role::kOutputGradient),
                                  read(saved.router, Role::kStatistics),
                                  read(saved.choice, Role::kRouting),
                                  update(from.scores, Role::kScratch),
                                  {dx, Role::kInputGradient, first_write(dx), 0}};
  if (balance_ >= 0) accesses.push_back(read(balance_, Role::kBalance));
  move_rows(OpKind::kCombine, Phase::kBackward, router, std::move(accesses));
  const BackwardOf of_scores{router, saved.norm2, from.scores, dx};
  product_backward(of_scores, {model_.hidden, model_.experts});
  return dx;
}

}  // namespace ballast
