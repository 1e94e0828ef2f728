#include "backend/execute/update_control.h"

#include <cmath>
#include <numeric>
#include <utility>

namespace ballast {

UpdateControl::UpdateControl(SyncMode sync, DType dtype, int64_t micro_batches,
                             OptimizerOptions options, ControlState state,
                             std::function<double()> sum_of_partials, RankViews views)
    : sync_(sync),
      scales_loss_(dtype == DType::kF16),
      options_(options),
      state_(std::move(state)),
      sum_of_partials_(std::move(sum_of_partials)),
      views_(std::move(views)) {
  const double resumed = state_.pending_gradient ? state_.pending_gradient->loss : 0.0;
  for (auto& losses : losses_) losses.assign(static_cast<size_t>(micro_batches), resumed);
}

double UpdateControl::scale_if_good() const {
  LossScale scale = state_.loss_scale;
  scale.step_was_good();
  return scale.value();
}

double UpdateControl::loss_scale(int32_t step) const {
  if (!scales_loss_) return 1;
  // Before the commit of this step the one before has not been judged: guess that it was good.
  const bool guess = pending_ && pending_->step == step - 1 && sync_ == SyncMode::kSpeculate;
  return guess ? scale_if_good() : state_.loss_scale.value();
}

void UpdateControl::set_loss(int32_t step, int64_t micro_batch, double mean_loss, bool adds) {
  double& loss = losses_[static_cast<size_t>(step & 1)][static_cast<size_t>(micro_batch)];
  loss = mean_loss + (adds ? loss : 0);
}

kernels::AdamConstants UpdateControl::constants_for(int32_t step, double gradient_scale) const {
  const auto t = static_cast<double>(state_.optimizer_steps + 1);
  kernels::AdamConstants constants;
  constants.beta1 = options_.beta1;
  constants.beta2 = options_.beta2;
  constants.epsilon = options_.epsilon;
  constants.weight_decay = options_.weight_decay;
  constants.learning_rate = static_cast<float>(options_.learning_rate.at(step));
  constants.bias_correction1 =
      static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(options_.beta1), t)));
  constants.bias_correction2 =
      static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(options_.beta2), t)));
  constants.gradient_scale = static_cast<float>(gradient_scale);
  return constants;
}

UpdateControl::Verdict UpdateControl::judge(int32_t step, double loss_scale) {
  StepRecord record;
  record.step = step;
  record.gradient_norm = std::sqrt(sum_of_partials_()) / loss_scale;
  record.learning_rate = options_.learning_rate.at(step);
  record.loss_scale = loss_scale;
  Verdict verdict;
  verdict.finite = std::isfinite(record.gradient_norm);
  record.skipped = !verdict.finite;
  record.clipped =
      verdict.finite && options_.clip_norm > 0 && record.gradient_norm > options_.clip_norm;
  if (record.clipped) verdict.factor = options_.clip_norm / record.gradient_norm;
  record.rolled_back = sync_ == SyncMode::kSpeculate && (record.skipped || record.clipped);
  record.loss = mean_loss(step);
  if (scales_loss_) {
    if (verdict.finite) {
      state_.loss_scale.step_was_good();
    } else {
      state_.loss_scale.step_overflowed();
    }
  }
  const std::scoped_lock lock(records_mutex_);
  records_.push_back(record);
  return verdict;
}

double UpdateControl::mean_loss(int32_t step) const {
  const std::vector<double>& own = losses_[static_cast<size_t>(step & 1)];
  const std::vector<double> losses = views_.losses ? views_.losses(own) : own;
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

void UpdateControl::decide_on(int32_t judged, double loss_scale) {
  const Verdict verdict = judge(judged, loss_scale);
  if (!verdict.finite) return;
  decided_ = constants_for(judged, verdict.factor / loss_scale);
  ++state_.optimizer_steps;
}

void UpdateControl::decide(int32_t step) {
  decided_.reset();
  if (sync_ != SyncMode::kDelay) return decide_on(step, loss_scale(step));
  // The very first delayed step has nothing to apply.
  if (state_.pending_gradient) decide_on(step - 1, state_.pending_gradient->loss_scale);
  state_.pending_gradient = ControlState::PendingGradient{loss_scale(step), 0.0};
  delayed_step_ = step;
}

std::optional<kernels::AdamConstants> UpdateControl::settle(int32_t next_step) {
  decided_.reset();
  if (!state_.pending_gradient) return std::nullopt;
  decide_on(next_step - 1, state_.pending_gradient->loss_scale);
  state_.pending_gradient.reset();
  return decided_;
}

bool UpdateControl::commit(int32_t step) {
  bool accepted = true;
  if (pending_ && pending_->step == step - 1) {
    const Verdict verdict = judge(step - 1, pending_->loss_scale);
    accepted = verdict.finite && verdict.factor == 1;
    redo_.reset();
    undone_ = pending_->constants;
    if (verdict.finite) {
      if (!accepted) redo_ = constants_for(step - 1, verdict.factor / pending_->loss_scale);
      ++state_.optimizer_steps;
    }
    pending_.reset();
  }
  if (!pending_) {
    const double scale = loss_scale(step);
    pending_ = Pending{step, scale, constants_for(step, 1.0 / scale)};
  }
  return accepted;
}

std::optional<kernels::AdamConstants> UpdateControl::constants(int32_t step) const {
  if (sync_ != SyncMode::kSpeculate) return decided_;
  CHECK(pending_ && pending_->step == step);
  return pending_->constants;
}

ControlState UpdateControl::state() const {
  ControlState state = state_;
  if (state.pending_gradient) state.pending_gradient->loss = mean_loss(delayed_step_);
  return state;
}

std::vector<StepRecord> UpdateControl::take_records() {
  const std::scoped_lock lock(records_mutex_);
  return std::exchange(records_, {});
}

}  // namespace ballast
