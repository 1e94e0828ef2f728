// Layers with experts and the other parts of newer families: routing by hand, weights in files, and
// training on text beside a dense model.
#include <cmath>
#include <gtest/gtest.h>
#include <map>
#include <numeric>

#include "backend/formats/safetensors.h"
#include "backend/host/experts/transformer_experts.h"
#include "profiles/load.h"
#include "tests/backend/decoder.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

using transformer::Array;
using transformer::array_of;
using transformer::values_of;
using transformer::zeros;

Model router_of(int64_t experts, int64_t per_token) {
  Model model = tiny::mixtral({});
  model.experts = experts;
  model.experts_per_token = per_token;
  return model;
}

std::vector<int32_t> chosen(const Model& model, const std::vector<double>& scores,
                            const std::vector<double>& params = {}) {
  const int64_t tokens = std::ssize(scores) / model.experts;
  const Array routed = array_of(scores, DType::kF64, tokens, model.experts);
  const Array with = array_of(params, DType::kF64, 1, std::ssize(params));
  Array choice = zeros(DType::kI32, tokens, model.experts_per_token);
  choose_experts(model, routed.view(), with.view(), choice.view());
  const auto* ids = reinterpret_cast<const int32_t*>(choice.bytes.data());
  return {ids, ids + choice.count()};
}

using Ids = std::vector<int32_t>;

TEST(experts, the_largest_scores_are_chosen_best_first_and_of_equal_ones_the_lowest) {
  EXPECT_EQ(chosen(router_of(4, 2), {0, 3, 1, 2, 5, 5, 5, 5, -1, -2, -1, 0}),
            (Ids{1, 3, 0, 1, 3, 0}));
}

// Sums of the sigmoids of four groups of two: 1.833, 1.462, 0.238 and 1.000.
TEST(experts, a_sigmoid_router_chooses_out_of_the_best_groups_by_corrected_scores) {
  Model model = router_of(8, 3);
  model.router = RouterKind::kSigmoid;
  model.expert_groups = 4;
  model.chosen_groups = 2;
  const std::vector<double> scores = {3, 2, 1, 1, -2, -2, 4, -4};
  EXPECT_EQ(chosen(model, scores), (Ids{0, 1, 2}));  // though expert 6 has the largest score
  model.chosen_groups = 1;
  model.experts_per_token = 2;
  EXPECT_EQ(chosen(model, scores), (Ids{0, 1}));
  model.router_bias = true;
  std::vector<double> params(static_cast<size_t>(model.hidden * 8 + 8), 0.0);
  params[static_cast<size_t>(model.hidden * 8)] = -1;
  EXPECT_EQ(chosen(model, scores, params), (Ids{2, 3}));  // group 0 has 0.833 left
}

TEST(experts, rows_lie_one_expert_after_another_in_the_order_of_tokens) {
  const Model model = router_of(3, 2);
  const std::vector<int32_t> ids = {2, 0, 0, 1, 2, 1};
  const transformer::ConstView choice(ids.data(), DType::kI32, 3, 2);
  const transformer::ExpertRows rows = expert_rows(model, choice);
  EXPECT_EQ(std::vector<int64_t>(rows.first, rows.first + 4), (std::vector<int64_t>{0, 2, 4, 6}));
  EXPECT_EQ(std::vector<int64_t>(rows.of_token, rows.of_token + 6),
            (std::vector<int64_t>{4, 0, 1, 2, 5, 3}));
  const Array x = array_of(std::vector<double>{10, 20, 30}, DType::kF64, 3, 1);
  Array sent = zeros(DType::kF64, 6, 1);
  send_rows(rows, x.view(), sent.view());
  EXPECT_EQ(values_of(sent), (std::vector<double>{10, 20, 20, 30, 10, 30}));
  Array sum = zeros(DType::kF64, 3, 1);
  sum_rows(rows, sent.view(), x.view(), sum.view());
  EXPECT_EQ(values_of(sum), (std::vector<double>{30, 60, 90}));
}

// Scores whose exponentials are 1, 2 and 5.
TEST(experts, weights_of_a_choice_by_hand) {
  const std::vector<double> scores = {std::log(1.0), std::log(2.0), std::log(5.0)};
  const Array routed = array_of(scores, DType::kF64, 1, 3);
  const std::vector<int32_t> ids = {2, 1};
  const transformer::ConstView choice(ids.data(), DType::kI32, 1, 2);
  const auto expect = [&](const Model& model, double first, double second) {
    const double* weights = transformer::choice_weights<double>(model, routed.view(), choice);
    EXPECT_NEAR(weights[0], first, 1e-15);
    EXPECT_NEAR(weights[1], second, 1e-15);
  };
  Model model = router_of(3, 2);
  expect(model, 5.0 / 7, 2.0 / 7);
  model.normalised_choice = false;
  expect(model, 5.0 / 8, 2.0 / 8);
  model.router = RouterKind::kSigmoid;  // x / (1 + x)
  expect(model, 5.0 / 6, 2.0 / 3);
  model.normalised_choice = true;
  model.routed_scale = 3;
  expect(model, 5.0 / 3, 4.0 / 3);
}

// Two tokens of two experts, both to expert 0, with probabilities 3/4 and 1/4: 2 experts times
// (2/2 * 3/4 + 0). Spread evenly it would be 1.
TEST(experts, the_loss_that_balances_by_hand) {
  Model model = router_of(2, 1);
  model.balance_loss = 0.5;
  const double three = std::log(3.0);
  const Array scores = array_of(std::vector<double>{three, 0, three, 0}, DType::kF64, 2, 2);
  const std::vector<int32_t> ids = {0, 0};
  const transformer::ConstView choice(ids.data(), DType::kI32, 2, 1);
  std::vector<double> balance(4, 77.0);
  add_balance(model, scores.view(), choice, true, balance.data());
  EXPECT_NEAR(transformer::balance_loss(model, 2, 1.0, balance.data()), 0.5 * 2 * 0.75, 1e-15);
  EXPECT_NEAR(balance[2], 0.5 * 2 * 2 / 4.0, 1e-15);
  EXPECT_EQ(balance[3], 0.0);
}

TEST(experts, weights_go_out_and_come_in_under_the_names_and_shapes_of_checkpoints) {
  for (const Model& model : tiny::newer_models()) {
    const TemporaryFolder folder;
    const std::string path = folder / "weights.safetensors";
    TrainerOptions options = tiny::options_for(3);
    Trainer first(model, tiny::wait_plan(), options);
    first.train(3, nullptr);
    first.export_weights(path);
    const SafetensorsReader reader(path);
    size_t parameters = 0;
    for (const Module& module : modules_of(model)) {
      for (const Parameter& parameter : module.parameters) {
        EXPECT_EQ(reader.at(parameter.name).shape, parameter.shape()) << parameter.name;
        ++parameters;
      }
    }
    EXPECT_EQ(reader.tensors().size(), parameters);
    options.initial_weights = path;
    Plan plan = tiny::wait_plan();
    plan.optimizer.sync = SyncMode::kSpeculate;
    Trainer second(model, plan, options);
    EXPECT_TRUE(tiny::same_bits(first.parameters(), second.parameters())) << model.name;
    EXPECT_EQ(first.validation_loss(2), second.validation_loss(2)) << model.name;
  }
}

// What transformers wrote (scripts/make_reference.py) has the tensors that we write, no more.
TEST(experts, checkpoints_of_transformers_have_the_same_names_and_shapes) {
  for (const char* name : {"qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    const std::string path = std::string(BALLAST_SOURCE_DIR "/tests/data/reference_") + name;
    const SafetensorsReader reader(path + ".safetensors");
    const Model model = load_model(path + ".json");
    size_t parameters = 0;
    for (const Module& module : modules_of(model)) {
      for (const Parameter& parameter : module.parameters) {
        EXPECT_EQ(reader.at(parameter.name).shape, parameter.shape()) << parameter.name;
        EXPECT_EQ(reader.at("gradient." + parameter.name).shape, parameter.shape());
        ++parameters;
      }
    }
    EXPECT_EQ(reader.tensors().size(), 2 * parameters + 3) << name;  // tokens, logits, loss
  }
}

// The mean loss of the first and of the last ten of 200 steps.
std::pair<double, double> losses_of(const Model& model) {
  constexpr int64_t kSteps = 200;
  const tiny::Outcome outcome =
      tiny::train(model, tiny::wait_plan(DType::kF32), tiny::options_for(kSteps), kSteps, false);
  const auto mean = [&](size_t begin) {
    double sum = 0;
    for (size_t i = begin; i < begin + 10; ++i) sum += outcome.records[i].loss;
    return sum / 10;
  };
  return {mean(0), mean(outcome.records.size() - 10)};
}

TEST(experts, two_hundred_steps_on_text_fall_like_those_of_a_dense_model) {
  const auto [dense_first, dense_last] = losses_of(tiny::llama_model());
  std::printf("%s: %.3f to %.3f\n", tiny::llama_model().name.c_str(), dense_first, dense_last);
  for (const Model& model : tiny::newer_models()) {
    const auto [first, last] = losses_of(model);
    std::printf("%s: %.3f to %.3f\n", model.name.c_str(), first, last);
    EXPECT_GT(first - last, 0.9 * (dense_first - dense_last)) << model.name;
  }
}

}  // namespace
}  // namespace ballast
