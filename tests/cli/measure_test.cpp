// `tune --measure` on a tiny model and this machine's CPU: what it prints and keeps, that it goes
// on where it was left, and what it refuses. No times are asserted.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiles/load.h"
#include "profiles/store.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

class TuneMeasure : public testing::Test {
 protected:
  void SetUp() override {
    bench.write_tiny_model();
    bench.write_store();
    bench.write("text.txt", std::string(4000, 'a'));
  }

  Outcome tune(const std::string& flags) const {
    return bench.run(
        "tune --model tiny.json --machine here --store here.db --strategy resident "
        "--sequence-length 16 --global-batch 2 --micro-batch 2 --data text.txt " +
        flags);
  }
  Json tuned(const std::string& flags) const {
    const Outcome outcome = tune(flags + " --json 2> /dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output);
  }
  // Exit code 2 and one line with each of the words.
  void expect_refusal(const std::string& arguments, const std::vector<std::string>& words) const {
    const Outcome outcome = bench.run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.output;
    EXPECT_EQ(outcome.lines(), 1) << outcome.output;
    for (const std::string& word : words) EXPECT_TRUE(outcome.says(word)) << outcome.output;
    EXPECT_FALSE(bench.exists("plan.json"));
  }
  std::vector<VerifyRecord> records() const {
    return Store::open_if_present(bench.path("here.db"))->verify_records();
  }

  Workbench bench;
};

TEST_F(TuneMeasure, plans_run_are_measured_recorded_and_ranked) {
  const Json json = tuned("--measure 2 --steps 3");
  const Json& measured = json["measured"];
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_LE(measured[0]["step_time_s"], measured[1]["step_time_s"]);
  EXPECT_NE(measured[0]["plan"], measured[1]["plan"]);
  for (const Json& plan : measured) {
    const double step = plan["step_time_s"];
    EXPECT_GT(step, 0);
    EXPECT_NEAR(plan["error_percent"],
                100 * (plan["predicted_step_time_s"].get<double>() / step - 1), 1e-6);
    EXPECT_NEAR(plan["refitted_error_percent"],
                100 * (plan["refitted_step_time_s"].get<double>() / step - 1), 1e-6);
    // Memory is no matter of time: arenas are what was predicted, up to a page each.
    const double predicted = plan["memory"]["hbm"]["predicted_bytes"];
    EXPECT_NEAR(plan["memory"]["hbm"]["measured_bytes"], predicted, 8192 + 0.1 * predicted);
    EXPECT_FALSE(plan["known"].get<bool>());
  }
  EXPECT_EQ(json["ranked"][0]["plan"], measured[0]["plan"]);
  EXPECT_EQ(Json::parse(bench.read("plan.json")), measured[0]["plan"]);
  EXPECT_EQ(records().size(), 2u);
  const auto store = Store::open_if_present(bench.path("here.db"));
  ASSERT_EQ(store->hosts().size(), 1u);
  const Corrections corrections = store->corrections(store->hosts()[0]);
  EXPECT_FALSE(corrections.operations.empty());
  EXPECT_FALSE(corrections.groups.empty());
}

TEST_F(TuneMeasure, same_command_goes_on_where_it_was_left) {
  tuned("--measure 1 --steps 3");
  ASSERT_EQ(records().size(), 1u);
  const std::string first = records()[0].plan_json;
  const Json more = tuned("--measure 3 --steps 3");
  EXPECT_EQ(records().size(), 3u);
  ASSERT_EQ(more["measured"].size(), 3u);
  int known = 0;
  for (const Json& plan : more["measured"]) {
    known += plan["known"].get<bool>();
    EXPECT_EQ(plan["known"].get<bool>(), plan["plan"] == Json::parse(first));
  }
  EXPECT_EQ(known, 1);
  tuned("--measure 3 --steps 3");
  EXPECT_EQ(records().size(), 3u);
  // Other steps are another question, and --again asks anew.
  tuned("--measure 1 --steps 4");
  EXPECT_EQ(records().size(), 4u);
  const Json again = tuned("--measure 2 --steps 3 --again");
  EXPECT_EQ(records().size(), 6u);
  for (const Json& plan : again["measured"]) EXPECT_FALSE(plan["known"].get<bool>());
}

TEST_F(TuneMeasure, interrupted_run_is_not_recorded_and_said_to_be_so) {
  const Outcome outcome = bench.interrupt(
      "tune --model tiny.json --machine here --store here.db --strategy resident "
      "--sequence-length 16 --global-batch 2 --micro-batch 2 --data text.txt --measure 2 "
      "--steps 1000000",
      "plan 1 of 2, ");
  EXPECT_EQ(outcome.code, 0) << outcome.output << bench.read("progress.txt");
  EXPECT_TRUE(outcome.says("interrupted before any plan had run")) << outcome.output;
  EXPECT_TRUE(records().empty());
}

// To time all plans of the cover takes 0.4 s for each of a dozen.
TEST_F(TuneMeasure, deadline_counts_what_is_timed_before_the_search) {
  const std::string call =
      "tune --model tiny.json --machine here --store here.db --sequence-length 64 "
      "--global-batch 64 --micro-batch 64 ";
  const Outcome outcome = bench.run(call + "--deadline 1");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("note: timed, in 0.4 of the 1 s of --deadline: "))
      << outcome.output;
  const Outcome whole = bench.run(call);
  EXPECT_EQ(whole.code, 0) << whole.output;
  EXPECT_FALSE(whole.says("note: timed")) << whole.output;
}

TEST_F(TuneMeasure, text_has_the_table_and_the_history_the_runs) {
  const Outcome outcome = tune("--measure 2 --steps 3");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (const char* word : {"2 plans ran on this machine, 3 steps each", "predicted", "measured",
                           "refitted", "the best", "plan 1 of 2, ", "wrote plan.json"}) {
    EXPECT_TRUE(outcome.says(word)) << word << "\n" << outcome.output;
  }
  const std::string history = "verify --history --store here.db ";
  const Outcome text = bench.run(history + "--machine here --model tiny.json");
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_EQ(text.lines(), 3) << text.output;  // a heading and two runs
  EXPECT_TRUE(text.says("tune")) << text.output;
  const Json json = Json::parse(bench.run(history + "--json").output);
  ASSERT_EQ(json.size(), 2u);
  const std::vector<VerifyRecord> kept = records();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(json[i]["plan"], Json::parse(kept[i].plan_json));
    EXPECT_EQ(json[i]["step_time_s"], kept[i].measured_step.seconds());
    EXPECT_EQ(json[i]["by"], "tune");
  }
  EXPECT_EQ(bench.run(history + "--model gpt2").output, "nothing was verified yet\n");
}

// The page of what a verb wrote reads the store that the verb used: the machine 'here' is in no
// other.
TEST_F(TuneMeasure, page_finds_the_store_of_what_it_draws) {
  const std::string alone = "XDG_DATA_HOME= HOME=$PWD/nobody $BALLAST ";
  ASSERT_EQ(tune("--measure 1 --steps 3 --json 2> /dev/null > tune.json").code, 0);
  const Outcome verified = bench.run(
      "verify --plan plan.json --store here.db --data text.txt --steps 2 --out verify.json");
  ASSERT_EQ(verified.code, 0) << verified.output;
  for (const std::string source : {"--verify verify.json", "--tune tune.json"}) {
    const Outcome drawn = bench.shell(alone + "report " + source + " --json --out page.html");
    ASSERT_EQ(drawn.code, 0) << drawn.output;
    const Json data = Json::parse(drawn.output);
    EXPECT_FALSE(data.contains("missing")) << source << data["missing"];
    ASSERT_EQ(data["machines"].size(), 1U) << source;
    EXPECT_FALSE(data["machines"][0].contains("missing")) << data["machines"][0]["missing"];
    EXPECT_GE(data["machines"][0]["figures"].size(), 5U) << source;
  }
}

// Ranks of every degree: what one does by itself is timed without the others, then all run.
TEST_F(TuneMeasure, ranks_that_split_a_plan_are_verified) {
  for (const std::string degrees :
       {"--devices 2 --set plan.tensor=2 --set plan.tensor_sequence=true",
        "--devices 2 --set plan.sequence=2", "--devices 2 --set plan.context=2",
        "--devices 4 --set plan.data=2 --set plan.pipeline=2 --set plan.zero_stage=1"}) {
    const Outcome outcome = bench.run(
        "verify --model tiny.json --set model.dropout=0 --store here.db --sequence-length 16 "
        "--global-batch 4 --set plan.weights.flow_share=0 --data text.txt --steps 2 --json " +
        degrees + " 2> /dev/null");
    ASSERT_EQ(outcome.code, 0) << degrees << outcome.output;
    EXPECT_GT(Json::parse(outcome.output)["measured"]["step_time_s"].get<double>(), 0) << degrees;
  }
}

TEST_F(TuneMeasure, history_of_made_up_records_shows_the_error_shrink) {
  // 150, 130, 110 and 102 were predicted where 100 was measured: errors of 50, 30, 10 and 2 %, so
  // the medians of the halves are 40 and 6 %.
  {
    Store store(bench.path("here.db"), {"test", ""});
    Plan plan;
    plan.model = "gpt2";
    plan.machine = "here";
    plan.global_batch = 8;
    plan.sequence_length = 128;
    for (const int64_t predicted : {150, 130, 110, 102}) {
      VerifyRecord record;
      record.host = {"here", "cpu", "1"};
      record.plan_json = plan_json(plan);
      record.predicted_step = Duration::from_us(static_cast<double>(predicted));
      record.measured_step = Duration::from_us(100);
      record.metrics_json = "{}";
      store.append(record);
    }
  }
  const Outcome outcome = bench.run("verify --history --store here.db");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(outcome.says("+50.0 %") && outcome.says("as the first")) << outcome.output;
  EXPECT_TRUE(outcome.says("median error: 40.0 % of the first 2, 6.0 % of the last 2"))
      << outcome.output;
  EXPECT_EQ(bench.run("verify --history --store none.db").output, "nothing was verified yet\n");
  EXPECT_FALSE(bench.exists("none.db"));
}

TEST_F(TuneMeasure, bad_input_is_refused_before_anything_runs) {
  const std::string here = "tune --model tiny.json --store here.db --sequence-length 16 ";
  expect_refusal(here + "--measure 0", {"--measure"});
  expect_refusal(here + "--measure -3", {"--measure"});
  expect_refusal(here + "--measure two", {"--measure"});
  expect_refusal(here + "--measure 2 --steps 0", {"--steps"});
  expect_refusal(here + "--steps 3", {"--steps", "--measure"});
  expect_refusal(here + "--device host", {"--device", "--measure"});
  expect_refusal(here + "--measure 2 --device gpu", {"--device", "cuda:0"});
  expect_refusal(here + "--measure 2 --device cuda:63", {"no CUDA device: ", "--device host"});
  expect_refusal(here + "--measure 2 --data nowhere", {"nowhere"});
  expect_refusal(here + "--measure 2 --machine gh200-96gb-480gb", {"--machine here"});
  expect_refusal(here + "--measure 2 --devices 2 --global-batch 2",
                 {"--measure", "plans of one device", "verify --plan"});
  EXPECT_TRUE(records().empty());
}

TEST_F(TuneMeasure, profile_of_a_gpu_is_not_measured_on_the_cpu) {
  Machine machine = *Store::open_if_present(bench.path("here.db"))->newest_machine("here");
  machine.gpu.is_host_thread = false;
  Store(bench.path("here.db"), {"test", ""}).append(machine);
  expect_refusal("tune --model tiny.json --store here.db --sequence-length 16 --measure 2",
                 {"profile is of a GPU", "--device cuda:0"});
}

}  // namespace
}  // namespace ballast
