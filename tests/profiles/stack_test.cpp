// Stack files: what they may say, and that they come back as they were.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;
using testing::error_of;
using testing::holds;

// Every fact and constant away from its default.
Stack unusual() {
  Stack stack;
  stack.name = "odd";
  stack.description = "d";
  stack.source = "s";
  stack.facts.attention = {AttentionKind::kEager, AttentionKind::kFlash};
  stack.facts.dropout = true;
  stack.facts.fusion = Fusion::kNone;
  stack.facts.recomputes_whole_layer = true;
  stack.facts.loss = LossPrecision::kF32Copies;
  stack.facts.loss_chunks = 4;
  stack.facts.widens_gradients = true;
  stack.facts.returns_weights_whole = true;
  stack.facts.recomputes_by_module = true;
  stack.facts.casts_on_arrival = true;
  stack.facts.casts_through_pageable = true;
  stack.facts.stage3_copies_by_tensor = true;
  stack.facts.accumulates_on_cpu = true;
  stack.facts.torch_adam_threads = 2;
  stack.facts.splits_norms_by_token = false;
  stack.facts.separate_unscale = true;
  stack.facts.pinned_power_of_two = true;
  stack.facts.copies_gradients_to_buckets = true;
  stack.facts.pure_16_bit_on_one_device = true;
  stack.facts.gradients = GradientPrecision::kF32;
  stack.facts.reduction = GradientPrecision::kF32;
  stack.facts.gradient_overlap = Overlap::kPartial;
  stack.facts.weight_overlap = Overlap::kNone;
  stack.facts.tensor_overlap = Overlap::kFull;
  stack.facts.pipeline_overlap = Overlap::kNone;
  stack.facts.least_zero_stage = 1;
  stack.facts.most_zero_stage = 2;
  stack.constants = {0.5, 0.6, 0.7, 0.8, Duration::from_us(3), 0.1};
  stack.fitted = {"gemm_share", "launch_us"};
  stack.fitted_on = {"case-1"};
  return stack;
}

void expect_same(const Stack& a, const Stack& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.description, b.description);
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.facts, b.facts);
  EXPECT_EQ(a.constants, b.constants);
  EXPECT_EQ(a.fitted, b.fitted);
  EXPECT_EQ(a.fitted_on, b.fitted_on);
}

TEST(Stacks, every_fact_and_constant_survives_a_round_trip) {
  expect_same(parse_stack(stack_json(unusual()), "f", "odd"), unusual());
  const testing::TemporaryFolder folder;
  save_stack(unusual(), folder.file("odd.json"));
  expect_same(load_stack(folder.file("odd.json")), unusual());
}

TEST(Stacks, absent_fact_has_its_default) {
  Json json = Json::parse(stack_json(unusual()));
  json["facts"] = Json::object();
  EXPECT_EQ(parse_stack(json.dump(), "f", "odd").facts, StackFacts{});
}

TEST(Stacks, wrong_values_name_the_file_and_the_key) {
  struct Change {
    const char* pointer;
    Json value;
    const char* message;
  };
  const Change changes[] = {
      {"/facts/attention", {"flesh2"}, "did you mean 'flash2'"},
      {"/facts/attention", "eager", "must be a list"},
      {"/facts/attention", Json::array(), "names no kind"},
      {"/facts/dropout", 1, "key 'facts.dropout'"},
      {"/facts/dropot", true, "did you mean 'dropout'"},
      {"/facts/most_zero_stage", 0, "zero_stages"},
      {"/facts/most_zero_stage", 4, "key 'facts.most_zero_stage'"},
      {"/facts/gradient_overlap", "some", "'facts.gradient_overlap': is 'some'"},
      {"/constants/gemm_share", 0, "gemm_share"},
      {"/constants/gem_share", 0.5, "key 'constants.gem_share'"},
      {"/fitted", {"gem_share"}, "did you mean 'gemm_share'"},
      {"/schema", "ballast.plan/1", "key 'schema'"}};
  for (const Change& change : changes) {
    Json json = Json::parse(stack_json(unusual()));
    json[Pointer(change.pointer)] = change.value;
    const std::string message = error_of([&] { parse_stack(json.dump(), "f.json", "odd"); });
    EXPECT_TRUE(holds(message, change.message)) << change.pointer;
  }
}

TEST(Stacks, each_constant_is_required) {
  const Json whole = Json::parse(stack_json(unusual()));
  for (int i = 0; i < kStackConstants; ++i) {
    Json json = whole;
    json["constants"].erase(std::string(constant_name(i)));
    EXPECT_TRUE(holds(error_of([&] { parse_stack(json.dump(), "f", "odd"); }), "is missing"));
  }
}

TEST(Stacks, unknown_name_comes_with_the_nearest) {
  EXPECT_TRUE(holds(error_of([] { load_stack("megatron-2020"); }), "did you mean 'megatron-202"));
}

}  // namespace
}  // namespace ballast
