// Hugging Face configurations: exact parameter counts, defaults, and every way to be wrong.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using profile_tests::error_of;
using profile_tests::holds;

Json gpt2_config() {
  return {{"model_type", "gpt2"}, {"n_layer", 2},     {"n_embd", 8},
          {"n_head", 2},          {"vocab_size", 16}, {"n_positions", 4}};
}

Json llama_config() {
  return {{"model_type", "llama"},   {"num_hidden_layers", 2},       {"hidden_size", 8},
          {"intermediate_size", 12}, {"num_attention_heads", 2},     {"vocab_size", 16},
          {"rms_norm_eps", 1e-5},    {"max_position_embeddings", 64}};
}

Model parse_config(const Json& config) { return parse_model(config.dump(), "config.json", "tiny"); }

struct Known {
  const char* name;
  int64_t all;
  int64_t active;
};

// What transformers 4.57.6 builds from the same configuration on its meta device, where every
// tensor's name and shape was compared too; they agree with the counts that the publishers give.
// deepseek-v3 with its 58 x 256 correction biases, which are a buffer there, and without the layer
// of multi-token prediction: 671,026,404,352 + 14,848; dots.llm1 (arXiv 2506.05767: 142B and 14B)
// with 61 x 128, and kimi-k2 (arXiv 2507.20534: 1.04T and 32.6B) with 60 x 384 (transformers 5.23).
TEST(Models, well_known_models_have_their_exact_parameter_counts) {
  const Known known[] = {{"gpt2", 124'439'808, 124'439'808},
                         {"gpt2-xl", 1'557'611'200, 1'557'611'200},
                         {"gpt-22b", 22'074'273'792, 22'074'273'792},
                         {"gpt3-175b", 174'615'846'912, 174'615'846'912},
                         {"gpt-530b", 529'600'819'200, 529'600'819'200},
                         {"gpt-1t", 1'008'038'758'400, 1'008'038'758'400},
                         {"llama-2-7b", 6'738'415'616, 6'738'415'616},
                         {"llama-2-13b", 13'015'864'320, 13'015'864'320},
                         {"llama-2-70b", 68'976'648'192, 68'976'648'192},
                         {"llama-3-8b", 8'030'261'248, 8'030'261'248},
                         {"llama-3-70b", 70'553'706'496, 70'553'706'496},
                         {"llama-3.1-8b", 8'030'261'248, 8'030'261'248},
                         {"llama-3.1-405b", 405'853'388'800, 405'853'388'800},
                         {"llama-3.2-1b", 1'235'814'400, 1'235'814'400},
                         {"mistral-7b", 7'241'732'096, 7'241'732'096},
                         {"qwen2.5-7b", 7'615'616'512, 7'615'616'512},
                         {"qwen2.5-72b", 72'706'203'648, 72'706'203'648},
                         {"qwen3-8b", 8'190'735'360, 8'190'735'360},
                         {"qwen3-32b", 32'762'123'264, 32'762'123'264},
                         {"mixtral-8x7b", 46'702'792'704, 12'879'925'248},
                         {"mixtral-8x22b", 140'620'634'112, 39'152'031'744},
                         {"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704},
                         {"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520},
                         {"deepseek-v3", 671'026'419'200, 37'552'297'472},
                         {"dots.llm1", 142'774'381'696, 14'016'588'928},
                         {"kimi-k2", 1'026'408'232'448, 32'861'500'928},
                         {"gpt-oss-20b", 20'914'757'184, 4'187'440'704},
                         {"gpt-oss-120b", 116'829'156'672, 5'711'982'912}};
  for (const Known& one : known) {
    const Model model = load_model(one.name);
    EXPECT_EQ(parameter_count(model), one.all) << one.name;
    EXPECT_EQ(active_parameter_count(model), one.active) << one.name;
    const std::vector<Module> modules = modules_of(model);
    EXPECT_EQ(modules.back().flat_offset + modules.back().count, one.all) << one.name;
  }
}

// 4 layers of 12*256^2 + 13*256 = 789,760; embeddings 2*256*256; final norm 512: 3,290,624.
TEST(Models, quickstart_model_has_about_three_million_parameters) {
  EXPECT_EQ(parameter_count(load_model("quickstart-gpt")), 4 * 789'760 + 131'072 + 512);
}

TEST(Models, gpt2_takes_the_defaults_of_its_configuration_class) {
  Json config = gpt2_config();
  config["n_inner"] = nullptr;
  const Model model = parse_config(config);
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
  EXPECT_EQ(parse_config(config).ffn, 20);
  EXPECT_EQ(parse_config(config).activation, ActivationKind::kGelu);
}

TEST(Models, llama_takes_the_defaults_of_its_configuration_class) {
  const Model model = parse_config(llama_config());
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
  EXPECT_TRUE(parse_config(config).qkv_bias && parse_config(config).attention_out_bias &&
              parse_config(config).mlp_bias);
  config = llama_config();
  config["num_key_value_heads"] = 2;
  config["model_type"] = "qwen2";
  EXPECT_TRUE(parse_config(config).qkv_bias);
  EXPECT_FALSE(parse_config(config).attention_out_bias);
  config["model_type"] = "qwen3";
  EXPECT_FALSE(parse_config(config).qkv_bias);
  EXPECT_TRUE(parse_config(config).qk_norm);
  EXPECT_EQ(parse_config(config).head_size, 128);
}

TEST(Models, newer_files_hold_rotary_settings_in_one_object) {
  Json config = llama_config();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(parse_config(config).rope_theta, 500000.0);
}

TEST(Models, sliding_window_is_that_of_every_layer) {
  Json config = llama_config();
  config["max_position_embeddings"] = 32768;
  config["num_key_value_heads"] = 1;
  config["model_type"] = "mistral";
  EXPECT_EQ(parse_config(config).sliding_window, 4096) << "the default of MistralConfig";
  EXPECT_EQ(parse_config(config).max_positions, 32768);
  config["sliding_window"] = 1024;
  EXPECT_EQ(parse_config(config).window_of(0), 1024);
  EXPECT_EQ(parse_config(config).window_of(1), 1024);
  config["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(parse_config(config).window_of(0), 1024);
  EXPECT_EQ(parse_config(config).window_of(1), 0);
  config["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(parse_config(config).window_of(0), 0);
  config.erase("layer_types");
  config["sliding_window"] = nullptr;
  EXPECT_EQ(parse_config(config).sliding_window, 0);
}

// Qwen2Config gives the window to the layers from max_window_layers on, 28 by default.
TEST(Models, sliding_window_of_qwen_is_switched_on_and_begins_at_a_layer) {
  Json config = llama_config();
  config["model_type"] = "qwen2";
  config["num_key_value_heads"] = 1;
  config["sliding_window"] = 16;
  EXPECT_EQ(parse_config(config).sliding_window, 0) << "off by default";
  config["use_sliding_window"] = true;
  EXPECT_EQ(parse_config(config).sliding_window, 0) << "its two layers are before the 28th";
  config["max_window_layers"] = 0;
  EXPECT_EQ(parse_config(config).sliding_window, 16);
  config["max_window_layers"] = 1;
  const std::string error = profile_tests::error_of([&] { parse_config(config); });
  EXPECT_TRUE(profile_tests::holds(error, "max_window_layers"))
      << "the last layer alone: " << error;
}

TEST(Models, dropout_is_the_largest_that_the_file_or_its_class_says) {
  Json config = gpt2_config();
  EXPECT_EQ(parse_config(config).dropout, 0.1) << "GPT2Config's own";
  for (const char* key : {"attn_pdrop", "embd_pdrop"}) config[key] = 0.0;
  EXPECT_EQ(parse_config(config).dropout, 0.1) << "resid_pdrop";
  config["resid_pdrop"] = 0.05;
  EXPECT_EQ(parse_config(config).dropout, 0.05);
  Json llama = llama_config();
  EXPECT_EQ(parse_config(llama).dropout, 0);
  llama["attention_dropout"] = 0.25;
  EXPECT_EQ(parse_config(llama).dropout, 0.25);
  llama["hidden_dropout"] = 0.5;
  EXPECT_EQ(parse_config(llama).dropout, 0.5);
}

TEST(Models, quantization_is_named_by_its_method) {
  Json config = llama_config();
  EXPECT_EQ(parse_config(config).quantization, "none");
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  EXPECT_EQ(parse_config(config).quantization, "gptq");
  config["quantization_config"] = {{"bits", 4}};
  EXPECT_EQ(parse_config(config).quantization, "unnamed");
}

TEST(Models, keys_of_hugging_face_that_we_do_not_use_are_ignored) {
  Json config = gpt2_config();
  config["summary_type"] = "cls_index";
  EXPECT_NO_THROW(parse_config(config));
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
      {"model_type", "mixtrol", "did you mean 'mixtral'"}};
  for (const Wrong& wrong : wrongs) {
    Json config = gpt2_config();
    wrong.value.is_discarded() ? void(config.erase(wrong.key))
                               : void(config[wrong.key] = wrong.value);
    const std::string message = error_of([&] { parse_config(config); });
    EXPECT_TRUE(holds(message, wrong.message)) << wrong.key;
    EXPECT_TRUE(holds(message, "config.json")) << wrong.key;
  }
}

TEST(Models, scaled_rotary_positions_are_marked) {
  Json config = llama_config();
  EXPECT_FALSE(parse_config(config).scaled_rope);
  config["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}};
  EXPECT_TRUE(parse_config(config).scaled_rope);
  EXPECT_FALSE(parse_config(config).yarn);
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 8.0}};
  EXPECT_TRUE(parse_config(config).scaled_rope);
  EXPECT_TRUE(parse_config(config).yarn);
  config["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_FALSE(parse_config(config).scaled_rope);
  config["rope_scaling"] = nullptr;
  EXPECT_FALSE(parse_config(config).scaled_rope);
  config["rope_scaling"] = "llama3";
  EXPECT_TRUE(holds(error_of([&] { parse_config(config); }), "key 'rope_scaling'"));
}

// Left out, num_key_value_heads is 8 in MistralConfig; null stands for the number of heads.
TEST(Models, key_value_heads_left_out_and_null_differ) {
  Json config = llama_config();
  config["hidden_size"] = 64;
  config["num_attention_heads"] = 16;
  EXPECT_EQ(parse_config(config).kv_heads, 16) << "LlamaConfig";
  config["model_type"] = "mistral";
  EXPECT_EQ(parse_config(config).kv_heads, 8);
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse_config(config).kv_heads, 16);
}

Json config_of(const std::string& family) {
  Json config = llama_config();
  config["num_key_value_heads"] = 2;
  config["model_type"] = family;
  return config;
}

TEST(Models, families_of_experts_take_the_defaults_of_their_classes) {
  const Model mixtral = parse_config(config_of("mixtral"));
  EXPECT_EQ(mixtral.experts, 8);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  EXPECT_EQ(mixtral.expert_ffn, 12);
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.max_positions, 64);
  const Model qwen = parse_config(config_of("qwen3_moe"));
  EXPECT_EQ(qwen.experts, 128);
  EXPECT_EQ(qwen.expert_ffn, 768);
  EXPECT_EQ(qwen.head_size, 4);
  EXPECT_TRUE(qwen.qk_norm);
  const Model oss = parse_config(config_of("gpt_oss"));
  EXPECT_EQ(oss.experts, 128);
  EXPECT_EQ(oss.experts_per_token, 4);
  EXPECT_EQ(oss.head_size, 64);
  EXPECT_EQ(oss.sliding_window, 128);
  EXPECT_EQ(oss.full_attention_period, 2);
  EXPECT_TRUE(oss.attention_sinks && oss.router_bias && oss.qkv_bias && oss.attention_out_bias);
  const Model deepseek = parse_config(config_of("deepseek_v3"));
  EXPECT_EQ(deepseek.head_size, 192);
  EXPECT_EQ(deepseek.value_size, 128);
  EXPECT_EQ(deepseek.query_rank, 1536);
  EXPECT_EQ(deepseek.experts, 256);
  EXPECT_EQ(deepseek.first_dense_layers, 3);
  Json direct = config_of("deepseek_v3");
  direct["q_lora_rank"] = nullptr;
  EXPECT_EQ(parse_config(direct).query_rank, 0);
}

TEST(Models, routers_are_read_with_the_defaults_of_their_classes) {
  const Model mixtral = parse_config(config_of("mixtral"));
  EXPECT_EQ(mixtral.router, RouterKind::kSoftmax);
  EXPECT_TRUE(mixtral.normalised_choice);
  EXPECT_EQ(mixtral.balance_loss, 0);
  Json balanced = config_of("mixtral");
  balanced["output_router_logits"] = true;
  EXPECT_EQ(parse_config(balanced).balance_loss, 0.001);
  balanced["router_aux_loss_coef"] = 0.02;
  EXPECT_EQ(parse_config(balanced).balance_loss, 0.02);
  EXPECT_FALSE(parse_config(config_of("qwen3_moe")).normalised_choice);
  EXPECT_EQ(parse_config(config_of("gpt_oss")).activation, ActivationKind::kClampedSwiGlu);
  const Model deepseek = parse_config(config_of("deepseek_v3"));
  EXPECT_EQ(deepseek.router, RouterKind::kSigmoid);
  EXPECT_EQ(deepseek.expert_groups, 8);
  EXPECT_EQ(deepseek.chosen_groups, 4);
  EXPECT_EQ(deepseek.routed_scale, 2.5);
  EXPECT_TRUE(deepseek.normalised_choice && deepseek.interleaved_rope);
  EXPECT_TRUE(holds(error_of([&] { apply_override(deepseek, {"chosen_groups", "9"}); }),
                    "chosen_groups is 9 of 8"));
  EXPECT_TRUE(holds(error_of([&] { apply_override(deepseek, {"balance_loss", "0.1"}); }),
                    "belongs to routers with a softmax"));
  EXPECT_EQ(apply_override(mixtral, {"balance_loss", "0.1"}).balance_loss, 0.1);
}

TEST(Models, gpt_oss_layer_types_are_read_as_a_period) {
  const std::string window = "sliding_attention";
  const std::string full = "full_attention";
  Json config = config_of("gpt_oss");
  config["num_hidden_layers"] = 4;
  config["layer_types"] = {window, full, window, full};
  EXPECT_EQ(parse_config(config).full_attention_period, 2);
  config["layer_types"] = {full, full, full, full};
  EXPECT_EQ(parse_config(config).full_attention_period, 1);
  config["layer_types"] = {window, window, window, window};
  EXPECT_EQ(parse_config(config).full_attention_period, 0);
  config["layer_types"] = {full, window, window, full};
  EXPECT_TRUE(holds(error_of([&] { parse_config(config); }), "layer 1 breaks the pattern"));
  config["layer_types"] = {window, full};
  EXPECT_TRUE(holds(error_of([&] { parse_config(config); }), "key 'layer_types'"));
  config["layer_types"] = {window, full, window, "other"};
  EXPECT_TRUE(holds(error_of([&] { parse_config(config); }), "key 'layer_types'"));
  config["layer_types"] = 3;
  EXPECT_TRUE(holds(error_of([&] { parse_config(config); }), "key 'layer_types'"));
}

struct WrongIn {
  const char* family;
  const char* key;
  Json value;
  const char* message;
};

TEST(Models, wrong_values_of_experts_and_latents_name_the_key_in_one_line) {
  const WrongIn wrongs[] = {
      {"mixtral", "num_local_experts", 0, "key 'num_local_experts': is 0"},
      {"mixtral", "num_experts_per_tok", 9, "experts_per_token is 9 of 8 experts"},
      {"mixtral", "num_local_experts", int64_t{1} << 60, "key 'num_local_experts'"},
      {"mixtral", "num_local_experts", "8", "must be a whole number"},
      {"gpt_oss", "num_local_experts", -1, "key 'num_local_experts': is -1"},
      {"gpt_oss", "sliding_window", 0, "key 'sliding_window': is 0"},
      {"qwen3_moe", "decoder_sparse_step", 0, "key 'decoder_sparse_step': is 0"},
      {"qwen3_moe", "moe_intermediate_size", 1e30, "key 'moe_intermediate_size'"},
      {"qwen3_moe", "mlp_only_layers", 3, "key 'mlp_only_layers': is not a list"},
      {"qwen3_moe", "mlp_only_layers", {-1}, "key 'mlp_only_layers': holds '-1'"},
      {"qwen3_moe", "mlp_only_layers", {UINT64_MAX}, "key 'mlp_only_layers'"},
      {"qwen3_moe", "mlp_only_layers", {"0"}, "key 'mlp_only_layers'"},
      {"deepseek_v3", "n_routed_experts", 0, "key 'n_routed_experts': is 0"},
      {"deepseek_v3", "n_routed_experts", 12, "8 groups do not divide 12 experts"},
      {"deepseek_v3", "kv_lora_rank", 0, "key 'kv_lora_rank': is 0"},
      {"deepseek_v3", "qk_rope_head_dim", 63, "rope_size 63 is odd"},
      {"deepseek_v3", "v_head_dim", -4, "key 'v_head_dim': is -4"},
      {"deepseek_v3", "num_key_value_heads", 1, "kv_heads is 1 with 2 heads"},
      {"deepseek_v3", "num_hidden_layers", 16384, "experts in 16384 layers are out of range"}};
  for (const WrongIn& wrong : wrongs) {
    Json config = config_of(wrong.family);
    EXPECT_NO_THROW(parse_config(config)) << wrong.family;
    config[wrong.key] = wrong.value;
    const std::string message = error_of([&] { parse_config(config); });
    EXPECT_TRUE(holds(message, wrong.message)) << wrong.key << ": " << message;
    EXPECT_TRUE(holds(message, "config.json")) << wrong.key;
    EXPECT_EQ(message.find('\n'), std::string::npos) << wrong.key;
  }
}

TEST(Models, qwen3_moe_without_experts_is_dense) {
  Json config = config_of("qwen3_moe");
  config["num_experts"] = 0;
  const Model model = parse_config(config);
  EXPECT_FALSE(model.has_experts(0));
  EXPECT_EQ(active_parameter_count(model), parameter_count(model));
}

// An override goes through our record and back: nothing of any shipped model may be lost on the
// way.
TEST(Models, records_of_shipped_models_read_back_as_they_were) {
  for (const Shipped& shipped : shipped_models()) {
    const Model model = load_model(shipped.name);
    const Model again = apply_override(model, {"layers", std::to_string(model.layers)});
    EXPECT_EQ(model_json(again), model_json(model)) << shipped.name;
    EXPECT_EQ(active_parameter_count(again), active_parameter_count(model)) << shipped.name;
  }
}

// A checkpoint goes on only with the record that it holds, so what a model has not is not in it.
TEST(Models, records_hold_nothing_new_of_models_that_have_nothing_of_it) {
  EXPECT_EQ(Json::parse(model_json(load_model("gpt-oss-20b"))).at("yarn"), true);
  for (const Shipped& shipped : shipped_models()) {
    const Model model = load_model(shipped.name);
    const Json record = Json::parse(model_json(model));
    EXPECT_EQ(record.contains("yarn"), model.yarn) << shipped.name;
    EXPECT_EQ(record.contains("router"), model.experts > 0) << shipped.name;
  }
}

// A model that a search made larger goes into a file that Hugging Face's classes read.
TEST(Models, a_config_with_other_sizes_reads_back_as_the_model_of_those_sizes) {
  for (const Shipped& shipped : shipped_models()) {
    const Model model = load_model(shipped.name);
    const Model more = apply_override(model, {"layers", std::to_string(2 * model.layers)});
    const std::string text = config_like(shipped.name, more);
    const Model again = parse_model(text, "config.json", model.name);
    EXPECT_EQ(model_json(again), model_json(more)) << shipped.name;
    EXPECT_TRUE(differences(again, more).empty());
    EXPECT_EQ(Json::parse(text)["model_type"], model.architecture);
  }
}

TEST(Models, what_no_config_says_is_a_difference) {
  const Model gpt2 = load_model("gpt2");
  Model other = gpt2;
  other.position = PositionKind::kRope;
  other.hidden = 1024;
  other.heads = other.kv_heads = 16;
  other.ffn = 4096;
  other.max_positions = 4096;
  const Model again = parse_model(config_like("gpt2", other), "config.json", "gpt2");
  EXPECT_EQ(differences(again, other), std::vector<std::string>{"position=rope"});
  EXPECT_EQ(differences(gpt2, other).size(), 6u);
}

TEST(Models, fields_of_experts_and_latents_can_be_overridden) {
  const Model deepseek = load_model("deepseek-v3");
  EXPECT_EQ(apply_override(deepseek, {"layers", "2"}).has_experts(1), false);
  EXPECT_EQ(apply_override(deepseek, {"heads", "64"}).kv_heads, 64);
  EXPECT_EQ(apply_override(deepseek, {"dense_layers", "[9,7]"}).dense_layers,
            (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(apply_override(deepseek, {"experts", "64"}).experts, 64);
  EXPECT_TRUE(holds(error_of([&] { apply_override(deepseek, {"experts", "4"}); }),
                    "experts_per_token is 8 of 4"));
  EXPECT_TRUE(holds(error_of([] { apply_override(load_model("gpt2"), {"experts", "4"}); }),
                    "gpt2 has no experts"));
}

TEST(Models, head_groups_that_do_not_divide_are_refused) {
  Json config = llama_config();
  config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 3;
  EXPECT_TRUE(holds(error_of([&] { parse_config(config); }), "4 heads cannot share 3 kv_heads"));
}

TEST(Models, impossibly_large_models_are_refused_before_anything_overflows) {
  Json config = llama_config();
  config["num_hidden_layers"] = 16384;
  config["hidden_size"] = 4194304;
  config["intermediate_size"] = 4194304;
  EXPECT_TRUE(holds(error_of([&] { parse_config(config); }), "parameters"));
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
  const profile_tests::TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("my-model"));
  profile_tests::write_file(folder.file("my-model/config.json"), gpt2_config().dump());
  profile_tests::write_file(folder.file("other.json"), gpt2_config().dump());
  EXPECT_EQ(load_model(folder.file("my-model")).name, "my-model");
  EXPECT_EQ(load_model(folder.file("my-model/config.json")).name, "my-model");
  EXPECT_EQ(load_model(folder.file("other.json")).name, "other");
  EXPECT_EQ(load_model("gpt2").name, "gpt2");
  EXPECT_TRUE(holds(error_of([] { load_model("gpt3"); }), "did you mean 'gpt2'"));
  EXPECT_TRUE(holds(error_of([&] { load_model(folder.file("no.json")); }), "no such file"));
}

}  // namespace
}  // namespace ballast
