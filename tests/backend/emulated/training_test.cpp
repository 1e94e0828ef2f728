// Whole trainings on the CUDA device with the CUDA kernels themselves, emulated, and plain matrix
// products: every argument of every kernel is the one that the host device computes with.
#include <cmath>
#include <gtest/gtest.h>

#include "backend/device_cuda.h"
#include "backend/transformer_cuda.h"
#include "tests/backend/emulated/immediate_cuda.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int kSteps = 2;

TrainerOptions on_emulated_cuda(TrainerOptions options) {
  options.make_device = [](const Training& training, const DeviceOptions& with,
                           const ControlState& state) {
    auto runtime = std::make_unique<tests::ImmediateCuda>();
    auto math = std::make_unique<CudaTransformer>(training, *runtime,
                                                  std::make_unique<tests::PlainProducts>());
    return std::make_unique<CudaDevice>(
        training, with, state, CudaParts{std::move(runtime), std::move(math), {int64_t{1} << 40}});
  };
  return options;
}

// Models so small that emulation takes seconds, with every kind of layout: one fused matrix with
// biases; several without; several with (qwen2's q, k and v).
Model small_gpt2() {
  Model model = tiny::gpt2_model();
  model.hidden = 32;
  model.heads = model.kv_heads = 2;
  model.head_size = 16;
  model.ffn = 64;
  model.vocab = 256;
  return model;
}
Model small_llama() {
  Model model = tiny::llama_model();
  model.layers = 2;
  model.hidden = 32;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_size = 16;
  model.ffn = 48;
  return model;
}
Model small_qwen2() {
  Model model = small_llama();
  model.architecture = "qwen2";
  model.qkv_bias = true;
  model.tied_embeddings = true;
  return model;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

Plan small_plan(DType dtype) {
  Plan plan = tiny::wait_plan(dtype);
  plan.global_batch = 2;
  plan.micro_batch = 1;
  return plan;
}

// SGD-like: with a large epsilon Adam's step is proportional to the gradient, so parameters tell
// gradients apart, which a step of Adam's usual sign would not.
TrainerOptions proportional_steps() {
  TrainerOptions options = tiny::options_for(10);
  options.optimizer.learning_rate = {3, 3, 0, 10};
  options.optimizer.epsilon = 10;
  options.optimizer.weight_decay = 0;
  options.optimizer.clip_norm = 0;
  return options;
}

TEST(EmulatedTraining, parameters_follow_those_of_the_host_device) {
  for (const Model& model : {small_gpt2(), small_llama(), small_qwen2()}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const TrainerOptions options = proportional_steps();
      const Plan plan = small_plan(dtype);
      Trainer untrained(model, plan, options);
      const std::vector<float> begin = untrained.parameters();
      const tiny::Outcome host = tiny::train(model, plan, options, kSteps, true);
      const tiny::Outcome cuda = tiny::train(model, plan, on_emulated_cuda(options), kSteps, true);
      // Of how far training went. fp32 sums in another order: about 1e-6 a step. bf16 rounds
      // activations and gradients to 2^-9 each.
      std::vector<float> host_way(begin.size()), cuda_way(begin.size());
      for (size_t i = 0; i < begin.size(); ++i) {
        host_way[i] = host.parameters[i] - begin[i];
        cuda_way[i] = cuda.parameters[i] - begin[i];
      }
      EXPECT_LT(distance(cuda_way, host_way), dtype == DType::kF32 ? 1e-4 : 3e-2)
          << model.name << " " << to_string(dtype);
      for (size_t i = 0; i < host.records.size(); ++i) {
        EXPECT_NEAR(cuda.records[i].loss, host.records[i].loss, dtype == DType::kF32 ? 1e-5 : 2e-2)
            << model.name << " step " << i;
      }
      EXPECT_LT(host.records.back().loss, host.records.front().loss);
    }
  }
}

TEST(EmulatedTraining, every_knob_gives_the_bits_of_the_gpus_own_waiting_run) {
  const TrainerOptions options = on_emulated_cuda(tiny::options_for(10));
  const Model model = small_llama();
  const Plan wait = small_plan(DType::kBf16);
  const tiny::Outcome reference = tiny::train(model, wait, options, kSteps, true);
  Plan offloads = wait;
  offloads.optimizer.sync = SyncMode::kSpeculate;
  offloads.optimizer.bucket_bytes = {4 * kSegment};
  offloads.activations = tiny::all_activations(ActivationFate::kOffload);
  Plan recomputes = wait;
  recomputes.weights.flow_share = 1;
  recomputes.activations = tiny::all_activations(ActivationFate::kRecompute);
  Plan on_gpu = offloads;
  on_gpu.optimizer.gpu_buckets = 100;
  for (const Plan& plan : {offloads, recomputes, on_gpu}) {
    const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, true);
    EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters));
    EXPECT_EQ(outcome.rollbacks > 0, plan.optimizer.sync == SyncMode::kSpeculate);
  }
}

}  // namespace
}  // namespace ballast
