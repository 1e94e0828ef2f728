// When a search of `tune` ends: what is decided without being simulated, and how close to the best.
#include <algorithm>
#include <utility>

#include "tests/cli/tune_bench.h"

namespace ballast {
namespace {

// Nobody could measure a tenth of a per cent; who wants the proof asks for it.
TEST_F(Tune, ends_where_no_plan_can_be_faster_by_more_than_the_tolerance) {
  const Json exact = tuned("--devices 1 --tolerance 0");
  EXPECT_TRUE(exact["complete"].get<bool>());
  EXPECT_EQ(exact["proven_within"].get<double>(), 0);
  const auto least_of = [](const Json& json) {
    double least = json["ranked"][0]["step_time_s"].get<double>();
    for (const Json& one : json["ranked"])
      least = std::min(least, one["step_time_s"].get<double>());
    return least;
  };
  for (const auto& [flags, most] :
       {std::pair("--devices 1", 0.001), std::pair("--devices 1 --tolerance 20", 0.2)}) {
    const Json near = tuned(flags);
    EXPECT_TRUE(near["complete"].get<bool>()) << flags;
    EXPECT_FALSE(near["from_store"].get<bool>()) << flags;
    const double within = near["proven_within"].get<double>();
    EXPECT_LE(within, most) << flags;
    EXPECT_LE(near["simulated"], exact["simulated"]) << flags;
    EXPECT_LE(least_of(near) * (1 - within), least_of(exact) * (1 + 1e-9)) << flags;
  }
  EXPECT_TRUE(tune("--devices 1 --tolerance 20").says("% less than the fastest (--tolerance)"));
  for (const char* bad : {"--tolerance -1", "--tolerance nan", "--tolerance 101",
                          "--tolerance 1 --exhaustive", "--tolerance 1 --stack typical"}) {
    const Outcome outcome = tune(std::string("--devices 1 ") + bad);
    EXPECT_EQ(outcome.code, 2) << bad << outcome.output;
    EXPECT_EQ(outcome.lines(), 1) << bad << outcome.output;
    EXPECT_TRUE(outcome.says("--tolerance")) << outcome.output;
  }
}

// Degrees, stage and parts of SPPO for 7B and a million tokens on 32 A100: the optimum is proven
// by simulating a few of its plans.
TEST_F(Tune, sppo_of_a_million_tokens_is_decided_by_few_simulations) {
  const std::string flags =
      "tune --model llama-2-7b --machine hgx-a100-80gb --devices 32 --global-batch 1"
      " --sequence-length 1048576 --strategy sppo --store s.db --again --json 2> /dev/null";
  const Outcome outcome = bench.run(flags);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json json = Json::parse(outcome.output);
  EXPECT_EQ(json["not_looked_at"], 0);
  EXPECT_GT(json["considered"], 1000);
  EXPECT_LT(json["simulated"], 100);
  EXPECT_EQ(json["ranked"][0]["plan"]["strategy"], "sppo");
}

}  // namespace
}  // namespace ballast
