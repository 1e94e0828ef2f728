// Head and loss over pieces of a micro-batch's tokens, trained: in fp32 as whole but for the order
// in which the head's gradients are summed, on one rank and on several; and on threads in place of
// a GPU's streams the bits of the host device.
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/backend/cuda_training.h"
#include "tests/backend/split_training.h"

namespace ballast {
namespace {

using tiny::Degrees;
using tiny::expect_near;
using tiny::gentle;
using tiny::kSteps;

Plan in_pieces(Plan plan, int64_t pieces) {
  plan.loss_chunks = pieces;
  return plan;
}

// 24 tokens of a micro-batch, which 5 does not divide.
TEST(loss_chunks_run, training_in_pieces_is_training_whole) {
  const TrainerOptions options = gentle();
  std::vector<Model> models = tiny::newer_models();
  models.push_back(tiny::gpt2_model());
  models.push_back(tiny::llama_model());
  const Plan plan = tiny::wait_plan(DType::kF32);
  for (const Model& model : models) {
    const tiny::Outcome whole = tiny::train(model, plan, options, kSteps, true);
    const tiny::Outcome divided = tiny::train(model, in_pieces(plan, 5), options, kSteps, true);
    expect_near(divided, whole, model.name + " in 5 pieces");
    EXPECT_FALSE(tiny::same_bits(divided.parameters, whole.parameters)) << "are there pieces?";
  }
}

// A piece of one token each at most: 12 tokens of a micro-batch, 6 where two ranks share it.
TEST(loss_chunks_run, ranks_train_in_pieces_as_one_rank_does_whole) {
  const Degrees kPlans[] = {
      {.tensor = 2},   {.tensor = 2, .tensor_sequence = true}, {.sequence = 2},
      {.context = 2},  {.data = 2, .zero_stage = 2},           {.data = 2, .zero_stage = 3},
      {.pipeline = 2}, {.tensor = 2, .data = 2, .pipeline = 2}};
  const TrainerOptions options = gentle();
  for (const Model& model : {tiny::gpt2_model(), tiny::llama_model()}) {
    const tiny::Outcome whole = tiny::train(model, tiny::plan_of(Degrees{}), options, kSteps, true);
    for (const Degrees& degrees : kPlans) {
      for (const int64_t pieces : {4, 6}) {
        const Plan plan = in_pieces(tiny::plan_of(degrees), pieces);
        expect_near(tiny::train(model, plan, options, kSteps, false), whole,
                    model.name + " " + tiny::text_of(degrees) + std::to_string(pieces));
      }
    }
  }
}

// Products of fewer rows may add up in another order.
TEST(loss_chunks_run, losses_of_a_validation_are_those_of_the_whole) {
  const Plan plan = tiny::wait_plan(DType::kF32);
  for (const Model& model : {tiny::gpt2_model(), tiny::newer_models()[2]}) {
    Trainer whole(model, plan, gentle());
    Trainer divided(model, in_pieces(plan, 7), gentle());
    const double loss = whole.validation_loss(2);
    EXPECT_GT(loss, 1);
    EXPECT_NEAR(divided.validation_loss(2) / loss, 1, tiny::kLossTolerance) << model.name;
  }
}

TEST(loss_chunks_run, streams_of_a_gpu_give_the_bits_of_the_host_device) {
  tests::ThreadCudaOptions dawdling;
  dawdling.dawdle_one_in = 60;
  const TrainerOptions options = tiny::options_for(kSteps);
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
    const Plan plan = in_pieces(tiny::plan_of_both_homes(sync), 5);
    const tiny::Outcome host = tiny::train(tiny::gpt2_model(), plan, options, kSteps, false);
    const tiny::Outcome gpu = tiny::train(tiny::gpt2_model(), plan,
                                          tests::on_thread_cuda(options, dawdling), kSteps, false);
    EXPECT_TRUE(tiny::same_bits(gpu.parameters, host.parameters)) << to_string(sync);
    ASSERT_EQ(gpu.records.size(), host.records.size());
    for (size_t i = 0; i < host.records.size(); ++i) {
      EXPECT_EQ(gpu.records[i].loss, host.records[i].loss) << to_string(sync) << " step " << i;
    }
    EXPECT_EQ(host.rollbacks > 0, sync == SyncMode::kSpeculate);
  }
}

}  // namespace
}  // namespace ballast
