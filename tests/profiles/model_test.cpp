// Hugging Face configurations: exact parameter counts, defaults, and every way to be wrong.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using testing::error_of;
using testing::holds;

Json gpt2_config() {
  return {{"model_type", "gpt2"}, {"n_layer", 2},     {"n_embd", 8},
          {"n_head", 2},          {"vocab_size", 16}, {"n_positions", 4}};
}

Json llama_config() {
  return {{"model_type", "llama"},   {"num_hidden_layers", 2},       {"hidden_size", 8},
          {"intermediate_size", 12}, {"num_attention_heads", 2},     {"vocab_size", 16},
          {"rms_norm_eps", 1e-5},    {"max_position_embeddings", 64}};
}

Model parse(const Json& config) { return parse_model(config.dump(), "config.json", "tiny"); }

// The counts that the models' publishers and Hugging Face's num_parameters() give.
TEST(Models, well_known_models_have_their_exact_parameter_counts) {
  const std::pair<const char*, int64_t> known[] = {
      {"gpt2", 124'439'808},           {"gpt2-xl", 1'557'611'200},
      {"llama-2-7b", 6'738'415'616},   {"llama-2-13b", 13'015'864'320},
      {"llama-2-70b", 68'976'648'192}, {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496}, {"mistral-7b", 7'241'732'096},
      {"qwen2.5-7b", 7'615'616'512},   {"qwen3-8b", 8'190'735'360}};
  for (const auto& [name, count] : known) {
    EXPECT_EQ(parameter_count(load_model(name)), count) << name;
  }
}

// 4 layers of 12*256^2 + 13*256 = 789,760; embeddings 2*256*256; final norm 512: 3,290,624.
TEST(Models, quickstart_model_has_about_three_million_parameters) {
  EXPECT_EQ(parameter_count(load_model("quickstart-gpt")), 4 * 789'760 + 131'072 + 512);
}

TEST(Models, gpt2_takes_the_defaults_of_its_configuration_class) {
  Json config = gpt2_config();
  config["n_inner"] = nullptr;
  const Model model = parse(config);
  EXPECT_EQ(model.ffn, 32);
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.head_size, 4);
  EXPECT_EQ(model.activation, ActivationKind::kGeluTanh);
  EXPECT_EQ(model.norm_epsilon, 1e-5);
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_TRUE(model.qkv_bias && model.attention_out_bias && model.mlp_bias);
  EXPECT_EQ(model.layout, WeightLayout::kInOut);
  config["n_inner"] = 20;
  config["activation_function"] = "gelu";
  EXPECT_EQ(parse(config).ffn, 20);
  EXPECT_EQ(parse(config).activation, ActivationKind::kGelu);
}

TEST(Models, llama_takes_the_defaults_of_its_configuration_class) {
  const Model model = parse(llama_config());
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.head_size, 4);
  EXPECT_EQ(model.rope_theta, 10000.0);
  EXPECT_FALSE(model.tied_embeddings || model.qkv_bias || model.attention_out_bias);
  EXPECT_FALSE(model.mlp_bias || model.qk_norm);
  EXPECT_EQ(model.norm, NormKind::kRmsNorm);
  EXPECT_EQ(model.layout, WeightLayout::kOutIn);
}

TEST(Models, biases_follow_the_architecture) {
  Json config = llama_config();
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  EXPECT_TRUE(parse(config).qkv_bias && parse(config).attention_out_bias && parse(config).mlp_bias);
  config = llama_config();
  config["model_type"] = "qwen2";
  EXPECT_TRUE(parse(config).qkv_bias);
  EXPECT_FALSE(parse(config).attention_out_bias);
  config["model_type"] = "qwen3";
  EXPECT_FALSE(parse(config).qkv_bias);
  EXPECT_TRUE(parse(config).qk_norm);
  EXPECT_EQ(parse(config).head_size, 128);
}

TEST(Models, newer_files_hold_rotary_settings_in_one_object) {
  Json config = llama_config();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(parse(config).rope_theta, 500000.0);
}

TEST(Models, sliding_window_limits_the_positions) {
  Json config = llama_config();
  config["max_position_embeddings"] = 32768;
  config["model_type"] = "mistral";
  EXPECT_EQ(parse(config).max_positions, 4096) << "the default of MistralConfig";
  config["sliding_window"] = 1024;
  EXPECT_EQ(parse(config).max_positions, 1024);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(parse(config).max_positions, 32768);
  config["model_type"] = "qwen2";
  config["sliding_window"] = 1024;
  EXPECT_EQ(parse(config).max_positions, 32768) << "qwen2 has it off by default";
}

TEST(Models, keys_of_hugging_face_that_we_do_not_use_are_ignored) {
  Json config = gpt2_config();
  config["summary_type"] = "cls_index";
  EXPECT_NO_THROW(parse(config));
}

struct Wrong {
  const char* key;
  Json value;  // discarded: remove the key
  const char* message;
};

TEST(Models, wrong_values_name_the_file_and_the_key) {
  const Json removed(Json::value_t::discarded);
  const Wrong wrongs[] = {
      {"n_layer", removed, "key 'n_layer': is missing"},
      {"n_layer", nullptr, "key 'n_layer': must be a whole number, and is null"},
      {"n_layer", 0, "key 'n_layer': is 0"},
      {"n_layer", -2, "key 'n_layer': is -2"},
      {"n_layer", "12", "key 'n_layer': must be a whole number, and is a text"},
      {"n_layer", 2.5, "key 'n_layer': must be a whole number, and is a number"},
      {"n_embd", uint64_t{1} << 63, "key 'n_embd'"},
      {"n_head", 3, "3 heads do not divide a width of 8"},
      {"vocab_size", true, "key 'vocab_size': must be a whole number, and is true or false"},
      {"layer_norm_epsilon", 0, "key 'layer_norm_epsilon': is 0"},
      {"activation_function", "gelu_newer", "did you mean 'gelu_new'"},
      {"tie_word_embeddings", 1, "must be true or false"},
      {"scale_attn_by_inverse_layer_idx", true, "is not computed here"},
      {"model_type", "gptt2", "did you mean 'gpt2'"},
      {"model_type", "mixtral", "recognised"},
      {"model_type", "deepseek_v3", "recognised"}};
  for (const Wrong& wrong : wrongs) {
    Json config = gpt2_config();
    wrong.value.is_discarded() ? void(config.erase(wrong.key))
                               : void(config[wrong.key] = wrong.value);
    const std::string message = error_of([&] { parse(config); });
    EXPECT_TRUE(holds(message, wrong.message)) << wrong.key;
    EXPECT_TRUE(holds(message, "config.json")) << wrong.key;
  }
}

TEST(Models, scaled_rotary_positions_are_refused) {
  Json config = llama_config();
  config["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}};
  EXPECT_TRUE(holds(error_of([&] { parse(config); }), "key 'rope_scaling.rope_type'"));
  config["rope_scaling"] = nullptr;
  EXPECT_NO_THROW(parse(config));
}

TEST(Models, head_groups_that_do_not_divide_are_refused) {
  Json config = llama_config();
  config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 3;
  EXPECT_TRUE(holds(error_of([&] { parse(config); }), "4 heads cannot share 3 kv_heads"));
}

TEST(Models, impossibly_large_models_are_refused_before_anything_overflows) {
  Json config = llama_config();
  config["num_hidden_layers"] = 16384;
  config["hidden_size"] = 4194304;
  config["intermediate_size"] = 4194304;
  EXPECT_TRUE(holds(error_of([&] { parse(config); }), "parameters"));
}

TEST(Models, broken_text_is_an_error_of_one_line) {
  for (const char* text : {"", "{", "[1]", "3", "{\"model_type\": 1e999}", "{\"a\": 1, \"a\": 2}",
                           "\xff\xfe", "{\"model_type\": \"\n\"}"}) {
    const std::string message = error_of([&] { parse_model(text, "config.json", "tiny"); });
    EXPECT_TRUE(holds(message, "config.json")) << text;
    EXPECT_EQ(message.find('\n'), std::string::npos) << text;
  }
  const std::string deep = "{\"a\":" + std::string(100'000, '[');
  EXPECT_TRUE(holds(error_of([&] { parse_model(deep, "f", "n"); }), "nested deeper"));
}

TEST(Models, model_is_found_by_file_by_folder_and_by_name) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("my-model"));
  testing::write_file(folder.file("my-model/config.json"), gpt2_config().dump());
  testing::write_file(folder.file("other.json"), gpt2_config().dump());
  EXPECT_EQ(load_model(folder.file("my-model")).name, "my-model");
  EXPECT_EQ(load_model(folder.file("my-model/config.json")).name, "my-model");
  EXPECT_EQ(load_model(folder.file("other.json")).name, "other");
  EXPECT_EQ(load_model("gpt2").name, "gpt2");
  EXPECT_TRUE(holds(error_of([] { load_model("gpt3"); }), "did you mean 'gpt2'"));
  EXPECT_TRUE(holds(error_of([&] { load_model(folder.file("no.json")); }), "no such file"));
}

}  // namespace
}  // namespace ballast
