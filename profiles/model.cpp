// Hugging Face config.json to Model. Keys and defaults are those of transformers' configuration
// classes (GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config).
#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/convert.h"
#include "profiles/json_reader.h"
#include "profiles/load.h"
#include "profiles/shipped.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr WholeRange kWidth{1, 1 << 22};
constexpr WholeRange kCount{1, 1 << 14};  // layers, heads
constexpr WholeRange kTable{1, 1 << 26};  // vocabulary, positions
constexpr NumberRange kEpsilon{0, 1, true};
constexpr NumberRange kTheta{0, 1e12, true};
// Ten times the largest model ever announced; beyond it counts of bytes leave 64 bits.
constexpr double kMaxParameters = 1e14;

const char* const kSupported[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};
const char* const kKnownUnsupported[] = {"mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"};

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
  model.layers = reader.whole("n_layer", kCount);
  model.hidden = reader.whole("n_embd", kWidth);
  model.heads = reader.whole("n_head", kCount);
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
void read_rotary(JsonReader& reader, Model& model) {
  model.position = PositionKind::kRope;
  model.rope_theta = number_or(reader, "rope_theta", kTheta, 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.has(key)) continue;
    JsonReader inner = reader.object(key);
    model.rope_theta = number_or(inner, "rope_theta", kTheta, model.rope_theta);
    for (const char* type : {"rope_type", "type"}) {
      if (inner.has(type) && inner.text(type) != "default") {
        inner.fail(type, "scaled rotary positions are not computed here",
                   fmt::format("set {} to null to use plain ones", key));
      }
    }
  }
}

// Attention here is over the whole sequence, which is the same up to the window's length. So a
// model with a window counts as one of that many positions.
void limit_to_window(JsonReader& reader, Model& model) {
  const bool mistral = model.architecture == "mistral";
  if (!mistral && !boolean_or(reader, "use_sliding_window", false)) return;
  // MistralConfig has a window of 4096 unless the file says null.
  const bool omitted = !reader.has("sliding_window") && [&] {
    const auto all = reader.keys();
    return std::find(all.begin(), all.end(), "sliding_window") == all.end();
  }();
  if (!omitted && !reader.has("sliding_window")) return;
  const int64_t window = whole_or(reader, "sliding_window", kTable, 4096);
  model.max_positions = std::min(model.max_positions, window);
}

void read_llama_like(JsonReader& reader, Model& model) {
  model.layers = reader.whole("num_hidden_layers", kCount);
  model.hidden = reader.whole("hidden_size", kWidth);
  model.heads = reader.whole("num_attention_heads", kCount);
  model.kv_heads = whole_or(reader, "num_key_value_heads", kCount, model.heads);
  if (reader.has("head_dim")) {
    model.head_size = reader.whole("head_dim", kCount);
  } else if (model.architecture == "qwen3") {
    model.head_size = 128;  // Qwen3Config
  } else {
    model.head_size = even_head_size(reader, model, "num_attention_heads");
  }
  model.ffn = reader.whole("intermediate_size", kWidth);
  model.vocab = reader.whole("vocab_size", kTable);
  model.max_positions = reader.whole("max_position_embeddings", kTable);
  model.norm = NormKind::kRmsNorm;
  model.norm_epsilon = number_or(reader, "rms_norm_eps", kEpsilon, 1e-6);
  read_rotary(reader, model);
  limit_to_window(reader, model);
  model.activation = ActivationKind::kSwiGlu;
  if (reader.has("hidden_act")) reader.choice("hidden_act", {"silu"});
  model.layout = WeightLayout::kOutIn;
  model.tied_embeddings = boolean_or(reader, "tie_word_embeddings", false);
  if (model.architecture == "qwen2") {
    model.qkv_bias = true;
  } else if (model.architecture != "mistral") {
    model.qkv_bias = model.attention_out_bias = boolean_or(reader, "attention_bias", false);
  }
  if (model.architecture == "llama") model.mlp_bias = boolean_or(reader, "mlp_bias", false);
  model.qk_norm = model.architecture == "qwen3";
}

void refuse_impossible(const Model& model, const std::string& source) {
  const auto size = [](int64_t value) { return static_cast<double>(value); };
  const double layer =
      size(model.hidden) * (size(model.heads) + size(model.kv_heads)) * size(model.head_size) * 2 +
      size(model.hidden) * size(model.ffn) * 3;
  const double parameters =
      size(model.layers) * layer +
      size(model.hidden) * (2 * size(model.vocab) + size(model.max_positions));
  if (parameters > kMaxParameters) {
    throw Error(source, fmt::format("describes about {:.0e} parameters", parameters),
                fmt::format("stay below {:.0e}", kMaxParameters));
  }
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
  const std::vector<std::string> supported(std::begin(kSupported), std::end(kSupported));
  for (const char* known : kKnownUnsupported) {
    if (model.architecture == known) {
      reader.fail("model_type",
                  fmt::format("{} is recognised, but models with experts are not "
                              "supported by this version",
                              known),
                  fmt::format("use one of {}", fmt::join(supported, ", ")));
    }
  }
  if (std::find(supported.begin(), supported.end(), model.architecture) == supported.end()) {
    reader.fail("model_type", fmt::format("{} is not supported", in_quotes(model.architecture)),
                suggestion(model.architecture, supported));
  }
  model.architecture == "gpt2" ? read_gpt2(reader, model) : read_llama_like(reader, model);
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
const std::vector<std::string> kActivations = {"gelu_tanh", "gelu", "swiglu"};
const std::vector<std::string> kLayouts = {"out_in", "in_out"};

template <class Enum>
const std::string& word(const std::vector<std::string>& names, Enum value) {
  return names.at(static_cast<size_t>(value));
}

}  // namespace

OrderedJson to_json(const Model& model) {
  return {{"name", model.name},
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
          {"tied_embeddings", model.tied_embeddings}};
}

Model model_from_json(const Json& document, const std::string& source) {
  JsonReader reader(document, source, "model");
  Model model;
  model.name = reader.text("name");
  const std::vector<std::string> supported(std::begin(kSupported), std::end(kSupported));
  model.architecture = supported[reader.choice("architecture", supported)];
  model.layers = reader.whole("layers", kCount);
  model.hidden = reader.whole("hidden", kWidth);
  model.heads = reader.whole("heads", kCount);
  model.kv_heads = reader.whole("kv_heads", kCount);
  model.head_size = reader.whole("head_size", kCount);
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
  reader.finish();
  refuse_impossible(model, source);
  return model;
}

std::string model_json(const Model& model) { return to_text(to_json(model)); }

}  // namespace ballast
