// Whose habits a prediction assumes, and how sure it says that it is.
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

const std::string kStacked =
    "--model gpt2 --machine gh200-96gb-480gb --global-batch 2 --micro-batch 2 --strategy resident "
    "--sequence-length 512 --set plan.activations=keep ";

// unsure.json: the typical framework whose matrix products are known to 20 %; memory to 10 %.
void write_unsure(const Workbench& bench) {
  std::ifstream file(std::string(BALLAST_SOURCE_DIR) + "/profiles/stacks/typical.json");
  Json stack = Json::parse(file);
  const size_t constants = stack["constants"].size();
  Json rows = Json::array();
  for (size_t i = 0; i < constants; ++i) rows.push_back(Json(constants, 0.0));
  rows[0][0] = 0.04;
  stack["uncertainty"] = {{"time", 0.1}, {"memory", 0.1}, {"covariance", rows}};
  bench.write("unsure.json", stack.dump());
}

TEST(Stack, is_the_typical_frameworks_where_none_is_named_and_the_output_says_so) {
  const Workbench bench;
  const std::string said =
      "as the typical framework (--stack to name another; --stack ballast for Ballast's own "
      "backend)";
  for (const std::string verb : {"predict ", "graph ", "compare "}) {
    const Outcome outcome = bench.run(verb + kStacked);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_TRUE(outcome.says(said)) << outcome.output;
  }
  const Json none = Json::parse(bench.run("predict --json " + kStacked).output);
  const Json typical = Json::parse(bench.run("predict --json --stack typical " + kStacked).output);
  EXPECT_EQ(none["stack"], "typical");
  EXPECT_EQ(none, typical);
  const Json graph = Json::parse(bench.run("graph --json " + kStacked).output);
  EXPECT_EQ(graph["stack"], "typical");
  EXPECT_EQ(graph["step_time_s"], none["step_time_s"]);
}

// A plan whose buckets nobody names has those of the framework that is named, as published cases
// have in `validate`, whether its layout is given or chosen.
TEST(Stack, brings_its_frameworks_buckets_where_nobody_names_others) {
  const Workbench bench;
  const std::string plan =
      "predict --json --model gpt2 --machine dgx-h100-80gb --devices 16 --global-batch 16 "
      "--micro-batch 1 --sequence-length 512 --set plan.activations=keep ";
  const auto bucket = [&](const std::string& more) {
    const Outcome outcome = bench.run(plan + more);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output)["plan"]["optimizer"]["bucket_bytes"].get<int64_t>();
  };
  EXPECT_EQ(bucket("--strategy ddp --stack nemo-2025"), int64_t{4} * 40'000'000);
  EXPECT_EQ(bucket("--strategy ddp --stack torch-2025"), int64_t{25} << 20);
  EXPECT_EQ(bucket("--strategy ddp"), int64_t{64} << 20);
  EXPECT_EQ(bucket("--strategy megatron --stack nemo-2025"), int64_t{4} * 40'000'000);
  EXPECT_EQ(bucket("--strategy ddp --stack nemo-2025 --set plan.optimizer.bucket_bytes=1048576"),
            1 << 20);
  EXPECT_EQ(bucket("--strategy superoffload --stack deepspeed-2025"), int64_t{64} << 20);
}

TEST(Stack, roofline_is_no_slower_and_plans_memory_as_ballast_does) {
  const Workbench bench;
  const auto as = [&](const std::string& stack) {
    return Json::parse(bench.run("predict --json --stack " + stack + " " + kStacked).output);
  };
  const Json ideal = as("ideal");
  const Json ballast = as("ballast");
  EXPECT_EQ(ideal["stack"], "ideal");
  EXPECT_EQ(ideal["step_time_s"], ballast["step_time_s"]);
  EXPECT_EQ(ideal["peak_gpu_bytes"], ballast["peak_gpu_bytes"]);
  EXPECT_LT(ideal["step_time_s"], as("typical")["step_time_s"]);
}

TEST(Stack, is_our_own_backend_on_the_machine_that_it_measured) {
  const Workbench bench;
  bench.write_tiny_model();
  bench.write_store();
  const std::string here =
      "predict --model ./tiny.json --machine here --store here.db --sequence-length 64 "
      "--strategy resident --global-batch 2 ";
  const Outcome text = bench.run(here);
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(text.says("as Ballast's own backend")) << text.output;
  EXPECT_EQ(Json::parse(bench.run(here + "--json").output)["stack"], "ballast");
}

TEST(Confidence, is_null_where_a_stack_was_never_held_against_anything) {
  const Workbench bench;
  const Json json =
      Json::parse(bench.run("predict --json --stack ideal " + kStacked).output)["confidence"];
  EXPECT_EQ(json["stack"], "ideal");
  for (const char* key : {"step_time_s", "tokens_per_s", "gpu_peak_gb", "fits_probability"}) {
    EXPECT_TRUE(json.at(key).is_null()) << key;
  }
}

// Intervals are even in logarithms, so that low times high is the square of the middle.
TEST(Confidence, stands_behind_time_speed_and_memory) {
  const Workbench bench;
  write_unsure(bench);
  const std::string asked = "predict --stack ./unsure.json " + kStacked;
  const Outcome text = bench.run(asked);
  EXPECT_TRUE(text.says("\nfits\n")) << text.output;
  EXPECT_TRUE(text.says("as unsure (--stack")) << text.output;
  EXPECT_TRUE(text.says("tokens/s (80 %: ")) << text.output;
  const Json json = Json::parse(bench.run(asked + "--json").output);
  const Json& sure = json["confidence"];
  const auto even = [](const Json& interval, double middle) {
    const double low = interval[0];
    const double high = interval[1];
    EXPECT_LT(low, high);
    EXPECT_NEAR(low * high / (middle * middle), 1, 1e-3);
    return high / middle;
  };
  // exp(1.2816 * 0.1) at least: the products' 20 % come on top.
  const double time = even(sure["step_time_s"], json["step_time_s"]);
  EXPECT_GT(time, 1.1367);
  EXPECT_LT(time, 1.34);
  EXPECT_NEAR(even(sure["tokens_per_s"], json["tokens_per_s"]), time, 1e-9);
  EXPECT_NEAR(even(sure["gpu_peak_gb"], json["peak_gpu_bytes"].get<double>() * 1e-9), 1.1367, 1e-3);
  EXPECT_GT(sure["fits_probability"], 0.99);
}

// As much memory as the plan needs: it fits with even odds, and says so either way.
TEST(Confidence, verdict_is_close_where_memory_is_about_what_is_needed) {
  const Workbench bench;
  write_unsure(bench);
  const std::string asked = "predict --stack ./unsure.json " + kStacked;
  const Json json = Json::parse(bench.run(asked + "--json").output);
  const double reserved = load_machine("gh200-96gb-480gb").gpu.reserved.value.gb() * 1e9;
  const auto with = [&](double share, const std::string& verb_flags = "") {
    const double bytes = share * json["peak_gpu_bytes"].get<double>() + reserved;
    return bench.run(asked + "--set machine.gpu.memory_gb=" + std::to_string(bytes * 1e-9) +
                     verb_flags);
  };
  const Outcome above = with(1.03);
  EXPECT_EQ(above.code, 0) << above.output;
  EXPECT_TRUE(above.says("close: fits with a chance of 62 %")) << above.output;
  EXPECT_FALSE(above.says("gives its cached blocks back")) << above.output;
  const Outcome full = with(1.005);
  EXPECT_EQ(full.code, 0) << full.output;
  EXPECT_TRUE(full.says("GPU memory is filled to 99.5 %: ")) << full.output;
  EXPECT_TRUE(full.says("gives its cached blocks back")) << full.output;
  const auto notes = [&](double share) {
    return Json::parse(with(share, " --json").output)["notes"].dump();
  };
  EXPECT_NE(notes(1.005).find("GPU memory is filled to 99.5 %: "), std::string::npos);
  EXPECT_EQ(notes(1.03).find("GPU memory is filled"), std::string::npos);
  const Outcome below = with(0.97);
  EXPECT_EQ(below.code, 1) << below.output;
  EXPECT_TRUE(below.says("close: does not fit, but has a chance of 38 %: ")) << below.output;
  const Outcome far = with(0.8);
  EXPECT_TRUE(far.says("does not fit: ")) << far.output;
  EXPECT_FALSE(far.says("close")) << far.output;
}

// Buckets of 64 and of 32 MiB make no difference that anybody could measure.
TEST(Confidence, plans_that_are_too_near_cannot_be_told_apart) {
  const Workbench bench;
  write_unsure(bench);
  const std::string asked =
      "compare --model gpt2 --machine gh200-96gb-480gb --global-batch 2 --micro-batch 2 "
      "--sequence-length 512 --stack ./unsure.json --set plan.activations=keep ";
  const std::string near = asked + "--strategy resident,resident:optimizer.bucket_bytes=33554432 ";
  const Outcome text = bench.run(near);
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(text.says(", too near")) << text.output;
  EXPECT_TRUE(text.says("within 6.6 % of each other, plans cannot be told apart")) << text.output;
  EXPECT_TRUE(text.says("80 % of the best")) << text.output;
  const std::string json = bench.run(near + "--json 2> /dev/null").output;
  EXPECT_EQ(Json::parse(json)["best"][0]["told_apart"], false);
  EXPECT_FALSE(Json::parse(json)["cells"][0]["confidence"]["step_time_s"].is_null());
  const Outcome far = bench.run(asked +
                                "--strategy superoffload,resident --set machine.link.gb_per_s=1 "
                                "--set plan.optimizer.gpu_buckets=0 --set plan.weights=stationary");
  EXPECT_FALSE(far.says("too near")) << far.output;
}

}  // namespace
}  // namespace ballast
