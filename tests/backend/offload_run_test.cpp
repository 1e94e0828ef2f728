// Activations that leave and return by module (sim/graph/passes/reload.cpp), trained: the bits of
// the same plan that keeps everything, on one device and on the stages of a pipeline.
#include <cstdio>
#include <gtest/gtest.h>
#include <vector>

#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int64_t kOffloadSteps = 6;

struct OffloadShape {
  int64_t stages = 1, chunks = 1, micro_batches = 4;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t parts = 1;
};

constexpr OffloadShape kShapes[] = {{},
                                    {2, 1, 4},
                                    {4, 1, 6},
                                    {2, 2, 4},
                                    {2, 1, 4, PipelineSchedule::kGpipe},
                                    {2, 1, 4, PipelineSchedule::kEager1F1B},
                                    {2, 1, 2, PipelineSchedule::k1F1B, 3},
                                    {2, 1, 2, PipelineSchedule::kGpipe, 3},
                                    {1, 1, 2, PipelineSchedule::k1F1B, 3}};

Plan plan_of(const OffloadShape& shape) {
  const int64_t tokens = shape.parts > 1 ? shape.parts * kAttentionTile : 12;
  Plan plan = tiny::waiting_plan(
      {.sequences = shape.micro_batches, .micro_batch = 1, .tokens = tokens}, 2 * kSegment * 4);
  plan.devices = plan.pipeline = shape.stages;
  plan.virtual_pipeline = shape.chunks;
  plan.pipeline_schedule = shape.schedule;
  plan.subsequences = shape.parts;
  return plan;
}

void set_fates(Plan& plan, std::initializer_list<ModuleKind> kinds, ActivationFate fate) {
  for (const ModuleKind kind : kinds) plan.activations->fate[static_cast<size_t>(kind)] = fate;
}

// A few outputs; all; and with what is cheap recomputed, so that a layer keeps nothing.
std::vector<Plan> offloading(const Plan& keeps) {
  using enum ModuleKind;
  Plan some = keeps;
  some.activations.emplace();
  some.activations->reload = ReloadOrder::kByModule;
  Plan all = some;
  set_fates(some, {kFc1, kQkv}, ActivationFate::kOffload);
  all.activations->dispatched = ActivationFate::kOffload;
  set_fates(all, {kNorm1, kQkv, kCoreAttention, kAttentionOut, kNorm2, kFc1, kActivation, kFc2},
            ActivationFate::kOffload);
  Plan nothing = all;
  set_fates(nothing, {kNorm1, kNorm2, kActivation}, ActivationFate::kRecompute);
  nothing.activations->offload_in_flight = 1;
  Plan fewer = all;
  fewer.activations->offload_least = {1024};
  fewer.activations->offload_share = 0.75;
  fewer.activations->offload_share_fall = 0.25;
  return {some, all, nothing, fewer};
}

Model model_of(const OffloadShape& shape) {
  return tiny::llama({.layers = 8,
                      .hidden = 32,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_size = 8,
                      .ffn = 96,
                      .vocab = 256,
                      .positions = shape.parts * kAttentionTile});
}

TEST(OffloadByModule, has_the_bits_of_the_plan_that_keeps_everything) {
  int trained = 0;
  for (const OffloadShape& shape : kShapes) {
    const Model model = model_of(shape);
    const Plan keeps = plan_of(shape);
    const TrainerOptions options = tiny::options_for(kOffloadSteps);
    const tiny::Outcome reference = tiny::train(model, keeps, options, kOffloadSteps, false);
    for (const Plan& plan : offloading(keeps)) {
      const tiny::Outcome outcome = tiny::train(model, plan, options, kOffloadSteps, false);
      EXPECT_TRUE(tiny::same_bits(outcome.parameters, reference.parameters))
          << shape.stages << " stages of " << shape.chunks << " chunks, " << shape.parts
          << " parts, plan " << trained;
      ++trained;
    }
  }
  std::printf("%d plans that offload by module have the bits of plans that keep everything\n",
              trained);
}

// Rows of experts leave, or are sent again, which counts nothing twice in the loss that balances.
TEST(OffloadByModule, rows_of_experts_leave_or_are_sorted_again) {
  for (Model model : tiny::newer_models()) {
    if (model.experts == 0) continue;
    model.layers = 4;
    for (const int64_t stages : {1, 2}) {
      if (stages > 1 && model.balance_loss > 0) continue;  // refused by name
      Plan keeps = tiny::waiting_plan({.sequences = 4, .micro_batch = 1, .tokens = 12}, 1 << 20);
      keeps.devices = keeps.pipeline = stages;
      const TrainerOptions options = tiny::options_for(kOffloadSteps);
      const tiny::Outcome reference = tiny::train(model, keeps, options, kOffloadSteps, false);
      for (const ActivationFate fate : {ActivationFate::kOffload, ActivationFate::kRecompute}) {
        Plan plan = keeps;
        plan.activations.emplace();
        plan.activations->reload = ReloadOrder::kByModule;
        plan.activations->dispatched = fate;
        const tiny::Outcome outcome = tiny::train(model, plan, options, kOffloadSteps, false);
        EXPECT_TRUE(tiny::same_bits(outcome.parameters, reference.parameters))
            << model.name << ", " << stages << " stages, " << to_string(fate);
      }
    }
  }
}

}  // namespace
}  // namespace ballast
