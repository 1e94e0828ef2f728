// Whole trainings on the CUDA device with the CUDA kernels themselves, emulated, and plain matrix
// products: every argument of every kernel is the one that the host device computes with.
#include <cmath>
#include <gtest/gtest.h>

#include "backend/device_cuda.h"
#include "backend/transformer_cuda.h"
#include "tests/backend/emulated/immediate_cuda.h"
#include "tests/backend/emulated/plain_attention.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int kSteps = 2;

// Whose attention: our kernels', or a library's with so much workspace.
struct Attention {
  std::optional<Bytes> workspace;
  std::shared_ptr<tests::AttentionRuns> runs = std::make_shared<tests::AttentionRuns>();
};

TrainerOptions on_emulated_cuda(TrainerOptions options, const Attention& attention = {}) {
  options.make_device = [attention](const Training& training, const DeviceOptions& with,
                                    const ControlState& state) {
    auto runtime = std::make_unique<tests::ImmediateCuda>();
    std::unique_ptr<AttentionLibrary> library;
    if (attention.workspace) library = std::make_unique<tests::PlainAttention>(attention.runs);
    auto math = std::make_unique<CudaTransformer>(
        training, *runtime, std::make_unique<tests::PlainProducts>(),
        std::make_unique<CudaAttention>(*runtime, std::move(library),
                                        attention.workspace.value_or(Bytes{})));
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

// The way of a training's parameters from where they began.
std::vector<float> way(const Model& model, const Plan& plan, const TrainerOptions& options) {
  Trainer untrained(model, plan, options);
  const std::vector<float> begin = untrained.parameters();
  std::vector<float> end = tiny::train(model, plan, options, kSteps, true).parameters;
  for (size_t i = 0; i < end.size(); ++i) end[i] -= begin[i];
  return end;
}

TEST(EmulatedTraining, attention_of_a_library_trains_as_ours_does) {
  const TrainerOptions options = proportional_steps();
  for (const Model& model : {small_gpt2(), small_llama(), small_qwen2()}) {
    const Plan plan = small_plan(DType::kBf16);
    const Attention library{Bytes{1 << 20}};
    const std::vector<float> ours = way(model, plan, on_emulated_cuda(options));
    const std::vector<float> its = way(model, plan, on_emulated_cuda(options, library));
    EXPECT_LT(distance(its, ours), 3e-2) << model.name;  // bf16, as above
    // Each step: two sequences through every layer, forward and backward.
    EXPECT_EQ(library.runs->forward, 2 * kSteps * model.layers) << model.name;
    EXPECT_EQ(library.runs->backward, 2 * kSteps * model.layers) << model.name;
  }
}

TEST(EmulatedTraining, attention_in_slices_gives_the_bits_of_attention_at_once) {
  // A backward's workspace is 2 S^2 bytes a query head: 288 of 12 tokens. gpt2 here has 2 heads of
  // their own, so with 288 bytes each head of each sequence is a slice, with 576 both heads.
  Model model = small_gpt2();
  Plan plan = small_plan(DType::kBf16);
  plan.micro_batch = 2;
  const TrainerOptions options = proportional_steps();
  const Attention at_once{Bytes{1 << 20}}, by_sequence{Bytes{600}}, by_head{Bytes{300}};
  const Attention none{Bytes{100}};
  const std::vector<float> whole = way(model, plan, on_emulated_cuda(options, at_once));
  EXPECT_TRUE(tiny::same_bits(whole, way(model, plan, on_emulated_cuda(options, by_sequence))));
  EXPECT_TRUE(tiny::same_bits(whole, way(model, plan, on_emulated_cuda(options, by_head))));
  EXPECT_EQ(at_once.runs->backward, kSteps * model.layers);
  EXPECT_EQ(by_sequence.runs->backward, 2 * kSteps * model.layers);
  EXPECT_EQ(by_head.runs->backward, 4 * kSteps * model.layers);
  // Too little for any slice of the backward: it is ours, the forward the library's.
  static_cast<void>(way(model, plan, on_emulated_cuda(options, none)));
  EXPECT_EQ(none.runs->backward, 0);
  EXPECT_EQ(none.runs->forward, kSteps * model.layers);
}

TEST(EmulatedTraining, fp32_is_left_to_our_kernels) {
  const Attention library{Bytes{1 << 20}};
  static_cast<void>(
      way(small_llama(), small_plan(DType::kF32), on_emulated_cuda(proportional_steps(), library)));
  EXPECT_EQ(library.runs->forward + library.runs->backward, 0);
}

}  // namespace
}  // namespace ballast
