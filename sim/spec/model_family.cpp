#include "sim/spec/model_family.h"

#include <algorithm>

namespace ballast {
namespace {

constexpr ModelFamily kFamilies[] = {
    {.name = "gpt2", .gpt2_names = true, .has_dropout = true},
    {.name = "llama", .mlp_bias_key = true},
    {.name = "mistral",
     .kv_heads = 8,
     .window = WindowRule::kUnlessNull,
     .attention_bias = AttentionBias::kNone},
    {.name = "qwen2", .kv_heads = 32, .attention_bias = AttentionBias::kQkv},
    {.name = "qwen3", .kv_heads = 32, .head_size = 128, .qk_norm = true},
    {.name = "mixtral",
     .kv_heads = 8,
     .norm_epsilon = 1e-5,
     .rope_theta = 1e6,
     .window = WindowRule::kWhereGiven,
     .attention_bias = AttentionBias::kNone,
     .expert_keys = ExpertKeys::kEveryLayer,
     .experts = 8,
     .experts_per_token = 2,
     .balance_loss = 0.001,
     .experts_block = "block_sparse_moe.",
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.name = "qwen3_moe",
     .kv_heads = 4,
     .qk_norm = true,
     .expert_keys = ExpertKeys::kQwen3,
     .experts = 128,
     .experts_per_token = 8,
     .expert_ffn = 768,
     .balance_loss = 0.001},
    {.name = "deepseek_v3",
     .latent_attention = true,
     .expert_keys = ExpertKeys::kDeepseek,
     .experts = 256,
     .experts_per_token = 8,
     .expert_ffn = 2048,
     .shared_experts = true,
     .router_bias = "e_score_correction_bias"},
    {.name = "dots1",
     .qk_norm = true,
     .expert_keys = ExpertKeys::kDeepseek,
     .experts = 128,
     .experts_per_token = 6,
     .expert_ffn = 1408,
     .shared_experts = true,
     .router_bias = "e_score_correction_bias"},
    {.name = "gpt_oss",
     .kv_heads = 8,
     .head_size = 64,
     .norm_epsilon = 1e-5,
     .rope_theta = 150000,
     .yarn = true,  // GptOssConfig
     .attention_bias_default = true,
     .alternating_windows = true,
     .expert_keys = ExpertKeys::kEveryLayer,
     .experts = 128,
     .experts_per_token = 4,
     .balance_loss = 0.001,
     .stacks_experts = true,
     .router = "mlp.router"},
    // No family of the Hub: llama whose layers may have experts, as published measurements describe
    // models by their sizes alone.
    {.name = "llama_moe",
     .expert_keys = ExpertKeys::kDeepseek,
     .experts = 8,
     .experts_per_token = 2,
     .shared_experts = true},
};
constexpr ModelFamily kUnknown{};

}  // namespace

std::span<const ModelFamily> model_families() { return kFamilies; }

const ModelFamily& model_family(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const ModelFamily& family) { return family.name == name; });
  return found == std::end(kFamilies) ? kUnknown : *found;
}

}  // namespace ballast
