#include "sim/spec/model.h"

#include <gtest/gtest.h>
#include <map>

#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

// C=8, H=2 of 4, F=32; 4 experts of 6, of which a token visits 2.
Model with_experts(const std::string& architecture) {
  Model model = tiny::model();
  model.architecture = architecture;
  model.experts = 4;
  model.experts_per_token = 2;
  model.expert_ffn = 6;
  return model;
}

// Layer 0 dense, layer 1 with 4 experts and 2 shared ones; heads of 4 + 2, values of 3.
Model deepseek() {
  Model model = with_experts("deepseek_v3");
  model.shared_experts = 2;
  model.first_dense_layers = 1;
  model.router_bias = true;
  model.query_rank = 5;
  model.kv_rank = 7;
  model.rope_size = 2;
  model.head_size = 6;
  model.value_size = 3;
  return model;
}

Model gpt_oss() {
  Model model = with_experts("gpt_oss");
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.router_bias = model.attention_sinks = true;
  return model;
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes shapes_of(const Model& model) {
  Shapes shapes;
  for (const Module& module : modules_of(model)) {
    for (const Parameter& parameter : module.parameters) {
      EXPECT_TRUE(shapes.emplace(parameter.name, parameter.shape()).second) << parameter.name;
    }
  }
  return shapes;
}

std::vector<std::string> names_of(const Model& model, ModuleKind kind, int64_t layer) {
  std::vector<std::string> names;
  for (const Module& module : modules_of(model)) {
    if (module.kind != kind || module.layer != layer) continue;
    for (const Parameter& parameter : module.parameters) names.push_back(parameter.name);
  }
  return names;
}

// Of every matrix that a product stands for, in every module: what modules_of() allocates.
int64_t weights_in_products(const Model& model) {
  int64_t sum = 0;
  for (const Module& module : modules_of(model)) {
    if (module.kind == ModuleKind::kHead && model.tied_embeddings) continue;
    for (const Product& product : products_of(model, module.kind, module.layer)) {
      sum += product.in * product.out * product.copies;
    }
  }
  return sum;
}

int64_t weights_in_modules(const Model& model) {
  int64_t sum = 0;
  for (const Module& module : modules_of(model)) {
    if (module.kind == ModuleKind::kEmbedding) continue;
    for (const Parameter& parameter : module.parameters) {
      if (parameter.is_matrix) sum += parameter.count();
    }
  }
  return sum;
}

// Embedding 16x8; a layer: norms 2x8, qkv 3x8x8, out 8x8, fc1 2x32x8, fc2 8x32; final norm 8, head
// 16x8: 128 + 2 x (16 + 192 + 64 + 512 + 256) + 8 + 128.
TEST(modules_of, counts_every_parameter_of_a_small_llama) {
  EXPECT_EQ(parameter_count(tiny::model()), 128 + 2 * (16 + 192 + 64 + 512 + 256) + 8 + 128);
}

// Norms 16, qkv 192, out 64, router 4x8, experts 4 x 3 x 6x8 in each of the two layers; outside the
// layers 128 + 8 + 128. Of the 4 experts a token leaves 2 idle: 2 x 144 a layer.
TEST(modules_of, counts_every_parameter_of_a_small_mixtral) {
  const Model model = with_experts("mixtral");
  EXPECT_EQ(parameter_count(model), 264 + 2 * (16 + 192 + 64 + 32 + 4 * 144));
  EXPECT_EQ(active_parameter_count(model), 264 + 2 * (16 + 192 + 64 + 32 + 2 * 144));
  EXPECT_EQ(names_of(model, ModuleKind::kRouter, 1),
            std::vector<std::string>{"model.layers.1.block_sparse_moe.gate.weight"});
  const Shapes shapes = shapes_of(model);
  EXPECT_EQ(shapes.at("model.layers.0.block_sparse_moe.experts.3.w1.weight"),
            (std::vector<int64_t>{6, 8}));
  EXPECT_EQ(shapes.at("model.layers.0.block_sparse_moe.experts.3.w2.weight"),
            (std::vector<int64_t>{8, 6}));
}

// Attention: q 8x5 + 5 + 5x12, kv 8x9 + 7 + 7x(2 x 7), out 6x8: 40 + 5 + 60 + 72 + 7 + 98 + 48 =
// 330. Feed-forward: dense 3 x 8x32 = 768; with experts 4x8 + 4, 4 x 144, shared 3 x 8x12 = 288.
TEST(modules_of, counts_every_parameter_of_a_small_deepseek) {
  const Model model = deepseek();
  EXPECT_EQ(parameter_count(model), 264 + 2 * (16 + 330) + 768 + 36 + 576 + 288);
  EXPECT_EQ(active_parameter_count(model), 264 + 2 * (16 + 330) + 768 + 36 + 288 + 288);
  const std::string attention = "model.layers.0.self_attn.";
  EXPECT_EQ(names_of(model, ModuleKind::kQkv, 0),
            (std::vector<std::string>{
                attention + "q_a_proj.weight", attention + "q_a_layernorm.weight",
                attention + "q_b_proj.weight", attention + "kv_a_proj_with_mqa.weight",
                attention + "kv_a_layernorm.weight", attention + "kv_b_proj.weight"}));
  EXPECT_TRUE(names_of(model, ModuleKind::kRouter, 0).empty());
  EXPECT_EQ(names_of(model, ModuleKind::kRouter, 1),
            (std::vector<std::string>{"model.layers.1.mlp.gate.weight",
                                      "model.layers.1.mlp.gate.e_score_correction_bias"}));
  Model direct = model;  // queries straight from the hidden state: 8x12 instead of 40 + 5 + 60
  direct.query_rank = 0;
  EXPECT_EQ(parameter_count(direct), parameter_count(model) + 2 * (96 - 105));
}

// A layer: norms 16, qkv 192 + 24, sinks 2, out 64 + 8, router 32 + 4, experts 4 x (8x12 + 12) and
// 4 x (6x8 + 8).
TEST(modules_of, counts_every_parameter_of_a_small_gpt_oss) {
  const Model model = gpt_oss();
  EXPECT_EQ(parameter_count(model), 264 + 2 * (16 + 216 + 2 + 72 + 36 + 4 * 108 + 4 * 56));
  EXPECT_EQ(active_parameter_count(model), parameter_count(model) - 2 * (2 * 108 + 2 * 56));
  const Shapes shapes = shapes_of(model);
  const std::string experts = "model.layers.1.mlp.experts.";
  EXPECT_EQ(shapes.at(experts + "gate_up_proj"), (std::vector<int64_t>{4, 8, 12}));
  EXPECT_EQ(shapes.at(experts + "gate_up_proj_bias"), (std::vector<int64_t>{4, 12}));
  EXPECT_EQ(shapes.at(experts + "down_proj"), (std::vector<int64_t>{4, 6, 8}));
  EXPECT_EQ(shapes.at(experts + "down_proj_bias"), (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.sinks"), (std::vector<int64_t>{2}));
}

// Of layers 0 to 7 every second has experts (1, 3, 5, 7), and 3 is told to have none.
TEST(modules_of, only_layers_with_experts_have_a_router) {
  Model model = with_experts("qwen3_moe");
  model.layers = 8;
  model.sparse_step = 2;
  model.dense_layers = {0, 3};
  std::vector<int64_t> routed;
  for (const Module& module : modules_of(model)) {
    if (module.kind == ModuleKind::kRouter) routed.push_back(module.layer);
  }
  EXPECT_EQ(routed, (std::vector<int64_t>{1, 5, 7}));
  EXPECT_EQ(model.ffn_width(0), 32);
  EXPECT_EQ(model.ffn_width(1), 12);
  EXPECT_EQ(model.fc1_width(1), 24);
}

TEST(modules_of, flat_offsets_and_parameters_follow_one_another) {
  int64_t end = 0;
  for (const Model& model : {tiny::model(), with_experts("mixtral"), deepseek(), gpt_oss()}) {
    end = 0;
    for (const Module& module : modules_of(model)) {
      EXPECT_EQ(module.flat_offset, end);
      int64_t inside = 0;
      for (const Parameter& parameter : module.parameters) {
        EXPECT_EQ(parameter.offset, inside);
        inside += parameter.count();
      }
      EXPECT_EQ(inside, module.count);
      end += module.count;
    }
    EXPECT_EQ(end, parameter_count(model));
  }
}

TEST(products_of, hold_every_matrix_of_every_family_once) {
  for (const Model& model :
       {tiny::model(), with_experts("mixtral"), with_experts("qwen3_moe"), deepseek(), gpt_oss()}) {
    EXPECT_EQ(weights_in_products(model), weights_in_modules(model)) << model.architecture;
  }
}

TEST(products_of, routed_and_shared_experts_are_apart) {
  const std::vector<Product> products = products_of(deepseek(), ModuleKind::kFc1, 1);
  ASSERT_EQ(products.size(), 2u);
  EXPECT_EQ(products[0].in, 8);
  EXPECT_EQ(products[0].out, 12);
  EXPECT_EQ(products[0].copies, 4);
  EXPECT_EQ(products[0].active, 2);
  EXPECT_EQ(products[1].out, 24);
  EXPECT_EQ(products[1].copies, 1);
  EXPECT_EQ(products_of(deepseek(), ModuleKind::kQkv, 0).size(), 4u);
  EXPECT_TRUE(products_of(deepseek(), ModuleKind::kRouter, 0).empty());
}

// A token multiplies with 2176 - 128 - 2 x 16 - 8 weights of the tiny llama (all but embedding and
// norms): 2 x 1024 + 128 = 2176 with the head. Attention: 2 layers x 2 heads x 4 x S.
TEST(model_flops, of_a_dense_model_are_six_a_weight_and_token) {
  EXPECT_EQ(model_flops_per_step(tiny::model(), 16, 4).count, 6.0 * 16 * (2176 + 2 * 8 * 4));
}

// Of the mixtral's 4 experts 2 count: per layer 192 + 64 + 32 + 2 x 144.
TEST(model_flops, count_active_experts_only) {
  EXPECT_EQ(model_flops_per_step(with_experts("mixtral"), 16, 4).count,
            6.0 * 16 * (2 * (192 + 64 + 32 + 288) + 128 + 2 * 8 * 4));
}

// Latent attention: scores have heads of 6, values of 3: (12 + 6) / 2 a layer and position.
// Weights: qkv 270 + out 48 a layer, 768, and 32 + 288 + 288, head 128.
TEST(model_flops, of_latent_attention_take_both_head_sizes) {
  EXPECT_EQ(model_flops_per_step(deepseek(), 16, 4).count,
            6.0 * 16 * (2 * 318 + 768 + 608 + 128 + 2 * 9 * 4));
}

// Layer 0 sees 2 of up to 8 positions: 1 + 2 x 7 of 36 pairs, in the continuum 2 x 2 - 4 / 8 = 3.5
// where layer 1 has 8.
TEST(model_flops, a_window_saves_attention_in_its_layers) {
  Model model = gpt_oss();
  const double full = model_flops_per_step(model, 16, 8).count;
  model.sliding_window = 2;
  model.full_attention_period = 2;
  EXPECT_EQ(model.window_of(0), 2);
  EXPECT_EQ(model.window_of(1), 0);
  EXPECT_EQ(full - model_flops_per_step(model, 16, 8).count, 6.0 * 16 * 8 * (8 - 3.5));
  model.sliding_window = 8;
  EXPECT_EQ(full, model_flops_per_step(model, 16, 8).count);
}

TEST(check_model, refuses_impossible_sizes_with_the_field_named) {
  const auto refused = [](auto change, const std::string& field) {
    Model model = tiny::model();
    change(model);
    try {
      check(model);
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  };
  refused([](Model& m) { m.layers = 0; }, "layers");
  refused([](Model& m) { m.hidden = -8; }, "hidden");
  refused([](Model& m) { m.kv_heads = 3; }, "kv_heads");
  refused([](Model& m) { m.head_size = 3; }, "head_size");
  refused([](Model& m) { m.vocab = int64_t{1} << 40; }, "out of range");
  refused([](Model& m) { m.norm_epsilon = 0; }, "epsilon");
  refused([](Model& m) { m.layers = 1 << 20; }, "layers");
  refused([](Model& m) { m.hidden = m.ffn = m.vocab = int64_t{1} << 26; }, "parameters");
  refused([](Model& m) { m.experts = 4; }, "llama has no experts");
  refused([](Model& m) { m.kv_rank = 4; }, "kv_rank");
  refused([](Model& m) { m.rope_size = 4; }, "without kv_rank");
  refused([](Model& m) { m.sliding_window = -1; }, "sliding_window");
}

TEST(check_model, refuses_impossible_experts_and_latents_with_the_field_named) {
  const auto refused = [](const Model& whole, auto change, const std::string& field) {
    EXPECT_NO_THROW(check(whole));
    Model model = whole;
    change(model);
    try {
      check(model);
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  };
  const Model mixtral = with_experts("mixtral");
  refused(
      mixtral, [](Model& m) { m.experts = 0; }, "experts is 0");
  refused(
      mixtral, [](Model& m) { m.experts = -1; }, "experts is -1");
  refused(
      mixtral, [](Model& m) { m.experts = int64_t{1} << 40; }, "out of range");
  refused(
      mixtral, [](Model& m) { m.experts_per_token = 5; }, "experts_per_token is 5 of 4");
  refused(
      mixtral, [](Model& m) { m.experts_per_token = 0; }, "experts_per_token");
  refused(
      mixtral, [](Model& m) { m.expert_ffn = 0; }, "expert_ffn");
  refused(
      mixtral, [](Model& m) { m.shared_experts = 1; }, "shared_experts");
  refused(
      mixtral, [](Model& m) { m.first_dense_layers = 1; }, "first_dense_layers");
  refused(
      mixtral, [](Model& m) { m.sparse_step = 0; }, "sparse_step");
  refused(
      with_experts("qwen3_moe"),
      [](Model& m) {
        m.dense_layers = {1, 0};
      },
      "dense_layers");
  refused(
      deepseek(), [](Model& m) { m.kv_rank = 0; }, "kv_rank");
  refused(
      deepseek(), [](Model& m) { m.kv_heads = 1; }, "kv_heads");
  refused(
      deepseek(), [](Model& m) { m.rope_size = 3; }, "rope_size");
  refused(
      deepseek(), [](Model& m) { m.rope_size = 6; }, "rope_size");
  refused(
      deepseek(), [](Model& m) { m.value_size = 0; }, "value_size");
}

TEST(check_plan, refuses_what_cannot_be_run_with_the_knob_named) {
  const auto refused = [](auto change, const std::string& knob) {
    Plan plan = tiny::plan();
    change(plan);
    try {
      check(plan, tiny::model());
      ADD_FAILURE() << knob;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(knob), std::string::npos) << error.what();
    }
  };
  refused([](Plan& p) { p.global_batch = 0; }, "global_batch");
  refused([](Plan& p) { p.micro_batch = 3; }, "micro_batch");
  refused([](Plan& p) { p.sequence_length = -1; }, "sequence_length");
  refused([](Plan& p) { p.weights.flow_share = 1.5; }, "flow_share");
  refused([](Plan& p) { p.optimizer.bucket_bytes = {0}; }, "bucket_bytes");
  refused([](Plan& p) { p.optimizer.stream_share = 2; }, "stream_share");
  refused([](Plan& p) { p.optimizer.moments = DType::kF16; }, "moments");
  refused([](Plan& p) { p.devices = 2; }, "data");
  refused(
      [](Plan& p) {
        p.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kRecompute;
      },
      "fc2");
  EXPECT_NO_THROW(check(tiny::plan(), tiny::model()));
}

}  // namespace
}  // namespace ballast
