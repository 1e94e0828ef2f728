// Ranks that share experts, as threads of one process: data ranks that each hold some experts of a
// layer and are sent the tokens of the others, beside ZeRO 0 to 3 and the stages of a pipeline.
//
// An expert's gradient is one product over the tokens of all ranks, where ranks without expert
// parallelism each have theirs summed: so numbers are near those of one rank, and not its bits. A
// loss is at most 1e-6 of itself away, a parameter at most 5e-5 of the largest. Among plans that
// split alike, what only moves state has the same bits.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "backend/train/make_device.h"
#include "tests/backend/disturbed_training.h"
#include "tests/backend/split_training.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

using tiny::Degrees;
using tiny::expect_near;
using tiny::gentle;
using tiny::Homes;
using tiny::kHomes;
using tiny::kSteps;
using tiny::plan_of;
using tiny::text_of;

// Models of every family whose layers have experts.
std::vector<Model> models_with_experts() {
  std::vector<Model> all = tiny::newer_models();
  std::erase_if(all, [](const Model& model) { return model.experts == 0; });
  EXPECT_EQ(all.size(), 4u);
  return all;
}

TEST(expert_ranks, every_plan_trains_as_one_rank_does) {
  const Degrees kPlans[] = {
      {.data = 2, .expert = 2},
      {.data = 2, .expert = 2, .zero_stage = 1},
      {.data = 2, .expert = 2, .zero_stage = 2},
      {.data = 2, .expert = 2, .zero_stage = 3},
      {.data = 2, .zero_stage = 3},
      {.data = 4, .expert = 2},
      {.data = 4, .expert = 2, .zero_stage = 2},
      {.data = 4, .expert = 2, .zero_stage = 3},
      {.data = 4, .expert = 4},
      {.data = 4, .expert = 4, .zero_stage = 1},
      {.data = 4, .expert = 4, .zero_stage = 3},
      {.data = 2, .expert = 2, .pipeline = 2},
      {.data = 2, .expert = 2, .pipeline = 2, .zero_stage = 2},
  };
  const TrainerOptions options = gentle();
  int trained = 0;
  for (const Model& model : models_with_experts()) {
    const tiny::Outcome alone = tiny::train(model, plan_of(Degrees{}), options, kSteps, true);
    for (const Degrees& degrees : kPlans) {
      if (model.experts % degrees.expert != 0) continue;
      if (degrees.pipeline > 1 && model.balance_loss > 0) continue;
      expect_near(tiny::train(model, plan_of(degrees), options, kSteps, false), alone,
                  model.name + " " + text_of(degrees));
      ++trained;
    }
  }
  EXPECT_GE(trained, 40);
}

// With clipped and poisoned steps: where state lies, how ranks share it and how it steps changes no
// bit, and the verdicts are those of one rank.
void train_experts(SyncMode sync) {
  int trained = 0;
  const TrainerOptions options = gentle(tiny::disturbed_options());
  const std::vector<Model> all = models_with_experts();
  for (const Model& model : {all.front(), all.back()}) {  // the last has experts that all pass
    const tiny::Outcome alone = tiny::train(model, plan_of(Degrees{}, sync), options, kSteps, true);
    for (Degrees degrees : {Degrees{.data = 4, .expert = 2}, Degrees{.data = 2, .expert = 2}}) {
      const tiny::Outcome reference =
          tiny::train(model, plan_of(degrees, sync), options, kSteps, true);
      // Steps of clipped noise are as large as any other.
      expect_near(reference, alone, model.name + " " + text_of(degrees), 5e-4);
      for (const int64_t zero_stage : {0, 1, 2, 3}) {
        for (const Homes homes : kHomes) {
          degrees.zero_stage = zero_stage;
          if (zero_stage == 0 && homes != Homes::kGpu) continue;
          // ZeRO 3 sums over ranks after every micro-batch.
          if (zero_stage == 3 && degrees.data == 2) continue;
          const std::string what = model.name + " " + text_of(degrees) + " home " +
                                   std::to_string(static_cast<int>(homes));
          const tiny::Outcome outcome =
              tiny::train(model, plan_of(degrees, sync, homes), options, kSteps, false);
          tiny::expect_same(outcome, reference, what);
          if (sync == SyncMode::kSpeculate) EXPECT_GE(outcome.rollbacks, 3) << what;
          ++trained;
        }
      }
    }
  }
  std::printf("%d plans with the bits of ranks that split alike\n", trained);
}

TEST(expert_ranks, every_way_to_wait_has_the_same_bits) { train_experts(SyncMode::kWait); }
TEST(expert_ranks, every_way_to_delay_has_the_same_bits) { train_experts(SyncMode::kDelay); }
TEST(expert_ranks, every_way_to_speculate_has_the_same_bits) {
  train_experts(SyncMode::kSpeculate);
}

// Tokens are sent again where what is made of them is computed again, and what experts keep of them
// leaves and returns.
TEST(expert_ranks, what_is_recomputed_has_the_same_bits) {
  const TrainerOptions options = gentle();
  for (const Model& model : models_with_experts()) {
    for (const Degrees& degrees : {Degrees{.data = 2, .expert = 2}}) {
      const tiny::Outcome kept = tiny::train(model, plan_of(degrees), options, kSteps, true);
      for (const ActivationFate fate : {ActivationFate::kRecompute, ActivationFate::kOffload}) {
        Plan plan = plan_of(degrees);
        plan.activations = tiny::all_activations(fate);
        tiny::expect_same(tiny::train(model, plan, options, kSteps, false), kept, model.name);
      }
    }
  }
}

// A checkpoint, an export and the first weights have nothing of ranks in them.
TEST(expert_ranks, state_is_that_of_the_whole_model) {
  const TrainerOptions options = gentle();
  for (const Model& model : models_with_experts()) {
    Trainer alone(model, plan_of(Degrees{}), options);
    const TemporaryFolder folder;
    for (const Degrees& degrees :
         {Degrees{.data = 2, .expert = 2}, Degrees{.data = 4, .expert = 2, .zero_stage = 3},
          Degrees{.data = 4, .expert = 4, .zero_stage = 1}}) {
      if (model.experts % degrees.expert != 0) continue;
      Trainer ranks(model, plan_of(degrees), options);
      EXPECT_TRUE(tiny::same_bits(ranks.parameters(), alone.parameters())) << text_of(degrees);
      EXPECT_NEAR(ranks.validation_loss(2), alone.validation_loss(2), 1e-5) << text_of(degrees);
      ranks.export_weights(folder / "ranks.safetensors");
      TrainerOptions imports = options;
      imports.seed = 7;
      imports.initial_weights = folder / "ranks.safetensors";
      EXPECT_TRUE(tiny::same_bits(Trainer(model, plan_of(Degrees{}), imports).parameters(),
                                  alone.parameters()));
      EXPECT_TRUE(tiny::same_bits(Trainer(model, plan_of(degrees), imports).parameters(),
                                  alone.parameters()));
    }
  }
}

TEST(expert_ranks, resume_as_another_split) {
  const Model model = models_with_experts().back();
  const Degrees first{.data = 4, .expert = 2, .zero_stage = 2};
  for (const SyncMode sync : {SyncMode::kDelay, SyncMode::kSpeculate}) {
    TrainerOptions options = gentle();
    const Plan plan = plan_of(first, sync, Homes::kOptimizerAway);
    const tiny::Outcome reference = tiny::train(model, plan, options, kSteps, false);
    for (const Degrees& degrees :
         {first, Degrees{.data = 4, .expert = 4, .zero_stage = 3}, Degrees{.data = 2}}) {
      const TemporaryFolder folder;
      options.checkpoint_folder = folder.path();
      options.resume = true;
      Trainer(model, plan, options).train(kSteps / 2, nullptr);
      Trainer resumed(model, plan_of(degrees, sync), options);
      EXPECT_EQ(resumed.next_step(), kSteps / 2);
      const TrainResult rest = resumed.train(kSteps, nullptr);
      if (degrees.expert == 2) {
        EXPECT_TRUE(tiny::same_bits(resumed.parameters(), reference.parameters));
      }
      for (const StepRecord& record : rest.records) {
        const double loss = reference.records[static_cast<size_t>(record.step)].loss;
        EXPECT_NEAR(record.loss / loss, 1, 1e-6) << text_of(degrees) << record.step;
      }
    }
  }
}

TEST(expert_ranks, a_rank_that_fails_ends_all) {
  const Model model = models_with_experts().front();
  std::atomic<bool> failed = false;
  TrainerOptions options = gentle();
  options.gradient_factor = [&](int32_t step) {
    if (step == 2 && !failed.exchange(true)) throw Error("the disk", "it is full", "make room");
    return 1.0;
  };
  Trainer trainer(model, plan_of(Degrees{.data = 2, .expert = 2}), options);
  try {
    trainer.train(kSteps, nullptr);
    FAIL() << "it trains";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "the disk: it is full; make room");
  }
}

TEST(expert_ranks, what_does_not_run_is_refused_by_name) {
  const Model model = models_with_experts().front();
  const auto missing = [&](const Plan& plan) {
    const std::vector<DeviceVerdict> verdicts = which_run(model, plan);
    return verdicts.front().missing ? verdicts.front().missing->knob : "";
  };
  EXPECT_EQ(missing(plan_of(Degrees{.data = 2, .expert = 2})), "");
  Plan sequences = plan_of(Degrees{.data = 2, .expert = 2});
  sequences.sequence = 2;
  sequences.devices = 4;
  EXPECT_EQ(missing(sequences), "plan.expert");
  Plan tensor = plan_of(Degrees{.data = 2, .expert = 2});
  tensor.tensor = 2;
  tensor.devices = 4;
  EXPECT_EQ(missing(tensor), "plan.tensor");
  Plan hybrid = plan_of(Degrees{.data = 4, .expert = 2, .zero_stage = 2});
  hybrid.zero_group = 2;
  EXPECT_EQ(missing(hybrid), "plan.zero_group");
}

}  // namespace
}  // namespace ballast
