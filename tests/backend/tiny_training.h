// A model and plans small enough to train for many steps in a test.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend/train/trainer.h"
#include "tests/tiny.h"

namespace ballast::tiny {

// Two gpt2 layers; fc1 and fc2 have more than kSegment parameters, so buckets cut through them.
inline Model gpt2_model() {
  return gpt2({.hidden = 128,
               .heads = 4,
               .kv_heads = 4,
               .head_size = 32,
               .ffn = 640,
               .vocab = 256,
               .positions = 16});
}

inline Model llama_model() {
  return llama({.layers = 3,
                .hidden = 64,
                .heads = 4,
                .kv_heads = 2,
                .head_size = 16,
                .ffn = 160,
                .vocab = 256});
}

// The families beyond llama that the host device trains, one or two layers of each kind.
inline std::vector<Model> newer_models() {
  Widths widths = {
      .hidden = 64, .heads = 4, .kv_heads = 2, .head_size = 16, .ffn = 96, .vocab = 256};
  std::vector<Model> models = {qwen3(widths), mixtral(widths), qwen3_moe(widths), gpt_oss(widths),
                               deepseek_v3(widths)};
  return models;
}

// Waits, one bucket, everything kept: the reference of exactness.
inline Plan wait_plan(DType dtype = DType::kBf16) {
  Plan plan = waiting_plan({.sequences = 4, .micro_batch = 2, .tokens = 12}, int64_t{1} << 30);
  plan.dtype = dtype;
  return plan;
}

// One bucket is stepped on the GPU and the others on the CPU.
inline Plan plan_of_both_homes(SyncMode sync) {
  Plan plan = wait_plan();
  plan.optimizer.sync = sync;
  plan.optimizer.gpu_buckets = 1;
  plan.optimizer.bucket_bytes = {2 * kSegment * 4};
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
