// A model's sizes written into another's config.json.
#include <nlohmann/json.hpp>

#include "profiles/json_records.h"
#include "profiles/load.h"
#include "profiles/shipped.h"
#include "sim/spec/model_family.h"

namespace ballast {
namespace {

// A key of our record, and Hugging Face's for it in GPT2Config and in those like LlamaConfig.
struct SizeKey {
  const char* record;
  const char* gpt2;  // null: the class has none
  const char* llama;
};
constexpr SizeKey kSizeKeys[] = {{"layers", "n_layer", "num_hidden_layers"},
                                 {"hidden", "n_embd", "hidden_size"},
                                 {"heads", "n_head", "num_attention_heads"},
                                 {"kv_heads", nullptr, "num_key_value_heads"},
                                 {"head_size", nullptr, "head_dim"},
                                 {"ffn", "n_inner", "intermediate_size"},
                                 {"vocab", "vocab_size", "vocab_size"},
                                 {"max_positions", "n_positions", "max_position_embeddings"}};

// One text a layer: which of them see all positions.
OrderedJson layer_types(const Model& model) {
  OrderedJson types = OrderedJson::array();
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    types.push_back(model.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
  }
  return types;
}

}  // namespace

std::string config_like(const std::string& name_or_path, const Model& model) {
  const Found found = find_file(name_or_path, "models");
  const std::string text = read_text_file(found.path);
  const OrderedJson before = to_json(parse_model(text, found.path, found.name));
  const OrderedJson after = to_json(model);
  OrderedJson config = OrderedJson::parse(text);
  const bool gpt2 = model_family(before["architecture"].get<std::string>()).gpt2_names;
  for (const SizeKey& key : kSizeKeys) {
    const char* const name = gpt2 ? key.gpt2 : key.llama;
    if (name != nullptr && before[key.record] != after[key.record])
      config[name] = after[key.record];
  }
  // An old name of n_positions, and a list with an entry for every layer.
  if (config.contains("n_ctx")) config["n_ctx"] = model.max_positions;
  if (config.contains("layer_types")) config["layer_types"] = layer_types(model);
  return config.dump(1) + "\n";
}

std::vector<std::string> differences(const Model& from, const Model& to) {
  const OrderedJson before = to_json(from);
  const OrderedJson after = to_json(to);
  std::vector<std::string> list;
  for (const auto& item : after.items()) {
    if (item.key() == "name" || before[item.key()] == item.value()) continue;
    const bool text = item.value().is_string();
    list.push_back(item.key() + "=" +
                   (text ? item.value().get<std::string>() : item.value().dump()));
  }
  return list;
}

}  // namespace ballast
