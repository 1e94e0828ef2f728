// Hugging Face config.json to Model. Keys and defaults are those of transformers' configuration
// classes (GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, MixtralConfig,
// Qwen3MoeConfig, DeepseekV3Config, GptOssConfig; transformers 4.57 and 5).
#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/load.h"
#include "profiles/names/words.h"
#include "profiles/shipped.h"
#include "sim/base/error.h"
#include "sim/spec/model_family.h"

namespace ballast {
namespace {

constexpr WholeRange kWidth{1, 1 << 22};
constexpr WholeRange kLayerCount{1, 1 << 14};  // layers, heads
constexpr WholeRange kTable{1, 1 << 26};       // vocabulary, positions
constexpr NumberRange kEpsilon{0, 1, true};
constexpr NumberRange kTheta{0, 1e12, true};
constexpr NumberRange kDropped{0, 1};
constexpr NumberRange kScale{0, 1e6, true};
constexpr NumberRange kCoefficient{0, 1e6};
constexpr WholeRange kNoneOrCount{0, 1 << 14};
constexpr WholeRange kNoneOrWidth{0, 1 << 22};

std::vector<std::string> supported_families() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) names.emplace_back(family.name);
  return names;
}

// Left out, which stands for the class's default; null often stands for "none".
bool is_absent(const JsonReader& reader, const std::string& key) {
  const std::vector<std::string> all = reader.keys();
  return std::find(all.begin(), all.end(), key) == all.end();
}

int64_t whole_or(JsonReader& reader, const std::string& key, WholeRange range, int64_t fallback) {
  return reader.has(key) ? reader.whole(key, range) : fallback;
}
double number_or(JsonReader& reader, const std::string& key, NumberRange range, double fallback) {
  return reader.has(key) ? reader.number(key, range) : fallback;
}
bool boolean_or(JsonReader& reader, const std::string& key, bool fallback) {
  return reader.has(key) ? reader.boolean(key) : fallback;
}

// hidden / heads where the file does not give a head's size.
int64_t even_head_size(JsonReader& reader, const Model& model, const std::string& heads_key) {
  if (model.hidden % model.heads != 0) {
    reader.fail(heads_key,
                fmt::format("{} heads do not divide a width of {}", model.heads, model.hidden),
                "correct one of the two");
  }
  return model.hidden / model.heads;
}

void read_gpt2(JsonReader& reader, Model& model) {
  model.layers = reader.whole("n_layer", kLayerCount);
  model.hidden = reader.whole("n_embd", kWidth);
  model.heads = reader.whole("n_head", kLayerCount);
  model.kv_heads = model.heads;
  model.head_size = even_head_size(reader, model, "n_head");
  model.ffn = whole_or(reader, "n_inner", kWidth, 4 * model.hidden);
  model.vocab = reader.whole("vocab_size", kTable);
  model.max_positions = reader.whole("n_positions", kTable);
  model.norm = NormKind::kLayerNorm;
  model.norm_epsilon = number_or(reader, "layer_norm_epsilon", kEpsilon, 1e-5);
  model.position = PositionKind::kLearned;
  model.layout = WeightLayout::kInOut;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = boolean_or(reader, "tie_word_embeddings", true);
  model.activation = ActivationKind::kGeluTanh;
  if (reader.has("activation_function")) {
    const size_t chosen =
        reader.choice("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu"});
    if (chosen == 2) model.activation = ActivationKind::kGelu;
  }
  for (const char* variant : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (boolean_or(reader, variant, false)) {
      reader.fail(variant, "this variant of attention is not computed here", "set it to false");
    }
  }
  if (!boolean_or(reader, "scale_attn_weights", true)) {
    reader.fail("scale_attn_weights", "attention without scaling is not computed here",
                "set it to true");
  }
}

// Newer files hold rotary settings in `rope_parameters`, older ones beside the rest.
void read_rotary(JsonReader& reader, Model& model, const ModelFamily& family) {
  model.position = PositionKind::kRope;
  model.rope_theta = number_or(reader, "rope_theta", kTheta, family.rope_theta);
  bool given = false;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.has(key)) continue;
    given = true;
    JsonReader inner = reader.object(key);
    model.rope_theta = number_or(inner, "rope_theta", kTheta, model.rope_theta);
    for (const char* type : {"rope_type", "type"}) {
      if (!inner.has(type)) continue;
      const std::string text = inner.text(type);
      if (text != "default") model.scaled_rope = true;
      if (text == "yarn") model.yarn = true;
    }
  }
  if (family.yarn && !given) model.scaled_rope = model.yarn = true;
}

// Where the file says which layers have the window: all of them, none, or all but every n-th.
void read_layer_types(JsonReader& reader, Model& model) {
  if (!reader.has("layer_types")) return;
  const Json& types = reader.raw("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) < model.layers) {
    reader.fail("layer_types", "is not a list of as many texts as there are layers",
                "leave it out, or name every layer's type");
  }
  std::vector<bool> full;
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      reader.fail("layer_types", "holds something else than the two types known",
                  "use full_attention and sliding_attention");
    }
    full.push_back(type == "full_attention");
  }
  full.resize(static_cast<size_t>(model.layers));
  const auto first = std::find(full.begin(), full.end(), true) - full.begin();
  model.full_attention_period = first == model.layers ? 0 : first + 1;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const bool expected =
        model.full_attention_period > 0 && (layer + 1) % model.full_attention_period == 0;
    if (full[static_cast<size_t>(layer)] != expected) {
      reader.fail("layer_types", fmt::format("layer {} breaks the pattern of those before", layer),
                  "only every n-th layer with full attention is computed here");
    }
  }
}

// Of the classes that begin with max_window_layers layers without a window (Qwen2Config and those
// like it): none has one, or all have.
void read_switched_window(JsonReader& reader, Model& model) {
  constexpr int64_t kClassDefault = 28;
  const int64_t full = whole_or(reader, "max_window_layers", {0, kLayerCount.most}, kClassDefault);
  if (reader.has("layer_types")) return;
  if (full >= model.layers) {
    model.sliding_window = 0;
  } else if (full > 0) {
    reader.fail("max_window_layers",
                fmt::format("leaves the window to the last {} of {} layers", model.layers - full,
                            model.layers),
                "only every n-th layer with full attention is computed here: set it to 0 or to "
                "the number of layers");
  }
}

// The window of every layer, where the family's class reads one.
void read_window(JsonReader& reader, Model& model, const ModelFamily& family) {
  if (family.alternating_windows) return;
  const bool by_switch = family.window == WindowRule::kWhereSwitchedOn;
  if (by_switch && !boolean_or(reader, "use_sliding_window", false)) return;
  const bool omitted = is_absent(reader, "sliding_window");
  const bool none_where_omitted = family.window == WindowRule::kWhereGiven;
  if (omitted ? none_where_omitted : !reader.has("sliding_window")) return;
  model.sliding_window = whole_or(reader, "sliding_window", kTable, family.window_tokens);
  if (by_switch) read_switched_window(reader, model);
  read_layer_types(reader, model);
}

// gpt_oss alternates layers with a window and layers without, beginning with one that has it.
void read_alternating_windows(JsonReader& reader, Model& model) {
  if (is_absent(reader, "sliding_window")) {
    model.sliding_window = 128;
  } else {
    model.sliding_window = whole_or(reader, "sliding_window", kTable, 0);
  }
  model.full_attention_period = 2;
  read_layer_types(reader, model);
}

// What the classes drop while they train, if the file does not say it: GPT2Config a tenth
// everywhere, the others nothing. The largest counts.
void read_dropout(JsonReader& reader, Model& model, const ModelFamily& family) {
  constexpr double kOfGpt2 = 0.1;
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
    const bool by_default = family.has_dropout && is_absent(reader, key);
    model.dropout =
        std::max(model.dropout, number_or(reader, key, kDropped, by_default ? kOfGpt2 : 0));
  }
  for (const char* key : {"attention_dropout", "hidden_dropout", "dropout", "embedding_dropout"}) {
    model.dropout = std::max(model.dropout, number_or(reader, key, kDropped, 0));
  }
}

void read_quantization(JsonReader& reader, Model& model) {
  if (!reader.has("quantization_config")) return;
  JsonReader inner = reader.object("quantization_config");
  model.quantization = inner.has("quant_method") ? inner.text("quant_method") : "unnamed";
}

void read_attention_sizes(JsonReader& reader, Model& model, const ModelFamily& family) {
  model.heads = reader.whole("num_attention_heads", kLayerCount);
  const bool class_default = is_absent(reader, "num_key_value_heads") && family.kv_heads > 0;
  model.kv_heads = whole_or(reader, "num_key_value_heads", kLayerCount,
                            class_default ? family.kv_heads : model.heads);
  if (reader.has("head_dim")) {
    model.head_size = reader.whole("head_dim", kLayerCount);
  } else if (family.head_size > 0 && is_absent(reader, "head_dim")) {
    model.head_size = family.head_size;
  } else {
    model.head_size = even_head_size(reader, model, "num_attention_heads");
  }
}

void read_latent_attention(JsonReader& reader, Model& model) {
  model.heads = reader.whole("num_attention_heads", kLayerCount);
  model.kv_heads = whole_or(reader, "num_key_value_heads", kLayerCount, model.heads);
  model.kv_rank = whole_or(reader, "kv_lora_rank", kWidth, 512);
  const bool omitted = is_absent(reader, "q_lora_rank");
  model.query_rank = whole_or(reader, "q_lora_rank", kWidth, omitted ? 1536 : 0);
  model.rope_size = whole_or(reader, "qk_rope_head_dim", kLayerCount, 64);
  model.value_size = whole_or(reader, "v_head_dim", kLayerCount, 128);
  model.head_size = whole_or(reader, "qk_nope_head_dim", kLayerCount, 128) + model.rope_size;
  model.interleaved_rope = boolean_or(reader, "rope_interleave", true);
}

// Keys that transformers 5 renamed may stand under either name.
int64_t experts_or(JsonReader& reader, std::initializer_list<const char*> keys, WholeRange range,
                   int64_t fallback) {
  for (const char* key : keys) {
    if (reader.has(key)) return reader.whole(key, range);
  }
  return fallback;
}

void read_dense_layers(JsonReader& reader, const std::string& key, Model& model) {
  if (!reader.has(key)) return;
  const Json& list = reader.raw(key);
  const char* remedy = "give a list of layers, counted from 0";
  if (!list.is_array()) reader.fail(key, "is not a list", remedy);
  for (const Json& layer : list) {
    // A number beyond int64 is unsigned, and becomes negative.
    if (!layer.is_number_integer() || layer.get<int64_t>() < 0 ||
        layer.get<int64_t>() >= kLayerCount.most) {
      reader.fail(key, fmt::format("holds {}", in_quotes(layer.dump(-1, ' ', true))), remedy);
    }
    model.dense_layers.push_back(layer.get<int64_t>());
  }
  std::sort(model.dense_layers.begin(), model.dense_layers.end());
  const auto end = std::unique(model.dense_layers.begin(), model.dense_layers.end());
  model.dense_layers.erase(end, model.dense_layers.end());
}

// The classes add the loss that balances experts where a run asks for the router's products.
void read_balance_loss(JsonReader& reader, Model& model, const ModelFamily& family) {
  const double coefficient =
      number_or(reader, "router_aux_loss_coef", kCoefficient, family.balance_loss);
  if (boolean_or(reader, "output_router_logits", false)) model.balance_loss = coefficient;
}

// Mixtral and gpt_oss: experts in every layer, of the width intermediate_size.
void read_experts_everywhere(JsonReader& reader, Model& model, const ModelFamily& family) {
  model.experts =
      experts_or(reader, {"num_local_experts", "num_experts"}, kLayerCount, family.experts);
  model.experts_per_token = experts_or(reader, {"num_experts_per_tok", "experts_per_token"},
                                       kLayerCount, family.experts_per_token);
  model.expert_ffn = model.ffn;
  read_balance_loss(reader, model, family);
  if (!family.alternating_windows) return;
  model.mlp_bias = model.router_bias = model.attention_sinks = true;
  model.activation = ActivationKind::kClampedSwiGlu;
  read_alternating_windows(reader, model);
}

void read_qwen3_experts(JsonReader& reader, Model& model, const ModelFamily& family) {
  model.experts =
      experts_or(reader, {"num_experts", "num_local_experts"}, kNoneOrCount, family.experts);
  model.sparse_step = whole_or(reader, "decoder_sparse_step", kLayerCount, 1);
  read_dense_layers(reader, "mlp_only_layers", model);
  model.experts_per_token =
      whole_or(reader, "num_experts_per_tok", kLayerCount, family.experts_per_token);
  model.expert_ffn = whole_or(reader, "moe_intermediate_size", kWidth, family.expert_ffn);
  model.normalised_choice = boolean_or(reader, "norm_topk_prob", false);
  read_balance_loss(reader, model, family);
}

void read_deepseek_experts(JsonReader& reader, Model& model, const ModelFamily& family) {
  model.experts =
      experts_or(reader, {"n_routed_experts", "num_local_experts"}, kLayerCount, family.experts);
  model.experts_per_token =
      whole_or(reader, "num_experts_per_tok", kLayerCount, family.experts_per_token);
  model.expert_ffn = whole_or(reader, "moe_intermediate_size", kWidth, family.expert_ffn);
  // What Dots1Config puts in for keys that its file leaves out is not what DeepseekV3Config does.
  const bool dots = family.name == "dots1";
  const bool omitted = is_absent(reader, "n_shared_experts") && !dots;
  model.shared_experts = whole_or(reader, "n_shared_experts", kNoneOrCount, omitted ? 1 : 0);
  model.first_dense_layers = whole_or(reader, "first_k_dense_replace", kNoneOrCount, dots ? 0 : 3);
  model.router_bias = true;
  model.router = RouterKind::kSigmoid;
  model.expert_groups = whole_or(reader, "n_group", kLayerCount, dots ? 1 : 8);
  if (model.experts % model.expert_groups != 0) {
    reader.fail(
        "n_group",
        fmt::format("{} groups do not divide {} experts", model.expert_groups, model.experts),
        "correct one of the two");
  }
  const int64_t of_groups = std::min<int64_t>(4, model.expert_groups);
  model.chosen_groups = whole_or(reader, "topk_group", kLayerCount, of_groups);
  model.normalised_choice = boolean_or(reader, "norm_topk_prob", !dots);
  model.routed_scale = number_or(reader, "routed_scaling_factor", kScale, dots ? 1 : 2.5);
  if (whole_or(reader, "moe_layer_freq", kLayerCount, 1) != 1) {
    reader.fail("moe_layer_freq", "Hugging Face's deepseek_v3 knows no such key but 1",
                "set it to 1");
  }
}

void read_biases(JsonReader& reader, Model& model, const ModelFamily& family) {
  if (family.attention_bias == AttentionBias::kQkv) {
    model.qkv_bias = true;
  } else if (family.attention_bias == AttentionBias::kByKey) {
    model.qkv_bias = model.attention_out_bias =
        boolean_or(reader, "attention_bias", family.attention_bias_default);
  }
  if (family.mlp_bias_key) model.mlp_bias = boolean_or(reader, "mlp_bias", false);
}

void read_llama_like(JsonReader& reader, Model& model, const ModelFamily& family) {
  model.layers = reader.whole("num_hidden_layers", kLayerCount);
  model.hidden = reader.whole("hidden_size", kWidth);
  family.latent_attention ? read_latent_attention(reader, model)
                          : read_attention_sizes(reader, model, family);
  model.ffn = reader.whole("intermediate_size", kWidth);
  model.vocab = reader.whole("vocab_size", kTable);
  model.max_positions = reader.whole("max_position_embeddings", kTable);
  model.norm = NormKind::kRmsNorm;
  model.norm_epsilon = number_or(reader, "rms_norm_eps", kEpsilon, family.norm_epsilon);
  read_rotary(reader, model, family);
  read_window(reader, model, family);
  model.activation = ActivationKind::kSwiGlu;
  if (reader.has("hidden_act")) reader.choice("hidden_act", {"silu"});
  model.layout = WeightLayout::kOutIn;
  model.tied_embeddings = boolean_or(reader, "tie_word_embeddings", false);
  model.qk_norm = family.qk_norm;
  read_biases(reader, model, family);
  switch (family.expert_keys) {
    case ExpertKeys::kNone:
      return;
    case ExpertKeys::kEveryLayer:
      return read_experts_everywhere(reader, model, family);
    case ExpertKeys::kQwen3:
      return read_qwen3_experts(reader, model, family);
    case ExpertKeys::kDeepseek:
      return read_deepseek_experts(reader, model, family);
  }
}

void refuse_impossible(const Model& model, const std::string& source) {
  try {
    check(model);
  } catch (const Error& error) {
    throw Error(source, error.what(), "correct the file");
  }
}

}  // namespace

Model parse_model(std::string_view text, const std::string& source, const std::string& name) {
  const Json document = parse_json(text, source);
  JsonReader reader(document, source, "");
  Model model;
  model.name = name;
  model.architecture = reader.text("model_type");
  const ModelFamily& family = model_family(model.architecture);
  if (family.name.empty()) {
    reader.fail("model_type", fmt::format("{} is not supported", in_quotes(model.architecture)),
                suggestion(model.architecture, supported_families()));
  }
  family.gpt2_names ? read_gpt2(reader, model) : read_llama_like(reader, model, family);
  read_dropout(reader, model, family);
  read_quantization(reader, model);
  refuse_impossible(model, source);
  return model;
}

Model load_model(const std::string& name_or_path) {
  const Found found = find_file(name_or_path, "models");
  return parse_model(read_text_file(found.path), found.path, found.name);
}

namespace {

const std::vector<std::string> kNorms = {"layer_norm", "rms_norm"};
const std::vector<std::string> kPositions = {"learned", "rope"};
const std::vector<std::string> kActivations = {"gelu_tanh", "gelu", "swiglu", "clamped_swiglu"};
const std::vector<std::string> kRouters = {"softmax", "sigmoid"};
const std::vector<std::string> kLayouts = {"out_in", "in_out"};

template <class Enum>
const std::string& word(const std::vector<std::string>& names, Enum value) {
  return names.at(static_cast<size_t>(value));
}

}  // namespace

OrderedJson to_json(const Model& model) {
  OrderedJson record = {{"name", model.name},
                        {"architecture", model.architecture},
                        {"layers", model.layers},
                        {"hidden", model.hidden},
                        {"heads", model.heads},
                        {"kv_heads", model.kv_heads},
                        {"head_size", model.head_size},
                        {"ffn", model.ffn},
                        {"vocab", model.vocab},
                        {"max_positions", model.max_positions},
                        {"norm", word(kNorms, model.norm)},
                        {"norm_epsilon", model.norm_epsilon},
                        {"position", word(kPositions, model.position)},
                        {"rope_theta", model.rope_theta},
                        {"activation", word(kActivations, model.activation)},
                        {"layout", word(kLayouts, model.layout)},
                        {"qkv_bias", model.qkv_bias},
                        {"attention_out_bias", model.attention_out_bias},
                        {"mlp_bias", model.mlp_bias},
                        {"qk_norm", model.qk_norm},
                        {"tied_embeddings", model.tied_embeddings},
                        {"scaled_rope", model.scaled_rope}};
  record.update(OrderedJson{{"experts", model.experts},
                            {"experts_per_token", model.experts_per_token},
                            {"expert_ffn", model.expert_ffn},
                            {"shared_experts", model.shared_experts},
                            {"first_dense_layers", model.first_dense_layers},
                            {"sparse_step", model.sparse_step},
                            {"dense_layers", model.dense_layers},
                            {"router_bias", model.router_bias}});
  record.update(OrderedJson{{"query_rank", model.query_rank},
                            {"kv_rank", model.kv_rank},
                            {"rope_size", model.rope_size},
                            {"value_size", model.value_size},
                            {"sliding_window", model.sliding_window},
                            {"full_attention_period", model.full_attention_period},
                            {"attention_sinks", model.attention_sinks},
                            {"dropout", model.dropout},
                            {"quantization", model.quantization}});
  // Models without keep the record that they had before there were these: a checkpoint goes on only
  // with the record that it holds.
  if (model.yarn) record["yarn"] = true;
  if (model.experts > 0) {
    record["router"] = word(kRouters, model.router);
    record["normalised_choice"] = model.normalised_choice;
    record["expert_groups"] = model.expert_groups;
    record["chosen_groups"] = model.chosen_groups;
    record["routed_scale"] = model.routed_scale;
    record["balance_loss"] = model.balance_loss;
  }
  if (model.is_latent()) record["interleaved_rope"] = model.interleaved_rope;
  return record;
}

namespace {

void read_router(JsonReader& reader, Model& model) {
  model.router_bias = reader.boolean("router_bias");
  if (reader.has("router")) {
    model.router = static_cast<RouterKind>(reader.choice("router", kRouters));
  }
  model.normalised_choice = boolean_or(reader, "normalised_choice", true);
  model.expert_groups = whole_or(reader, "expert_groups", kLayerCount, 1);
  model.chosen_groups = whole_or(reader, "chosen_groups", kLayerCount, 1);
  model.routed_scale = number_or(reader, "routed_scale", kScale, 1);
  model.balance_loss = number_or(reader, "balance_loss", kCoefficient, 0);
}

void read_experts_and_latents(JsonReader& reader, Model& model) {
  model.experts = reader.whole("experts", kNoneOrCount);
  model.experts_per_token = reader.whole("experts_per_token", kNoneOrCount);
  model.expert_ffn = reader.whole("expert_ffn", kNoneOrWidth);
  model.shared_experts = reader.whole("shared_experts", kNoneOrCount);
  model.first_dense_layers = reader.whole("first_dense_layers", kNoneOrCount);
  model.sparse_step = reader.whole("sparse_step", kLayerCount);
  read_dense_layers(reader, "dense_layers", model);
  read_router(reader, model);
  model.query_rank = reader.whole("query_rank", kNoneOrWidth);
  model.kv_rank = reader.whole("kv_rank", kNoneOrWidth);
  model.rope_size = reader.whole("rope_size", kNoneOrCount);
  model.value_size = reader.whole("value_size", kNoneOrCount);
  model.interleaved_rope = boolean_or(reader, "interleaved_rope", false);
  model.sliding_window = reader.whole("sliding_window", {0, kTable.most});
  model.full_attention_period = reader.whole("full_attention_period", kNoneOrCount);
  model.attention_sinks = reader.boolean("attention_sinks");
  model.dropout = reader.number("dropout", kDropped);
  model.quantization = reader.text("quantization");
}

}  // namespace

Model model_from_json(const Json& document, const std::string& source) {
  JsonReader reader(document, source, "model");
  Model model;
  model.name = reader.text("name");
  const std::vector<std::string> families = supported_families();
  model.architecture = families[reader.choice("architecture", families)];
  model.layers = reader.whole("layers", kLayerCount);
  model.hidden = reader.whole("hidden", kWidth);
  model.heads = reader.whole("heads", kLayerCount);
  model.kv_heads = reader.whole("kv_heads", kLayerCount);
  model.head_size = reader.whole("head_size", {1, 2 * kLayerCount.most});
  model.ffn = reader.whole("ffn", kWidth);
  model.vocab = reader.whole("vocab", kTable);
  model.max_positions = reader.whole("max_positions", kTable);
  model.norm = static_cast<NormKind>(reader.choice("norm", kNorms));
  model.norm_epsilon = reader.number("norm_epsilon", kEpsilon);
  model.position = static_cast<PositionKind>(reader.choice("position", kPositions));
  model.rope_theta = reader.number("rope_theta", kTheta);
  model.activation = static_cast<ActivationKind>(reader.choice("activation", kActivations));
  model.layout = static_cast<WeightLayout>(reader.choice("layout", kLayouts));
  model.qkv_bias = reader.boolean("qkv_bias");
  model.attention_out_bias = reader.boolean("attention_out_bias");
  model.mlp_bias = reader.boolean("mlp_bias");
  model.qk_norm = reader.boolean("qk_norm");
  model.tied_embeddings = reader.boolean("tied_embeddings");
  model.scaled_rope = reader.boolean("scaled_rope");
  model.yarn = boolean_or(reader, "yarn", false);
  read_experts_and_latents(reader, model);
  reader.finish();
  refuse_impossible(model, source);
  return model;
}

std::string model_json(const Model& model) { return to_text(to_json(model)); }

}  // namespace ballast
