// Plans as other frameworks' configurations and back: the same prediction for every knob that the
// framework can express, no option that it does not have, and no contradiction accepted.
#include "profiles/frameworks/frameworks.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "profiles/frameworks/usual_buckets.h"
#include "profiles/load.h"
#include "sim/engine/predict.h"
#include "tests/profiles/support.h"
#include "tests/spec/knob_values.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
using profile_tests::error_of;
using profile_tests::holds;

constexpr auto kAll = {Framework::kDeepSpeed, Framework::kMegatron, Framework::kTorchtitan};

struct Wish {
  std::string model = "gpt2";
  std::string machine = "alps-gh200-quad";
  std::string strategy;
  int64_t devices = 4;
  std::vector<std::string> set;
};

// The strategy's plan with every open knob given a value.
Plan plan_of(const Wish& wish) {
  PlanRequest request;
  request.knobs[KnobId::kModel] = wish.model;
  request.knobs[KnobId::kMachine] = wish.machine;
  request.strategy = wish.strategy;
  request.knobs[KnobId::kDevices] = wish.devices;
  request.knobs[KnobId::kGlobalBatch] = 16;
  request.knobs[KnobId::kMicroBatch] = 1;
  request.knobs[KnobId::kSequenceLength] = 512;
  std::vector<std::string> set = {"plan.activations=keep", "plan.optimizer.gpu_buckets=0"};
  if (wish.strategy == "superoffload") set.emplace_back("plan.weights.flow_share=0");
  set.insert(set.end(), wish.set.begin(), wish.set.end());
  request.overrides = parse_overrides(set).plan;
  return resolve_plan(request);
}

bool is_legal(const Plan& plan, const Model& model) {
  try {
    check(plan, model);
    return true;
  } catch (const Error&) {
    return false;
  }
}

ImportedPlan imported(const ExportedPlan& exported, const Plan& plan, Framework framework) {
  ImportRequest request{plan.model, plan.machine, plan.devices, {}, {}, {}, {}, {}, {}, {}};
  const Model model = load_model(plan.model);
  if (framework == Framework::kMegatron) {
    return import_megatron(exported.text, "flags", model, request);
  }
  // What DeepSpeed's users say in code.
  request.sequence_length = plan.sequence_length;
  request.pipeline = plan.pipeline;
  request.context = plan.context;
  request.expert = plan.expert;
  return import_deepspeed(exported.text, "ds.json", model, request);
}

std::set<std::string> knobs_of(const ExportedPlan& exported) {
  std::set<std::string> knobs;
  for (const NotExpressed& one : exported.not_expressed) knobs.insert(one.knob);
  return knobs;
}

// The plan with what the framework cannot say set to what it says instead.
Plan reset(const Plan& plan, const ExportedPlan& exported) {
  Plan result = plan;
  for (const NotExpressed& one : exported.not_expressed) {
    if (one.instead == "\"given beside\"") continue;
    const Json value = Json::parse(one.instead);
    result = apply_override(
        result, {one.knob, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  return result;
}

int64_t step_of(const Plan& plan) {
  const Prediction prediction =
      predict(load_model(plan.model), plan, load_machine(plan.machine), nullptr);
  EXPECT_TRUE(prediction.fits) << prediction.reason;
  return prediction.fits ? prediction.step_time.ps : 0;
}

TEST(Frameworks, facts_name_a_source_for_every_option_once) {
  for (const Framework framework : kAll) {
    const FrameworkFacts facts = framework_facts(framework);
    EXPECT_EQ(facts.name, to_string(framework));
    EXPECT_GT(facts.options.size(), 20u);
    std::set<std::string> names;
    for (const FrameworkOption& option : facts.options) {
      EXPECT_TRUE(names.insert(option.name).second) << option.name;
      EXPECT_NE(option.source.find('/'), std::string::npos) << option.name;
      EXPECT_FALSE(option.version.empty() || option.type.empty()) << option.name;
    }
    for (const MissingKnob& missing : facts.missing) EXPECT_FALSE(missing.reason.empty());
  }
}

// Strategies, devices and modules of all kinds; everything a framework cannot say has a reason of
// its own, everything it says is an option that it has and a prediction that stays.
const std::vector<Wish>& wishes() {
  static const std::vector<Wish> all = {
      {"gpt2", "gh200-96gb-480gb", "superoffload", 1, {}},
      {"gpt2", "gh200-96gb-480gb", "superoffload", 1, {"plan.activations=offload"}},
      {"gpt2",
       "gh200-96gb-480gb",
       "superoffload",
       1,
       {"plan.zero_stage=3", "plan.optimizer.gpu_buckets=3", "plan.activations=recompute"}},
      {"gpt2", "alps-gh200-quad", "zero-offload", 4, {"plan.optimizer.bucket_bytes=33554432"}},
      {"gpt2", "alps-gh200-quad", "zero-3", 4, {"plan.activations=recompute"}},
      {"gpt2", "alps-gh200-quad", "zero-infinity", 4, {"plan.weights.look_ahead=6"}},
      {"gpt2", "alps-gh200-quad", "fsdp", 4, {"plan.activations.norm1=recompute"}},
      {"gpt2", "alps-gh200-quad", "fsdp-offload", 4, {}},
      {"gpt2", "alps-gh200-quad", "ulysses", 4, {"plan.sequence=4"}},
      {"gpt2", "alps-gh200-quad", "megatron", 4, {"plan.tensor=2", "plan.pipeline=2"}},
      {"gpt2",
       "alps-gh200-quad",
       "megatron",
       4,
       {"plan.pipeline=4", "plan.virtual_pipeline=3", "plan.activations=recompute"}},
      {"gpt2",
       "alps-gh200-quad",
       "megatron",
       4,
       {"plan.tensor=2", "plan.zero_stage=1", "plan.activations.scores=recompute",
        "plan.activations.fc1=recompute", "plan.activations.activation=recompute",
        "plan.activations.qkv=offload"}},
      {"gpt2", "alps-gh200-quad", "zero-1", 4, {"plan.optimizer.moments=bf16"}},
      {"gpt2", "gh200-96gb-480gb", "superoffload", 1, {"plan.memory_reuse=at-once"}},
      // 12 layers in 14 chunks: the first and the last have none.
      {"gpt2", "alps-gh200-quad", "megatron", 4, {"plan.pipeline=2", "plan.virtual_pipeline=7"}}};
  return all;
}

TEST(Frameworks, export_uses_only_options_of_the_framework_and_gives_reasons) {
  for (const Wish& wish : wishes()) {
    const Plan plan = plan_of(wish);
    const Model model = load_model(plan.model);
    for (const Framework framework : kAll) {
      std::set<std::string> real;
      for (const FrameworkOption& one : framework_facts(framework).options) real.insert(one.name);
      const ExportedPlan exported = export_plan(plan, model, framework);
      for (const std::string& option : exported.options) EXPECT_TRUE(real.contains(option));
      for (const NotExpressed& one : exported.not_expressed) {
        EXPECT_NE(one.reason, "it has no option for it") << to_string(framework) << one.knob;
      }
    }
  }
}

TEST(Frameworks, export_then_import_predicts_the_same_step) {
  for (const Wish& wish : wishes()) {
    const Plan plan = plan_of(wish);
    const Model model = load_model(plan.model);
    for (const Framework framework : {Framework::kDeepSpeed, Framework::kMegatron}) {
      SCOPED_TRACE(wish.strategy + " by " + std::string(to_string(framework)));
      const ExportedPlan exported = export_plan(plan, model, framework);
      const ImportedPlan back = imported(exported, plan, framework);
      for (const IgnoredOption& one : back.ignored) ADD_FAILURE() << one.option << one.reason;
      EXPECT_EQ(step_of(back.plan), step_of(reset(plan, exported)));
    }
  }
}

TEST(Frameworks, ends_of_a_pipeline_that_count_as_layers_are_said) {
  const Plan plan = plan_of(wishes().back());
  const auto text = [&](Framework framework) {
    return export_plan(plan, load_model(plan.model), framework).text;
  };
  for (const char* part :
       {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
        "--num-layers-per-virtual-pipeline-stage 1"}) {
    EXPECT_TRUE(holds(text(Framework::kMegatron), part)) << part;
  }
  for (const char* part :
       {"pipeline_parallel_layers_per_stage = 1", "pipeline_parallel_first_stage_less_layers = 1",
        "pipeline_parallel_last_stage_less_layers = 1"}) {
    EXPECT_TRUE(holds(text(Framework::kTorchtitan), part)) << part;
  }
}

TEST(Frameworks, what_each_framework_can_say_of_famous_plans_is_said) {
  const auto knobs = [](const Wish& wish, Framework framework) {
    const Plan plan = plan_of(wish);
    return knobs_of(export_plan(plan, load_model(plan.model), framework));
  };
  using Knobs = std::set<std::string>;
  const Knobs data = {"sequence_length"};
  EXPECT_EQ(knobs(wishes()[0], Framework::kDeepSpeed), data);
  EXPECT_EQ(knobs(wishes()[2], Framework::kDeepSpeed), data);
  EXPECT_EQ(knobs(wishes()[3], Framework::kDeepSpeed), data);
  EXPECT_EQ(knobs(wishes()[4], Framework::kDeepSpeed), data);
  EXPECT_EQ(knobs(wishes()[5], Framework::kDeepSpeed), data);
  EXPECT_EQ(knobs(wishes()[8], Framework::kDeepSpeed), data);
  EXPECT_EQ(knobs(wishes()[9], Framework::kMegatron), Knobs{});
  EXPECT_EQ(knobs(wishes()[10], Framework::kMegatron), Knobs{});
  // What it offloads by module returns by module.
  EXPECT_EQ(knobs(wishes()[11], Framework::kMegatron), (Knobs{"activations.reload"}));
  EXPECT_EQ(knobs(wishes()[8], Framework::kMegatron), Knobs{});
  EXPECT_EQ(knobs(wishes()[7], Framework::kTorchtitan), Knobs{});
  EXPECT_EQ(knobs(wishes()[10], Framework::kTorchtitan), Knobs{});
  // Megatron-LM waits for all gradients.
  EXPECT_TRUE(knobs(wishes()[0], Framework::kMegatron).contains("optimizer.sync"));
}

// No framework chooses when its allocator gives memory out again. Apart is what Ballast does where
// nobody says otherwise, so that nothing is lost.
// Every knob away from its value, of plans that are still legal: the configuration says it, or the
// export says that it does not, and why.
TEST(Frameworks, a_knob_is_either_said_or_listed_with_a_reason) {
  for (const Framework framework : kAll) {
    const Plan before = plan_of({.strategy = "zero-offload", .set = {"plan.weights.flow_share=0"}});
    const Model model = load_model(before.model);
    const ExportedPlan usual = export_plan(before, model, framework);
    int compared = 0;
    for (const Knob& knob : knobs()) {
      if (knob.group == KnobGroup::kNames || knob.type == KnobType::kGroup) continue;
      for (const KnobValue& value : knob_tests::other_values(knob)) {
        Plan plan = before;
        knob.set(plan, value);
        if (plan == before || !is_legal(plan, model) || !knob.matters_to(plan)) continue;
        if (plan.memory_reuse == MemoryReuse::kApart) continue;  // as "auto" is
        ++compared;
        const ExportedPlan exported = export_plan(plan, model, framework);
        // Of either plan: what a configuration says may be the one and come nearest to the other.
        const auto lists = [&](const ExportedPlan& one) {
          return std::any_of(one.not_expressed.begin(), one.not_expressed.end(),
                             [&](const NotExpressed& knob_of_plan) {
                               return find_knob(knob_of_plan.knob) == &knob &&
                                      !knob_of_plan.reason.empty();
                             });
        };
        EXPECT_TRUE(exported.text != usual.text || lists(exported) || lists(usual))
            << to_string(framework) << " " << knob.path << " " << text_of(knob, value);
      }
    }
    EXPECT_GT(compared, 15) << to_string(framework);
  }
}

TEST(Frameworks, bucket_without_an_element_is_refused_by_name) {
  for (const Framework framework : {Framework::kDeepSpeed, Framework::kMegatron}) {
    const auto text_of_bytes = [&](const char* bytes) {
      const Plan plan = plan_of({.strategy = "zero-offload",
                                 .set = {"plan.weights.flow_share=0",
                                         std::string("plan.optimizer.bucket_bytes=") + bytes}});
      return export_plan(plan, load_model(plan.model), framework).text;
    };
    EXPECT_TRUE(holds(error_of([&] { text_of_bytes("3"); }), "plan.optimizer.bucket_bytes"));
    EXPECT_FALSE(text_of_bytes("4").empty());
  }
}

TEST(Frameworks, memory_that_is_reused_at_once_is_not_expressed_and_apart_needs_not_be) {
  const auto reuse_in = [](const char* value, Framework framework) {
    const Plan plan = plan_of(
        {"gpt2", "alps-gh200-quad", "zero-1", 4, {std::string("plan.memory_reuse=") + value}});
    const ExportedPlan exported = export_plan(plan, load_model("gpt2"), framework);
    std::optional<NotExpressed> reuse;
    for (const NotExpressed& one : exported.not_expressed) {
      if (one.knob == "memory_reuse") reuse = one;
    }
    return reuse;
  };
  for (const Framework framework : kAll) {
    const std::optional<NotExpressed> at_once = reuse_in("at-once", framework);
    ASSERT_TRUE(at_once) << to_string(framework);
    EXPECT_EQ(at_once->instead, "\"auto\"");
    EXPECT_NE(at_once->reason.find("allocator"), std::string::npos) << at_once->reason;
    EXPECT_FALSE(reuse_in("apart", framework)) << to_string(framework);
    EXPECT_FALSE(reuse_in("auto", framework)) << to_string(framework);
  }
}

TEST(Frameworks, deepspeed_json_says_what_the_plan_says) {
  // 16 sequences on 4 devices, one at a time: 16 / 4 / 1 = 4 steps of accumulation. A bucket of
  // 32 MiB holds 2^25 / 4 = 8388608 elements.
  const Plan plan = plan_of(wishes()[3]);
  const Json json = Json::parse(export_plan(plan, load_model("gpt2"), Framework::kDeepSpeed).text);
  EXPECT_EQ(json["train_batch_size"], 16);
  EXPECT_EQ(json["gradient_accumulation_steps"], 4);
  EXPECT_EQ(json["bf16"]["enabled"], true);
  const Json& zero = json["zero_optimization"];
  EXPECT_EQ(zero["stage"], 2);
  EXPECT_EQ(zero["reduce_bucket_size"], 8388608);
  EXPECT_EQ(zero["offload_optimizer"]["device"], "cpu");
  EXPECT_EQ(zero["offload_optimizer"]["convert_grad_on_cpu"], true);
  EXPECT_FALSE(zero["offload_optimizer"].contains("super_offload"));
}

ImportedPlan deepspeed(const std::string& text, int64_t devices) {
  return import_deepspeed(text, "ds.json", load_model("gpt2"),
                          {"gpt2", "alps-gh200-quad", devices, {}, {}, {}, {}, {}, {}, {}});
}

ImportedPlan megatron(const std::string& text, int64_t devices) {
  return import_megatron(text, "flags", load_model("gpt2"),
                         {"gpt2", "alps-gh200-quad", devices, {}, {}, {}, {}, {}, {}, {}});
}

TEST(Frameworks, hugging_face_placeholders_and_floats_are_understood) {
  // Micro-batch 2 on 4 devices with 3 steps of accumulation: 24 sequences.
  const Plan plan = deepspeed(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 3, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}})",
                              4)
                        .plan;
  EXPECT_EQ(plan.global_batch, 24);
  EXPECT_EQ(plan.optimizer.bucket_bytes.count, 2'000'000'000);
  EXPECT_EQ(plan.zero_stage, 3);
}

// What Hugging Face's documentation shows: everything "auto".
const char* const kTrainerJson =
    R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": "auto"}},
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "sub_group_size": 1e9,
          "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
          "offload_optimizer": {"device": "none"}, "offload_param": {"device": "cpu"}}})";

std::map<std::string, std::string> assumed_of(const ImportedPlan& imported) {
  std::map<std::string, std::string> values;
  for (const AssumedOption& one : imported.assumed) {
    EXPECT_FALSE(one.reason.empty());
    EXPECT_TRUE(values.emplace(one.option, one.value).second) << one.option;
  }
  return values;
}

TEST(Frameworks, what_the_trainer_fills_in_is_assumed_aloud) {
  ImportRequest request{"gpt2", "alps-gh200-quad", 4, {}, 16, {}, {}, {}, {}, {}};
  const Model model = load_model("gpt2");
  const ImportedPlan imported = import_deepspeed(kTrainerJson, "ds.json", model, request);
  // 16 sequences on 4 devices, without accumulation: 4 at once. The Trainer's buckets are the
  // square of the hidden state's 768 columns, 589824 elements of 4 bytes, and 0.9 of it.
  EXPECT_EQ(imported.plan.dtype, DType::kBf16);
  EXPECT_EQ(imported.plan.micro_batch, 4);
  EXPECT_EQ(imported.plan.optimizer.bucket_bytes.count, 4 * 589824);
  const std::map<std::string, std::string> expected = {
      {"bf16.enabled", "true"},
      {"gradient_accumulation_steps", "1"},
      {"zero_optimization.reduce_bucket_size", "589824"},
      {"zero_optimization.stage3_prefetch_bucket_size", "530841"}};
  EXPECT_EQ(assumed_of(imported), expected);
  // Flags leave nothing to assume of what they say: micro-batch 2, so 16 / 4 / 2 = 2 steps.
  request.micro_batch = 2;
  request.dtype = DType::kF16;
  const ImportedPlan said = import_deepspeed(kTrainerJson, "ds.json", model, request);
  EXPECT_EQ(said.plan.dtype, DType::kF16);
  EXPECT_EQ(said.plan.accumulation(), 2);
  EXPECT_EQ(assumed_of(said).size(), 2u);
}

TEST(Frameworks, auto_where_nobody_knows_a_value_is_refused) {
  const auto refused = [](const std::string& text, const std::string& part) {
    const std::string error = error_of([&] { deepspeed(text, 4); });
    EXPECT_TRUE(holds(error, part)) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  };
  refused(kTrainerJson, "give --global-batch and --micro-batch");
  refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": "auto"}})",
          "zero_optimization.stage: is \"auto\"");
  refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer":
              {"device": "auto"}}})",
          "offload_optimizer.device: is \"auto\"");
  EXPECT_TRUE(
      holds(error_of([] { megatron("--micro-batch-size 1 --context-parallel-size auto", 4); }),
            "is \"auto\""));
}

TEST(Frameworks, a_flag_against_the_configuration_is_refused) {
  const Model model = load_model("gpt2");
  const std::string text = R"({"train_batch_size": 8, "bf16": {"enabled": true}})";
  ImportRequest request{"gpt2", "alps-gh200-quad", 4, {}, 16, {}, {}, {}, {}, {}};
  EXPECT_TRUE(holds(error_of([&] { import_deepspeed(text, "ds.json", model, request); }),
                    "8 is not the 16 of --global-batch"));
  request.global_batch.reset();
  request.dtype = DType::kF16;
  EXPECT_TRUE(holds(error_of([&] { import_deepspeed(text, "ds.json", model, request); }),
                    "--dtype says fp16"));
  const std::string flags = "--micro-batch-size 1 --bf16 --seq-length 512";
  EXPECT_TRUE(holds(error_of([&] { import_megatron(flags, "flags", model, request); }),
                    "--dtype says fp16"));
  request.dtype.reset();
  request.sequence_length = 256;
  EXPECT_TRUE(holds(error_of([&] { import_megatron(flags, "flags", model, request); }),
                    "512 is not the 256 of --sequence-length"));
  // What the flags leave out, the request says.
  request.sequence_length.reset();
  request.pipeline = 2;
  EXPECT_EQ(import_megatron(flags, "flags", model, request).plan.pipeline, 2);
}

TEST(Frameworks, products_in_fp8_go_where_a_framework_has_them) {
  Plan plan = plan_of(wishes()[9]);
  plan.products = ProductFormat::kFp8;
  const Model model = load_model("gpt2");
  const ExportedPlan flags = export_plan(plan, model, Framework::kMegatron);
  EXPECT_TRUE(holds(flags.text, "--fp8-format hybrid\n--fp8-recipe tensorwise\n"));
  EXPECT_EQ(knobs_of(flags).count("products"), 0u);
  const ImportedPlan back = imported(flags, plan, Framework::kMegatron);
  EXPECT_EQ(back.plan.products, ProductFormat::kFp8);
  EXPECT_TRUE(back.ignored.empty());
  EXPECT_EQ(step_of(back.plan), step_of(plan));
  const ExportedPlan job = export_plan(plan, model, Framework::kTorchtitan);
  EXPECT_TRUE(holds(job.text, "converters = [\"float8\"]"));
  EXPECT_TRUE(holds(job.text, "recipe_name = \"tensorwise\"\nfilter_fqns = [\"output\"]"));
  EXPECT_EQ(knobs_of(job).count("products"), 0u);
  EXPECT_EQ(knobs_of(export_plan(plan, model, Framework::kDeepSpeed)).count("products"), 1u);
  // A plan without them has none of their options.
  plan.products = ProductFormat::kAsStored;
  EXPECT_FALSE(holds(export_plan(plan, model, Framework::kMegatron).text, "fp8"));
  EXPECT_FALSE(holds(export_plan(plan, model, Framework::kTorchtitan).text, "float8"));
}

TEST(Frameworks, recipes_of_fp8_that_differ_from_a_plan_say_how) {
  const auto reasons = [](const std::string& flags) {
    const ImportedPlan plan = megatron("--micro-batch-size 1 --bf16 " + flags, 4);
    EXPECT_EQ(plan.plan.products, ProductFormat::kFp8);
    std::string text;
    for (const IgnoredOption& one : plan.ignored) text += one.option + " " + one.reason + "\n";
    return text;
  };
  EXPECT_TRUE(holds(reasons("--fp8-format e4m3 --fp8-recipe tensorwise"), "not e4m3"));
  EXPECT_TRUE(holds(reasons("--fp8-format hybrid"), "--fp8-format its scales come from steps"));
  EXPECT_TRUE(holds(reasons("--fp8-format hybrid --fp8-recipe mxfp8"), "one scale for each"));
  EXPECT_TRUE(holds(reasons("--fp8-format hybrid --fp8-recipe tensorwise --no-fp8-wgrad"),
                    "--no-fp8-wgrad"));
  EXPECT_EQ(megatron("--micro-batch-size 1 --bf16 --fp8-recipe delayed", 4).plan.products,
            ProductFormat::kAsStored);
  EXPECT_TRUE(holds(error_of([] { megatron("--micro-batch-size 1 --fp8-format e5m2", 4); }),
                    "'e5m2' is not known"));
}

// Of four layers that keep nothing: who leaves, from how many elements on, and what is made again.
TEST(Frameworks, megatron_offloads_by_module_what_a_plan_does) {
  Wish wish{"mixtral-8x7b", "dgx-h100-80gb", "megatron-activation-offload", 32, {}};
  wish.set = {"plan.pipeline=4", "plan.data=8", "plan.expert=8"};
  Plan plan = plan_of(wish);
  PlanRequest named;
  named.strategy = wish.strategy;
  plan.activations = resolve_plan(named).activations;
  const ExportedPlan exported = export_plan(plan, load_model(wish.model), Framework::kMegatron);
  for (const char* words :
       {"--fine-grained-activation-offloading", "--min-offloaded-tensor-size 1048576",
        "--offload-modules attn_norm core_attn attn_proj mlp_norm moe_act expert_fc1",
        "--recompute-modules layernorm moe_act"}) {
    EXPECT_NE(exported.text.find(words), std::string::npos) << words << "\n" << exported.text;
  }
  for (const std::string& knob : knobs_of(exported)) {
    EXPECT_FALSE(knob.starts_with("activations.")) << knob;
  }
  const Plan back = imported(exported, plan, Framework::kMegatron).plan;
  EXPECT_EQ(back.activations, plan.activations);
}

TEST(Frameworks, unknown_options_are_named_and_the_nearest_with_them) {
  const ImportedPlan back = deepspeed(
      R"({"train_batch_size": 4, "wall_clock_breakdown": true,
          "zero_optimization": {"stage": 2, "overlap_com": true}})",
      4);
  ASSERT_EQ(back.ignored.size(), 2u);
  const Json names = {back.ignored[0].option, back.ignored[1].option};
  EXPECT_TRUE(names == Json({"wall_clock_breakdown", "zero_optimization.overlap_com"}) ||
              names == Json({"zero_optimization.overlap_com", "wall_clock_breakdown"}));
  for (const IgnoredOption& one : back.ignored) {
    if (one.option == "wall_clock_breakdown") continue;
    EXPECT_TRUE(holds(one.reason, "did you mean zero_optimization.overlap_comm?"));
  }
}

TEST(Frameworks, contradictions_of_deepspeed_are_refused_in_one_line) {
  const auto refused = [](const std::string& text, const std::string& part) {
    const std::string error = error_of([&] { deepspeed(text, 4); });
    EXPECT_TRUE(holds(error, part));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  };
  refused(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
              "gradient_accumulation_steps": 2})",
          "8 is not micro-batch 2 x accumulation 2 x 4");
  refused(R"({"train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": true}})",
          "fp16 is enabled too");
  refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer":
              {"device": "cpu", "super_offload": true}}})",
          "works with stage 3");
  refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param":
              {"device": "cpu"}}})",
          "stage 3 only");
  refused(R"({"train_batch_size": 8, "sequence_parallel_size": 3})", "do not divide");
  refused(R"({"bf16": {"enabled": true}})", "--global-batch");
  refused(R"({"train_batch_size": "many"})", "whole number");
  refused(R"({"train_batch_size": 8, "bf16": true})", "bf16: is a value");
  refused(R"({"train_batch_size": 8, "zero_optimization": 3})", "zero_optimization: is a value");
}

TEST(Frameworks, contradictions_of_megatron_are_refused_in_one_line) {
  const std::string batch = "--micro-batch-size 1 --global-batch-size 16 --bf16 ";
  const auto refused = [&](const std::string& flags, const std::string& part) {
    EXPECT_TRUE(holds(error_of([&] { megatron(batch + flags, 4); }), part));
  };
  refused("--tensor-model-parallel-size 3", "do not divide");
  refused("--fp16", "--fp16 is given too");
  refused("--num-layers 13", "is not '12'");
  refused("--num-layers-per-virtual-pipeline-stage 3", "there is one pipeline stage");
  refused("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2",
          "12 layers do not divide");
  refused("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 7",
          "12 layers in 14 chunks");
  refused("--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split", "alone");
  refused("--recompute-granularity selective --recompute-method uniform", "selective");
  refused("--optimizer-cpu-offload", "--use-precision-aware-optimizer");
  refused("--overlap-param-gather", "--use-distributed-optimizer");
  refused("--micro-batch-size 2", "twice");
  refused("--seq-length $LENGTH", "whole number");
  refused("--offload-modules \"core_attn", "quote");
  refused("--context-parallel-size 4 --cp-comm-type a2a+p2p", "two sizes");
}

TEST(Frameworks, a_megatron_script_is_read_as_a_shell_would) {
  const ImportedPlan back = megatron(
      "torchrun --nproc-per-node 4 pretrain_gpt.py \\\n"
      "  --tensor-model-parallel-size=2 --sequence-parallel \\\n"
      "  --micro-batch-size 2 --global-batch-size '16' # sixteen\n"
      "  --recompute-granularity selective --recompute-modules core_attn layernorm\n",
      4);
  EXPECT_EQ(back.plan.tensor, 2);
  EXPECT_TRUE(back.plan.tensor_sequence);
  EXPECT_EQ(back.plan.data, 2);
  EXPECT_EQ(back.plan.accumulation(), 4);
  EXPECT_EQ(back.plan.activations->scores, ActivationFate::kRecompute);
  EXPECT_EQ(back.plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm2)],
            ActivationFate::kRecompute);
  ASSERT_EQ(back.ignored.size(), 1u);
  EXPECT_EQ(back.ignored[0].option, "--nproc-per-node");
}

TEST(Frameworks, a_plan_with_an_open_knob_is_not_exported) {
  Plan plan = plan_of(wishes()[3]);
  plan.micro_batch.reset();
  EXPECT_TRUE(holds(error_of([&] { export_plan(plan, load_model("gpt2"), Framework::kMegatron); }),
                    "auto"));
}

// Megatron-LM's bucket grows with the ranks, as its importer has it; of a framework whose source
// was not read for it nothing is said.
TEST(Frameworks, cut_gradients_into_buckets_of_their_own) {
  Plan plan;
  plan.data = 8;
  plan.zero_stage = 0;
  EXPECT_EQ(usual_bucket("nemo-2025", plan), Bytes{4 * 40'000'000});
  plan.data = 336;
  EXPECT_EQ(usual_bucket("nemo-2025", plan), Bytes{4LL * 336'000'000});
  EXPECT_EQ(usual_bucket("deepspeed-2025", plan), Bytes{4LL * 500'000'000});
  EXPECT_EQ(usual_bucket("nanotron-2025", plan), Bytes{4LL * 13'107'200});
  plan.zero_stage = 1;
  EXPECT_EQ(usual_bucket("nanotron-2025", plan), Bytes{int64_t{1} << 40});
  EXPECT_EQ(usual_bucket("internevo-2023", plan), Bytes{int64_t{2} << 30});
  EXPECT_EQ(usual_bucket("megatron-2022", plan), Bytes{int64_t{1} << 40});
  EXPECT_EQ(usual_bucket("typical", plan), std::nullopt);
}

}  // namespace
}  // namespace ballast
