// First questions of people who buy or own machines: what nobody names is chosen, so that "does not
// fit" is said only where nothing does.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

struct ChosenQuestion {
  const char* asked;
  bool fits;
  const char* by_hand;  // what a user who knows would add
};

// Of what is added by hand: the choice looks at a few layouts closely, and not at every count of
// buckets.
constexpr double kLeastShare = 0.98;

TEST(Chosen, what_is_not_named_is_chosen) {
  const ChosenQuestion questions[] = {
      {"--model qwen3-30b-a3b --machine alps-gh200-quad --devices 4 --sequence-length 8192 "
       "--global-batch 64",
       true, "--zero-stage 3 --micro-batch 1"},
      {"--model qwen3-30b-a3b --machine hgx-h100-80gb-800g --devices 8 --sequence-length 8192 "
       "--global-batch 64",
       true, "--zero-stage 3 --micro-batch 1"},
      {"--model llama-3-8b --machine hgx-h100-80gb-800g --devices 8 --strategy megatron", true,
       "--zero-stage 1"},
      {"--model llama-3-70b --machine hgx-h100-80gb-800g --devices 8", true,
       "--strategy superoffload --zero-stage 3 --micro-batch 8"},
      {"--model mixtral-8x7b --machine dgx-h100-80gb --devices 8 --sequence-length 4096 "
       "--global-batch 64",
       true, "--zero-stage 3 --expert 8 --micro-batch 8"},
      {"--model deepseek-v3 --machine alps-gh200-quad --devices 4 --sequence-length 8192", false,
       nullptr},
  };
  Workbench bench;
  for (const ChosenQuestion& question : questions) {
    const std::string asked = std::string("predict --json ") + question.asked;
    const Outcome told = bench.run(asked);
    ASSERT_EQ(told.code, question.fits ? 0 : 1) << told.output;
    const Json json = Json::parse(told.output);
    EXPECT_EQ(json["fits"], question.fits) << question.asked;
    if (!question.fits) continue;
    const Outcome named = bench.run(asked + " " + question.by_hand);
    ASSERT_EQ(named.code, 0) << named.output;
    const double by_hand = Json::parse(named.output)["tokens_per_s"].get<double>();
    EXPECT_GE(json["tokens_per_s"].get<double>(), kLeastShare * by_hand) << question.asked;
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

double least_gb(const Json& answer, const std::string& limit) {
  for (const Json& change : answer.at("least_changes")) {
    if (change.at("limit") == limit && !change.at("fits").is_null()) return change.at("fits");
  }
  return 0;
}

// A 70B with a micro-batch that is named, beside less and less CPU memory: what is missing is told
// of the plan that comes nearest there, no other knob is advised, and more memory is what it says.
TEST(Chosen, what_lacks_with_a_named_micro_batch_is_of_the_nearest_plan) {
  const Workbench bench;
  const std::string asked =
      "predict --json --model llama-3-70b --machine gh200-96gb-480gb --micro-batch 1 ";
  double before = 0;
  for (const char* gb : {"480", "240", "120"}) {
    const std::string with = asked + "--set machine.cpu.memory_gb=" + gb + " ";
    const Outcome told = bench.run(with);
    ASSERT_EQ(told.code, 1) << told.output;
    const Json answer = Json::parse(told.output);
    const std::string reason = answer["reason"];
    EXPECT_EQ(reason.find("let more weights flow"), std::string::npos) << reason;
    EXPECT_NE(reason.find("of the plans tried"), std::string::npos) << reason;
    // The less the CPU holds the more must the GPU.
    const double gpu = least_gb(answer, "gpu_memory");
    EXPECT_GT(gpu, before) << gb;
    before = gpu;
  }
  const std::string with = asked + "--set machine.cpu.memory_gb=480 --set machine.gpu.memory_gb=";
  const auto gb = static_cast<int64_t>(least_gb(
      Json::parse(bench.run(asked + "--set machine.cpu.memory_gb=480").output), "gpu_memory"));
  EXPECT_EQ(bench.run(with + std::to_string(gb)).code, 0);
  EXPECT_EQ(bench.run(with + std::to_string(gb - 1)).code, 1);
}

// Utilisation as everybody counts it, of the nominal peak; beside it that of the measured one.
TEST(Chosen, utilisation_names_both_of_its_denominators) {
  const Workbench bench;
  const std::string asked = "predict --model gpt2-xl --machine dgx-h100-80gb ";
  const Json json = Json::parse(bench.run(asked + "--json").output);
  const double nominal = json["mfu_percent"], measured = json["mfu_of_measured_percent"];
  EXPECT_NEAR(nominal, 100 * json["tflops_per_device"].get<double>() / 989.4, 1e-6);
  EXPECT_GT(measured, nominal);
  const Outcome text = bench.run(asked);
  EXPECT_TRUE(text.says("TFLOP/s measured)")) << text.output;
  // Where nothing was measured there is one.
  const Json other =
      Json::parse(bench.run("predict --model gpt2-xl --machine rtx-4090-pcie --json").output);
  EXPECT_TRUE(other["mfu_of_measured_percent"].is_null());
}

// A file of one GPU is not all that one can buy.
TEST(Chosen, more_devices_than_a_file_has_come_with_how_to_describe_them) {
  const Workbench bench;
  const std::string asked = "predict --model llama-3.2-1b --machine 4090 --devices ";
  const Outcome told = bench.run(asked + "4");
  EXPECT_EQ(told.code, 1) << told.output;
  const std::string how = "machines --new FILE.json --gpu 'NVIDIA GeForce RTX 4090 24 GB' --gpus 4";
  EXPECT_TRUE(told.says("to ask about 4 of this GPU: ballast " + how + ", then")) << told.output;
  EXPECT_TRUE(bench.run(asked + "32").says("--gpus 8 --nodes 4 --network 400gbit, then"));
  EXPECT_EQ(
      bench.run("machines --new four.json --gpu 'NVIDIA GeForce RTX 4090 24 GB' --gpus 4").code, 0);
  EXPECT_EQ(bench.run("predict --model llama-3.2-1b --machine four.json --devices 4").code, 0);
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

// On a terminal a choice that takes longer than a moment says how far it is, and then takes the
// line away; elsewhere, where answers are read by programs, it says nothing.
TEST(Chosen, a_terminal_shows_how_far_a_long_choice_is) {
  const Workbench bench;
  const std::string ask =
      "predict --model deepseek-v3 --machine dgx-h100-80gb --devices 256 --global-batch 512";
  const std::string seen = bench.shell("script -qec \"$BALLAST " + ask + "\" /dev/null").output;
  EXPECT_NE(seen.find("\r\x1b[Kchoose ["), std::string::npos) << seen;
  EXPECT_NE(seen.find("layouts looked"), std::string::npos) << seen;
  EXPECT_NE(seen.find("\r\x1b[Kdeepseek-v3 on"), std::string::npos) << seen;
  EXPECT_EQ(bench.run(ask).output.find("choose ["), std::string::npos);
}

}  // namespace
}  // namespace ballast
