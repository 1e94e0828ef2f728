// Sequences that pass the layers in parts, trained on the host device: in fp32 the undivided plan's
// losses and parameters but for the order in which gradients of weights, keys and values are
// summed; and whatever is kept, recomputed or offloaded, and however is stepped, the same bits.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "backend/host/device_host.h"
#include "sim/graph/build.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kPartSteps = 3;
#else
constexpr int64_t kPartSteps = 20;
#endif

constexpr tiny::Widths kWidths = {.layers = 2,
                                  .hidden = 64,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_size = 16,
                                  .ffn = 160,
                                  .vocab = 256,
                                  .positions = 1100};

Model gpt2_model() {
  tiny::Widths widths = kWidths;
  widths.kv_heads = widths.heads;
  return tiny::gpt2(widths);
}

// Windows of 200 tokens in every layer: of parts of 128 a query sees two or three.
Model mistral_model() {
  Model model = tiny::llama(kWidths);
  model.name = "tiny-mistral";
  model.architecture = "mistral";
  model.sliding_window = 200;
  return model;
}

std::vector<Model> models_in_parts() {
  return {gpt2_model(), tiny::llama(kWidths), tiny::qwen2(kWidths), tiny::qwen3(kWidths),
          mistral_model()};
}

Plan plan_of(int64_t tokens, int64_t parts, DType dtype = DType::kF32) {
  Plan plan =
      tiny::waiting_plan({.sequences = 2, .micro_batch = 1, .tokens = tokens}, 2 * kSegment * 4);
  plan.dtype = dtype;
  plan.subsequences = parts;
  return plan;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// The norm of the difference, over that of `whole`.
double distance(const std::vector<float>& divided, const std::vector<float>& whole) {
  EXPECT_EQ(divided.size(), whole.size());
  std::vector<float> difference(whole.size());
  for (size_t i = 0; i < whole.size(); ++i) difference[i] = divided[i] - whole[i];
  return norm(difference) / norm(whole);
}

double loss_distance(const tiny::Outcome& divided, const tiny::Outcome& whole) {
  EXPECT_EQ(divided.records.size(), whole.records.size());
  double most = 0;
  for (size_t i = 0; i < whole.records.size(); ++i) {
    most = std::max(most, std::abs(divided.records[i].loss / whole.records[i].loss - 1));
  }
  return most;
}

struct Cut {
  int64_t tokens;
  int64_t parts;
};
// At multiples of a tile of attention, and not.
constexpr Cut kCuts[] = {{640, 2}, {650, 5}, {1024, 8}};

TEST(subsequences, training_in_parts_is_training_whole) {
  const TrainerOptions options = tiny::options_for(kPartSteps);
  for (const Model& model : models_in_parts()) {
    const bool dense = model.name == "tiny-gpt2" || model.name == "tiny-llama";
    for (const Cut& cut : kCuts) {
      if (!dense && cut.parts != 5) continue;
      const tiny::Outcome whole =
          tiny::train(model, plan_of(cut.tokens, 1), options, kPartSteps, false);
      const tiny::Outcome divided =
          tiny::train(model, plan_of(cut.tokens, cut.parts), options, kPartSteps, false);
      const double parameters = distance(divided.parameters, whole.parameters);
      const double losses = loss_distance(divided, whole);
      std::printf("%s, %d tokens in %d parts: losses within %.1e, parameters within %.1e\n",
                  model.name.c_str(), static_cast<int>(cut.tokens), static_cast<int>(cut.parts),
                  losses, parameters);
      EXPECT_LT(losses, 1e-6) << model.name;
      EXPECT_LT(parameters, 1e-6) << model.name;
      EXPECT_FALSE(tiny::same_bits(divided.parameters, whole.parameters)) << "are there parts?";
      if (kPartSteps >= 20) {
        EXPECT_LT(whole.records.back().loss, whole.records.front().loss - 0.5) << model.name;
      }
    }
  }
}

TEST(subsequences, parts_of_equal_flops_train_the_same) {
  const TrainerOptions options = tiny::options_for(kPartSteps);
  const Model model = tiny::llama(kWidths);
  Plan plan = plan_of(1024, 3);
  plan.subsequence_split = SubsequenceSplit::kFlops;
  const std::vector<Subsequence> parts = subsequences_of(plan, model);
  EXPECT_GT(parts.front().length, parts.back().length);
  const tiny::Outcome whole = tiny::train(model, plan_of(1024, 1), options, kPartSteps, false);
  const tiny::Outcome divided = tiny::train(model, plan, options, kPartSteps, false);
  EXPECT_LT(loss_distance(divided, whole), 1e-6);
  EXPECT_LT(distance(divided.parameters, whole.parameters), 1e-6);
}

std::vector<ActivationPlan> activation_plans() {
  ActivationPlan mixed = tiny::all_activations(ActivationFate::kOffload);
  mixed.fate[static_cast<size_t>(ModuleKind::kNorm1)] = ActivationFate::kRecompute;
  mixed.fate[static_cast<size_t>(ModuleKind::kNorm2)] = ActivationFate::kRecompute;
  mixed.fate[static_cast<size_t>(ModuleKind::kActivation)] = ActivationFate::kRecompute;
  return {tiny::all_activations(ActivationFate::kKeep),
          tiny::all_activations(ActivationFate::kRecompute),
          tiny::all_activations(ActivationFate::kOffload), mixed};
}

// Of each divided plan the reference is itself, all kept, one operation after another.
TEST(subsequences, fates_syncs_and_casts_have_the_bits_of_parts_that_are_kept) {
  constexpr int64_t kFew = std::min<int64_t>(kPartSteps, 4);
  TrainerOptions options = tiny::options_for(kFew);
  options.optimizer.clip_norm = 0.5;  // so that speculation is wrong at times
  int trained = 0;
  for (const Model& model : {gpt2_model(), mistral_model()}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
        Plan plan = plan_of(384, 3, dtype);
        plan.optimizer.sync = sync == SyncMode::kDelay ? sync : SyncMode::kWait;
        const tiny::Outcome reference = tiny::train(model, plan, options, kFew, true);
        plan.optimizer.sync = sync;
        for (const CastPlacement cast : {CastPlacement::kGpu, CastPlacement::kCpu}) {
          for (const ActivationPlan& activations : activation_plans()) {
            if (dtype == DType::kF32 && cast == CastPlacement::kCpu) continue;  // nothing to cast
            plan.optimizer.cast = cast;
            plan.activations = activations;
            plan.optimizer.gpu_buckets = trained % 2;
            plan.optimizer.undo = trained % 4 < 2 ? UndoKind::kSnapshot : UndoKind::kExact;
            plan.memory_reuse = trained % 3 == 0 ? MemoryReuse::kAtOnce : MemoryReuse::kApart;
            const tiny::Outcome outcome = tiny::train(model, plan, options, kFew, false);
            EXPECT_TRUE(tiny::same_bits(outcome.parameters, reference.parameters))
                << model.name << " " << to_string(dtype) << " " << to_string(sync) << " cast on "
                << to_string(cast) << ", plan " << trained;
            ++trained;
          }
        }
      }
    }
  }
  std::printf("%d divided plans with the bits of their reference\n", trained);
}

// Stages that pass on parts: gradients of weights, keys and values are summed in the same order as
// where one device takes the parts of a layer one after another, so the bits are the same.
TEST(subsequences, pipelines_over_parts_have_the_bits_of_one_device) {
  constexpr int64_t kFew = std::min<int64_t>(kPartSteps, 4);
  const TrainerOptions options = tiny::options_for(kFew);
  tiny::Widths widths = kWidths;
  widths.layers = 4;
  const Model model = tiny::llama(widths);
  int trained = 0;
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
    Plan plan = plan_of(384, 3);
    plan.optimizer.sync = sync == SyncMode::kDelay ? sync : SyncMode::kWait;
    const tiny::Outcome reference = tiny::train(model, plan, options, kFew, true);
    plan.optimizer.sync = sync;
    for (const PipelineSchedule schedule :
         {PipelineSchedule::k1F1B, PipelineSchedule::kGpipe, PipelineSchedule::kEager1F1B}) {
      for (const auto& [stages, chunks] : {std::pair<int64_t, int64_t>(2, 1), {4, 1}, {2, 2}}) {
        plan.activations = activation_plans()[static_cast<size_t>(trained) % 4];
        plan.devices = plan.pipeline = stages;
        plan.virtual_pipeline = chunks;
        plan.pipeline_schedule = schedule;
        const tiny::Outcome outcome = tiny::train(model, plan, options, kFew, false);
        EXPECT_TRUE(tiny::same_bits(outcome.parameters, reference.parameters))
            << to_string(sync) << ", " << to_string(schedule) << ", " << stages << " stages of "
            << chunks << ", plan " << trained;
        EXPECT_EQ(loss_distance(outcome, reference), 0);
        ++trained;
      }
    }
  }
  std::printf("%d pipelines over parts with the bits of one device\n", trained);
}

// The forward has no sum that crosses parts: the first losses are those of the undivided plan bit
// for bit where parts begin at multiples of a tile, but for the sum of the parts' losses.
TEST(subsequences, validation_has_the_loss_of_whole_sequences) {
  for (const Model& model : models_in_parts()) {
    double losses[2];
    for (const int64_t parts : {1, 5}) {
      Trainer trainer(model, plan_of(640, parts), tiny::options_for(kPartSteps));
      losses[parts > 1] = trainer.validation_loss(2);
    }
    EXPECT_NEAR(losses[1], losses[0], 1e-12 * losses[0]) << model.name;
  }
}

// Pages of the arena that were touched, over what the plan says the GPU's memory takes.
TEST(subsequences, memory_is_what_was_planned) {
  const Model model = tiny::llama(kWidths);
  for (const ActivationPlan& activations : activation_plans()) {
    Bytes planned[2];
    for (const int64_t parts : {1, 8}) {
      Plan plan = plan_of(2048, parts);
      plan.activations = activations;
      Trainer trainer(model, plan, tiny::options_for(kPartSteps));
      const TrainResult result = trainer.train(2, nullptr, false);
      const Bytes predicted = build_to_run(model, plan).arenas.size[0];
      const auto resident = static_cast<double>(result.memory[0].resident.count);
      EXPECT_EQ(result.memory[0].planned, predicted);
      EXPECT_NEAR(resident / static_cast<double>(predicted.count), 1, 0.01) << parts << " parts";
      planned[parts > 1] = predicted;
    }
    std::printf("GPU memory %.1f MiB whole, %.1f MiB in 8 parts\n",
                static_cast<double>(planned[0].count) / (1 << 20),
                static_cast<double>(planned[1].count) / (1 << 20));
    EXPECT_LT(planned[1], planned[0]);
  }
}

}  // namespace
}  // namespace ballast
