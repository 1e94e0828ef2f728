// What of weeks of training stays where devices fail, as a user asks `predict`.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

const std::string kPlan =
    "predict --model gpt2 --machine dgx-h100-80gb --devices 8 --strategy zero-1 --micro-batch 8 "
    "--zero-stage 1 --stack ballast ";
const std::string kFails = "--failures-per-device-year 20 ";

TEST(GoodputOutput, text_and_json_tell_the_same_and_the_shares_sum_to_one) {
  const Workbench bench;
  const Outcome outcome = bench.run(kPlan + kFails + "--days 7 --json 2> /dev/null");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json all = Json::parse(outcome.output);
  const Json goodput = all["goodput"];
  const auto number = [&](const char* key) { return goodput[key].get<double>(); };
  EXPECT_NEAR(number("kept") + number("repeated") + number("checkpoints") + number("down"), 1,
              1e-9);
  EXPECT_NEAR(number("mean_time_between_failures_s"), 365.25 * 86400 / (20 * 8), 1);
  EXPECT_NEAR(number("tokens"), all["tokens_per_s"].get<double>() * number("kept") * 7 * 86400,
              1e-6 * number("tokens"));
  EXPECT_TRUE(goodput["period_is_chosen"].get<bool>());
  const Outcome text = bench.run(kPlan + kFails + "--days 7");
  EXPECT_TRUE(text.says("over 7 days    goodput 9")) << text.output;
  EXPECT_TRUE(text.says("(the period that keeps most)")) << text.output;
}

TEST(GoodputOutput, period_of_the_plan_and_what_a_checkpoint_takes_are_obeyed) {
  const Workbench bench;
  const auto kept = [&](const std::string& flags) {
    const Outcome outcome = bench.run(kPlan + kFails + flags + " --json 2> /dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output)["goodput"];
  };
  const Json often = kept("--set plan.checkpoint_period_steps=20 --checkpoint-seconds 30");
  EXPECT_EQ(often["period_steps"], 20);
  EXPECT_FALSE(often["period_is_chosen"].get<bool>());
  EXPECT_EQ(often["checkpoint_s"], 30);
  const Json best = kept("--checkpoint-seconds 30");
  EXPECT_GT(best["kept"], often["kept"]);
  EXPECT_GT(best["kept"], kept("--checkpoint-seconds 300")["kept"]);
  EXPECT_GT(best["kept"], kept("--checkpoint-seconds 30 --restart-seconds 7200")["kept"]);
}

// What a stage keeps for its successor is 12 layers of gpt2-xl (of 48, in four stages) and, of the
// last for the first, the embedding.
TEST(GoodputOutput, redundant_stages_stand_beside_checkpoints) {
  const Workbench bench;
  const std::string plan =
      "predict --model gpt2-xl --machine dgx-h100-80gb --devices 8 --strategy megatron "
      "--tensor 1 --pipeline 4 --virtual-pipeline 1 --zero-stage 0 --micro-batch 1 --global-batch "
      "16 ";
  const Outcome outcome = bench.run(plan + kFails + "--redundant-stages --json 2> /dev/null");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json goodput = Json::parse(outcome.output)["goodput"];
  const Json with = goodput["redundant_stages"];
  const auto number = [&](const char* key) { return with[key].get<double>(); };
  EXPECT_EQ(with["stages"], 4);
  EXPECT_GT(number("gpu_bytes"), 2.0 * 12 * 12 * 1600 * 1600);
  EXPECT_LT(number("gpu_bytes"), 2.0 * (12 * 12 * 1600 * 1600 * 1.01 + 60'000 * 1600));
  // Forward and bubbles are those of the stages that have most and least.
  EXPECT_GE(number("step_longer_s"), 0);
  EXPECT_LE(number("step_longer_s"), std::max(0.0, number("forward_s") - number("idle_s")));
  EXPECT_NEAR(number("kept") + number("slowed") + number("repeated") + number("down") +
                  number("checkpoints"),
              1, 1e-9);
  EXPECT_LT(number("restarts"), goodput["failures"].get<double>());
  const Outcome text = bench.run(plan + kFails + "--redundant-stages");
  EXPECT_TRUE(text.says("redundant stages    goodput ")) << text.output;
  EXPECT_TRUE(text.says("nothing here trains so")) << text.output;
  EXPECT_FALSE(bench.run(plan + kFails).says("redundant stages"));
}

TEST(GoodputOutput, what_cannot_be_told_is_refused_by_name) {
  const Workbench bench;
  const auto refuses = [&](const std::string& arguments, const std::string& words) {
    const Outcome outcome = bench.run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_TRUE(outcome.says(words)) << outcome.output;
  };
  refuses(kPlan + "--days 3", "--days requires --failures-per-device-year");
  refuses("predict --model gpt2 --machine alps-gh200-quad " + kFails,
          "describes no disk that checkpoints are written to; say with --checkpoint-seconds");
  refuses("predict --model gpt2,gpt2-xl --machine dgx-h100-80gb " + kFails,
          "there are several plans");
  refuses("predict --max-model --machine dgx-h100-80gb " + kFails, "a search is for a size");
  refuses(kPlan + "--failures-per-device-year 1e12", "fail 6.57e+11 times in 30 days");
  refuses(kPlan + "--failures-per-device-year 0", "no finite number above 0");
  refuses(kPlan + kFails + "--restart-seconds 1e7", "not in range");
  refuses(kPlan + "--checkpoint-period 5 --set plan.checkpoint_period_steps=6",
          "plan.checkpoint_period_steps=6 names it too");
  refuses(kPlan + "--redundant-stages", "requires --failures-per-device-year");
  refuses(kPlan + kFails + "--redundant-stages", "a plan of one stage has no other");
}

}  // namespace
}  // namespace ballast
