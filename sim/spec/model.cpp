#include "sim/spec/model.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <list>
#include <mutex>
#include <optional>

#include "sim/spec/model_family.h"

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
  // One tensor for all experts of gpt_oss, which keeps each matrix as [in, out].
  void stacked_linear(const std::string& name, const Product& each, bool bias) {
    add(name, each.in, each.out, true, each.copies);
    if (bias) add(name + "_bias", each.copies, each.out, false);
  }
  // A linear map `in` -> `out` in the model's layout, with its bias where there is one.
  void linear(const Model& model, const std::string& name, int64_t in, int64_t out, bool bias) {
    if (model.layout == WeightLayout::kInOut) {
      matrix(name + ".weight", in, out);
    } else {
      matrix(name + ".weight", out, in);
    }
    if (bias) vector(name + ".bias", out);
  }
  Module take() {
    module_.parameters = std::move(parameters_);
    return std::move(module_);
  }

 private:
  void add(std::string name, int64_t rows, int64_t columns, bool is_matrix, int64_t depth = 0) {
    parameters_.push_back({std::move(name), rows, columns, module_.count, is_matrix, depth});
    module_.count += parameters_.back().count();
  }
  Module module_;
  std::vector<Parameter> parameters_;
};

void add_norm(ModuleBuilder& builder, const Model& model, const std::string& name) {
  builder.vector(name + ".weight", model.hidden);
  if (model.norm == NormKind::kLayerNorm) builder.vector(name + ".bias", model.hidden);
}

// Hugging Face names: gpt2 as GPT2LMHeadModel, the others as LlamaForCausalLM and its kin, in the
// spelling of their checkpoints (which transformers 5 renames while it loads them).
struct Names {
  explicit Names(const ModelFamily& family)
      : gpt2(family.gpt2_names),
        stacks_experts(family.stacks_experts),
        experts_block(family.experts_block),
        gate(family.gate),
        up(family.up),
        down(family.down),
        router(family.router),
        router_bias(family.router_bias) {}
  bool gpt2;
  bool stacks_experts;
  std::string experts_block;
  std::string gate;
  std::string up;
  std::string down;
  std::string router;  // empty: "gate" in the block of experts
  std::string router_bias;

  std::string layer(int64_t i) const {
    return gpt2 ? fmt::format("transformer.h.{}.", i) : fmt::format("model.layers.{}.", i);
  }
  std::string token() const {
    return gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  }
  std::string norm1() const { return gpt2 ? "ln_1" : "input_layernorm"; }
  std::string norm2() const { return gpt2 ? "ln_2" : "post_attention_layernorm"; }
  std::string final_norm() const { return gpt2 ? "transformer.ln_f" : "model.norm"; }
  std::string router_name() const { return router.empty() ? experts_block + "gate" : router; }
  std::string router_bias_name() const { return router_name() + "." + router_bias; }
  std::string expert(int64_t i) const { return fmt::format("{}experts.{}.", experts_block, i); }
  std::string shared() const { return experts_block + "shared_experts."; }
};

Module embedding_module(const Model& m, const Names& names) {
  ModuleBuilder builder(ModuleKind::kEmbedding, -1);
  builder.matrix(names.token(), m.vocab, m.hidden);
  if (m.position == PositionKind::kLearned) {
    builder.matrix("transformer.wpe.weight", m.max_positions, m.hidden);
  }
  return builder.take();
}

// DeepSeek-V2, section 2.1.2 and 2.1.3: hidden -> latent -> norm -> heads, for queries and for keys
// with values; the rotary part of the keys is made beside their latent.
void add_latent_qkv(ModuleBuilder& builder, const Model& m, const std::string& prefix) {
  const int64_t query_width = m.heads * m.head_size;
  if (m.query_rank > 0) {
    builder.linear(m, prefix + "q_a_proj", m.hidden, m.query_rank, m.qkv_bias);
    builder.vector(prefix + "q_a_layernorm.weight", m.query_rank);
    builder.linear(m, prefix + "q_b_proj", m.query_rank, query_width, false);
  } else {
    builder.linear(m, prefix + "q_proj", m.hidden, query_width, false);
  }
  builder.linear(m, prefix + "kv_a_proj_with_mqa", m.hidden, m.kv_rank + m.rope_size, m.qkv_bias);
  builder.vector(prefix + "kv_a_layernorm.weight", m.kv_rank);
  builder.linear(m, prefix + "kv_b_proj", m.kv_rank,
                 m.heads * (m.head_size - m.rope_size + m.value_size), false);
}

Module qkv_module(const Model& m, const Names& names, int64_t layer) {
  ModuleBuilder builder(ModuleKind::kQkv, layer);
  const std::string prefix = names.layer(layer);
  if (names.gpt2) {
    builder.linear(m, prefix + "attn.c_attn", m.hidden, m.qkv_width(), m.qkv_bias);
  } else if (m.is_latent()) {
    add_latent_qkv(builder, m, prefix + "self_attn.");
  } else {
    const int64_t kv_width = m.kv_heads * m.head_size;
    builder.linear(m, prefix + "self_attn.q_proj", m.hidden, m.attention_width(), m.qkv_bias);
    builder.linear(m, prefix + "self_attn.k_proj", m.hidden, kv_width, m.qkv_bias);
    builder.linear(m, prefix + "self_attn.v_proj", m.hidden, kv_width, m.qkv_bias);
  }
  return builder.take();
}

void add_expert_fc1(ModuleBuilder& builder, const Model& m, const Names& names,
                    const std::string& prefix) {
  if (names.stacks_experts) {
    const Product each = {m.hidden, m.gates() * m.expert_ffn, m.experts, m.experts_per_token};
    builder.stacked_linear(prefix + "mlp.experts.gate_up_proj", each, m.mlp_bias);
    return;
  }
  for (int64_t i = 0; i < m.experts; ++i) {
    const std::string expert = prefix + names.expert(i);
    builder.linear(m, expert + names.gate, m.hidden, m.expert_ffn, m.mlp_bias);
    builder.linear(m, expert + names.up, m.hidden, m.expert_ffn, m.mlp_bias);
  }
  if (m.shared_experts > 0) {
    builder.linear(m, prefix + names.shared() + names.gate, m.hidden, m.shared_ffn(), m.mlp_bias);
    builder.linear(m, prefix + names.shared() + names.up, m.hidden, m.shared_ffn(), m.mlp_bias);
  }
}

void add_expert_fc2(ModuleBuilder& builder, const Model& m, const Names& names,
                    const std::string& prefix) {
  if (names.stacks_experts) {
    const Product each = {m.expert_ffn, m.hidden, m.experts, m.experts_per_token};
    builder.stacked_linear(prefix + "mlp.experts.down_proj", each, m.mlp_bias);
    return;
  }
  for (int64_t i = 0; i < m.experts; ++i) {
    const std::string expert = prefix + names.expert(i);
    builder.linear(m, expert + names.down, m.expert_ffn, m.hidden, m.mlp_bias);
  }
  if (m.shared_experts > 0) {
    builder.linear(m, prefix + names.shared() + names.down, m.shared_ffn(), m.hidden, m.mlp_bias);
  }
}

Module fc1_module(const Model& m, const Names& names, int64_t layer) {
  ModuleBuilder builder(ModuleKind::kFc1, layer);
  const std::string prefix = names.layer(layer);
  if (m.has_experts(layer)) {
    add_expert_fc1(builder, m, names, prefix);
  } else if (names.gpt2) {
    builder.linear(m, prefix + "mlp.c_fc", m.hidden, m.fc1_width(), m.mlp_bias);
  } else {
    builder.linear(m, prefix + "mlp.gate_proj", m.hidden, m.ffn, m.mlp_bias);
    builder.linear(m, prefix + "mlp.up_proj", m.hidden, m.ffn, m.mlp_bias);
  }
  return builder.take();
}

Module fc2_module(const Model& m, const Names& names, int64_t layer) {
  ModuleBuilder builder(ModuleKind::kFc2, layer);
  const std::string prefix = names.layer(layer);
  if (m.has_experts(layer)) {
    add_expert_fc2(builder, m, names, prefix);
  } else {
    builder.linear(m, prefix + (names.gpt2 ? "mlp.c_proj" : "mlp.down_proj"), m.ffn, m.hidden,
                   m.mlp_bias);
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
    case ModuleKind::kFc2:
      return fc2_module(m, names, layer);
    case ModuleKind::kCoreAttention:
      if (m.attention_sinks) builder.vector(prefix + "self_attn.sinks", m.heads);
      if (m.qk_norm) {
        builder.vector(prefix + "self_attn.q_norm.weight", m.head_size);
        builder.vector(prefix + "self_attn.k_norm.weight", m.head_size);
      }
      break;
    case ModuleKind::kAttentionOut:
      builder.linear(m, prefix + (names.gpt2 ? "attn.c_proj" : "self_attn.o_proj"),
                     m.attention_width(), m.hidden, m.attention_out_bias);
      break;
    case ModuleKind::kRouter:
      builder.linear(m, prefix + names.router_name(), m.hidden, m.experts, false);
      if (m.router_bias) builder.vector(prefix + names.router_bias_name(), m.experts);
      break;
    default:
      break;
  }
  return builder.take();
}

constexpr std::array kLayerKinds = {
    ModuleKind::kNorm1,        ModuleKind::kQkv,        ModuleKind::kCoreAttention,
    ModuleKind::kAttentionOut, ModuleKind::kNorm2,      ModuleKind::kRouter,
    ModuleKind::kFc1,          ModuleKind::kActivation, ModuleKind::kFc2};

void append_layer(std::vector<Module>& modules, const Model& model, const Names& names,
                  int64_t layer) {
  for (const ModuleKind kind : kLayerKinds) {
    if (kind == ModuleKind::kRouter && !model.has_experts(layer)) continue;
    modules.push_back(layer_module(model, names, kind, layer));
  }
}

void append_end(std::vector<Module>& modules, const Model& model, const Names& names) {
  ModuleBuilder final_norm(ModuleKind::kFinalNorm, -1);
  add_norm(final_norm, model, names.final_norm());
  modules.push_back(final_norm.take());
  ModuleBuilder head(ModuleKind::kHead, -1);
  if (!model.tied_embeddings) head.matrix("lm_head.weight", model.vocab, model.hidden);
  modules.push_back(head.take());
  modules.push_back(ModuleBuilder(ModuleKind::kLoss, -1).take());
}

// The layers of a model are of two sorts; within a sort they differ in nothing but names and
// windows. A representative is -1 where there is none of its sort.
struct LayerSorts {
  int64_t dense = -1;
  int64_t with_experts = -1;
  int64_t dense_count = 0;
  int64_t with_experts_count = 0;
};

LayerSorts layer_sorts(const Model& model) {
  LayerSorts sorts;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const bool has_experts = model.has_experts(layer);
    ++(has_experts ? sorts.with_experts_count : sorts.dense_count);
    (has_experts ? sorts.with_experts : sorts.dense) = layer;
  }
  return sorts;
}

// Weights that one token meets in a layer's products.
double active_weights(const Model& model, int64_t layer) {
  double sum = 0;
  for (const ModuleKind kind : kLayerKinds) {
    for (const Product& product : products_of(model, kind, layer)) {
      sum += static_cast<double>(product.in) * static_cast<double>(product.out) *
             static_cast<double>(product.active);
    }
  }
  return sum;
}

double active_layer_weights(const Model& model) {
  const LayerSorts sorts = layer_sorts(model);
  double sum = 0;
  if (sorts.dense_count > 0) {
    sum += static_cast<double>(sorts.dense_count) * active_weights(model, sorts.dense);
  }
  if (sorts.with_experts_count > 0) {
    sum +=
        static_cast<double>(sorts.with_experts_count) * active_weights(model, sorts.with_experts);
  }
  return sum;
}

}  // namespace

std::string_view to_string(ModuleKind kind) {
  static constexpr std::array<std::string_view, kModuleKinds> names = {
      "embedding", "norm1",      "qkv", "core_attention", "attention_out", "norm2", "router",
      "fc1",       "activation", "fc2", "final_norm",     "head",          "loss"};
  return names[static_cast<size_t>(kind)];
}

bool Model::has_experts(int64_t layer) const {
  const int64_t place = first_layer + layer;
  return experts > 0 && place >= first_dense_layers && (place + 1) % sparse_step == 0 &&
         !std::binary_search(dense_layers.begin(), dense_layers.end(), place);
}

std::vector<int64_t> Parameter::shape() const {
  if (depth > 0) return {depth, rows, columns};
  if (is_matrix || rows > 1) return {rows, columns};
  return {columns};
}

namespace {

std::vector<Module> make_modules(const Model& model) {
  check(model);
  const Names names(model_family(model.architecture));
  std::vector<Module> modules;
  modules.push_back(embedding_module(model, names));
  for (int64_t layer = 0; layer < model.layers; ++layer) append_layer(modules, model, names, layer);
  append_end(modules, model, names);
  int64_t offset = 0;
  for (Module& module : modules) {
    module.flat_offset = offset;
    offset += module.count;
  }
  return modules;
}

// The tables of models that were asked for last. A search asks for those of one model and of its
// parts, again and again, and their names take longer to write than a graph of few layers to build.
class ModuleTables {
 public:
  std::vector<Module> of(const Model& model) {
    if (auto known = find(model)) return *std::move(known);
    std::vector<Module> modules = make_modules(model);
    const std::lock_guard lock(mutex_);
    tables_.push_back({model, modules});
    parameters_ += tables_.back().parameters();
    while (parameters_ > kMostParameters && tables_.size() > 1) {
      parameters_ -= tables_.front().parameters();
      tables_.pop_front();
    }
    return modules;
  }

 private:
  struct Table {
    Model model;
    std::vector<Module> modules;
    size_t parameters() const {
      size_t count = 0;
      for (const Module& module : modules) count += module.parameters.size();
      return count;
    }
  };

  std::optional<std::vector<Module>> find(const Model& model) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(tables_.begin(), tables_.end(),
                                    [&](const Table& table) { return table.model == model; });
    if (found == tables_.end()) return std::nullopt;
    tables_.splice(tables_.end(), tables_, found);
    return found->modules;
  }

  // Some 150 bytes each with its name: a model of 256 experts a layer has 47,000.
  static constexpr size_t kMostParameters = 750'000;
  std::mutex mutex_;
  std::list<Table> tables_;  // those that were asked for last at the end
  size_t parameters_ = 0;
};

}  // namespace

std::vector<Module> modules_of(const Model& model) {
  static ModuleTables tables;
  return tables.of(model);
}

std::vector<Product> products_of(const Model& m, ModuleKind kind, int64_t layer) {
  const bool routed = layer >= 0 && m.has_experts(layer);
  const auto feed_forward = [&](auto shape) {
    if (!routed) return std::vector<Product>{shape(m.ffn)};
    Product each = shape(m.expert_ffn);
    each.copies = m.experts;
    each.active = m.experts_per_token;
    std::vector<Product> products = {each};
    if (m.shared_experts > 0) products.push_back(shape(m.shared_ffn()));
    return products;
  };
  switch (kind) {
    case ModuleKind::kQkv: {
      if (!m.is_latent()) return {{m.hidden, m.qkv_width()}};
      const int64_t query_width = m.heads * m.head_size;
      std::vector<Product> products;
      if (m.query_rank > 0) {
        products = {{m.hidden, m.query_rank}, {m.query_rank, query_width}};
      } else {
        products = {{m.hidden, query_width}};
      }
      products.push_back({m.hidden, m.kv_rank + m.rope_size});
      products.push_back({m.kv_rank, m.heads * (m.head_size - m.rope_size + m.value_size)});
      return products;
    }
    case ModuleKind::kAttentionOut:
      return {{m.attention_width(), m.hidden}};
    case ModuleKind::kRouter:
      if (!routed) return {};
      return {{m.hidden, m.experts}};
    case ModuleKind::kFc1:
      return feed_forward([&](int64_t width) { return Product{m.hidden, m.gates() * width}; });
    case ModuleKind::kFc2:
      return feed_forward([&](int64_t width) { return Product{width, m.hidden}; });
    case ModuleKind::kHead:
      return {{m.hidden, m.vocab}};
    default:
      return {};
  }
}

int64_t parameter_count(const Model& model) {
  check(model);
  const Names names(model_family(model.architecture));
  const LayerSorts sorts = layer_sorts(model);
  const auto count_of = [](const std::vector<Module>& modules) {
    int64_t count = 0;
    for (const Module& module : modules) count += module.count;
    return count;
  };
  const auto layers_count = [&](int64_t representative, int64_t layers) {
    std::vector<Module> modules;
    if (layers > 0) append_layer(modules, model, names, representative);
    return layers * count_of(modules);
  };
  std::vector<Module> outside = {embedding_module(model, names)};
  append_end(outside, model, names);
  return count_of(outside) + layers_count(sorts.dense, sorts.dense_count) +
         layers_count(sorts.with_experts, sorts.with_experts_count);
}

int64_t active_parameter_count(const Model& model) {
  const int64_t all = parameter_count(model);  // checks the model
  const LayerSorts sorts = layer_sorts(model);
  int64_t idle = 0;
  for (const ModuleKind kind : {ModuleKind::kFc1, ModuleKind::kFc2}) {
    if (sorts.with_experts_count == 0) break;
    for (const Product& product : products_of(model, kind, sorts.with_experts)) {
      const int64_t each = product.in * product.out + (model.mlp_bias ? product.out : 0);
      idle += (product.copies - product.active) * each;
    }
  }
  return all - sorts.with_experts_count * idle;
}

Flops model_flops_per_step(const Model& model, int64_t tokens, int64_t sequence_length) {
  const auto length = static_cast<double>(sequence_length);
  double seen = 0;  // positions, twice over: S for the causal half, summed over layers
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const auto window = static_cast<double>(model.window_of(layer));
    seen += window > 0 && window < length ? 2 * window - window * window / length : length;
  }
  const double head = static_cast<double>(model.hidden) * static_cast<double>(model.vocab);
  const double gemm = active_layer_weights(model) + head;
  const double score_and_value_width = static_cast<double>(model.heads * model.head_size) +
                                       static_cast<double>(model.attention_width());
  const double attention = 0.5 * score_and_value_width * seen;
  return {6.0 * static_cast<double>(tokens) * (gemm + attention)};
}

}  // namespace ballast
