// Families of models: what a model_type of Hugging Face's config.json stands for, one row each. A
// family that differs from those that are here in values alone is added by a row; one that computes
// something else also needs its reader in profiles/model.cpp.
//
// Will not do: read files (profiles/model.cpp), or say what a model computes: that is in its sizes
// (sim/spec/model.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ballast {

// Where the attention of every layer has a window: where the file says so by use_sliding_window;
// where it names a window; or unless it says that there is none.
enum class WindowRule : uint8_t { kWhereSwitchedOn, kWhereGiven, kUnlessNull };

// Which products of attention have a bias: those that the key attention_bias says, query, key and
// value alone, or none.
enum class AttentionBias : uint8_t { kByKey, kQkv, kNone };

// Which layers have experts, and whose keys describe them.
enum class ExpertKeys : uint8_t { kNone, kEveryLayer, kQwen3, kDeepseek };

// Defaults are those of LlamaConfig; values of keys are what the configuration class puts in for a
// key that the file leaves out.
struct ModelFamily {
  std::string_view name;     // model_type
  bool gpt2_names = false;   // of keys and parameters: as GPT2LMHeadModel, else as LlamaForCausalLM
  bool has_dropout = false;  // the class drops values while it trains, as its file says by default
  int64_t kv_heads = 0;      // 0: as many as heads
  int64_t head_size = 0;     // 0: hidden / heads
  double norm_epsilon = 1e-6;
  double rope_theta = 10000;
  bool yarn = false;  // where the file says nothing of rotary positions
  WindowRule window = WindowRule::kWhereSwitchedOn;
  int64_t window_tokens = 4096;
  AttentionBias attention_bias = AttentionBias::kByKey;
  bool attention_bias_default = false;
  bool mlp_bias_key = false;  // reads mlp_bias; else there is no such bias
  bool qk_norm = false;
  bool latent_attention = false;
  // Layers with a window and layers without take turns, attention has sinks, and products of
  // experts and their router have biases, as in gpt_oss.
  bool alternating_windows = false;
  ExpertKeys expert_keys = ExpertKeys::kNone;
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_ffn = 0;
  bool shared_experts = false;
  double balance_loss = 0;  // router_aux_loss_coef, which counts with output_router_logits alone
  // Names of an expert's parameters.
  bool stacks_experts = false;  // all experts of a layer in one tensor
  std::string_view experts_block = "mlp.";
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view router = "";  // empty: "gate" in the block of experts
  std::string_view router_bias = "bias";

  bool has_experts_everywhere() const { return expert_keys == ExpertKeys::kEveryLayer; }
};

// Every family that is known, in the order of the documentation.
std::span<const ModelFamily> model_families();

// The row of this name; for one that is not known, a row with every default and without a name.
const ModelFamily& model_family(std::string_view name);

}  // namespace ballast
