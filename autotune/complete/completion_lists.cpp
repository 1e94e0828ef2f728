#include "autotune/complete/completion_lists.h"

#include <algorithm>

namespace ballast {
namespace {

void append_completions(const CaseSetup& setup, std::vector<Completion>& completions) {
  for (std::vector<Completion>& group : completions_of(setup)) {
    completions.insert(completions.end(), group.begin(), group.end());
  }
}

}  // namespace

std::vector<int64_t> lean_micro_batches(const Plan& plan) {
  if (plan.micro_batch) return {*plan.micro_batch};
  const int64_t all = plan.global_batch / plan.data;
  if (all == 1 || plan.pipeline > 1) return {1};
  return {1, all};
}

CaseSetup setup_of(const Setting& setting) {
  CaseSetup setup;
  setup.published.id = setting.model.name;
  setup.published.model = setting.model;
  setup.published.plan = setting.plan;
  setup.published.measured = {{Metric::kStepTime, 1}};
  setup.machine = setting.machine;
  setup.stack = setting.stack;
  return setup;
}

ActivationPlan all_kept() {
  ActivationPlan plan;
  plan.fate.fill(ActivationFate::kKeep);
  plan.scores = ActivationFate::kKeep;
  return plan;
}

ActivationPlan all_away() {
  ActivationPlan plan = all_kept();
  plan.fate.fill(ActivationFate::kOffload);
  return plan;
}

std::vector<ActivationPlan> offloads() {
  ActivationPlan inputs = activations_of(Recompute::kFull);
  inputs.fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kOffload;
  ActivationPlan attention = inputs;
  attention.fate[static_cast<size_t>(ModuleKind::kCoreAttention)] = ActivationFate::kOffload;
  return {inputs, attention};
}

bool has_more_on_gpu(const Completion& completion, Completion other) {
  const std::optional<int64_t> fewer = other.plan.optimizer.gpu_buckets;
  other.plan.optimizer.gpu_buckets = completion.plan.optimizer.gpu_buckets;
  return completion == other && completion.plan.optimizer.gpu_buckets > fewer;
}

std::vector<Completion> lean_completions(const Setting& setting) {
  CaseSetup setup = setup_of(setting);
  Plan& plan = setup.published.plan;
  const auto& kinds = setting.stack.facts.attention;
  if (std::find(kinds.begin(), kinds.end(), AttentionKind::kFlash) != kinds.end()) {
    setup.published.attention = AttentionKind::kFlash;
  }
  std::vector<ActivationPlan> activations;
  if (plan.activations) {
    activations = {*plan.activations};
  } else {
    activations = offloads();
    activations.insert(activations.begin(), activations_of(Recompute::kFull));
    // What recomputing one layer needs at once is as much as keeping it.
    const bool few_layers = setting.model.layers <= 2 * plan.pipeline * plan.virtual_pipeline;
    if (few_layers) activations.push_back(activations_of(Recompute::kNone));
  }
  std::vector<Completion> completions;
  for (const int64_t size : lean_micro_batches(plan)) {
    plan.micro_batch = size;
    for (const ActivationPlan& choice : activations) {
      plan.activations = choice;
      append_completions(setup, completions);
    }
  }
  return completions;
}

}  // namespace ballast
