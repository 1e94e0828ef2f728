#include "sim/spec/model.h"

#include <array>
#include <cmath>
#include <fmt/format.h>

namespace ballast {

namespace {

// Appends parameters to a module one after another.
class ModuleBuilder {
 public:
  ModuleBuilder(ModuleKind kind, int64_t layer) {
    module_.kind = kind;
    module_.layer = layer;
  }
  void matrix(std::string name, int64_t rows, int64_t columns) {
    add(std::move(name), rows, columns, true);
  }
  void vector(std::string name, int64_t count) { add(std::move(name), 1, count, false); }
  // A linear map `in` -> `out` in the model's layout, with its bias where there is one.
  void linear(const Model& model, const std::string& name, int64_t in, int64_t out, bool bias) {
    if (model.layout == WeightLayout::kInOut) {
      matrix(name + ".weight", in, out);
    } else {
      matrix(name + ".weight", out, in);
    }
    if (bias) vector(name + ".bias", out);
  }
  Module take() { return std::move(module_); }

 private:
  void add(std::string name, int64_t rows, int64_t columns, bool is_matrix) {
    module_.parameters.push_back({std::move(name), rows, columns, module_.count, is_matrix});
    module_.count += rows * columns;
  }
  Module module_;
};

void add_norm(ModuleBuilder& builder, const Model& model, const std::string& name) {
  builder.vector(name + ".weight", model.hidden);
  if (model.norm == NormKind::kLayerNorm) builder.vector(name + ".bias", model.hidden);
}

// Hugging Face names: gpt2 as GPT2LMHeadModel, the others as LlamaForCausalLM and its kin.
struct Names {
  bool gpt2 = false;
  std::string layer(int64_t i) const {
    return gpt2 ? fmt::format("transformer.h.{}.", i) : fmt::format("model.layers.{}.", i);
  }
  std::string token() const {
    return gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  }
  std::string norm1() const { return gpt2 ? "ln_1" : "input_layernorm"; }
  std::string norm2() const { return gpt2 ? "ln_2" : "post_attention_layernorm"; }
  std::string final_norm() const { return gpt2 ? "transformer.ln_f" : "model.norm"; }
};

Module embedding_module(const Model& m, const Names& names) {
  ModuleBuilder builder(ModuleKind::kEmbedding, -1);
  builder.matrix(names.token(), m.vocab, m.hidden);
  if (m.position == PositionKind::kLearned) {
    builder.matrix("transformer.wpe.weight", m.max_positions, m.hidden);
  }
  return builder.take();
}

Module qkv_module(const Model& m, const Names& names, int64_t layer) {
  ModuleBuilder builder(ModuleKind::kQkv, layer);
  const std::string prefix = names.layer(layer);
  if (names.gpt2) {
    builder.linear(m, prefix + "attn.c_attn", m.hidden, m.qkv_width(), m.qkv_bias);
  } else {
    const int64_t kv_width = m.kv_heads * m.head_size;
    builder.linear(m, prefix + "self_attn.q_proj", m.hidden, m.attention_width(), m.qkv_bias);
    builder.linear(m, prefix + "self_attn.k_proj", m.hidden, kv_width, m.qkv_bias);
    builder.linear(m, prefix + "self_attn.v_proj", m.hidden, kv_width, m.qkv_bias);
  }
  return builder.take();
}

Module fc1_module(const Model& m, const Names& names, int64_t layer) {
  ModuleBuilder builder(ModuleKind::kFc1, layer);
  const std::string prefix = names.layer(layer);
  if (names.gpt2) {
    builder.linear(m, prefix + "mlp.c_fc", m.hidden, m.fc1_width(), m.mlp_bias);
  } else {
    builder.linear(m, prefix + "mlp.gate_proj", m.hidden, m.ffn, m.mlp_bias);
    builder.linear(m, prefix + "mlp.up_proj", m.hidden, m.ffn, m.mlp_bias);
  }
  return builder.take();
}

Module layer_module(const Model& m, const Names& names, ModuleKind kind, int64_t layer) {
  ModuleBuilder builder(kind, layer);
  const std::string prefix = names.layer(layer);
  switch (kind) {
    case ModuleKind::kNorm1:
      add_norm(builder, m, prefix + names.norm1());
      break;
    case ModuleKind::kNorm2:
      add_norm(builder, m, prefix + names.norm2());
      break;
    case ModuleKind::kQkv:
      return qkv_module(m, names, layer);
    case ModuleKind::kFc1:
      return fc1_module(m, names, layer);
    case ModuleKind::kCoreAttention:
      if (m.qk_norm) {
        builder.vector(prefix + "self_attn.q_norm.weight", m.head_size);
        builder.vector(prefix + "self_attn.k_norm.weight", m.head_size);
      }
      break;
    case ModuleKind::kAttentionOut:
      builder.linear(m, prefix + (names.gpt2 ? "attn.c_proj" : "self_attn.o_proj"),
                     m.attention_width(), m.hidden, m.attention_out_bias);
      break;
    case ModuleKind::kFc2:
      builder.linear(m, prefix + (names.gpt2 ? "mlp.c_proj" : "mlp.down_proj"), m.ffn, m.hidden,
                     m.mlp_bias);
      break;
    default:
      break;
  }
  return builder.take();
}

void require_positive(const Model& model, const char* field, int64_t value) {
  if (value <= 0) {
    throw Error("model " + model.name, fmt::format("{} is {}", field, value),
                "it must be a positive whole number");
  }
}

}  // namespace

std::string_view to_string(ModuleKind kind) {
  static constexpr std::array<std::string_view, kModuleKinds> names = {
      "embedding", "norm1",      "qkv", "core_attention", "attention_out", "norm2",
      "fc1",       "activation", "fc2", "final_norm",     "head",          "loss"};
  return names[static_cast<size_t>(kind)];
}

void check(const Model& model) {
  require_positive(model, "layers", model.layers);
  require_positive(model, "hidden", model.hidden);
  require_positive(model, "heads", model.heads);
  require_positive(model, "kv_heads", model.kv_heads);
  require_positive(model, "head_size", model.head_size);
  require_positive(model, "ffn", model.ffn);
  require_positive(model, "vocab", model.vocab);
  require_positive(model, "max_positions", model.max_positions);
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw Error("model " + model.name, what, remedy);
  };
  if (model.heads % model.kv_heads != 0) {
    refuse(fmt::format("{} heads cannot share {} kv_heads", model.heads, model.kv_heads),
           "heads must be a multiple of kv_heads");
  }
  if (model.position == PositionKind::kRope && model.head_size % 2 != 0) {
    refuse(fmt::format("head_size {} is odd", model.head_size), "rotary positions need it even");
  }
  // Products of these sizes must fit 64 bits wherever bytes and FLOPs are counted.
  constexpr int64_t kLargest = int64_t{1} << 26;
  for (const int64_t value : {model.layers, model.hidden, model.heads, model.head_size, model.ffn,
                              model.vocab, model.max_positions}) {
    if (value > kLargest)
      refuse(fmt::format("a size of {} is out of range", value), "use at most 2^26");
  }
  if (!(model.norm_epsilon > 0 && std::isfinite(model.norm_epsilon))) {
    refuse("the norm's epsilon is not a positive number", "use for example 1e-5");
  }
  if (!(model.rope_theta > 0 && std::isfinite(model.rope_theta))) {
    refuse("rope_theta is not a positive number", "use for example 10000");
  }
}

std::vector<Module> modules_of(const Model& model) {
  check(model);
  const Names names{model.architecture == "gpt2"};
  std::vector<Module> modules;
  modules.push_back(embedding_module(model, names));
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    for (const ModuleKind kind : {ModuleKind::kNorm1, ModuleKind::kQkv, ModuleKind::kCoreAttention,
                                  ModuleKind::kAttentionOut, ModuleKind::kNorm2, ModuleKind::kFc1,
                                  ModuleKind::kActivation, ModuleKind::kFc2}) {
      modules.push_back(layer_module(model, names, kind, layer));
    }
  }
  ModuleBuilder final_norm(ModuleKind::kFinalNorm, -1);
  add_norm(final_norm, model, names.final_norm());
  modules.push_back(final_norm.take());
  ModuleBuilder head(ModuleKind::kHead, -1);
  if (!model.tied_embeddings) head.matrix("lm_head.weight", model.vocab, model.hidden);
  modules.push_back(head.take());
  modules.push_back(ModuleBuilder(ModuleKind::kLoss, -1).take());

  int64_t offset = 0;
  for (Module& module : modules) {
    module.flat_offset = offset;
    offset += module.count;
  }
  return modules;
}

int64_t parameter_count(const Model& model) {
  const std::vector<Module> modules = modules_of(model);
  return modules.back().flat_offset + modules.back().count;
}

Flops model_flops_per_step(const Model& model, int64_t tokens, int64_t sequence_length) {
  const double c = static_cast<double>(model.hidden);
  const double attention_width = static_cast<double>(model.attention_width());
  const double gemm_per_layer = c * static_cast<double>(model.qkv_width()) + attention_width * c +
                                c * static_cast<double>(model.fc1_width()) +
                                static_cast<double>(model.ffn) * c;
  const double layers = static_cast<double>(model.layers);
  const double gemm = layers * gemm_per_layer + c * static_cast<double>(model.vocab);
  const double attention = layers * attention_width * static_cast<double>(sequence_length);
  return {6.0 * static_cast<double>(tokens) * (gemm + attention)};
}

}  // namespace ballast
