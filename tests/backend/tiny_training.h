// A model and plans small enough to train for many steps in a test.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend/train/trainer.h"

namespace ballast::tiny {

// Two gpt2 layers; fc1 and fc2 have more than kSegment parameters, so buckets cut through them.
inline Model gpt2_model() {
  Model model;
  model.name = "tiny-gpt2";
  model.architecture = "gpt2";
  model.layers = 2;
  model.hidden = 128;
  model.heads = model.kv_heads = 4;
  model.head_size = 32;
  model.ffn = 640;
  model.vocab = 256;
  model.max_positions = 16;
  model.layout = WeightLayout::kInOut;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = true;
  return model;
}

inline Model llama_model() {
  Model model;
  model.name = "tiny-llama";
  model.architecture = "llama";
  model.layers = 3;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_size = 16;
  model.ffn = 160;
  model.vocab = 256;
  model.max_positions = 64;
  model.norm = NormKind::kRmsNorm;
  model.position = PositionKind::kRope;
  model.activation = ActivationKind::kSwiGlu;
  return model;
}

// Waits, one bucket, everything kept: the reference of exactness.
inline Plan wait_plan(DType dtype = DType::kBf16) {
  Plan plan;
  plan.global_batch = 4;
  plan.micro_batch = 2;
  plan.sequence_length = 12;
  plan.dtype = dtype;
  plan.weights.flow_share = 0;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.bucket_bytes = {int64_t{1} << 30};
  plan.optimizer.sync = SyncMode::kWait;
  plan.activations = ActivationPlan{};
  return plan;
}

inline TrainerOptions options_for(int64_t steps) {
  TrainerOptions options;
  // Not the sources themselves: what a step's gradients are must not change with every commit.
  options.data = BALLAST_SOURCE_DIR "/tests/data/training_text.txt";
  options.optimizer.learning_rate = {3e-3, 3e-4, 3, steps};
  options.optimizer.clip_norm = 1.0;
  return options;
}

struct Outcome {
  std::vector<float> parameters;
  std::vector<StepRecord> records;
  int32_t rollbacks = 0;
};

inline Outcome train(const Model& model, const Plan& plan, const TrainerOptions& options,
                     int64_t steps, bool sequential) {
  Trainer trainer(model, plan, options);
  TrainResult result = trainer.train(steps, nullptr, sequential);
  return {trainer.parameters(), std::move(result.records), result.rollbacks};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Every module's output gets this fate, but layer inputs (fc2) are never recomputed.
inline ActivationPlan all_activations(ActivationFate fate) {
  ActivationPlan plan;
  plan.fate.fill(fate);
  if (fate == ActivationFate::kRecompute) {
    plan.fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  }
  return plan;
}

}  // namespace ballast::tiny
