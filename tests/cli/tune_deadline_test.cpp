// `tune --deadline`: what is said of what it stopped, and of what it leaves no time for.
#include "tests/cli/tune_bench.h"

namespace ballast {
namespace {

TEST_F(Tune, point_that_a_deadline_stopped_says_so_and_is_not_decided) {
  const std::string flags =
      "--objective tokens-per-device --devices 1,2 --global-batch 16 --exhaustive --deadline 1e-9 ";
  const Outcome text = tune(flags);
  EXPECT_EQ(text.code, 3) << text.output;
  EXPECT_TRUE(text.says("not decided: stopped by the deadline (1e-09 s")) << text.output;
  EXPECT_FALSE(text.says("does not fit")) << text.output;
  const Json json = Json::parse(tune(flags + "--json 2> /dev/null").output);
  for (const Json& point : json["points"]) EXPECT_EQ(point["stopped_by"], "deadline");
  EXPECT_TRUE(json["proven_within"].is_null());
}

TEST_F(Tune, size_that_a_deadline_stopped_is_not_decided) {
  const std::string flags = "--objective longest-sequence --devices 1 --deadline 1e-9 ";
  const Outcome text = tune(flags);
  EXPECT_EQ(text.code, 3) << text.output;
  EXPECT_TRUE(text.says("not decided: 1,024 tokens; stopped by the deadline")) << text.output;
  const Json json = Json::parse(tune(flags + "--json 2> /dev/null").output);
  EXPECT_FALSE(json["objective"]["proven"].get<bool>());
  EXPECT_FALSE(json["complete"].get<bool>());
}

// The deadline has passed before the first plan.
TEST_F(Tune, what_a_deadline_stopped_answers_no_longer_search) {
  const std::string flags = "--devices 1 --exhaustive --json --deadline ";
  const auto ask = [&](const std::string& deadline) {
    return Json::parse(tune(flags + deadline + " 2> /dev/null").output);
  };
  const Json stopped = ask("0.0001");
  EXPECT_FALSE(stopped["complete"].get<bool>());
  EXPECT_FALSE(stopped["from_store"].get<bool>());
  EXPECT_TRUE(ask("0.0001")["from_store"].get<bool>());
  const Json whole = ask("500");
  EXPECT_FALSE(whole["from_store"].get<bool>());
  EXPECT_TRUE(whole["complete"].get<bool>());
  EXPECT_TRUE(whole["bottlenecks"].is_object());
  EXPECT_FALSE(whole["studies_out_of_time"].get<bool>());
  // What is complete answers whatever the deadline, which leaves no time to study it.
  const Json again = ask("0.0001");
  EXPECT_TRUE(again["complete"].get<bool>());
  EXPECT_TRUE(again["bottlenecks"].is_null());
  EXPECT_TRUE(again["studies_out_of_time"].get<bool>());
  for (const Json& one : again["strategies"]) EXPECT_TRUE(one["fits"].is_null()) << one.dump();
}

}  // namespace
}  // namespace ballast
