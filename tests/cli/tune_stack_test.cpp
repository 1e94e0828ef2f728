// `tune` and `compare --tune` for a framework, as a user runs them: layouts are ranked as it runs
// them.
#include <fmt/format.h>
#include <set>
#include <span>
#include <string_view>

#include "cli/flags/inputs.h"
#include "tests/cli/tune_bench.h"

namespace ballast {
namespace {

constexpr const char* kOnFour =
    "--model gpt2-xl --machine dgx-h100-80gb --devices 4 --global-batch 16 ";

class TuneStack : public Tune {
 protected:
  Json ranked(const std::string& flags) const {
    const Outcome outcome =
        bench.run("tune --json --store s.db --stack megatron-core-2024 " + flags + " 2> /dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output);
  }
  Json json_of(const std::string& command) const {
    return Json::parse(bench.run(command + " 2> /dev/null").output);
  }
};

TEST_F(TuneStack, best_is_what_predict_says_of_the_plan_that_was_written) {
  const Json json = ranked(kOnFour);
  EXPECT_EQ(json["stack"], "megatron-core-2024");
  EXPECT_EQ(json["counted"], "layouts");
  const int64_t all = json["considered"].get<int64_t>();
  EXPECT_EQ(all, json["simulated"].get<int64_t>() + json["bounded"].get<int64_t>() +
                     json["infeasible"].get<int64_t>() + json["not_looked_at"].get<int64_t>());
  EXPECT_TRUE(json["complete"].get<bool>());
  EXPECT_TRUE(json["proven_within"].is_null()) << "a ranking proves nothing";
  EXPECT_TRUE(json["next_best"].is_object());
  // The command that is printed, and what a prediction without a plan chooses.
  const std::string command = json["predict"];
  ASSERT_EQ(command.rfind("ballast ", 0), 0U) << command;
  const Json predicted = json_of(command.substr(8) + " --json");
  EXPECT_EQ(predicted["stack"], "megatron-core-2024");
  EXPECT_EQ(predicted["step_time_s"], json["ranked"][0]["step_time_s"]);
  const Json& outcome = json["outcome"];
  for (const char* key : {"stack", "fits", "reason", "step_time_s", "tokens_per_s", "confidence"}) {
    EXPECT_EQ(outcome[key], predicted[key]) << key;
  }
  EXPECT_FALSE(json.contains("typical"));
  const Json chosen =
      json_of(fmt::format("predict --json --store s.db --stack megatron-core-2024 {}", kOnFour));
  EXPECT_LE(json["ranked"][0]["step_time_s"], chosen["step_time_s"]);
  const Outcome text =
      bench.run(fmt::format("tune --store s.db --stack megatron-core-2024 {}", kOnFour));
  for (const char* words :
       {"layouts for gpt2-xl", "as megatron-core-2024 runs them", "proves nothing of other plans",
        "the best, as megatron-core-2024 runs it", "--stack megatron-core-2024"}) {
    EXPECT_TRUE(text.says(words)) << words << "\n" << text.output;
  }
}

// Without a strategy those that `predict` chooses among, each by its name.
TEST_F(TuneStack, plans_have_the_strategies_that_they_follow) {
  const std::span<const std::string_view> defaults = default_strategies();
  const std::set<std::string_view> chosen_among(defaults.begin(), defaults.end());
  for (const Json& one : ranked(kOnFour)["ranked"]) {
    const Json& plan = one["plan"];
    EXPECT_TRUE(chosen_among.contains(plan["strategy"].get<std::string>())) << plan.dump();
  }
}

TEST_F(TuneStack, another_stack_is_another_question) {
  EXPECT_FALSE(ranked(kOnFour)["from_store"].get<bool>());
  EXPECT_TRUE(ranked(kOnFour)["from_store"].get<bool>());
  const Json other = json_of(fmt::format("tune --json --store s.db --stack typical {}", kOnFour));
  EXPECT_FALSE(other["from_store"].get<bool>());
  EXPECT_NE(other["ranked"][0]["step_time_s"], ranked(kOnFour)["ranked"][0]["step_time_s"]);
}

// A ranking that a deadline stopped answers what would have stopped no later, and nothing else.
TEST_F(TuneStack, what_a_deadline_stopped_is_not_decided) {
  const std::string one = std::string("tune --json --store s.db --stack megatron-core-2024 ") +
                          kOnFour + "--strategy resident ";
  const Json stopped = json_of(one + "--deadline 0.0001");
  EXPECT_FALSE(stopped["complete"].get<bool>());
  EXPECT_EQ(stopped["stopped_by"], "deadline");
  EXPECT_TRUE(json_of(one + "--deadline 0.0001")["from_store"].get<bool>());
  const Json whole = json_of(one + "--deadline 500");
  EXPECT_FALSE(whole["from_store"].get<bool>());
  EXPECT_TRUE(whole["complete"].get<bool>());
}

TEST_F(TuneStack, strategy_and_knobs_that_are_named_stay) {
  const Json json =
      ranked(std::string(kOnFour) + "--strategy megatron --pipeline 2 --micro-batch 2");
  for (const Json& one : json["ranked"]) {
    EXPECT_EQ(one["plan"]["strategy"], "megatron");
    EXPECT_EQ(one["plan"]["pipeline"], 2);
    EXPECT_EQ(one["plan"]["micro_batch"], 2);
  }
}

// Studies ask about the framework too.
TEST_F(TuneStack, studies_are_of_the_framework) {
  const Json json = ranked(std::string(kOnFour) +
                           "--strategy megatron --pipeline 1 --frontier --frontier-points 3 "
                           "--sensitivity --ablation --ablation-from zero-3");
  const Json& best = json["ranked"][0]["step_time_s"];
  ASSERT_FALSE(json["frontier"].empty());
  for (const Json& point : json["frontier"]) EXPECT_GE(point["step_time_s"], best);
  ASSERT_FALSE(json["sensitivities"].empty());
  for (const Json& figure : json["sensitivities"]) {
    EXPECT_LE(figure["elasticity"].get<double>(), 0.01) << figure["key"];
    for (const Json& point : figure["points"]) {
      if (point["factor"].get<double>() < 1) continue;
      EXPECT_LE(point["step_time_s"].get<double>(), 1.001 * best.get<double>()) << figure["key"];
    }
  }
  const Json& ablation = json["ablation"];
  EXPECT_EQ(ablation["best_step_time_s"], best);
  double step = ablation["start"]["step_time_s"];
  for (const Json& one : ablation["steps"]) {
    if (one["gain_s"].is_number()) step -= one["gain_s"].get<double>();
  }
  EXPECT_NEAR(step, best.get<double>(), 1e-9);
}

TEST_F(TuneStack, page_predicts_as_the_framework_does) {
  const Json json = ranked(kOnFour);
  bench.write("tune.json", json.dump());
  const Json page = json_of("report --tune tune.json --out page.html --json");
  EXPECT_EQ(page["prediction"]["stack"], "megatron-core-2024");
  EXPECT_EQ(page["prediction"]["step_time_s"], json["ranked"][0]["step_time_s"]);
}

TEST_F(TuneStack, nothing_that_fits_is_told_with_the_nearest) {
  const Outcome outcome = bench.run(
      "tune --json --store s.db --stack typical --model gpt2-xl --machine dgx-h100-80gb "
      "--devices 2 --set machine.gpu.memory_gb=3 --set machine.cpu.memory_gb=20 2> /dev/null");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  const Json json = Json::parse(outcome.output);
  EXPECT_TRUE(json["ranked"].empty());
  EXPECT_EQ(json["infeasible"], json["considered"]);
  ASSERT_FALSE(json["reasons"].empty());
  EXPECT_NE(json["reasons"][0]["nearest"].get<std::string>().find("too much"), std::string::npos);
}

TEST_F(TuneStack, what_is_of_ballasts_own_plans_is_refused_by_name) {
  bench.write("plan_before.json", "{}");
  for (const char* flag :
       {"--exhaustive", "--tolerance 1", "--allow-delay", "--free-degrees", "--measure 1",
        "--plan plan_before.json", "--objective longest-sequence", "--objective largest-model"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    refuses(std::string("--devices 1 --stack typical ") + flag, {name, "--stack typical"});
  }
  refuses("--devices 1 --stack nobody", {"nobody"});
  bench.shell("cp " BALLAST_SOURCE_DIR "/profiles/stacks/typical.json ballast.json");
  refuses("--devices 1 --stack ./ballast.json", {"./ballast.json", "Ballast's own"});
}

// In every cell, and no cell is slower than what its strategy's layouts were completed to.
TEST_F(TuneStack, compare_ranks_every_cell) {
  const std::string cells =
      "--model gpt2-xl --machine dgx-h100-80gb,hgx-a100-80gb --devices 4 --global-batch 16 "
      "--stack megatron-core-2024 --store s.db ";
  const Json tuned = json_of("compare --json --tune " + cells);
  const Json chosen = json_of("compare --json " + cells);
  ASSERT_EQ(tuned["cells"].size(), 2U);
  for (size_t i = 0; i < tuned["cells"].size(); ++i) {
    const Json& cell = tuned["cells"][i];
    EXPECT_EQ(cell["search"]["counted"], "layouts");
    EXPECT_EQ(cell["stack"], "megatron-core-2024");
    ASSERT_TRUE(cell["step_time_s"].is_number()) << cell.dump();
    EXPECT_LE(cell["step_time_s"], chosen["cells"][i]["step_time_s"]);
  }
  const Outcome text = bench.run("compare --tune " + cells);
  EXPECT_TRUE(text.says("as megatron-core-2024")) << text.output;
  EXPECT_TRUE(text.says("layouts, of each by a list")) << text.output;
}

}  // namespace
}  // namespace ballast
