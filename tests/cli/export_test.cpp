// `ballast export` and `ballast import`: what they print, write and refuse.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

// Writes plan.json: 8 sequences of 512 tokens, zero-offload on 4 GPUs.
void write_plan(const Workbench& bench) {
  const Outcome made = bench.run(
      "predict --json --model gpt2 --machine alps-gh200-quad --devices 4 --sequence-length 512 "
      "--strategy zero-offload --global-batch 8 --micro-batch 1 --set plan.activations=keep");
  ASSERT_EQ(made.code, 0) << made.output;
  bench.write("plan.json", Json::parse(made.output)["plan"].dump());
}

TEST(Export, a_plan_comes_back_with_the_same_prediction) {
  const Workbench bench;
  write_plan(bench);
  const Json before = Json::parse(bench.run("predict --json --plan plan.json").output);
  ASSERT_EQ(bench.run("export --deepspeed plan.json --out ds.json").code, 0);
  const Outcome back = bench.run(
      "import --deepspeed ds.json --model gpt2 --machine alps-gh200-quad --devices 4 "
      "--sequence-length 512 --out back.json");
  ASSERT_EQ(back.code, 0) << back.output;
  EXPECT_FALSE(back.says("ignored"));
  const Json after = Json::parse(bench.run("predict --json --plan back.json").output);
  EXPECT_EQ(before["step_time_s"], after["step_time_s"]);
}

TEST(Export, json_lists_what_cannot_be_expressed_with_reasons) {
  const Workbench bench;
  write_plan(bench);
  const Json json = Json::parse(bench.run("export --megatron plan.json --json").output);
  EXPECT_EQ(json["framework"], "megatron");
  bool found = false;
  for (const Json& one : json["not_expressed"]) {
    EXPECT_FALSE(one["reason"].get<std::string>().empty());
    found = found || one["knob"] == "optimizer.cast";
  }
  EXPECT_TRUE(found);  // Megatron-LM casts on the GPU
  const Outcome text = bench.run("export --torchtitan plan.json");
  EXPECT_TRUE(text.says("[parallelism]"));
  EXPECT_TRUE(text.says("not expressed: "));
}

TEST(Export, flags_may_stand_on_the_command_line) {
  const Workbench bench;
  const Outcome outcome = bench.run(
      "import --megatron '--micro-batch-size 1 --global-batch-size 8 --bf16 --frobnicate' "
      "--model gpt2 --machine alps-gh200-quad --devices 4 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json json = Json::parse(outcome.output);
  EXPECT_EQ(json["plan"]["data"], 4);
  EXPECT_EQ(json["ignored"][0]["option"], "--frobnicate");
}

TEST(Export, what_is_assumed_for_auto_is_printed) {
  const Workbench bench;
  bench.write("ds.json", R"({"bf16": {"enabled": "auto"}, "train_batch_size": 8})");
  const std::string line =
      "import --deepspeed ds.json --model gpt2 --machine alps-gh200-quad --devices 4 --out p.json";
  const Outcome outcome = bench.run(line);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("assumed: bf16.enabled true: the Trainer's --bf16 and --fp16 decide"));
  EXPECT_TRUE(outcome.says("bf16"));
  const Outcome said = bench.run(line + " --dtype fp16 --json");
  const Json json = Json::parse(said.output);
  EXPECT_EQ(json["plan"]["dtype"], "fp16");
  EXPECT_TRUE(json["assumed"].empty());
}

TEST(Export, bad_input_is_one_line_and_exit_code_2) {
  const Workbench bench;
  bench.write("ds.json", R"({"train_batch_size": 7})");
  const std::string on = " --model gpt2 --machine alps-gh200-quad --devices 4";
  for (const std::string& arguments :
       {std::string("export"), std::string("export --deepspeed none.json"),
        std::string("export --deepspeed a --megatron b"), "import" + on,
        "import --deepspeed ds.json" + on, "import --megatron '--bf16 --fp16'" + on,
        "import --megatron none.txt" + on,
        "import --deepspeed ds.json --global-batch 8 --dtype int8" + on}) {
    const Outcome outcome = bench.run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.lines(), 1) << outcome.output;
  }
}

}  // namespace
}  // namespace ballast
