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

TEST(refusals, every_family_beyond_the_host_device_is_named_with_its_reason) {
  EXPECT_EQ(refusal_of(tiny::llama_model()), "it trains");
  for (const Model& model : tiny::newer_models()) EXPECT_EQ(refusal_of(model), "it trains");
  Model llama3 = tiny::llama_model();
  llama3.scaled_rope = true;
  const std::string message = refusal_of(llama3);
  EXPECT_NE(message.find("scaled rotary positions"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

// Each stage would count the tokens of its own layers.
TEST(refusals, loss_that_balances_experts_is_not_split_over_stages) {
  Plan two = tiny::wait_plan();
  two.pipeline = two.devices = 2;
  for (Model model : tiny::newer_models()) {
    if (model.experts == 0 || model.router == RouterKind::kSigmoid) continue;
    model.balance_loss = 0;
    EXPECT_EQ(refusal_of(model, two), "it trains") << model.name;
    model.balance_loss = 0.01;
    EXPECT_EQ(refusal_of(model), "it trains") << model.name;
    const std::string message = refusal_of(model, two);
    EXPECT_TRUE(message.starts_with("plan.pipeline: ")) << message;
    EXPECT_NE(message.find("balances experts"), std::string::npos) << message;
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
