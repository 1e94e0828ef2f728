// Ranks that split a model or its sequences: tensor parallelism, Ulysses, and both beside data
// ranks and beside the stages of a pipeline. Each plan trains 20 steps as threads of one process.
//
// A split product sums in another order than one rank does, so numbers are near those of one rank
// and not its bits: a loss is at most 1e-6 of itself away, a parameter at most 5e-5 of the largest.
// Parameters are further apart because Adam divides a gradient by its own size, also one that is
// nothing but rounding, as that of gpt2's key biases. Among plans that split alike, what only moves
// state has the same bits.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "backend/cuda/device_cuda.h"
#include "backend/train/make_device.h"
#include "tests/backend/disturbed_training.h"
#include "tests/backend/split_training.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

using tiny::Degrees;
using tiny::Distance;
using tiny::expect_near;
using tiny::gentle;
using tiny::Homes;
using tiny::kHomes;
using tiny::kLossTolerance;
using tiny::kParameterTolerance;
using tiny::kSteps;
using tiny::plan_of;
using tiny::text_of;

TEST(split_ranks, every_plan_trains_as_one_rank_does) {
  const Degrees kPlans[] = {
      {.tensor = 2},
      {.tensor = 2, .tensor_sequence = true},
      {.tensor = 4},
      {.tensor = 4, .tensor_sequence = true},
      {.sequence = 2},
      {.sequence = 4},
      {.sequence = 2, .zero_stage = 3},
      {.context = 2},
      {.context = 2, .balance = ContextBalance::kNone},
      {.context = 2, .zero_stage = 3},
      {.context = 2, .zero_stage = 3, .balance = ContextBalance::kNone},
      {.context = 2, .data = 2, .zero_stage = 1},
      {.context = 2, .pipeline = 2},
      {.tensor = 2, .context = 2},
      {.tensor = 2, .context = 2, .balance = ContextBalance::kNone},
      {.tensor = 2, .context = 2, .tensor_sequence = true, .zero_stage = 2},
      {.data = 2, .pipeline = 2},
      {.data = 2, .pipeline = 2, .zero_stage = 2},
      {.tensor = 2, .data = 2},
      {.tensor = 2, .data = 2, .tensor_sequence = true, .zero_stage = 1},
      {.tensor = 2, .data = 2, .zero_stage = 3},
      {.tensor = 2, .sequence = 2},
      {.tensor = 2, .sequence = 2, .tensor_sequence = true, .zero_stage = 2},
      {.tensor = 2, .pipeline = 2},
      {.tensor = 2, .pipeline = 2, .tensor_sequence = true},
      {.sequence = 2, .data = 2, .zero_stage = 1},
      {.sequence = 2, .data = 2, .zero_stage = 3},
      {.sequence = 2, .pipeline = 2},
      {.tensor = 2, .sequence = 2, .data = 2, .tensor_sequence = true, .zero_stage = 2},
  };
  const TrainerOptions options = gentle();
  std::vector<Model> models = {tiny::gpt2_model(), tiny::llama_model(), tiny::newer_models()[0]};
  for (const Model& model : models) {
    const tiny::Outcome alone = tiny::train(model, plan_of(Degrees{}), options, kSteps, true);
    for (const Degrees& degrees : kPlans) {
      if (model.kv_heads % (degrees.tensor * degrees.sequence) != 0) continue;
      expect_near(tiny::train(model, plan_of(degrees), options, kSteps, false), alone,
                  model.name + " " + text_of(degrees));
    }
  }
}

// Experts and latents are each rank's own where it has all of them for its tokens. Windows and
// sinks go round a ring.
TEST(split_ranks, sequences_of_every_family_are_shared) {
  const TrainerOptions options = gentle();
  for (const Model& model : tiny::newer_models()) {
    for (const Degrees& degrees : {Degrees{.sequence = 2}, Degrees{.context = 2},
                                   Degrees{.context = 2, .balance = ContextBalance::kNone}}) {
      const bool refused = (model.attention_sinks && degrees.sequence > 1) ||
                           model.balance_loss > 0 || (model.is_latent() && degrees.context > 1);
      if (refused) continue;
      expect_near(tiny::train(model, plan_of(degrees), options, kSteps, false),
                  tiny::train(model, plan_of(Degrees{}), options, kSteps, true),
                  model.name + " " + text_of(degrees));
    }
  }
}

// Rows of several sequences of a micro-batch lie one after another, each with the pieces of a rank;
// of a window that ends within a piece a rank sees some keys of the other's.
TEST(split_ranks, rings_of_several_sequences_and_windows_train_as_one_rank_does) {
  const TrainerOptions options = gentle();
  Model windows = tiny::llama_model();
  windows.sliding_window = 5;
  for (const Model& model : {tiny::gpt2_model(), tiny::llama_model(), windows}) {
    Plan plan = plan_of(Degrees{});
    plan.micro_batch = 2;
    const tiny::Outcome alone = tiny::train(model, plan, options, kSteps, true);
    plan.devices = plan.context = 2;
    for (const ContextBalance balance : {ContextBalance::kZigzag, ContextBalance::kNone}) {
      plan.context_balance = balance;
      expect_near(tiny::train(model, plan, options, kSteps, false), alone,
                  model.name + " 2 sequences " + std::string(to_string(balance)));
    }
  }
}

// With clipped and poisoned steps. Where state lies and how it steps changes no bit of ranks that
// split alike and accumulate in the same order, and the verdicts are those of one rank.
void train_splits(SyncMode sync) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = gentle(tiny::disturbed_options());
  const Degrees kPlans[] = {{.tensor = 2},
                            {.tensor = 2, .tensor_sequence = true},
                            {.sequence = 2},
                            {.context = 2},
                            {.context = 2, .balance = ContextBalance::kNone},
                            {.data = 2, .pipeline = 2},
                            {.tensor = 2, .data = 2, .tensor_sequence = true}};
  int trained = 0;
  const tiny::Outcome alone = tiny::train(model, plan_of(Degrees{}, sync), options, kSteps, true);
  for (Degrees degrees : kPlans) {
    degrees.zero_stage = 0;
    const tiny::Outcome reference =
        tiny::train(model, plan_of(degrees, sync), options, kSteps, true);
    // Steps of clipped noise are as large as any other.
    expect_near(reference, alone, text_of(degrees) + std::string(to_string(sync)),
                10 * kParameterTolerance);
    for (const int64_t zero_stage : {0, 2}) {
      for (const Homes homes : kHomes) {
        degrees.zero_stage = zero_stage;
        // What ranks do not share is averaged by an all-reduce only where the GPU steps it.
        const bool alone_in_group = degrees.data * degrees.sequence * degrees.context == 1;
        if (zero_stage == 0 && homes != Homes::kGpu && !alone_in_group) continue;
        if (zero_stage > 0 && alone_in_group) continue;
        const std::string what = text_of(degrees) + std::string(to_string(sync)) + " home " +
                                 std::to_string(static_cast<int>(homes));
        const tiny::Outcome outcome =
            tiny::train(model, plan_of(degrees, sync, homes), options, kSteps, false);
        tiny::expect_same(outcome, reference, what);
        ++trained;
        if (sync == SyncMode::kSpeculate) EXPECT_GE(outcome.rollbacks, 3) << what;
      }
    }
  }
  std::printf("%d plans with the bits of ranks that split alike\n", trained);
}

TEST(split_ranks, every_way_to_wait_has_the_same_bits) { train_splits(SyncMode::kWait); }
TEST(split_ranks, every_way_to_delay_has_the_same_bits) { train_splits(SyncMode::kDelay); }
TEST(split_ranks, every_way_to_speculate_has_the_same_bits) { train_splits(SyncMode::kSpeculate); }

// What is exchanged is exchanged again where it is computed again.
TEST(split_ranks, what_is_recomputed_has_the_same_bits) {
  const Model model = tiny::llama_model();
  const TrainerOptions options = gentle();
  for (const Degrees& degrees :
       {Degrees{.tensor = 2}, Degrees{.tensor = 2, .tensor_sequence = true}, Degrees{.sequence = 2},
        Degrees{.context = 2}, Degrees{.tensor = 2, .pipeline = 2}}) {
    const tiny::Outcome kept = tiny::train(model, plan_of(degrees), options, kSteps, true);
    for (const ActivationFate fate : {ActivationFate::kRecompute, ActivationFate::kOffload}) {
      Plan plan = plan_of(degrees);
      plan.activations = tiny::all_activations(fate);
      tiny::expect_same(tiny::train(model, plan, options, kSteps, false), kept, text_of(degrees));
    }
  }
}

// Beside every degree what a rank has of the weights flows, and of the state streams in.
TEST(split_ranks, what_flows_and_streams_in_has_the_bits_of_what_stays) {
  const TrainerOptions options = gentle(tiny::disturbed_options());
  const Degrees kPlans[] = {{.sequence = 2, .data = 2},
                            {.context = 2, .data = 2},
                            {.tensor = 2, .data = 2},
                            {.tensor = 2, .data = 2, .tensor_sequence = true},
                            {.data = 4, .expert = 2}};
  for (Degrees degrees : kPlans) {
    degrees.zero_stage = 3;
    const Model model = degrees.expert > 1 ? tiny::newer_models()[1] : tiny::gpt2_model();
    Plan plan = plan_of(degrees, SyncMode::kWait, Homes::kOptimizerAway);
    const tiny::Outcome stays = tiny::train(model, plan, options, kSteps, true);
    plan.optimizer.gpu_buckets = 0;
    for (const auto& [flow, stream] : {std::pair{1.0, 0.0}, {0.0, 1.0}, {0.5, 0.5}}) {
      plan.weights.flow_share = flow;
      plan.optimizer.stream_share = stream;
      tiny::expect_same(tiny::train(model, plan, options, kSteps, false), stays, text_of(degrees));
    }
  }
}

// Whichever rank comes first to a step's loss fails there; the others are anywhere.
TEST(split_ranks, a_rank_that_fails_ends_all) {
  const Model model = tiny::llama_model();
  for (const Degrees& degrees :
       {Degrees{.tensor = 2, .data = 2, .tensor_sequence = true}, Degrees{.sequence = 2},
        Degrees{.context = 2}, Degrees{.data = 2, .pipeline = 2}}) {
    for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate}) {
      std::atomic<bool> failed = false;
      TrainerOptions options = gentle();
      options.gradient_factor = [&](int32_t step) {
        if (step == 2 && !failed.exchange(true)) throw Error("the disk", "it is full", "make room");
        return 1.0;
      };
      Trainer trainer(model, plan_of(degrees, sync), options);
      try {
        trainer.train(kSteps, nullptr);
        FAIL() << "it trains: " << text_of(degrees);
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()), "the disk: it is full; make room") << text_of(degrees);
      }
    }
  }
}

// Another type rounds what ranks sum once more each: near, and the same loss scales.
TEST(split_ranks, sixteen_bits_stay_near_one_rank) {
  const Model model = tiny::llama_model();
  const TrainerOptions options = gentle();
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const tiny::Outcome alone = tiny::train(
        model, plan_of(Degrees{}, SyncMode::kWait, Homes::kGpu, dtype), options, kSteps, true);
    for (const Degrees& degrees : {Degrees{.tensor = 2}, Degrees{.sequence = 2},
                                   Degrees{.tensor = 2, .tensor_sequence = true}}) {
      const tiny::Outcome outcome = tiny::train(
          model, plan_of(degrees, SyncMode::kWait, Homes::kGpu, dtype), options, kSteps, false);
      const Distance apart = distance(outcome, alone);
      EXPECT_LT(apart.loss, 5e-3) << text_of(degrees) << to_string(dtype);
      for (size_t i = 0; i < outcome.records.size(); ++i) {
        EXPECT_EQ(outcome.records[i].loss_scale, alone.records[i].loss_scale);
      }
    }
  }
}

// A checkpoint, an export and the first weights have nothing of ranks in them; a vocabulary that
// does not divide is filled up with zeros that nobody sees.
TEST(split_ranks, state_is_that_of_the_whole_model) {
  for (Model model : {tiny::gpt2_model(), tiny::llama_model()}) {
    model.vocab = 259;
    const TrainerOptions options = gentle();
    Trainer alone(model, plan_of(Degrees{}), options);
    const TemporaryFolder folder;
    for (const Degrees& degrees :
         {Degrees{.tensor = 2}, Degrees{.tensor = 2, .data = 2, .zero_stage = 3},
          Degrees{.tensor = 2, .pipeline = 2, .tensor_sequence = true}}) {
      Trainer ranks(model, plan_of(degrees), options);
      EXPECT_TRUE(tiny::same_bits(ranks.parameters(), alone.parameters())) << text_of(degrees);
      EXPECT_NEAR(ranks.validation_loss(2), alone.validation_loss(2), 1e-5) << text_of(degrees);
      ranks.export_weights(folder / "ranks.safetensors");
      TrainerOptions imports = options;
      imports.seed = 7;
      imports.initial_weights = folder / "ranks.safetensors";
      EXPECT_TRUE(tiny::same_bits(Trainer(model, plan_of(Degrees{}), imports).parameters(),
                                  alone.parameters()));
    }
  }
}

TEST(split_ranks, resume_as_another_split) {
  const Model model = tiny::gpt2_model();
  const Degrees first{.tensor = 2, .data = 2, .tensor_sequence = true, .zero_stage = 2};
  for (const SyncMode sync : {SyncMode::kDelay, SyncMode::kSpeculate}) {
    TrainerOptions options = gentle();
    const Plan plan = plan_of(first, sync, Homes::kOptimizerAway);
    const tiny::Outcome reference = tiny::train(model, plan, options, kSteps, false);
    for (const Degrees& degrees :
         {first, Degrees{.sequence = 2}, Degrees{.tensor = 2, .pipeline = 2}}) {
      const TemporaryFolder folder;
      options.checkpoint_folder = folder.path();
      options.resume = true;
      Trainer(model, plan, options).train(kSteps / 2, nullptr);
      Trainer resumed(model, plan_of(degrees, sync), options);
      EXPECT_EQ(resumed.next_step(), kSteps / 2);
      const TrainResult rest = resumed.train(kSteps, nullptr);
      if (degrees.data == 2)
        EXPECT_TRUE(tiny::same_bits(resumed.parameters(), reference.parameters));
      for (const StepRecord& record : rest.records) {
        const double loss = reference.records[static_cast<size_t>(record.step)].loss;
        EXPECT_NEAR(record.loss / loss, 1, kLossTolerance) << text_of(degrees) << record.step;
      }
    }
  }
}

std::string knob_missing(const Model& model, const Plan& plan) {
  const std::vector<DeviceVerdict> verdicts = which_run(model, plan);
  return verdicts.front().missing ? verdicts.front().missing->knob : "";
}

TEST(split_ranks, what_does_not_run_is_refused_by_name) {
  const Model dense = tiny::llama_model();
  const std::vector<Model> newer = tiny::newer_models();  // qwen3, mixtral, qwen3_moe, gpt_oss, ds
  EXPECT_EQ(knob_missing(dense, plan_of(Degrees{.tensor = 2, .sequence = 1})), "");
  EXPECT_EQ(knob_missing(dense, plan_of(Degrees{.tensor = 4})),
            "plan.tensor");  // two heads of keys
  EXPECT_EQ(knob_missing(newer[1], plan_of(Degrees{.tensor = 2})), "plan.tensor");
  EXPECT_EQ(knob_missing(newer[4], plan_of(Degrees{.tensor = 2})), "plan.tensor");
  EXPECT_EQ(knob_missing(newer[3], plan_of(Degrees{.sequence = 2})), "plan.sequence");
  EXPECT_EQ(knob_missing(newer[2], plan_of(Degrees{.sequence = 2})), "plan.sequence");
  EXPECT_EQ(knob_missing(dense, plan_of(Degrees{.context = 2})), "");
  EXPECT_EQ(knob_missing(dense, plan_of(Degrees{.context = 4})), "plan.context");
  // Every way to give a ring its tokens runs, but for ranks that help: of any number of them.
  for (const int64_t balance : knob_of(KnobId::kContextBalance).choices) {
    const bool helps = balance == static_cast<int64_t>(ContextBalance::kHelpers);
    const Degrees two{.context = 2, .balance = static_cast<ContextBalance>(balance)};
    EXPECT_EQ(knob_missing(dense, plan_of(two)), helps ? "plan.context_balance" : "");
    if (!helps) continue;
    const Degrees four{.context = 4, .balance = ContextBalance::kHelpers};
    EXPECT_EQ(knob_missing(dense, plan_of(four)), "plan.context_balance");
    EXPECT_FALSE(cuda_capabilities().declares(PlanFeature::kHelpedRings));
  }
  EXPECT_EQ(knob_missing(dense, plan_of(Degrees{.sequence = 2, .context = 2})), "plan.context");
  EXPECT_EQ(knob_missing(newer[4], plan_of(Degrees{.context = 2})), "plan.context");
  Plan experts = plan_of(Degrees{.data = 2});
  experts.expert = 2;
  EXPECT_EQ(knob_missing(newer[1], experts), "");
  Plan uneven = plan_of(Degrees{.tensor = 2, .tensor_sequence = true});
  uneven.sequence_length = 13;
  EXPECT_EQ(knob_missing(dense, uneven), "plan.tensor_sequence");
  // Of the degrees that split a model the CUDA device has this one; it may not be built here.
  const auto on_gpus = [&](const Model& model, const Degrees& degrees) -> std::string {
    const auto missing = first_missing(model, plan_of(degrees), cuda_capabilities());
    return missing ? missing->knob : "";
  };
  EXPECT_EQ(on_gpus(dense, {.tensor = 2}), "");
  EXPECT_EQ(on_gpus(dense, {.tensor = 2, .data = 2, .tensor_sequence = true}), "");
  EXPECT_EQ(on_gpus(dense, {.tensor = 4}), "plan.tensor");
  EXPECT_EQ(on_gpus(dense, {.sequence = 2}), "plan.sequence");
  EXPECT_EQ(on_gpus(dense, {.tensor = 2, .sequence = 2}), "plan.sequence");
  EXPECT_EQ(on_gpus(dense, {.context = 2}), "plan.context");
  EXPECT_EQ(on_gpus(dense, {.tensor = 2, .pipeline = 2}), "plan.pipeline");
  Plan eight_bits = plan_of({.tensor = 2});
  eight_bits.products = ProductFormat::kFp8;
  const auto missing = first_missing(dense, eight_bits, cuda_capabilities());
  ASSERT_TRUE(missing.has_value());
  EXPECT_EQ(missing->knob, "plan.products");
}

}  // namespace
}  // namespace ballast
