// What limits a step is one number: in the text, in the JSON, on the page and in `tune`; and where
// lanes tie it is said so.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

const std::string kSmall =
    "--model gpt2 --machine gh200-96gb-480gb --strategy zero-offload --sequence-length 512 "
    "--micro-batch 2 --set plan.activations=keep --set plan.weights=stationary "
    "--set plan.optimizer.gpu_buckets=0 ";

Json json_of(const Workbench& bench, const std::string& arguments) {
  const Outcome outcome = bench.run(arguments + " 2> /dev/null");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return Json::parse(outcome.output);
}

std::string shown(const std::string& name, double gain) {
  return fmt::format("{} {:.1f} %", name, 100 * gain);
}

// The data of a page, which its script draws.
Json embedded(const std::string& page) {
  const std::string open = R"(type="application/json" id="data">)";
  const size_t begin = page.find(open);
  EXPECT_NE(begin, std::string::npos);
  const size_t end = page.find("</script>", begin);
  return Json::parse(page.substr(begin + open.size(), end - begin - open.size()));
}

TEST(BottlenecksOutput, text_json_and_page_have_the_same_numbers) {
  const Workbench bench;
  const Json found = json_of(bench, "predict --json " + kSmall)["bottlenecks"];
  ASSERT_FALSE(found["rates"].empty());
  ASSERT_FALSE(found["lanes"].empty());
  const std::string text = bench.run("predict " + kSmall).output;
  const Json& most = found["rates"][0];
  EXPECT_GT(most["gain"].get<double>(), 0);
  EXPECT_NE(text.find(shown(most["name"], most["gain"])), std::string::npos) << text;
  EXPECT_NE(text.find(shown("all rates together", found["all_rates_gain"])), std::string::npos)
      << text;
  for (const Json& lane : found["lanes"]) {
    if (lane["gain"] < 0.0005) continue;
    EXPECT_NE(text.find(shown(lane["lane"], lane["gain"])), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("critical path"), std::string::npos) << text;
  ASSERT_EQ(bench.run("report --out page.html " + kSmall).code, 0);
  EXPECT_EQ(embedded(bench.read("page.html"))["prediction"]["bottlenecks"], found);
}

// The derivative of `compare`, which predicts both machines from nothing.
TEST(BottlenecksOutput, gains_are_those_of_a_machine_that_is_set_so) {
  const Workbench bench;
  const Json here = json_of(bench, "predict --json " + kSmall);
  for (const Json& rate : here["bottlenecks"]["rates"]) {
    if (rate["key"] != "machine.cpu.memory_bandwidth_gb_per_s") continue;
    const double faster = 1.1 * rate["value"].get<double>();
    const Json there = json_of(
        bench, fmt::format("predict --json {} --set machine.cpu.memory_bandwidth_gb_per_s={:.17g}",
                           kSmall, faster));
    const double gain = 1 - there["step_time_s"].get<double>() / here["step_time_s"].get<double>();
    EXPECT_NEAR(rate["gain"].get<double>(), gain, 1e-6);
    return;
  }
  FAIL() << "the CPU's memory is no rate of " << here["bottlenecks"].dump();
}

TEST(BottlenecksOutput, tune_says_of_its_best_what_predict_says) {
  const Workbench bench;
  // A store of its own: the usual one would make a folder "ballast" here, which --stack would take.
  const std::string store = "--store ./store.sqlite ";
  const Json tuned = json_of(bench, "tune --json --deadline 5 --out best.json " + store + kSmall);
  const Json predicted = json_of(bench, "predict --json --stack ballast --plan best.json " + store);
  ASSERT_TRUE(predicted["bottlenecks"].is_object());
  EXPECT_EQ(tuned["bottlenecks"], predicted["bottlenecks"]);
}

// The GPU is busy all the time, Adam runs beside it nearly as long, and so does the link between
// them: a longest path through any says "adam" or "gemm", and none alone gives half of what all do.
TEST(BottlenecksOutput, of_13b_on_a_gh200_say_that_gpu_and_cpu_tie) {
  const Workbench bench;
  const std::string asked =
      "predict --model gpt-13b --machine gh200-96gb-480gb --global-batch 8 "
      "--strategy superoffload --stack ballast ";
  const Json limits = json_of(bench, asked + "--json")["bottlenecks"];
  ASSERT_TRUE(limits["rate_tie"].is_object()) << limits.dump();
  EXPECT_EQ(limits["rate_tie"]["names"],
            (Json{"GPU matrix products", "Adam on the CPU", "link both ways"}));
  const Outcome own = bench.run(asked);
  EXPECT_TRUE(
      own.says("no single rate limits: GPU matrix products, Adam on the CPU and link both "
               "ways tie"))
      << own.output;
  EXPECT_FALSE(own.says("adam 7")) << own.output;
}

TEST(BottlenecksOutput, of_a_plan_that_does_not_fit_are_null) {
  const Workbench bench;
  const Outcome outcome = bench.run(
      "predict --json --model gpt3-175b --machine rtx-4090-pcie --devices 1 --strategy resident "
      "--micro-batch 1 --set plan.activations=keep 2> /dev/null");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(Json::parse(outcome.output)["bottlenecks"].is_null());
}

}  // namespace
}  // namespace ballast
