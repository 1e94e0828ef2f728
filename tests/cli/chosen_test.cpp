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
       true, 37'000},
      {"--model qwen3-30b-a3b --machine hgx-h100-80gb-800g --devices 8 --sequence-length 8192 "
       "--global-batch 64",
       true, 75'500},
      {"--model llama-3-8b --machine hgx-h100-80gb-800g --devices 8 --strategy megatron", true,
       90'000},
      {"--model llama-3-70b --machine hgx-h100-80gb-800g --devices 8", true, 8'000},
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

}  // namespace
}  // namespace ballast
