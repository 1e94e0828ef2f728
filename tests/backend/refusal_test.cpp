// Models that are predicted but not trained here: refused in one line that says why.
#include <gtest/gtest.h>

#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

std::string refusal_of(const Model& model, const Plan& plan = tiny::wait_plan()) {
  try {
    Trainer trainer(model, plan, tiny::options_for(8));
  } catch (const Error& error) {
    return error.what();
  }
  return "it trains";
}

Model with_experts(const std::string& architecture) {
  Model model = tiny::llama_model();
  model.architecture = architecture;
  model.experts = 4;
  model.experts_per_token = 2;
  model.expert_ffn = 32;
  return model;
}

TEST(refusals, every_family_beyond_the_host_device_is_named_with_its_reason) {
  EXPECT_EQ(refusal_of(tiny::llama_model()), "it trains");
  Model qwen3 = tiny::llama_model();
  qwen3.architecture = "qwen3";
  qwen3.qk_norm = true;
  Model llama3 = tiny::llama_model();
  llama3.scaled_rope = true;
  Model latent = tiny::llama_model();
  latent.architecture = "deepseek_v3";
  latent.kv_heads = latent.heads;
  latent.kv_rank = 8;
  latent.rope_size = 4;
  latent.value_size = 8;
  const std::pair<Model, const char*> refused[] = {
      {qwen3, "normalise q and k"},           {llama3, "scaled rotary positions"},
      {latent, "latent attention"},           {with_experts("mixtral"), "experts"},
      {with_experts("qwen3_moe"), "experts"}, {with_experts("gpt_oss"), "experts"}};
  for (const auto& [model, reason] : refused) {
    const std::string message = refusal_of(model);
    EXPECT_NE(message.find(reason), std::string::npos) << model.architecture << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(refusals, products_in_fp8_are_for_gpus) {
  Plan plan = tiny::wait_plan();
  plan.sequence_length = 16;
  plan.products = ProductFormat::kFp8;
  EXPECT_EQ(
      refusal_of(tiny::llama_model(), plan),
      "plan.products: matrix products in fp8, which the host device does not carry out; train "
      "on a GPU of compute capability 8.9 or newer (--device cuda:0), or set "
      "plan.products=as-stored");
}

}  // namespace
}  // namespace ballast
