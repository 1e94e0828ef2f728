// Stack files: what they may say, and that they come back as they were.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "profiles/shipped.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;
using profile_tests::error_of;
using profile_tests::holds;

void set_unusual_sending(StackFacts& facts) {
  facts.sends_wide_gradients = facts.stage3_returns_gradients = true;
  facts.stage3_sending = Stage3Sending::kWaited;
  facts.speculative_sending = SpeculativeSending::kTwice;
  facts.sent_norm_bytes = 18;
  facts.sent_overflow_bytes = 36;
  facts.step_copy_bytes = 8;
}

void set_unusual_positions(StackFacts& facts) {
  facts.rotary_bytes = 24;
  facts.rotary_backward_bytes = 36;
  facts.yarn_bytes = 20;
  facts.yarn_backward_bytes = 22;
  facts.score_bytes = 4;
}

// The rest of what unusual_stack() says.
void set_unusual_gradients_and_peaks(StackFacts& facts) {
  facts.loss_bytes = 52;
  facts.keeps_gate = true;
  facts.joins_gate = true;
  facts.norm_bytes = 12;
  facts.norm_backward_bytes = 28;
  facts.repeats_norms = true;
  facts.multiplies_by_expert = true;
  facts.sends_tokens_once = true;
  facts.once_multiprocessors = 32;
  facts.keeps_experts_whole = true;
  facts.norms_find_largest = true;
  facts.reads_routing = true;
  facts.sort_bytes = 8;
  facts.padding_bytes = 4;
  facts.query_bytes = 4;
  facts.key_bytes = 12;
  facts.query_backward_bytes = 8;
  facts.key_backward_bytes = 10;
  facts.interleaves = false;
  facts.balances_stages = true;
  facts.loads_whole_model = true;
  facts.where_offloaded.facts = std::make_shared<const StackFacts>();
  facts.gathers_logits = true;
  facts.adds_gradients_apart = true;
  facts.accumulate_bytes = 6;
  facts.sums_whole_gradients = true;
  facts.reduces_whole = true;
  facts.copies_gathered_by_tensor = true;
  facts.broadcasts_shares = true;
  facts.reduce_buffer_elements = 1000;
  facts.reduce_bytes = 12;
  facts.wide_reduce_bytes = 18;
  facts.gather_bytes = 4;
  facts.step_bytes = 72;
  facts.stage3_step_bytes = 60;
  facts.overflow_bytes = 36;
  facts.stage3_overflow_bytes = 20;
  facts.live_elements = 1000;
  facts.keeps_gradient_buffer = true;
  facts.holds_sent_gradients = true;
  facts.keeps_wide_norms = true;
  facts.keeps_repeated_heads = true;
  facts.repeats_keys_values = true;
  facts.exchange_bytes = 4;
  facts.return_bytes = 16;
  facts.return_core_percent = 20;
  set_unusual_positions(facts);
  facts.query_bytes = 24;
  facts.query_backward_bytes = 12;
  facts.activation_bytes = 46;
  facts.activation_backward_bytes = 92;
  set_unusual_sending(facts);
  facts.speculates_in_stage3 = true;
  facts.undoes_by_arithmetic = true;
  facts.scatters_by_bucket = true;
  facts.prints_allocated = true;
  facts.prints_gib = true;
}

// Every fact and constant away from its default.
StackConstants unusual_constants() {
  StackConstants constants;
  constants.gemm = 0.5;
  constants.attention = 0.6;
  constants.elementwise = 0.7;
  constants.node_collective = 0.8;
  constants.network_collective = 0.85;
  constants.launch = Duration::from_us(3);
  constants.expert_launch = Duration::from_us(70);
  constants.memory_slack = 0.1;
  constants.cpu = 0.9;
  constants.sustained_gemm = {{"hopper", 0.875}};
  return constants;
}

Stack unusual_stack() {
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
  stack.facts.logits_multiple = 16;
  stack.facts.widens_gradients = true;
  stack.facts.returns_weights_whole = true;
  stack.facts.recomputes_by_module = true;
  stack.facts.casts_through_pageable = true;
  stack.facts.stage3_copies_by_tensor = true;
  stack.facts.accumulates_on_cpu = true;
  stack.facts.torch_adam_threads = 2;
  stack.facts.splits_norms_by_token = false;
  stack.facts.separate_unscale = true;
  stack.facts.pinned_power_of_two = true;
  stack.facts.copies_gradients_to_buckets = true;
  stack.facts.buckets_at_stage_0_alone = true;
  stack.facts.pure_16_bit = true;
  stack.facts.clamp_bytes = 8;
  stack.facts.clamp_backward_bytes = 10;
  stack.facts.expert_bias_bytes = 12;
  stack.facts.expert_bias_backward_bytes = 16;
  stack.facts.bias_epilogue_percent = 127;
  set_unusual_gradients_and_peaks(stack.facts);
  stack.facts.gradients = GradientPrecision::kF32;
  stack.facts.reduction = GradientPrecision::kF32;
  stack.facts.gradient_overlap = Overlap::kPartial;
  stack.facts.weight_overlap = Overlap::kNone;
  stack.facts.tensor_overlap = Overlap::kFull;
  stack.facts.pipeline_overlap = Overlap::kNone;
  stack.facts.least_zero_stage = 1;
  stack.facts.most_zero_stage = 2;
  stack.facts.steps_offloaded_state_on_cpu = true;
  stack.facts.may_stream_state = true;
  stack.facts.offloads_activations = false;
  stack.facts.expert_overlap = Overlap::kPartial;
  stack.facts.fp8_scaling = Scaling8::kDelayed;
  stack.facts.fp8_weights = Weights8::kStored;
  stack.facts.fp8_saves_codes = true;
  stack.facts.attention_kernel = AttentionKernel::kFlash1;
  stack.facts.attention_kernel_on = {{"hopper", AttentionKernel::kFlash3}};
  stack.constants = unusual_constants();
  stack.fitted = {"gemm_share", "launch_us"};
  stack.fitted_on = {"case-1"};
  stack.uncertainty.emplace();
  stack.uncertainty->time = 0.125;
  stack.uncertainty->memory = 0.0625;
  stack.uncertainty->expert_time = 0.25;
  for (int i = 0; i < kStackConstants * kStackConstants; ++i) {
    stack.uncertainty->covariance.push_back(0.25 * i - 3);
  }
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
  ASSERT_EQ(a.uncertainty.has_value(), b.uncertainty.has_value());
  if (!a.uncertainty) return;
  EXPECT_EQ(a.uncertainty->time, b.uncertainty->time);
  EXPECT_EQ(a.uncertainty->memory, b.uncertainty->memory);
  EXPECT_EQ(a.uncertainty->expert_time, b.uncertainty->expert_time);
  EXPECT_EQ(a.uncertainty->covariance, b.uncertainty->covariance);
}

TEST(Stacks, every_fact_and_constant_survives_a_round_trip) {
  expect_same(parse_stack(stack_json(unusual_stack()), "f", "odd"), unusual_stack());
  const profile_tests::TemporaryFolder folder;
  save_stack(unusual_stack(), folder.file("odd.json"));
  expect_same(load_stack(folder.file("odd.json")), unusual_stack());
}

// A fact that only some stacks have must not be lost by the one that writes them.
TEST(Stacks, no_fact_of_the_unusual_one_is_the_default) {
  const Json unusual_facts = Json::parse(stack_json(unusual_stack()))["facts"];
  const Json default_facts = Json::parse(stack_json(Stack{}))["facts"];
  for (const auto& [fact, value] : unusual_facts.items()) {
    EXPECT_NE(value, default_facts[fact]) << fact;
  }
}

TEST(Stacks, without_uncertainty_nothing_was_held_against_them) {
  Stack stack = unusual_stack();
  stack.uncertainty.reset();
  EXPECT_FALSE(Json::parse(stack_json(stack)).contains("uncertainty"));
  expect_same(parse_stack(stack_json(stack), "f", "odd"), stack);
}

TEST(Stacks, networks_with_experts_have_a_spread_of_their_own_or_that_of_others) {
  Model model;
  EXPECT_EQ(unusual_stack().uncertainty->time_of(model), 0.125);
  model.experts = 8;
  EXPECT_EQ(unusual_stack().uncertainty->time_of(model), 0.25);
  Json json = Json::parse(stack_json(unusual_stack()));
  json["uncertainty"].erase("expert_time");
  EXPECT_EQ(parse_stack(json.dump(), "f", "odd").uncertainty->time_of(model), 0.125);
  json["uncertainty"]["expert_time"] = -1;
  EXPECT_TRUE(holds(error_of([&] { parse_stack(json.dump(), "f", "odd"); }), "expert_time"));
}

// Attention of a framework that does not say is FlashAttention 2, and its rows of logits lie side
// by side; Ballast's own is cuDNN's, and its rows begin at multiples of 64 values.
TEST(Stacks, absent_fact_has_its_default) {
  Json json = Json::parse(stack_json(unusual_stack()));
  json["facts"] = Json::object();
  json.erase("facts_where_offloaded");
  StackFacts facts;
  EXPECT_EQ(facts.attention_kernel, AttentionKernel::kCudnn);
  facts.attention_kernel = AttentionKernel::kFlash2;
  EXPECT_EQ(facts.logits_multiple, 64);
  facts.logits_multiple = 1;
  EXPECT_EQ(parse_stack(json.dump(), "f", "odd").facts, facts);
}

TEST(Stacks, name_the_kernel_of_attention_and_others_by_generation) {
  Json json = Json::parse(stack_json(unusual_stack()));
  json["facts"]["attention"] = {"eager", "flash1"};
  json["facts"]["attention_on"] = {{"hopper", "flash3"}};
  const Stack stack = parse_stack(json.dump(), "f", "odd");
  const std::vector<AttentionKind> kinds = {AttentionKind::kEager, AttentionKind::kFlash};
  EXPECT_EQ(stack.facts.attention, kinds);
  EXPECT_EQ(stack.facts.attention_kernel_of("ampere"), AttentionKernel::kFlash1);
  EXPECT_EQ(stack.facts.attention_kernel_of(""), AttentionKernel::kFlash1);
  EXPECT_EQ(stack.facts.attention_kernel_of("hopper"), AttentionKernel::kFlash3);
  EXPECT_EQ(stack_json(parse_stack(stack_json(stack), "f", "odd")), stack_json(stack));
  json["facts"]["attention_on"] = {{"hoper", "flash3"}};
  EXPECT_TRUE(holds(error_of([&] { parse_stack(json.dump(), "f", "odd"); }), "mean 'hopper'"));
  json["facts"]["attention_on"] = Json::object();
  json["facts"]["attention"] = {"flash2", "flash3"};
  EXPECT_TRUE(holds(error_of([&] { parse_stack(json.dump(), "f", "odd"); }), "beside another"));
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
      {"/constants/elementwise_share", 2.1, "0.001 to 2"},
      {"/constants/node_collective_share", 1.01, "0.001 to 1"},
      {"/constants/network_collective_share", 1.01, "0.001 to 1"},
      {"/constants/cpu_share", 0, "cpu_share"},
      {"/constants/cpu_shar", 0.5, "key 'constants.cpu_shar'"},
      {"/sustained_gemm/hoper", 0.9, "did you mean 'hopper'"},
      {"/sustained_gemm/hopper", "little", "key 'sustained_gemm.hopper'"},
      {"/sustained_gemm/hopper", 0, "sustained_gemm.hopper"},
      {"/uncertainty/time", -0.1, "key 'uncertainty.time'"},
      {"/uncertainty/memory", "much", "key 'uncertainty.memory'"},
      {"/uncertainty/covariance", 1, "must be a square table"},
      {"/uncertainty/covariance", Json::array({1, 2}), "must be a square table"},
      {"/uncertainty/covariance/6", {1, 2}, "must be a square table"},
      {"/uncertainty/covariance/0/0", "x", "must be a square table"},
      {"/uncertainty/covarience", 1, "'uncertainty.covarience'"},
      {"/fitted", {"gem_share"}, "did you mean 'gemm_share'"},
      {"/schema", "ballast.plan/1", "key 'schema'"}};
  for (const Change& change : changes) {
    Json json = Json::parse(stack_json(unusual_stack()));
    json[Pointer(change.pointer)] = change.value;
    const std::string message = error_of([&] { parse_stack(json.dump(), "f.json", "odd"); });
    EXPECT_TRUE(holds(message, change.message)) << change.pointer;
  }
}

TEST(Stacks, each_constant_is_required) {
  const Json whole = Json::parse(stack_json(unusual_stack()));
  for (int i = 0; i < kStackConstants; ++i) {
    Json json = whole;
    json["constants"].erase(std::string(constant_name(i)));
    EXPECT_TRUE(holds(error_of([&] { parse_stack(json.dump(), "f", "odd"); }), "is missing"));
  }
}

// What cases determined is counted as `calibrate` lists it, with one share for each generation of
// GPUs that all frameworks have in common; of a case its figures count as one.
TEST(Stacks, fitted_constants_are_less_than_a_third_of_the_cases_that_they_are_fitted_to) {
  const Stack typical = load_stack(std::string(kTypicalStack));
  size_t constants = typical.constants.sustained_gemm.size();
  for (const std::string& name : shipped_names("stacks"))
    constants += load_stack(name).fitted.size();
  EXPECT_GT(constants, 20u);
  EXPECT_LT(3 * constants, typical.fitted_on.size());
}

TEST(Stacks, each_part_of_the_uncertainty_is_required) {
  const Json whole = Json::parse(stack_json(unusual_stack()));
  for (const char* key : {"time", "memory", "covariance"}) {
    Json json = whole;
    json["uncertainty"].erase(key);
    EXPECT_TRUE(holds(error_of([&] { parse_stack(json.dump(), "f", "odd"); }), "is missing"))
        << key;
  }
}

TEST(Stacks, a_source_tells_which_framework_of_a_family_it_ran) {
  EXPECT_EQ(framework_of("torch-2025", "huggingface/nanotron@2411b022 docs/benchmark_summary.svg"),
            "nanotron-2025");
  EXPECT_EQ(framework_of("torch-2025", "pytorch/torchtitan"), "torchtitan-2025");
  EXPECT_EQ(framework_of("torch-2025", "somebody/trainer"), "torch-2025");
  EXPECT_EQ(framework_of("megatron-core-2024", "kwai/Megatron-Kwai@b2646e4d"),
            "megatron-kwai-2024");
  EXPECT_EQ(framework_of("megatron-2023", "huggingface/nanotron"), "megatron-2023");
  EXPECT_EQ(framework_of("megatron-2023", "CSCS reframe references; CARAML"),
            "megatron-caraml-2024");
}

// The shipped stacks that stand for a framework: those that are told as offloading optimizer state
// (they have their own part of the typical facts), or those whose users keep it on the GPU.
std::vector<Stack> frameworks(bool that_offload) {
  const std::string typical_source = load_stack(std::string(kTypicalStack)).source;
  std::vector<Stack> list;
  for (const Shipped& shipped : shipped_stacks()) {
    if (shipped.name == "ballast" || shipped.name == kTypicalStack || shipped.name == "ideal") {
      continue;
    }
    const bool offloads = typical_source.find(shipped.name) != std::string::npos;
    if (offloads == that_offload) list.push_back(load_stack(shipped.name));
  }
  return list;
}

using Votes =
    std::map<std::string, std::map<std::string, int>>;  // by fact, then what is said of it

// Who never did has nothing to say of it, where several others have.
bool trains_in_8_bits(const Stack& stack) {
  return stack.source.find("fp8") != std::string::npos ||
         stack.source.find("float8") != std::string::npos;
}

// Likewise, whether state is offloaded or not, which does not matter to them.
bool tells_of_experts(const Stack& stack) {
  return stack.source.find("expert") != std::string::npos;
}
bool is_of_experts(const std::string& fact) {
  return holds(fact, "expert") || fact == "sort_bytes" || fact == "padding_bytes" ||
         fact == "reads_routing" || fact == "sends_tokens_once" || fact == "once_multiprocessors";
}

void add_votes_of_experts(Votes& count, const std::string& without) {
  for (const bool offload : {false, true}) {
    for (const Stack& stack : frameworks(offload)) {
      if (stack.name == without || !tells_of_experts(stack)) continue;
      const Json json = Json::parse(stack_json(stack));
      for (const auto& [fact, value] : json["facts"].items()) {
        if (is_of_experts(fact)) ++count[fact][value.dump()];
      }
    }
  }
}

Votes votes_of(const std::vector<Stack>& stacks, const std::string& without) {
  Votes count;
  const bool some_train_in_8_bits =
      std::count_if(stacks.begin(), stacks.end(), trains_in_8_bits) > 1;
  for (const Stack& stack : stacks) {
    if (stack.name == without) continue;
    const Json json = Json::parse(stack_json(stack));
    for (const auto& [fact, value] : json["facts"].items()) {
      // Who never shards gathers nothing; how far others do is for a plan to say, and no Adam of
      // theirs runs on the CPU.
      if (fact == "weight_overlap" && stack.facts.most_zero_stage == 0) continue;
      if (fact == "torch_adam_threads" || fact == "most_zero_stage") continue;
      // Nor has who never speculated anything to say of how gradients leave then.
      if (fact == "speculative_sending" && !holds(stack.source, "SuperOffload")) continue;
      if (fact == "attention_on" || is_of_experts(fact)) continue;  // counted below
      if (fact.starts_with("fp8_") && some_train_in_8_bits && !trains_in_8_bits(stack)) continue;
      ++count[fact][value.dump()];
    }
  }
  add_votes_of_experts(count, without);
  return count;
}

// Of equally many the typical stack may have either.
void expect_most(const Json& facts, const Votes& votes, const std::string& without) {
  for (const auto& [fact, value] : facts.items()) {
    const auto said = votes.find(fact);
    if (said == votes.end()) continue;
    const auto own = said->second.find(value.dump());
    for (const auto& [other, number] : said->second) {
      EXPECT_LE(number, own == said->second.end() ? 0 : own->second)
          << "without '" << without << "': " << fact << " is " << value << " here and " << other
          << " there";
    }
  }
}

TEST(Stacks, what_is_typical_is_a_fact_of_most_that_are_shipped) {
  const Json typical = Json::parse(stack_json(load_stack(std::string(kTypicalStack))));
  expect_most(typical["facts"], votes_of(frameworks(false), ""), "");
}

// So that a framework which is left out (docs/validation.md) has no say in the facts that it is
// predicted with: counted without it, they are the same.
TEST(Stacks, no_typical_fact_hangs_on_one_framework) {
  const Json typical = Json::parse(stack_json(load_stack(std::string(kTypicalStack))));
  for (const bool offload : {false, true}) {
    const std::vector<Stack> all = frameworks(offload);
    EXPECT_GE(all.size(), 5U);
    const Json& facts = typical[offload ? "facts_where_offloaded" : "facts"];
    for (const Stack& left_out : all)
      expect_most(facts, votes_of(all, left_out.name), left_out.name);
  }
}

// Whose kernels were made before Blackwell, and who never ran there, has nothing to say of what
// computes attention there; whether state is offloaded does not matter.
TEST(Stacks, typical_attention_on_blackwell_is_that_of_most_who_name_a_kernel_for_it) {
  const Stack typical = load_stack(std::string(kTypicalStack));
  std::vector<Stack> all = frameworks(false);
  const std::vector<Stack> offloading = frameworks(true);
  all.insert(all.end(), offloading.begin(), offloading.end());
  for (const Stack& left_out : all) {
    std::map<AttentionKernel, int> said;
    for (const Stack& stack : all) {
      const bool says = stack.facts.attention_kernel_on.contains("blackwell") ||
                        stack.facts.attention_kernel == AttentionKernel::kCudnn;
      if (says && stack.name != left_out.name) ++said[stack.facts.attention_kernel_of("blackwell")];
    }
    const auto most = std::max_element(
        said.begin(), said.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    ASSERT_NE(most, said.end());
    EXPECT_EQ(typical.facts.attention_kernel_of("blackwell"), most->first) << left_out.name;
    EXPECT_EQ(typical.facts.where_offloaded.facts->attention_kernel_of("blackwell"), most->first);
  }
}

TEST(Stacks, unknown_name_comes_with_the_nearest) {
  EXPECT_TRUE(holds(error_of([] { load_stack("megatron-2020"); }), "did you mean 'megatron-202"));
}

}  // namespace
}  // namespace ballast
