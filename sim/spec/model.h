// Model: a decoder-only transformer as a checked record, and the table of its modules.
//
// The module table is the one place that names, shapes and orders parameters: the graph takes its
// bytes from it, the backend its offsets, safetensors its names, so none of them can disagree.
// Will not do: read files (profiles/load does), or know where a tensor lives (the graph does).
//
// Dimension letters used everywhere: B micro-batch, S sequence length, T = B*S tokens, C width,
// H query heads, K key/value heads, D head size, F feed-forward width, V vocabulary, L layers,
// P ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/units.h"

namespace ballast {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
enum class PositionKind : uint8_t { kLearned, kRope };
// kGeluTanh is Hugging Face's "gelu_new"; kGelu the exact one; kSwiGlu gates with SiLU.
enum class ActivationKind : uint8_t { kGeluTanh, kGelu, kSwiGlu };
// How a linear layer's weight is stored: Hugging Face gpt2 keeps [in, out], the others [out, in].
enum class WeightLayout : uint8_t { kOutIn, kInOut };

struct Model {
  std::string name;
  std::string architecture;  // gpt2, llama, mistral, qwen2, qwen3: decides parameter names
  int64_t layers = 0;        // L
  int64_t hidden = 0;        // C
  int64_t heads = 0;         // H
  int64_t kv_heads = 0;      // K
  int64_t head_size = 0;     // D
  int64_t ffn = 0;           // F
  int64_t vocab = 0;         // V
  int64_t max_positions = 0;
  NormKind norm = NormKind::kLayerNorm;
  double norm_epsilon = 1e-5;
  PositionKind position = PositionKind::kLearned;
  double rope_theta = 10000.0;
  ActivationKind activation = ActivationKind::kGeluTanh;
  WeightLayout layout = WeightLayout::kOutIn;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool tied_embeddings = false;
  bool qk_norm = false;  // qwen3: RMSNorm of each head's q and k, parameters of kCoreAttention

  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  int64_t attention_width() const { return heads * head_size; }
  // Width of fc1's output: gate and up projections side by side for SwiGLU.
  int64_t fc1_width() const { return activation == ActivationKind::kSwiGlu ? 2 * ffn : ffn; }
};

// The modules of a decoder, in the order in which a forward pass visits them. Layer modules repeat.
enum class ModuleKind : uint8_t {
  kEmbedding,  // token (and learned position) vectors
  kNorm1,
  kQkv,
  kCoreAttention,  // RoPE, scores, softmax, values; no parameters but those of qk_norm
  kAttentionOut,   // projection and residual
  kNorm2,
  kFc1,
  kActivation,  // GELU or SwiGLU; no parameters
  kFc2,         // projection and residual
  kFinalNorm,
  kHead,  // logits; without parameters where embeddings are tied
  kLoss,
};
inline constexpr int kModuleKinds = 12;
std::string_view to_string(ModuleKind kind);

// One parameter tensor inside its module's flat array, row-major [rows, columns].
struct Parameter {
  std::string name;  // Hugging Face tensor name
  int64_t rows = 0;  // 1 for vectors
  int64_t columns = 0;
  int64_t offset = 0;      // elements from the start of the module
  bool is_matrix = false;  // matrices decay (AdamW), vectors do not
  int64_t count() const { return rows * columns; }
};

struct Module {
  ModuleKind kind = ModuleKind::kEmbedding;
  int64_t layer = -1;       // -1 outside the layers
  int64_t flat_offset = 0;  // elements before it in the model's flat parameter space
  int64_t count = 0;        // parameters in it
  std::vector<Parameter> parameters;
};

// All modules in forward order; flat_offset counts parameters in that order. The model is checked
// first. Throws Error where a number is zero or negative or heads do not divide.
std::vector<Module> modules_of(const Model& model);

// Throws Error naming `model.name` and the field if the record is not a possible model.
void check(const Model& model);

int64_t parameter_count(const Model& model);

// Model FLOPs of one training step over `tokens` tokens in sequences of `sequence_length`, without
// recompute: 6 per parameter of every GEMM and token, plus causal attention 6*L*C*S per token
// (Narayanan et al., SC21, eq. 3, with the causal half taken).
Flops model_flops_per_step(const Model& model, int64_t tokens, int64_t sequence_length);

}  // namespace ballast
