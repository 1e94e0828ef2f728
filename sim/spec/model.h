// Model: a decoder-only transformer as a checked record, and the table of its modules.
//
// The module table is the one place that names, shapes and orders parameters: the graph takes its
// bytes from it, the backend its offsets, safetensors its names, so none of them can disagree.
// Will not do: read files (profiles/load does), or know where a tensor lives (the graph does).
//
// Dimension letters used everywhere: B micro-batch, S sequence length, T = B*S tokens, C width,
// H query heads, K key/value heads, D head size, F feed-forward width, V vocabulary, L layers,
// E experts of a layer, P ranks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/units.h"

namespace ballast {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
enum class PositionKind : uint8_t { kLearned, kRope };
// kGeluTanh is Hugging Face's "gelu_new"; kGelu the exact one; kSwiGlu gates with SiLU;
// kClampedSwiGlu is gpt_oss': (up + 1) * gate * sigmoid(1.702 gate), gate at most 7, up within -7
// and 7, the columns of gate and up in turns.
enum class ActivationKind : uint8_t { kGeluTanh, kGelu, kSwiGlu, kClampedSwiGlu };
// What a router makes of its products: probabilities over all experts, of which the largest are
// chosen; or a sigmoid of each, of which those are chosen that are largest with a correction added,
// out of the best groups of experts (deepseek_v3).
enum class RouterKind : uint8_t { kSoftmax, kSigmoid };
// How a linear layer's weight is stored: Hugging Face gpt2 keeps [in, out], the others [out, in].
enum class WeightLayout : uint8_t { kOutIn, kInOut };

struct Model {
  std::string name;
  // gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, deepseek_v3, gpt_oss: decides the
  // names of parameters.
  std::string architecture;
  int64_t layers = 0;     // L
  int64_t hidden = 0;     // C
  int64_t heads = 0;      // H
  int64_t kv_heads = 0;   // K
  int64_t head_size = 0;  // D, of queries and keys; of values too but for latent attention
  int64_t ffn = 0;        // F, of the layers without experts
  int64_t vocab = 0;      // V
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
  // The rotary angles are stretched (llama3, yarn, ...): other values.
  bool scaled_rope = false;
  // The angles are stretched as YaRN does it, which scales queries and keys too (Peng et al., arXiv
  // 2309.00071, section 3.4); whether by 1, which a file may say, is not read.
  bool yarn = false;

  // Layers of experts (Shazeer et al., arXiv 1701.06538): a router sends every token to
  // experts_per_token of `experts` feed-forward networks of width expert_ffn, and to all of the
  // shared ones (DeepSeekMoE, arXiv 2401.06066). experts 0: every layer is dense.
  int64_t experts = 0;                // E
  int64_t experts_per_token = 0;      // at most E
  int64_t expert_ffn = 0;             // F of one expert
  int64_t shared_experts = 0;         // stored as one network of shared_experts * expert_ffn
  int64_t first_dense_layers = 0;     // the first layers have no experts
  int64_t sparse_step = 1;            // only every sparse_step-th layer has them
  std::vector<int64_t> dense_layers;  // layers without experts besides, ascending
  // With kSoftmax a bias of the router's product (gpt_oss); with kSigmoid the correction that
  // balances its choice of experts, which no gradient reaches (deepseek_v3).
  bool router_bias = false;
  RouterKind router = RouterKind::kSoftmax;
  bool normalised_choice = true;  // the weights of a token's experts are divided by their sum
  int64_t expert_groups = 1;      // consecutive experts, as many in each
  int64_t chosen_groups = 1;      // of which a token's experts are chosen, kSigmoid alone
  double routed_scale = 1;        // on the weights of a token's experts
  // Coefficient of the loss that balances experts (Fedus et al., arXiv 2101.03961, eq. 4 to 6, over
  // the tokens of all layers as transformers takes it); 0: it is no part of the loss.
  double balance_loss = 0;

  // Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values are
  // projections of one latent vector of width kv_rank, queries of one of query_rank (0: of the
  // hidden state). Only rope_size of the D columns of a head carry rotary positions, in the keys
  // shared by all heads. kv_rank 0: ordinary attention, and the other three are 0.
  int64_t query_rank = 0;
  int64_t kv_rank = 0;
  int64_t rope_size = 0;
  int64_t value_size = 0;         // D of the values
  bool interleaved_rope = false;  // rotates neighbouring columns, not those half a size apart

  // A token sees at most this many positions, itself included; 0: all before it.
  int64_t sliding_window = 0;
  // Every so-manyth layer sees all positions in spite of the window; 0: none does.
  int64_t full_attention_period = 0;
  bool attention_sinks = false;  // gpt_oss: one learned logit a head, parameters of kCoreAttention

  // What its configuration says and neither a prediction nor a device here follows
  // (sim/spec/caveats.h tells): the largest share of values that training drops, and the method by
  // which weights are stored in fewer bits.
  double dropout = 0;
  std::string quantization = "none";

  // Of a run of consecutive layers of a model, as a chunk of a pipeline is: the layer of the whole
  // that its layer 0 is.
  int64_t first_layer = 0;

  bool is_latent() const { return kv_rank > 0; }
  bool has_experts(int64_t layer) const;
  int64_t value_head_size() const { return is_latent() ? value_size : head_size; }
  // What core attention reads of a token: its queries, keys and values, expanded to heads.
  int64_t qkv_width() const {
    return (heads + kv_heads) * head_size + kv_heads * value_head_size();
  }
  int64_t attention_width() const { return heads * value_head_size(); }
  // Width of a dense layer's fc1 output: gate and up projections side by side for SwiGLU.
  int64_t fc1_width() const { return gates() * ffn; }
  int64_t shared_ffn() const { return shared_experts * expert_ffn; }
  // Feed-forward columns that one token passes in `layer`: F, or those of its experts, shared ones
  // included. The output of kActivation is so wide, that of kFc1 is fc1_width(layer).
  int64_t ffn_width(int64_t layer) const {
    return has_experts(layer) ? experts_per_token * expert_ffn + shared_ffn() : ffn;
  }
  int64_t fc1_width(int64_t layer) const { return gates() * ffn_width(layer); }
  // The window of `layer`, 0 where it sees all positions.
  int64_t window_of(int64_t layer) const {
    const int64_t place = first_layer + layer;
    const bool full = full_attention_period > 0 && (place + 1) % full_attention_period == 0;
    return full ? 0 : sliding_window;
  }
  // True where two layers differ in nothing but their place.
  bool are_alike(int64_t one, int64_t other) const {
    return has_experts(one) == has_experts(other) && window_of(one) == window_of(other);
  }
  // Columns of fc1 to one of activation: 2 where a gate multiplies.
  int64_t gates() const {
    return activation == ActivationKind::kSwiGlu || activation == ActivationKind::kClampedSwiGlu
               ? 2
               : 1;
  }

  bool operator==(const Model&) const = default;
};

// The modules of a decoder, in the order in which a forward pass visits them. Layer modules repeat.
enum class ModuleKind : uint8_t {
  kEmbedding,  // token (and learned position) vectors
  kNorm1,
  kQkv,            // with latent attention, both low-rank chains and their norms
  kCoreAttention,  // RoPE, scores, softmax, values; no parameters but those of qk_norm and sinks
  kAttentionOut,   // projection and residual
  kNorm2,
  kRouter,      // only in layers with experts: the experts' scores, and the choice
  kFc1,         // gate and up projections; of all experts in layers that have them
  kActivation,  // GELU or SwiGLU; no parameters
  kFc2,         // down projections, their sum over experts, and residual
  kFinalNorm,
  kHead,  // logits; without parameters where embeddings are tied
  kLoss,
};
inline constexpr int kModuleKinds = 13;
std::string_view to_string(ModuleKind kind);

// One parameter tensor inside its module's flat array, row-major [rows, columns] or
// [depth, rows, columns].
struct Parameter {
  std::string name;  // Hugging Face tensor name, as in a checkpoint's files
  int64_t rows = 0;  // 1 for vectors; E for gpt_oss' stacked biases of experts
  int64_t columns = 0;
  int64_t offset = 0;      // elements from the start of the module
  bool is_matrix = false;  // matrices decay (AdamW), vectors do not
  int64_t depth = 0;       // 0 but for three-dimensional tensors (gpt_oss stacks its experts)
  int64_t count() const { return (depth > 0 ? depth : 1) * rows * columns; }
  // As in a checkpoint's files: one, two or three numbers.
  std::vector<int64_t> shape() const;
};

// A module's parameters in order, shared by all copies of the module: a large model has tens of
// thousands, and a graph of every plan has them all. Nobody changes a table that is made.
class ParameterTable {
 public:
  ParameterTable() = default;
  ParameterTable(std::vector<Parameter> parameters)
      : table_(std::make_shared<const std::vector<Parameter>>(std::move(parameters))) {}
  ParameterTable(std::initializer_list<Parameter> parameters)
      : ParameterTable(std::vector<Parameter>(parameters)) {}

  const Parameter* begin() const { return table_ ? table_->data() : nullptr; }
  const Parameter* end() const { return begin() + size(); }
  size_t size() const { return table_ ? table_->size() : 0; }
  bool empty() const { return size() == 0; }
  const Parameter& operator[](size_t i) const { return begin()[i]; }
  void clear() { table_.reset(); }

 private:
  std::shared_ptr<const std::vector<Parameter>> table_;
};

struct Module {
  ModuleKind kind = ModuleKind::kEmbedding;
  int64_t layer = -1;       // -1 outside the layers
  int64_t flat_offset = 0;  // elements before it in the model's flat parameter space
  int64_t count = 0;        // parameters in it
  // Ranks over which its experts are divided: so many fewer hold the same as this one.
  int64_t expert_ranks = 1;
  ParameterTable parameters;
};

// All modules in forward order; flat_offset counts parameters in that order. The model is checked
// first. Throws Error where a number is zero or negative or heads do not divide. Names and shapes
// are those of the checkpoints on the Hub, without layers of multi-token prediction. They hold
// deepseek_v3's e_score_correction_bias, which transformers (not DeepSeek's own code) counts as a
// buffer: its parameters() are E fewer a layer with experts. What was asked about last is
// remembered, up to some 110 MB.
std::vector<Module> modules_of(const Model& model);

// Matrix products of one shape: a token passes `active` of the `copies` that hold parameters.
struct Product {
  int64_t in = 0;   // columns of the input
  int64_t out = 0;  // columns of the output
  int64_t copies = 1;
  int64_t active = 1;
};

// The products of a module's forward pass, in order: q, k and v side by side as one, gate and up
// of a network as one, the routed experts before the shared ones. Empty for modules without.
// `layer` is ignored outside the layers. Requires a model that passes check().
std::vector<Product> products_of(const Model& model, ModuleKind kind, int64_t layer);

// Throws Error naming `model.name` and the field if the record is not a possible model.
void check(const Model& model);

int64_t parameter_count(const Model& model);
// Those that one token uses: all but the experts that it is not sent to.
int64_t active_parameter_count(const Model& model);

// Model FLOPs of one training step over `tokens` tokens in sequences of `sequence_length`, without
// recompute: 6 per active parameter of every GEMM and token, plus causal attention 6*L*C*S per
// token (Narayanan et al., SC21, eq. 3, with the causal half taken), where C is H times the mean of
// the sizes of query and value heads, and a window of w < S leaves 2w - w^2/S of S.
Flops model_flops_per_step(const Model& model, int64_t tokens, int64_t sequence_length);

}  // namespace ballast
