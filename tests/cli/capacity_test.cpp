// predict --max-model and --max-sequence, other stacks, and plans of many devices, as a user
// runs them.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

const std::string kChip = "predict --machine gh200-96gb-480gb --sequence-length 512 ";

// The next model has one layer more, or is the next shape, and what it lacks is CPU memory, for
// SuperOffload keeps 16 bytes a parameter there and 2 on the GPU.
TEST(Capacity, largest_model_comes_with_what_binds_and_the_next_one) {
  const Workbench bench;
  const std::string asked =
      kChip +
      "--stack ballast --max-model --global-batch 1 --set machine.cpu.memory_gb=30 "
      "--set plan.optimizer.gpu_buckets=0 ";
  const Outcome text = bench.run(asked);
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(text.says("the largest that fits")) << text.output;
  EXPECT_TRUE(text.says("the next does not")) << text.output;
  EXPECT_TRUE(text.says("CPU memory")) << text.output;
  const Json json = Json::parse(bench.run(asked + "--json").output);
  EXPECT_EQ(json["next"]["binds"], "cpu");
  EXPECT_GT(json["next"]["parameters"], json["max_model"]["parameters"]);
  EXPECT_FALSE(json["next"]["reason"].get<std::string>().empty());
  EXPECT_FALSE(json["next"]["memory"]["dram"]["holders"].empty());
  // 14e9 bytes are usable: 16 a parameter and 1.13 of undo, in steps of a layer.
  EXPECT_GT(json["max_model"]["parameters"].get<double>(), 14e9 / 18);
  EXPECT_LT(json["max_model"]["parameters"].get<double>(), 14e9 / 16);
  EXPECT_TRUE(json["fits"].get<bool>());
  EXPECT_GT(json["step_time_s"].get<double>(), 0);
}

TEST(Capacity, largest_model_of_a_named_one_varies_its_layers) {
  const Workbench bench;
  const Json json = Json::parse(bench
                                    .run(kChip + "--max-model --model gpt2 --global-batch 1 "
                                                 "--set machine.cpu.memory_gb=20 --json "
                                                 "--set machine.gpu.memory_gb=3")
                                    .output);
  EXPECT_EQ(json["max_model"]["hidden"], 768);
  EXPECT_EQ(json["next"]["layers"].get<int64_t>(), json["max_model"]["layers"].get<int64_t>() + 1);
}

TEST(Capacity, nothing_that_fits_is_exit_code_1_and_says_why) {
  const Workbench bench;
  const Outcome outcome = bench.run(kChip +
                                    "--max-model --set machine.cpu.memory_gb=16.1 "
                                    "--set machine.gpu.memory_gb=1.1");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("does not fit")) << outcome.output;
}

TEST(Capacity, longest_sequence_comes_with_its_step_time_and_mfu) {
  const Workbench bench;
  const std::string asked =
      "predict --machine gh200-96gb-480gb --model gpt2 --max-sequence --global-batch 1 "
      "--set machine.gpu.memory_gb=8 --set plan.activations=keep ";
  const Json json = Json::parse(bench.run(asked + "--json").output);
  const auto tokens = json["max_sequence_length"].get<int64_t>();
  EXPECT_EQ(json["next"]["tokens"], tokens + 1024);
  EXPECT_EQ(json["plan"]["sequence_length"], tokens);
  EXPECT_GT(json["mfu_percent"].get<double>(), 0);
  EXPECT_EQ(json["next"]["binds"], "gpu");
  const Outcome text = bench.run(asked);
  EXPECT_TRUE(text.says("positions are rotary")) << text.output;
  EXPECT_TRUE(text.says("MFU")) << text.output;
}

// Every strategy that may be chosen is asked about the length at hand, and the plan that is shown
// is one of the longest.
TEST(Capacity, longest_sequence_is_that_of_the_strategy_that_is_chosen) {
  const Workbench bench;
  const std::string asked =
      "predict --machine alps-gh200-quad --model gpt2 --devices 2 --max-sequence --global-batch 2 "
      "--set machine.gpu.memory_gb=8 --json";
  const Outcome outcome = bench.run(asked);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json json = Json::parse(outcome.output);
  const auto tokens = json["max_sequence_length"].get<int64_t>();
  EXPECT_EQ(json["plan"]["sequence_length"], tokens);
  EXPECT_TRUE(json["fits"].get<bool>());
  EXPECT_EQ(json["next"]["binds"], "gpu");
  // The next one lacks what a few thousand tokens need, not what a poorer strategy would.
  const Json& next = json["next"]["memory"]["hbm"];
  EXPECT_LT(next["needed_bytes"].get<double>(), 1.1 * next["usable_bytes"].get<double>());
  const Json named = Json::parse(bench.run(asked + " --strategy superoffload").output);
  EXPECT_GE(tokens, named["max_sequence_length"].get<int64_t>());
}

// The command that an answer prints, run.
Json predicted(const Workbench& bench, const Json& answer) {
  std::string command = answer.get<std::string>();
  const std::string program = "ballast ";
  EXPECT_EQ(command.rfind(program, 0), 0u) << command;
  const Outcome outcome = bench.run(command.substr(program.size()) + " --json");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return Json::parse(outcome.output);
}

TEST(Capacity, largest_model_comes_as_files_that_predict_the_same) {
  const Workbench bench;
  const std::string machine =
      "--machine gh200-96gb-480gb --sequence-length 512 --global-batch 1 "
      "--set machine.gpu.memory_gb=4 --set machine.cpu.memory_gb=24 ";
  const Json found =
      Json::parse(bench.run("predict --max-model --plan-out p.json --json " + machine).output);
  EXPECT_TRUE(bench.exists(found["model_file"].get<std::string>()));
  EXPECT_EQ(found["plan"]["model"], found["model_file"]);
  EXPECT_EQ(predicted(bench, found["predict"])["step_time_s"], found["step_time_s"]);

  const Outcome tuned = bench.run(
      "tune --objective largest-model --model gpt2 --json --out t.json 2>/dev/null --store s.db " +
      machine);
  const Json answer = Json::parse(tuned.output);
  const Json& objective = answer["objective"];
  EXPECT_TRUE(bench.exists(objective["model_file"].get<std::string>()));
  EXPECT_EQ(answer["ranked"][0]["plan"]["model"], objective["model_file"]);
  EXPECT_EQ(predicted(bench, objective["predict"])["step_time_s"],
            answer["ranked"][0]["step_time_s"]);
  // Other verbs take the plan as it is.
  EXPECT_EQ(bench.run("export --megatron t.json --out flags.txt").code, 0);
}

// A plan names its machine and model: what --set changed of them is said beside it.
TEST(Capacity, tuned_plan_comes_with_the_command_that_predicts_the_same) {
  const Workbench bench;
  const Json answer = Json::parse(
      bench
          .run("tune --model gpt2 --machine gh200-96gb-480gb --json --out t.json --store s.db "
               "--global-batch 4 --set machine.gpu.memory_bandwidth_gb_per_s=2000 "
               "--set model.layers=10 2>/dev/null")
          .output);
  const std::string predict = answer["predict"];
  EXPECT_NE(predict.find("machine.gpu.memory_bandwidth_gb_per_s=2000"), std::string::npos);
  EXPECT_EQ(predicted(bench, predict)["step_time_s"], answer["ranked"][0]["step_time_s"]);
}

// Beyond the table of gpt2's positions they are rotary, which no config.json of gpt2 says.
TEST(Capacity, longest_sequence_comes_as_files_that_predict_the_same) {
  const Workbench bench;
  const Json found = Json::parse(
      bench
          .run("predict --max-sequence --plan-out folder.json --json --model gpt2 "
               "--machine gh200-96gb-480gb --global-batch 1 --set machine.gpu.memory_gb=4")
          .output);
  EXPECT_NE(found["predict"].get<std::string>().find("model.position=rope"), std::string::npos);
  EXPECT_EQ(predicted(bench, found["predict"])["step_time_s"], found["step_time_s"]);
}

TEST(Capacity, a_plan_to_write_is_one_plan) {
  const Workbench bench;
  const std::string plan = kChip + "--model gpt2 --plan-out p.json ";
  EXPECT_EQ(bench.run(plan + "--strategy superoffload,zero-offload").code, 2);
  EXPECT_EQ(bench.run(plan + "--set machine.gpu.memory_gb=1.2").code, 1);
  EXPECT_FALSE(bench.exists("p.json"));
  EXPECT_EQ(bench.run(plan).code, 0);
  EXPECT_EQ(bench.run("predict --plan p.json").code, 0);
  EXPECT_EQ(bench.read("p.json").find("auto"), std::string::npos);
}

TEST(Capacity, two_searches_or_a_list_or_a_trace_are_refused) {
  const Workbench bench;
  EXPECT_EQ(bench.run(kChip + "--max-model --max-sequence --model gpt2").code, 2);
  EXPECT_EQ(bench.run(kChip + "--max-model --strategy superoffload,zero-offload").code, 2);
  EXPECT_EQ(bench.run(kChip + "--max-model --trace t.json").code, 2);
  EXPECT_EQ(bench.run(kChip + "--max-sequence").code, 2) << "of which model?";
}

// Another framework is slower than Ballast at the same plan, and takes slack in memory.
TEST(Stacks, prediction_is_as_the_named_stack_runs_it) {
  const Workbench bench;
  const std::string same =
      kChip +
      "--model gpt2-xl --strategy superoffload --global-batch 4 --micro-batch 4 --json "
      "--set plan.activations=keep --set plan.weights=stationary "
      "--set plan.optimizer.gpu_buckets=0 ";
  const Json ours = Json::parse(bench.run(same + "--stack ballast").output);
  const Json theirs = Json::parse(bench.run(same + "--stack deepspeed-gh200").output);
  EXPECT_EQ(ours["stack"], "ballast");
  EXPECT_EQ(theirs["stack"], "deepspeed-gh200");
  EXPECT_GT(theirs["step_time_s"].get<double>(), ours["step_time_s"].get<double>());
  EXPECT_EQ(bench.run(kChip + "--model gpt2 --stack nothing").code, 2);
}

TEST(Stacks, open_knobs_are_chosen_for_a_named_stack) {
  const Workbench bench;
  const Json json =
      Json::parse(bench
                      .run(kChip + "--model gpt2 --strategy zero-offload --global-batch 2 --json "
                                   "--stack deepspeed-gh200")
                      .output);
  EXPECT_TRUE(json["fits"].get<bool>());
  EXPECT_EQ(json["plan"].dump().find("auto"), std::string::npos);
}

TEST(Devices, pipeline_shows_every_stage_and_its_degrees) {
  const Workbench bench;
  const std::string asked =
      "predict --model gpt2 --machine alps-gh200-quad --devices 4 --pipeline 2 --tensor 2 "
      "--strategy megatron --global-batch 4 --sequence-length 512 ";
  const Outcome text = bench.run(asked);
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(text.says("tensor 2, pipeline 2")) << text.output;
  EXPECT_TRUE(text.says("0 compute")) << text.output;
  EXPECT_TRUE(text.says("1 compute")) << text.output;
  const Json json = Json::parse(bench.run(asked + "--json").output);
  EXPECT_EQ(json["plan"].dump().find("auto"), std::string::npos);
  EXPECT_EQ(json["plan"]["pipeline"], 2);
  for (const char* key : {"step_time_s", "tokens_per_s", "tokens_per_s_per_device",
                          "tflops_per_device", "hardware_tflops_per_device", "mfu_percent", "fits",
                          "reason", "peak_gpu_bytes", "peak_cpu_bytes", "peak_nvme_bytes",
                          "holders", "lanes", "longest_path", "provenance", "plan"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
}

TEST(Devices, sequence_ranks_and_zero_3_are_named_and_their_knobs_chosen) {
  const Workbench bench;
  const Outcome text = bench.run(
      "predict --model gpt2 --machine alps-gh200-quad --devices 4 --sequence 4 "
      "--strategy superoffload-ulysses --global-batch 1 --sequence-length 1024");
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(text.says("sequence 4, ZeRO-3")) << text.output;
  EXPECT_FALSE(text.says("auto")) << text.output;
}

// Apart, copies hold a layer's outputs until the GPU is past them: twice what is alive, of 65,536
// tokens 73 GiB. In 40 GB of memory the same plan runs where memory is reused at once, in 29 GiB.
TEST(Reuse, plan_that_fits_only_where_memory_is_reused_at_once_is_predicted_so) {
  const Workbench bench;
  const std::string asked =
      "predict --model llama-3-8b --machine gh200-96gb-480gb --sequence-length 65536 "
      "--stack ballast "
      "--set model.max_positions=65536 --global-batch 1 --micro-batch 1 "
      "--set plan.activations=offload --set plan.weights=flow --set plan.optimizer.gpu_buckets=0 ";
  const Outcome ample = bench.run(asked);
  EXPECT_EQ(ample.code, 0) << ample.output;
  EXPECT_TRUE(ample.says("held for reuse")) << ample.output;
  EXPECT_FALSE(ample.says("reused at once")) << ample.output;
  const std::string small = asked + "--set machine.gpu.memory_gb=40 ";
  const Outcome tight = bench.run(small);
  EXPECT_EQ(tight.code, 0) << tight.output;
  EXPECT_TRUE(tight.says("memory reused at once")) << tight.output;
  const Outcome json = bench.run(small + "--json");
  EXPECT_TRUE(json.says("\"memory_reuse\": \"at-once\"")) << json.output;
  const Outcome apart = bench.run(small + "--set plan.memory_reuse=apart");
  EXPECT_EQ(apart.code, 1) << apart.output;
  EXPECT_TRUE(apart.says("does not fit")) << apart.output;
}

}  // namespace
}  // namespace ballast
