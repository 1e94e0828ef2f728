// Exactness (docs/design.md): every placement, bucket and sync choice gives the same parameters,
// bit for bit, as waiting on one lane.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "backend/trainer.h"

namespace ballast {
namespace {

Model tiny_model() {
  Model model;
  model.name = "tiny";
  model.architecture = "gpt2";
  model.layers = 3;
  model.hidden = 48;
  model.heads = 4;
  model.kv_heads = 4;
  model.head_size = 12;
  model.ffn = 192;
  model.vocab = 256;
  model.max_positions = 32;
  model.layout = WeightLayout::kInOut;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = true;
  return model;
}

Plan reference_plan() {
  Plan plan;
  plan.global_batch = 4;
  plan.micro_batch = 2;
  plan.sequence_length = 16;
  plan.dtype = DType::kBf16;
  plan.weights.flow_share = 0;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.bucket_bytes = {1 << 30};
  plan.optimizer.sync = SyncMode::kWait;
  plan.activations = ActivationPlan{};
  return plan;
}

TrainerOptions options_for(int steps) {
  TrainerOptions options;
  options.optimizer.learning_rate = {3e-3, 3e-4, 3, steps};
  options.optimizer.clip_norm = 1.0;
  return options;
}

struct Outcome {
  std::vector<float> parameters;
  std::vector<StepRecord> records;
  int32_t rollbacks = 0;
};

Outcome train(const Plan& plan, const TrainerOptions& options, int steps, bool sequential) {
  Trainer trainer(tiny_model(), plan, options);
  TrainResult result = trainer.train(steps, nullptr, sequential);
  return {trainer.parameters(), std::move(result.records), result.rollbacks};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(exactness, speculation_gives_the_bits_of_waiting_on_one_lane) {
  constexpr int kSteps = 12;
  const Outcome reference = train(reference_plan(), options_for(kSteps), kSteps, true);
  ASSERT_EQ(reference.records.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(reference.records.back().loss, reference.records.front().loss);
  Plan plan = reference_plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.optimizer.bucket_bytes = {64 * 1024 * 4};
  const Outcome speculated = train(plan, options_for(kSteps), kSteps, false);
  EXPECT_TRUE(same_bits(reference.parameters, speculated.parameters));
  EXPECT_GT(speculated.rollbacks, 0);
}

}  // namespace
}  // namespace ballast
