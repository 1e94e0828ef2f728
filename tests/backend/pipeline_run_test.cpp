// Pipelines that run: the stages of a plan, as devices of one process, train to the bits of the
// same plan without a pipeline, which accumulates the same micro-batches in the same order.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/device_cuda.h"
#include "backend/host/device_host.h"
#include "backend/train/make_device.h"
#include "sim/graph/build.h"
#include "tests/backend/disturbed_training.h"
#include "tests/backend/plain_loop.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

using tiny::Homes;
using tiny::kHomes;
using tiny::kSteps;
using tiny::kSyncs;
using tiny::set_homes;

// Eight layers without a tied embedding; fc1 has more than kSegment parameters.
Model untied_model() {
  return tiny::llama({.layers = 8,
                      .hidden = 64,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_size = 16,
                      .ffn = 576,
                      .vocab = 256});
}

Model tied_model() {
  return tiny::gpt2({.layers = 4,
                     .hidden = 64,
                     .heads = 4,
                     .kv_heads = 4,
                     .head_size = 16,
                     .ffn = 1088,
                     .vocab = 256,
                     .positions = 16});
}

struct PipelineShape {
  int64_t stages, chunks, micro_batches;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
};
// 1F1B, with fewer micro-batches than stages all forwards before any backward, and interleaved.
// Of each other schedule one chunk and several.
std::vector<PipelineShape> shapes() {
  // Of the last two, whose chunks are of a layer, the first and the last chunk have none.
  std::vector<PipelineShape> all = {{2, 1, 4}, {4, 1, 6},  {4, 1, 2}, {2, 2, 4},
                                    {4, 2, 4}, {10, 1, 4}, {2, 5, 4}};
  for (size_t i = 1; i < std::size(kPipelineSchedules); ++i) {
    all.push_back({4, 1, 6, static_cast<PipelineSchedule>(i)});
    all.push_back({2, 2, 4, static_cast<PipelineSchedule>(i)});
  }
  return all;
}

std::string text_of(const PipelineShape& shape) {
  return std::to_string(shape.stages) + " stages of " + std::to_string(shape.chunks) + " chunks, " +
         std::to_string(shape.micro_batches) + " micro-batches, " +
         std::string(to_string(shape.schedule));
}

Plan undivided_plan(int64_t micro_batches, SyncMode sync, Homes homes) {
  Plan plan = tiny::waiting_plan({.sequences = micro_batches, .micro_batch = 1, .tokens = 12},
                                 2 * kSegment * 4);
  plan.optimizer.sync = sync;
  set_homes(plan, homes);
  if (homes == Homes::kAllAway) plan.weights.flow_share = 1;
  return plan;
}

Plan divided(Plan plan, const PipelineShape& shape) {
  plan.pipeline = plan.devices = shape.stages;
  plan.virtual_pipeline = shape.chunks;
  plan.pipeline_schedule = shape.schedule;
  return plan;
}

// One thread, everything in program order, no pipeline: the reference. Where nothing is late it is
// the same whatever speculates and wherever things lie.
class References {
 public:
  const tiny::Outcome& of(int64_t micro_batches, SyncMode sync, Homes homes) {
    const bool is_late = sync == SyncMode::kDelay;
    const SyncMode told = is_late ? sync : SyncMode::kWait;
    // What flows is not late.
    const Homes at = is_late ? homes : Homes::kOptimizerAway;
    const auto [entry, is_new] = known_.try_emplace({micro_batches, told, at});
    if (is_new) {
      entry->second =
          tiny::train(model_, undivided_plan(micro_batches, told, at), options_, kSteps, true);
    }
    return entry->second;
  }

 private:
  Model model_ = untied_model();
  TrainerOptions options_ = tiny::disturbed_options();
  std::map<std::tuple<int64_t, SyncMode, Homes>, tiny::Outcome> known_;
};

int32_t taken_back(const std::vector<StepRecord>& records) {
  return static_cast<int32_t>(
      std::count_if(records.begin(), records.end(),
                    [](const StepRecord& one) { return one.clipped || one.skipped; }));
}

TEST(pipeline, every_schedule_and_sync_has_the_bits_of_the_undivided_plan) {
  References references;
  int trained = 0;
  for (const SyncMode sync : kSyncs) {
    for (const Homes homes : kHomes) {
      for (const PipelineShape& shape : shapes()) {
        const tiny::Outcome& reference = references.of(shape.micro_batches, sync, homes);
        const Plan plan = divided(undivided_plan(shape.micro_batches, sync, homes), shape);
        const tiny::Outcome outcome =
            tiny::train(untied_model(), plan, tiny::disturbed_options(), kSteps, false);
        const std::string what = text_of(shape) + ", " + std::string(to_string(sync)) + ", homes " +
                                 std::to_string(static_cast<int>(homes));
        tiny::expect_same(outcome, reference, what);
        ++trained;
        if (sync != SyncMode::kSpeculate) continue;
        EXPECT_GE(outcome.rollbacks, 3) << what;
        EXPECT_EQ(outcome.rollbacks, taken_back(reference.records)) << what;
      }
    }
  }
  std::printf("%d pipelines with the bits of the undivided plan over %d steps\n", trained,
              static_cast<int>(kSteps));
}

TEST(pipeline, one_thread_in_program_order_has_the_same_bits) {
  const Model model = untied_model();
  const TrainerOptions options = tiny::disturbed_options();
  const Plan plan = divided(undivided_plan(4, SyncMode::kSpeculate, Homes::kAllAway), {2, 2, 4});
  tiny::expect_same(tiny::train(model, plan, options, kSteps, true),
                    tiny::train(model, plan, options, kSteps, false), "in program order");
}

// The loss scale of a forward that runs while the step before is judged on another stage.
TEST(pipeline, fp16_finds_the_same_loss_scales) {
  const Model model = untied_model();
  const TrainerOptions options = tiny::disturbed_options();
  for (const PipelineShape& shape : {PipelineShape{2, 1, 4}, PipelineShape{2, 2, 4}}) {
    for (const SyncMode sync : kSyncs) {
      Plan whole = undivided_plan(shape.micro_batches, sync, Homes::kOptimizerAway);
      whole.dtype = DType::kF16;
      const tiny::Outcome reference = tiny::train(model, whole, options, kSteps, true);
      const tiny::Outcome outcome =
          tiny::train(model, divided(whole, shape), options, kSteps, false);
      tiny::expect_same(outcome, reference, text_of(shape) + ", fp16");
      for (size_t i = 0; i < outcome.records.size(); ++i) {
        EXPECT_EQ(outcome.records[i].loss_scale, reference.records[i].loss_scale) << i;
      }
    }
  }
}

// The first stage sums its gradients over the micro-batches and the last one its own, before the
// two are summed: another order than the undivided plan's, which the plain loop has too.
TEST(pipeline, tied_embeddings_are_summed_over_the_first_and_the_last_stage) {
  const Model model = tied_model();
  TrainerOptions options = tiny::options_for(kSteps);
  // Where no step is taken back: a repair brings all weights home, and would hide a late one.
  options.optimizer.clip_norm = 0;
  for (const SyncMode sync : kSyncs) {
    for (const Homes homes : kHomes) {
      for (const PipelineShape& shape :
           {PipelineShape{2, 1, 4}, PipelineShape{4, 1, 4}, PipelineShape{2, 2, 4}}) {
        const Plan plan = divided(undivided_plan(shape.micro_batches, sync, homes), shape);
        const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, false);
        EXPECT_TRUE(
            tiny::same_bits(outcome.parameters, tiny::plain_loop(model, plan, options, kSteps)))
            << text_of(shape) << ", " << to_string(sync) << ", homes " << static_cast<int>(homes);
      }
    }
  }
}

TEST(pipeline, begins_with_the_weights_of_the_whole_model_and_tells_its_losses) {
  for (const Model& model : {untied_model(), tied_model()}) {
    const Plan whole = undivided_plan(4, SyncMode::kWait, Homes::kAllAway);
    const Plan plan = divided(whole, {2, 2, 4});
    const TrainerOptions options = tiny::options_for(kSteps);
    Trainer undivided(model, whole, options);
    Trainer pipeline(model, plan, options);
    EXPECT_TRUE(tiny::same_bits(pipeline.parameters(), undivided.parameters())) << model.name;
    EXPECT_EQ(pipeline.validation_loss(3), undivided.validation_loss(3)) << model.name;
    const TemporaryFolder folder;
    pipeline.export_weights(folder / "stages.safetensors");
    undivided.export_weights(folder / "whole.safetensors");
    TrainerOptions imports = options;
    imports.seed = 7;
    imports.initial_weights = folder / "stages.safetensors";
    EXPECT_TRUE(
        tiny::same_bits(Trainer(model, whole, imports).parameters(), undivided.parameters()));
    imports.initial_weights = folder / "whole.safetensors";
    EXPECT_TRUE(
        tiny::same_bits(Trainer(model, plan, imports).parameters(), undivided.parameters()));
  }
}

// Half of the steps as one plan, the rest as another: what is resumed has nothing of stages.
TEST(pipeline, resumes_with_any_number_of_stages) {
  const Model model = untied_model();
  const PipelineShape kNone{1, 1, 4};
  for (const SyncMode sync : kSyncs) {
    const Plan whole = undivided_plan(4, sync, Homes::kOptimizerAway);
    TrainerOptions options = tiny::disturbed_options();
    const tiny::Outcome reference = tiny::train(model, whole, options, kSteps, false);
    const std::pair<PipelineShape, PipelineShape> turns[] = {
        {{4, 1, 4}, {2, 2, 4}}, {{2, 1, 4}, kNone}, {kNone, {4, 2, 4}}};
    for (const auto& [first, second] : turns) {
      const TemporaryFolder folder;
      options.checkpoint_folder = folder.path();
      options.resume = true;
      Trainer(model, divided(whole, first), options).train(kSteps / 2, nullptr);
      Trainer resumed(model, divided(whole, second), options);
      EXPECT_EQ(resumed.next_step(), kSteps / 2);
      resumed.train(kSteps, nullptr);
      EXPECT_TRUE(tiny::same_bits(resumed.parameters(), reference.parameters))
          << to_string(sync) << ", " << text_of(first) << ", then " << text_of(second);
    }
  }
}

// With delay a step's gradients wait in the checkpoint, of a tied matrix in both of its stages.
TEST(pipeline, resumes_a_tied_embedding) {
  const Model model = tied_model();
  TrainerOptions options = tiny::options_for(kSteps);
  // Where no step is taken back: a repair brings all weights home, and would hide a late one.
  options.optimizer.clip_norm = 0;
  for (const SyncMode sync : kSyncs) {
    const Plan plan = divided(undivided_plan(4, sync, Homes::kOptimizerAway), {2, 1, 4});
    const tiny::Outcome reference = tiny::train(model, plan, options, kSteps, false);
    const TemporaryFolder folder;
    TrainerOptions keeps = options;
    keeps.checkpoint_folder = folder.path();
    keeps.resume = true;
    Trainer(model, plan, keeps).train(kSteps / 2, nullptr);
    Trainer resumed(model, divided(plan, {2, 2, 4}), keeps);
    resumed.train(kSteps, nullptr);
    EXPECT_TRUE(tiny::same_bits(resumed.parameters(), reference.parameters)) << to_string(sync);
  }
}

TEST(pipeline, threads_of_a_stage_change_no_bit) {
  const Model model = untied_model();
  const Plan plan =
      divided(undivided_plan(4, SyncMode::kSpeculate, Homes::kOptimizerAway), {2, 1, 4});
  TrainerOptions options = tiny::disturbed_options();
  const tiny::Outcome one = tiny::train(model, plan, options, kSteps, false);
  options.compute_threads = 2;
  options.optimizer_threads = 3;
  tiny::expect_same(tiny::train(model, plan, options, kSteps, false), one, "several threads");
}

std::string knob_missing(const Model& model, const Plan& plan, const Capabilities& all) {
  const auto missing = first_missing(build_to_run_placed(model, plan), model, plan, all);
  return missing ? missing->knob : "";
}

TEST(pipeline, what_does_not_run_is_refused_by_name) {
  const Model model = untied_model();
  const Plan plan = divided(undivided_plan(4, SyncMode::kWait, Homes::kOptimizerAway), {2, 1, 4});
  EXPECT_EQ(knob_missing(model, plan, host_capabilities()), "");
  EXPECT_EQ(knob_missing(model, plan, cuda_capabilities()), "plan.pipeline");
  EXPECT_FALSE(which_run(model, plan).front().missing);
  for (const auto degree : {&Plan::data, &Plan::tensor, &Plan::sequence, &Plan::context}) {
    Plan wider = plan;
    wider.*degree = 2;
    wider.devices = 4;
    wider.global_batch = 4 * wider.data;
    EXPECT_EQ(knob_missing(model, wider, host_capabilities()), "");
    EXPECT_NE(knob_missing(model, wider, cuda_capabilities()), "");
  }
  Plan large = plan;
  large.global_batch = 4000;
  EXPECT_EQ(knob_missing(model, large, host_capabilities()), "plan.pipeline");
  const auto whole =
      first_missing(build_to_run_placed(model, large), model, large, host_capabilities());
  ASSERT_TRUE(which_run(model, large).front().missing);
  EXPECT_EQ(which_run(model, large).front().missing->what, whole->what);
  const std::optional<Missing> missing = which_run(model, large).front().missing;
  ASSERT_TRUE(missing);
  EXPECT_NE(missing->what.find("folded"), std::string::npos);
}

}  // namespace
}  // namespace ballast
