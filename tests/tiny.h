// Models, plans and machines that are small enough for tests, written once: a test names the widths
// and rates that its arithmetic needs.
#pragma once

#include <string>

#include "sim/spec/machine.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast::tiny {

struct Widths {
  int64_t layers = 2;
  int64_t hidden = 8;
  int64_t heads = 2;
  int64_t kv_heads = 2;
  int64_t head_size = 4;
  int64_t ffn = 32;
  int64_t vocab = 16;
  int64_t positions = 64;
};

inline Model with_widths(const Widths& widths, const std::string& architecture) {
  Model model;
  model.name = "tiny-" + architecture;
  model.architecture = architecture;
  model.layers = widths.layers;
  model.hidden = widths.hidden;
  model.heads = widths.heads;
  model.kv_heads = widths.kv_heads;
  model.head_size = widths.head_size;
  model.ffn = widths.ffn;
  model.vocab = widths.vocab;
  model.max_positions = widths.positions;
  return model;
}

// LayerNorm, learned positions, GELU, biases, tied embeddings, weights stored [in, out].
inline Model gpt2(const Widths& widths) {
  Model model = with_widths(widths, "gpt2");
  model.layout = WeightLayout::kInOut;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = true;
  return model;
}

// 21,000 parameters: a checkpoint of 250 KB.
inline Model one_layer_gpt2() {
  return gpt2({.layers = 1,
               .hidden = 32,
               .heads = 2,
               .kv_heads = 2,
               .head_size = 16,
               .ffn = 64,
               .vocab = 256,
               .positions = 16});
}

// RMSNorm, rotary positions, SwiGLU, no biases.
inline Model llama(const Widths& widths) {
  Model model = with_widths(widths, "llama");
  model.norm = NormKind::kRmsNorm;
  model.position = PositionKind::kRope;
  model.activation = ActivationKind::kSwiGlu;
  return model;
}

// As llama, with biases of q, k and v and tied embeddings.
inline Model qwen2(const Widths& widths) {
  Model model = llama(widths);
  model.name = "tiny-qwen2";
  model.architecture = "qwen2";
  model.qkv_bias = true;
  model.tied_embeddings = true;
  return model;
}

// As llama, with a norm of each head's q and k.
inline Model qwen3(const Widths& widths) {
  Model model = llama(widths);
  model.name = "tiny-qwen3";
  model.architecture = "qwen3";
  model.qk_norm = true;
  return model;
}

// As llama, with four experts in every layer, two a token, of the width of the dense layers.
inline Model mixtral(const Widths& widths) {
  Model model = llama(widths);
  model.name = "tiny-mixtral";
  model.architecture = "mixtral";
  model.experts = 4;
  model.experts_per_token = 2;
  model.expert_ffn = widths.ffn;
  return model;
}

// As qwen3; layer 0 is dense, the others have six experts, three a token, whose weights do not sum
// to one, and balancing them is part of the loss.
inline Model qwen3_moe(const Widths& widths) {
  Model model = qwen3(widths);
  model.name = "tiny-qwen3_moe";
  model.architecture = "qwen3_moe";
  model.experts = 6;
  model.experts_per_token = 3;
  model.expert_ffn = widths.ffn / 2;
  model.dense_layers = {0};
  model.normalised_choice = false;
  model.balance_loss = 0.01;
  return model;
}

// Windows of three positions in every other layer, sinks, biased experts, a clamped activation.
inline Model gpt_oss(const Widths& widths) {
  Model model = mixtral(widths);
  model.name = "tiny-gpt_oss";
  model.architecture = "gpt_oss";
  model.activation = ActivationKind::kClampedSwiGlu;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.router_bias = model.attention_sinks = true;
  model.sliding_window = 3;
  model.full_attention_period = 2;
  return model;
}

// Latent attention with rotary columns in pairs of neighbours; layer 0 is dense, the others have
// eight experts in four groups, three a token out of two groups, and two shared ones.
inline Model deepseek_v3(const Widths& widths) {
  Model model = llama(widths);
  model.name = "tiny-deepseek_v3";
  model.architecture = "deepseek_v3";
  model.kv_heads = model.heads;
  model.query_rank = 5;
  model.kv_rank = 6;
  model.rope_size = 4;
  model.head_size = 7;
  model.value_size = 3;
  model.interleaved_rope = true;
  model.experts = 8;
  model.experts_per_token = 3;
  model.expert_ffn = widths.ffn / 2;
  model.shared_experts = 2;
  model.first_dense_layers = 1;
  model.router = RouterKind::kSigmoid;
  model.router_bias = true;
  model.expert_groups = 4;
  model.chosen_groups = 2;
  model.routed_scale = 1.5;
  return model;
}

struct Batch {
  int64_t sequences = 2;  // of a step
  int64_t micro_batch = 2;
  int64_t tokens = 4;  // of a sequence
};

// Every knob has a value: weights and activations stay, the CPU steps every bucket, and a step
// waits.
inline Plan waiting_plan(const Batch& batch, int64_t bucket_bytes) {
  Plan plan;
  plan.global_batch = batch.sequences;
  plan.micro_batch = batch.micro_batch;
  plan.sequence_length = batch.tokens;
  plan.weights.flow_share = 0;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.bucket_bytes = {bucket_bytes};
  plan.optimizer.sync = SyncMode::kWait;
  plan.activations = ActivationPlan{};
  return plan;
}

template <class Quantity>
Sourced<Quantity> given(Quantity value) {
  return {value, false, "test"};
}

// The same rate for every size.
inline Curve flat(double rate) { return {{{1, rate}, {1e9, rate}}, "test", false}; }

// GPU: 1 TFLOP/s in 16 bits, 0.1 in vectors, 100 GB/s, 1 GiB, launches of 1 us. Link: PCIe of 10
// GB/s each way, 15 in total. CPU: 4 cores. What a test is about it sets itself.
inline Machine machine(const std::string& name) {
  Machine machine;
  machine.name = name;
  machine.gpu.name = "gpu";
  machine.gpu.memory = given(Bytes{int64_t{1} << 30});
  machine.gpu.reserved = given(Bytes{0});
  machine.gpu.memory_bandwidth = given(Bandwidth::from_gb_per_s(100));
  machine.gpu.matmul[DType::kBf16] = given(FlopRate::from_tflops(1));
  machine.gpu.vector = given(FlopRate::from_tflops(0.1));
  machine.gpu.attention_efficiency = given(0.5);
  machine.gpu.launch = given(Duration::from_us(1));
  machine.cpu.name = "cpu";
  machine.cpu.cores = 4;
  machine.cpu.reserved = given(Bytes{0});
  machine.link.kind = "pcie";
  machine.link.host_to_device = flat(10e9);
  machine.link.device_to_host = flat(10e9);
  machine.link.both_total = given(Bandwidth::from_gb_per_s(15));
  machine.link.pageable_share = given(0.5);
  return machine;
}

}  // namespace ballast::tiny
