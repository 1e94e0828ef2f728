// First questions of people who buy or own machines: what nobody names is chosen, so that "does not
// fit" is said only where nothing does.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

struct Question {
  const char* asked;
  bool fits;
  double least_tokens_per_s;  // of some plan that was found by hand
};

TEST(Chosen, what_is_not_named_is_chosen) {
  const Question questions[] = {
      {"--model qwen3-30b-a3b --machine alps-gh200-quad --devices 4 --sequence-length 8192 "
       "--global-batch 64",
       true, 30'000},
      {"--model qwen3-30b-a3b --machine hgx-h100-80gb-800g --devices 8 --sequence-length 8192 "
       "--global-batch 64",
       true, 49'000},
      {"--model llama-3-8b --machine hgx-h100-80gb-800g --devices 8 --strategy megatron", true,
       81'000},
      {"--model llama-3-70b --machine hgx-h100-80gb-800g --devices 8", true, 7'000},
      {"--model deepseek-v3 --machine alps-gh200-quad --devices 4 --sequence-length 8192", false,
       0},
  };
  Workbench bench;
  for (const Question& question : questions) {
    const Outcome told = bench.run(std::string("predict --json ") + question.asked);
    ASSERT_EQ(told.code, question.fits ? 0 : 1) << told.output;
    const Json json = Json::parse(told.output);
    EXPECT_EQ(json["fits"], question.fits) << question.asked;
    if (question.fits) {
      EXPECT_GE(json["tokens_per_s"].get<double>(), question.least_tokens_per_s) << question.asked;
    }
  }
}

TEST(Chosen, what_is_named_stays) {
  Workbench bench;
  const Outcome told = bench.run(
      "predict --json --model llama-3-8b --machine hgx-h100-80gb-800g --devices 8 --zero-stage 2 "
      "--tensor 2 --micro-batch 1");
  ASSERT_EQ(told.code, 0) << told.output;
  const Json plan = Json::parse(told.output)["plan"];
  EXPECT_EQ(plan["zero_stage"], 2);
  EXPECT_EQ(plan["tensor"], 2);
  EXPECT_EQ(plan["micro_batch"], 1);
}

// zero-infinity-nvme asks for NVMe, which the machine does not describe.
TEST(Chosen, one_bad_cell_does_not_cost_the_others) {
  Workbench bench;
  bench.write_tiny_model();
  const std::string asked =
      "predict --model ./tiny.json --machine gh200-96gb-480gb "
      "--strategy zero-offload,zero-infinity-nvme,resident --sequence-length 64 ";
  const Outcome told = bench.run(asked + "--json --out all.json 2> /dev/null");
  ASSERT_EQ(told.code, 0) << told.output;
  const Json cases = Json::parse(told.output)["cases"];
  ASSERT_EQ(cases.size(), 3U);
  EXPECT_TRUE(cases[0]["fits"].get<bool>());
  EXPECT_FALSE(cases[1]["fits"].get<bool>());
  EXPECT_TRUE(cases[2]["fits"].get<bool>());
  EXPECT_EQ(bench.read("all.json"), told.output);
}

TEST(Chosen, an_interrupted_list_prints_and_writes_the_cells_that_are_there) {
  const Workbench bench;
  const Outcome told = bench.interrupt(
      "predict --model llama-2-7b,llama-2-13b,gpt-22b,llama-3-70b --devices 1 "
      "--machine gh200-96gb-480gb,dgx-h100-80gb,gh200-nvl2-96gb-240gb "
      "--strategy superoffload,zero-offload,zero-infinity,resident --out all.json",
      " of 48: ");
  EXPECT_EQ(told.code, 3) << told.output << bench.read("progress.txt");
  EXPECT_TRUE(told.says("interrupted: ")) << told.output;
  const Json json = Json::parse(bench.read("all.json"));
  EXPECT_TRUE(json["interrupted"].get<bool>());
  EXPECT_GE(json["cases"].size(), 1U);
  EXPECT_LT(json["cases"].size(), 48U);
}

// 6 devices do not divide by 4: no plan can be made of that cell, and the other is predicted.
TEST(Chosen, a_cell_of_which_no_plan_can_be_made_costs_no_other) {
  Workbench bench;
  bench.write_tiny_model();
  const std::string asked =
      "predict --model ./tiny.json --machine dgx-h100-80gb --sequence-length 64 "
      "--strategy megatron --tensor 2 --global-batch 4 --micro-batch 1 ";
  const Outcome list = bench.run(asked + "--devices 3,4 2> /dev/null");
  EXPECT_EQ(list.code, 0) << list.output;
  EXPECT_TRUE(list.says("illegal: --devices: 3 devices do not divide by tensor 2")) << list.output;
  const Json cases =
      Json::parse(bench.run(asked + "--devices 3,4 --json 2> /dev/null").output)["cases"];
  EXPECT_TRUE(cases[0]["fits"].is_null());
  EXPECT_EQ(cases[0]["devices"], 3);
  EXPECT_EQ(cases[0]["machine"], "dgx-h100-80gb");
  EXPECT_TRUE(cases[1]["fits"].get<bool>());
  EXPECT_EQ(bench.run(asked + "--devices 3,5").code, 2) << "where none is legal";
  EXPECT_EQ(bench.run(asked + "--devices 3,4 --model gtp2,gpt2").code, 2) << "nobody's name";
}

TEST(Chosen, an_illegal_cell_of_a_list_says_why) {
  Workbench bench;
  bench.write_tiny_model();
  const std::string asked =
      "predict --model ./tiny.json --machine alps-gh200-quad --sequence-length 64 "
      "--strategy zero-2 --micro-batch 4 --global-batch 4 ";
  const Outcome list = bench.run(asked + "--devices 1,4 2> /dev/null");
  EXPECT_EQ(list.code, 0) << list.output;
  EXPECT_TRUE(list.says("illegal: plan, micro_batch: 4 does not divide")) << list.output;
  const Outcome json = bench.run(asked + "--devices 1,4 --json 2> /dev/null");
  const Json cases = Json::parse(json.output)["cases"];
  EXPECT_TRUE(cases[0]["fits"].get<bool>());
  EXPECT_TRUE(cases[1]["fits"].is_null());
  // Where none is legal, that is bad input.
  EXPECT_EQ(bench.run(asked + "--devices 2,4").code, 2);
}

}  // namespace
}  // namespace ballast
