// validate, calibrate, and what else speaks of published cases and of frameworks.
#include "cli/text/validation.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

// A small gpt2 on one A100.
Json small_case(const std::string& id, double step_time_s) {
  return {{"id", id},
          {"machine", "hgx-a100-80gb"},
          {"stack", "torch-2025"},
          {"model",
           {{"architecture", "gpt2"},
            {"layers", 4},
            {"hidden", 256},
            {"heads", 4},
            {"kv_heads", 4},
            {"ffn", 1024},
            {"vocab", 2048}}},
          {"run",
           {{"devices", 1},
            {"sequence_length", 128},
            {"global_batch", 8},
            {"micro_batch", 8},
            {"recompute", "none"},
            {"dtype", "bf16"},
            {"strategy", "single"}}},
          {"measured", {{"step_time_s", step_time_s}, {"fits", false}}},
          {"read", "text"}};
}

std::string file_of(const std::vector<Json>& cases, const std::string& source = "s") {
  return Json{
      {"schema", "ballast.published/1"}, {"title", "t"}, {"source", source}, {"cases", cases}}
      .dump();
}

ValidationRow row(const std::string& file, double published, double predicted) {
  return {file, "id", "m", "s", {Metric::kStepTime, published, predicted}, ""};
}

// Errors of file a: +10, -20, +60 %; mean 30, median 20, worst 60. Of b: one failure, one verdict.
TEST(Validation, summary_is_of_absolute_errors_by_file) {
  Validation validation;
  validation.rows = {row("a", 10, 11), row("a", 10, 8), row("a", 10, 16), row("b", 1, 1)};
  validation.rows[2].id = "far";
  validation.rows[3].error = "broken";
  validation.rows.push_back({"b", "id", "m", "s", {Metric::kFits, 1, 1}, ""});
  validation.rows.push_back({"b", "id", "m", "s", {Metric::kFits, 0, 1}, ""});
  const std::vector<ValidationSummary> all = summaries_of(validation);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_NEAR(all[0].mean, 30, 1e-9);
  EXPECT_NEAR(all[0].median, 20, 1e-9);
  EXPECT_NEAR(all[0].worst, 60, 1e-9);
  EXPECT_EQ(all[0].worst_id, "far");
  EXPECT_EQ(all[1].failed, 1u);
  EXPECT_EQ(all[1].fits, 2u);
  EXPECT_EQ(all[1].right, 1u);
  EXPECT_EQ(all[2].cases, 5u);
  EXPECT_TRUE(any_failed(validation));
}

TEST(Validate, json_has_the_keys_of_the_design_and_errors_are_signed) {
  const Workbench bench;
  bench.write("cases.json", file_of({small_case("slow", 1000), small_case("fast", 1e-9)}));
  const Outcome outcome = bench.run("validate cases.json --json 2>/dev/null");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const Json json = Json::parse(outcome.output);
  ASSERT_EQ(json["cases"].size(), 4u);
  const Json& slow = json["cases"][0];
  EXPECT_EQ(slow["file"], "cases");
  EXPECT_EQ(slow["id"], "slow");
  EXPECT_EQ(slow["metric"], "step_time_s");
  EXPECT_EQ(slow["published"], 1000);
  EXPECT_NEAR(slow["error_percent"].get<double>(),
              100 * (slow["predicted"].get<double>() / 1000 - 1), 1e-9);
  EXPECT_LT(slow["error_percent"].get<double>(), -99);
  EXPECT_GT(json["cases"][2]["error_percent"].get<double>(), 100);
  const Json& fits = json["cases"][1];
  EXPECT_EQ(fits["metric"], "fits");
  EXPECT_EQ(fits["published"], false);
  EXPECT_EQ(fits["predicted"], true);
  EXPECT_EQ(fits["right"], false);
  EXPECT_TRUE(fits["error_percent"].is_null());
  EXPECT_EQ(json["summary"][0]["file"], "cases");
  EXPECT_EQ(json["summary"][0]["fits"], 2);
  EXPECT_EQ(json["stacks"][0]["name"], "torch-2025");
}

TEST(Validate, bad_case_is_told_the_others_are_run_and_the_exit_code_is_one) {
  const Workbench bench;
  Json bad = small_case("bad", 1);
  bad["run"]["micro_bach"] = 1;
  Json nowhere = small_case("nowhere", 1);
  nowhere["machine"] = "abacus";
  bench.write("cases.json", file_of({bad, nowhere, small_case("good", 1)}));
  const Outcome outcome = bench.run("validate cases.json --json --out v.json 2>/dev/null");
  EXPECT_EQ(outcome.code, 1);
  const Json json = Json::parse(bench.read("v.json"));
  ASSERT_EQ(json["cases"].size(), 5u);
  EXPECT_NE(json["cases"][0]["error"].get<std::string>().find("micro_bach"), std::string::npos);
  EXPECT_NE(json["cases"][1]["error"].get<std::string>().find("abacus"), std::string::npos);
  EXPECT_TRUE(json["cases"][3]["predicted"].is_number());
  EXPECT_EQ(json["overall"]["failed"], 3);
}

TEST(Validate, file_of_another_schema_is_refused) {
  const Workbench bench;
  const Outcome outcome = bench.run("validate hardware");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(outcome.says("schema"));
  EXPECT_EQ(bench.run("validate no-such-file").code, 2);
}

TEST(Validate, shipped_file_is_found_by_name_and_shown_with_its_constants) {
  const Workbench bench;
  const Outcome outcome = bench.run("validate llmq-h100-small");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("llmq-h100-0.5b-bf16"));
  EXPECT_TRUE(outcome.says("gemm_share"));
}

// The shipped data, but for published cases: what `calibrate` and `validate` without a file take as
// all that there is.
class SmallWorld : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(bench.path("data/published"));
    for (const auto& entry : std::filesystem::directory_iterator(data_folder())) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_directory() || name == "published") continue;
      std::filesystem::create_directory_symlink(entry.path(), bench.path("data/" + name));
    }
    Json other = small_case("other", 0.004);
    other["stack"] = "nemo-2025";
    bench.write("data/published/first.json", file_of({small_case("one", 0.004), other}, "arXiv 1"));
    bench.write("more.json", file_of({small_case("two", 0.006)}, "arXiv 2"));
  }
  Outcome run(const std::string& arguments) const {
    return bench.shell("export BALLAST_DATA=$PWD/data; $BALLAST " + arguments);
  }
  Json json(const std::string& arguments) const {
    const Outcome outcome = run(arguments + " --json 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output);
  }
  static std::vector<std::string> ids(const Json& cases) {
    std::vector<std::string> list;
    for (const Json& one : cases) list.push_back(one["id"]);
    return list;
  }

  const Workbench bench;
};

TEST_F(SmallWorld, calibrate_fits_all_frameworks_and_writes_the_one_that_is_named) {
  const Json fitted = json("calibrate more.json --stack torch-2025 --out new.json");
  EXPECT_EQ(fitted["schema"], "ballast.calibration/2");
  EXPECT_EQ(ids(fitted["cases"]), (std::vector<std::string>{"one", "other", "two"}));
  const Json& one = fitted["cases"][0];
  EXPECT_LT(std::abs(one["fit_error_percent"].get<double>()),
            std::abs(one["before_error_percent"].get<double>()));
  const Stack stack = load_stack(bench.path("new.json"));
  EXPECT_EQ(stack.fitted_on, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(stack.facts, load_stack("torch-2025").facts) << "facts are never fitted";
  ASSERT_TRUE(stack.uncertainty.has_value());
  ASSERT_EQ(fitted["stacks"].size(), 1u);
  EXPECT_EQ(fitted["stacks"][0], Json::parse(bench.read("new.json")));
}

TEST_F(SmallWorld, calibrate_writes_every_stack_and_the_typical_one_to_a_folder) {
  std::filesystem::create_directory(bench.path("stacks"));
  const Outcome text = run("calibrate more.json --out-folder stacks");
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(text.says("mean absolute error of what was fitted")) << text.output;
  for (const char* name : {"torch-2025", "nemo-2025", "typical"}) {
    EXPECT_NO_THROW(load_stack(bench.path(std::string("stacks/") + name + ".json"))) << name;
  }
  EXPECT_EQ(load_stack(bench.path("stacks/typical.json")).fitted_on,
            (std::vector<std::string>{"one", "two", "other"}));
}

TEST_F(SmallWorld, calibrate_leaves_out_what_it_is_told_to) {
  const Json fitted = json("calibrate more.json --except one --except other");
  EXPECT_EQ(ids(fitted["cases"]), (std::vector<std::string>{"two"}));
  const Outcome unknown = run("calibrate --except ona");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(unknown.says("--except 'ona'")) << unknown.output;
}

TEST_F(SmallWorld, calibrate_refuses_what_cannot_be_fitted) {
  const Outcome out = run("calibrate --out x.json");
  EXPECT_EQ(out.code, 2);
  EXPECT_TRUE(out.says("add --stack")) << out.output;
  EXPECT_TRUE(run("calibrate --stack torch-2024").says("torch-2025"));
  EXPECT_TRUE(run("calibrate no-such-case").says("no-such-case"));
  const Outcome folder = run("calibrate more.json --out-folder nowhere");
  EXPECT_EQ(folder.code, 2);
  EXPECT_TRUE(folder.says("--out-folder nowhere")) << folder.output;
  EXPECT_FALSE(folder.says("round 1")) << "before the fit: " << folder.output;
  const Outcome none = run("calibrate --stack megatron-2021 --out x.json");
  EXPECT_EQ(none.code, 2) << "no case here is of it";
  EXPECT_FALSE(bench.exists("x.json"));
}

TEST_F(SmallWorld, calibrate_names_the_cases_that_say_nothing) {
  Json bad = small_case("bad", 1);
  bad["machine"] = "abacus";
  bench.write("bad.json", file_of({bad}, "arXiv 3"));
  const Json fitted = json("calibrate bad.json");
  ASSERT_EQ(fitted["refused"].size(), 1u);
  EXPECT_EQ(fitted["refused"][0]["id"], "bad");
  EXPECT_NE(fitted["refused"][0]["why"].get<std::string>().find("abacus"), std::string::npos);
}

// What one is worth whose framework or source was not known when it was fitted.
TEST_F(SmallWorld, validate_without_a_file_runs_the_protocol_of_left_out_sources) {
  const Json all = json("validate --out v.json");
  EXPECT_EQ(all, Json::parse(bench.read("v.json")));
  EXPECT_EQ(all["schema"], "ballast.validation/2");
  ASSERT_EQ(all["figures"].size(), 4u) << "a time and a verdict of each case";
  const Json& time = all["figures"][0];
  EXPECT_EQ(time["file"], "first");
  EXPECT_EQ(time["id"], "one");
  EXPECT_EQ(time["source"], "arXiv 1");
  EXPECT_EQ(time["metric"], "step_time_s");
  for (const char* way : {"without_source", "without_framework", "without_nothing"}) {
    const Json& judged = time[way];
    const double predicted = judged["predicted"];
    // A time that is predicted too short promises too much speed.
    EXPECT_NEAR(judged["error_percent"].get<double>(), 100 * (0.004 / predicted - 1), 1e-6) << way;
  }
  EXPECT_LT(time["without_source"]["low"], time["without_source"]["predicted"]);
  EXPECT_GT(time["without_source"]["high"], time["without_source"]["predicted"]);
  const Json& verdict = all["figures"][1];
  EXPECT_EQ(verdict["metric"], "fits");
  EXPECT_GT(verdict["without_source"]["low"], 0.99) << "probability that so small a model fits";
  const Outcome text = run("validate");
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_TRUE(text.says("without its source")) << text.output;
  EXPECT_TRUE(text.says("as the typical framework, without its own"));
}

TEST_F(SmallWorld, validate_left_out_of_given_files_is_of_their_cases) {
  const Json given = json("validate more.json --left-out");
  ASSERT_EQ(given["figures"].size(), 2u);
  EXPECT_EQ(given["figures"][0]["id"], "two");
  EXPECT_EQ(json("validate more.json")["schema"], "ballast.validation/1");
}

TEST_F(SmallWorld, validate_counts_a_case_that_cannot_be_read_as_failed) {
  Json bad = small_case("bad", 1);
  bad["run"]["micro_bach"] = 1;
  bench.write("data/published/bad.json", file_of({bad}, "arXiv 3"));
  const Outcome outcome = run("validate --json 2>/dev/null");
  EXPECT_EQ(outcome.code, 1);
  const Json json = Json::parse(outcome.output);
  ASSERT_EQ(json["refused"].size(), 1u);
  EXPECT_EQ(json["refused"][0]["id"], "bad");
  EXPECT_EQ(json["figures"].size(), 4u);
}

// A page is drawn of the cases of files and of the protocol, from a file or from what was printed.
TEST_F(SmallWorld, report_draws_what_the_protocol_wrote) {
  ASSERT_EQ(run("validate --json 2> /dev/null > v.json").code, 0);
  const Outcome outcome = run("report --validation v.json --out page.html");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(bench.read("page.html").find("without_framework"), std::string::npos);
}

TEST(ReportOfValidation, holds_the_cases_and_refuses_another_file) {
  const Workbench bench;
  bench.write("cases.json", file_of({small_case("the-case", 1)}));
  ASSERT_EQ(bench.run("validate cases.json --out v.json").code, 0);
  ASSERT_EQ(bench.run("report --validation v.json --out page.html").code, 0);
  const std::string page = bench.read("page.html");
  EXPECT_NE(page.find("the-case"), std::string::npos);
  // What the script draws of it is tested in a browser (report_browser_test.cpp).
  EXPECT_NE(page.find("<h1 id=\"title\">Ballast against published measurements</h1>"),
            std::string::npos);
  EXPECT_EQ(bench.run("report --validation cases.json").code, 2);
  bench.write("half.json", R"({"schema": "ballast.validation/1", "cases": []})");
  EXPECT_TRUE(bench.run("report --validation half.json").says("'summary' is missing"));
  bench.write("half.json", R"({"schema": "ballast.validation/2", "figures": []})");
  EXPECT_TRUE(bench.run("report --validation half.json").says("'summary' is missing"));
}

TEST(PredictWithAStack, runs_as_that_framework_would) {
  const Workbench bench;
  const std::string predict =
      "predict --json --model gpt2 --machine dgx-h100-80gb --strategy megatron "
      "--sequence-length 512 --global-batch 8 --micro-batch 8 --set plan.activations=keep ";
  const Json ours = Json::parse(bench.run(predict + "--stack ballast").output);
  const Json theirs = Json::parse(bench.run(predict + "--stack megatron-2021").output);
  EXPECT_GT(theirs["step_time_s"].get<double>(), 1.2 * ours["step_time_s"].get<double>())
      << "eager attention and unfused passes";
  EXPECT_EQ(bench.run(predict + "--stack megatron-2020").code, 2);
}

TEST(DegreeFlags, data_is_what_they_leave) {
  const Workbench bench;
  const Json json = Json::parse(
      bench
          .run("predict --json --model gpt2 --machine dgx-h100-80gb --strategy megatron "
               "--devices 8 --tensor 2 --pipeline 1 --context 1 --zero-stage 1 "
               "--sequence-length 512 --micro-batch 1 --set plan.activations=keep")
          .output);
  EXPECT_EQ(json["plan"]["data"], 4);
  EXPECT_EQ(json["plan"]["tensor"], 2);
  EXPECT_EQ(json["plan"]["zero_stage"], 1);
  const Outcome odd = bench.run(
      "predict --model gpt2 --machine dgx-h100-80gb --devices 8 --tensor 3 --strategy megatron");
  EXPECT_EQ(odd.code, 2);
  EXPECT_TRUE(odd.says("multiple of 3"));
}

}  // namespace
}  // namespace ballast
