// What an attack found and no input may bring about again: times that overflow, memory that ends,
// documents nested without end, files of ours that hold what no verb writes.
#include <cstdio>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

class Limits : public testing::Test {
 protected:
  void expect_one_line(const Outcome& outcome, const std::vector<std::string>& parts) const {
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_EQ(outcome.lines(), 1) << outcome.output;
    EXPECT_TRUE(outcome.output.starts_with("ballast: ")) << outcome.output;
    for (const std::string& part : parts) EXPECT_TRUE(outcome.says(part)) << outcome.output;
  }

  Workbench bench;
  const std::string predict = "predict --machine gh200-96gb-480gb --global-batch 8 --model ";
};

// A launch of 1000 s, hundreds of times a step.
TEST_F(Limits, sums_of_long_times_are_long_times_or_refused) {
  const std::string slow = predict + "gpt2 --json --set machine.gpu.launch_us=1000000000";
  const Outcome outcome = bench.run(slow);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json json = Json::parse(outcome.output);
  EXPECT_GT(json["step_time_s"], 100'000);
  EXPECT_LT(json["mfu_percent"], 0.001);
  expect_one_line(bench.run(predict + "llama-3-8b --micro-batch 1 "
                                      "--set machine.gpu.launch_us=1000000000"),
                  {"106 days"});
}

// Where all that a framework leaves open was tried and refused, the reason is the first refusal's
// own, with its remedy, and not that of a published case, whose file could be corrected.
TEST_F(Limits, a_batch_that_no_way_of_running_can_take_is_refused_by_its_own_reason) {
  const Outcome outcome =
      bench.run("predict --machine gh200-96gb-480gb --model gpt2 --global-batch 1000000000");
  expect_one_line(outcome, {"plan, micro_batch", "smaller global_batch: at most 16384"});
  EXPECT_FALSE(outcome.says("case")) << outcome.output;
}

TEST_F(Limits, shares_that_no_framework_has_are_refused) {
  Json stack =
      Json::parse(bench.shell("cat " BALLAST_SOURCE_DIR "/profiles/stacks/typical.json").output);
  for (const double share : {1e-9, 0.0, 2.5}) {
    stack["constants"]["gemm_share"] = share;
    bench.write("stack.json", stack.dump());
    expect_one_line(bench.run(predict + "gpt2 --stack stack.json"), {"gemm_share", "0.001 to 2"});
  }
}

// The least MB with which the program itself gets as far as a line of its own: before that its
// libraries are loaded, which in a build with CUDA take more than all the rest.
int least_megabytes(const Workbench& bench) {
  int too_few = 1, enough = 8192;
  while (enough - too_few > 1) {
    const int half = (too_few + enough) / 2;
    const std::string limit = "ulimit -d " + std::to_string(half) + "000; ";
    const int code = bench.shell("(" + limit + "$BALLAST --help > /dev/null 2>&1)").code;
    (code == 0 || code == 2 ? enough : too_few) = half;
  }
  return enough;
}

TEST_F(Limits, memory_that_ends_ends_in_one_line) {
  const std::string large = predict + "gpt-13b --strategy superoffload";
  const int least = least_megabytes(bench);
  int ended = 0;
  for (const int beyond : {2, 3, 4, 6, 8, 12, 20, 32}) {
    const std::string size = std::to_string(least + beyond);
    for (const std::string& limit : {" --memory-limit " + size + "MB", std::string()}) {
      const std::string before = limit.empty() ? "ulimit -d " + size + "000; " : "";
      const Outcome outcome = bench.shell("(" + before + "$BALLAST " + large + limit + " 2>&1)");
      if (outcome.code == 0) continue;
      ++ended;
      // What could not be printed any more is not printed in part.
      expect_one_line(outcome, {"memory"});
    }
  }
  EXPECT_GE(ended, 6);
  for (const std::string size : {"1", "4XB", "-3GB", "101%", "nan", "''"}) {
    expect_one_line(bench.run(predict + "gpt2 --memory-limit " + size), {"--memory-limit"});
  }
  EXPECT_EQ(bench.run(predict + "gpt2 --memory-limit 2GB").code, 0);
  EXPECT_EQ(bench.run(predict + "gpt2 --memory-limit 50%").code, 0);
}

// A page that was written, whose plan somebody has changed.
TEST_F(Limits, plans_in_records_whose_batch_does_not_divide_are_refused) {
  const Json plan = Json::parse(
      bench.run("predict --machine gh200-96gb-480gb --global-batch 8 --model gpt2 --json")
          .output)["plan"];
  for (const auto& [knob, value] :
       std::vector<std::pair<std::string, int>>{{"micro_batch", 3}, {"data", 3}}) {
    Json record = {{"schema", "ballast.verify/1"}};
    for (const char* key : {"model", "machine", "steps", "predicted", "measured", "error_percent",
                            "prediction", "timelines"}) {
      record[key] = nullptr;
    }
    record["plan"] = plan;
    record["plan"][knob] = value;
    bench.write("record.json", record.dump());
    expect_one_line(bench.run("report --verify record.json"), {"record.json", "do not divide"});
  }
  Json published = Json::parse(
      bench.shell("cat " BALLAST_SOURCE_DIR "/profiles/published/gh200-training.json").output);
  for (Json& one : published["cases"]) {
    if (one["run"].contains("micro_batch")) one["run"]["micro_batch"] = 7;
  }
  bench.write("cases.json", published.dump());
  const Outcome validated = bench.run("validate cases.json");
  EXPECT_LE(validated.code, 2) << validated.output;
  EXPECT_FALSE(validated.says("CHECK")) << validated.output;
}

// What is printed or copied goes down into a document call by call.
TEST_F(Limits, documents_nested_without_end_are_refused_by_every_verb) {
  const std::string nested = std::string(100'000, '[') + std::string(100'000, ']') + "}";
  const std::vector<std::pair<std::string, std::string>> files = {
      {"{\"x\":", "predict --plan FILE"},
      {"{\"x\":", "predict --machine gh200-96gb-480gb --model FILE"},
      {"{\"x\":", "predict --model gpt2 --machine FILE"},
      {"{\"x\":", "predict --model gpt2 --machine gh200-96gb-480gb --strategy FILE"},
      {"{\"x\":", "predict --model gpt2 --machine gh200-96gb-480gb --stack FILE"},
      {"{\"x\":", "validate FILE"},
      {"{\"x\":", "import --deepspeed FILE --model gpt2 --machine gh200-96gb-480gb --devices 1"},
      {"{\"schema\": \"ballast.verify/1\", \"x\":", "report --verify FILE"},
      {"{\"schema\": \"ballast.validation/1\", \"x\":", "report --validation FILE"},
      {"{\"schema\": \"ballast.comparison/1\", \"x\":", "report --compare FILE"},
      {"{\"considered\":", "report --tune FILE"},
      {"{\"step\":", "report --model gpt2 --machine gh200-96gb-480gb --metrics FILE"}};
  for (const auto& [begin, line] : files) {
    bench.write("deep.json", begin + nested);
    std::string words = line;
    words.replace(words.find("FILE"), 4, "deep.json");
    SCOPED_TRACE(words);
    expect_one_line(bench.run(words), {"deep.json", "nested deeper than"});
  }
}

// A cursor that a name moves could show another answer than the program's.
TEST_F(Limits, names_and_texts_with_control_characters_are_refused) {
  Json machine = Json::parse(bench.run("machines show gh200-96gb-480gb").output);
  machine["name"] = "calm\x1b[31mred";
  bench.write("machine.json", machine.dump());
  const std::string on_it = "--machine machine.json --global-batch 8 --model gpt2";
  for (const std::string verb :
       {"predict ", "tune --deadline 5 ", "compare --strategy resident "}) {
    const Outcome outcome = bench.run(verb + on_it);
    expect_one_line(outcome, {"name", "control character"});
    EXPECT_FALSE(outcome.says("\x1b")) << verb;
  }
  for (const std::string word : {"predict --model $'g\\x1b[2Jpt2'", "$'pre\\x1b[1mdict'",
                                 "predict --plan $'a\\x07.json'", "machines show $'\\x7f'"}) {
    const Outcome outcome = bench.shell("bash -c \"$BALLAST " + word + "\"");
    expect_one_line(outcome, {"control character"});
    EXPECT_EQ(outcome.output.find_first_of("\x1b\x07\x7f"), std::string::npos) << word;
  }
}

TEST_F(Limits, without_a_home_what_is_shipped_is_there) {
  const std::string nowhere = "env -u HOME -u XDG_DATA_HOME $BALLAST ";
  const Outcome machines = bench.shell(nowhere + "machines");
  EXPECT_EQ(machines.code, 0) << machines.output;
  EXPECT_TRUE(machines.says("gh200-96gb-480gb")) << machines.output;
  EXPECT_EQ(bench.shell(nowhere + predict + "gpt2").code, 0);
  expect_one_line(bench.shell(nowhere + "profile --quick"), {"HOME", "--store"});
  expect_one_line(bench.shell(nowhere + "predict --machine here --model gpt2"), {"HOME"});
}

TEST_F(Limits, pipes_that_nobody_writes_into_are_not_waited_for) {
  bench.shell("mkfifo pipe.json");
  for (const std::string words :
       {"predict --plan pipe.json", "predict --model pipe.json --machine gh200-96gb-480gb",
        "report --verify pipe.json --out page.html", "machines --store pipe.json",
        "predict --model gpt2 --machine gh200-96gb-480gb --global-batch 8 --store pipe.json"}) {
    expect_one_line(bench.shell("timeout 20 $BALLAST " + words), {"pipe.json", "is a pipe"});
  }
  bench.run(
      "predict --model gpt2 --machine gh200-96gb-480gb --global-batch 8 --plan-out plan.json");
  const Outcome fed = bench.shell("bash -c \"$BALLAST predict --plan <(cat plan.json)\"");
  EXPECT_EQ(fed.code, 0) << fed.output;
}

TEST_F(Limits, an_empty_text_names_no_output) {
  for (const std::string verb : {"compare --strategy resident --out ''", "report --out ''",
                                 "tune --out ''", "predict --plan-out ''"}) {
    expect_one_line(bench.run(verb + " --model gpt2 --machine gh200-96gb-480gb --global-batch 8"),
                    {"out", "names no file"});
  }
}

// The system counts threads of a user, but none of root: root asks as somebody else. Each limit
// ends the run at another of its threads, and those that run by then must not wait for it.
TEST_F(Limits, threads_that_the_system_refuses_end_in_one_line) {
  bench.write_tiny_model();
  bench.write_store();
  bench.write("text.txt", std::string(4000, 'a'));
  bench.shell("chmod -R a+rwX .");
  const bool is_root = bench.shell("id -u").output == "0\n";
  const std::string somebody = is_root ? "setpriv --reuid 54321 --clear-groups " : "";
  if (bench.shell(somebody + "test -x $BALLAST").code != 0) {
    GTEST_SKIP() << "no other user here who may run the program";
  }
  EXPECT_EQ(bench.shell(somebody + "$BALLAST --version").code, 0);
  for (const std::string limit : {"1", "2", "3"}) {
    const Outcome outcome =
        bench.shell("export BALLAST; timeout -s KILL 60 " + somebody + "bash -c 'ulimit -u " +
                    limit + "; exec $BALLAST train --model tiny.json --store here.db " +
                    "--sequence-length 16 --global-batch 2 --steps 1 --data text.txt > /dev/null'");
    expect_one_line(outcome, {"threads: the system gives no more of them", "ulimit -u"});
  }
}

// Distinct work is few layers of few kinds, however often they are repeated: of the processor's
// time, which others do not share, less than a whole step would take a minute of, and of memory
// what two programs at once find on a small machine.
TEST_F(Limits, many_layers_and_stages_of_many_micro_batches_cost_what_is_distinct_in_them) {
  struct Long {
    std::string question;
    int micro_batches, most_simulated;
    std::string memory = "500MB";
  };
  const std::string common = "$BALLAST predict --json --micro-batch 1 --memory-limit ";
  const std::string any = "--machine dgx-h100-80gb ";
  const std::string stages = any + "--strategy megatron ";
  for (const Long& one :
       {Long{stages + "--model gpt3-175b --devices 96 --pipeline 96 --global-batch 10000", 10000,
             2 * 96},
        // Turns are spread in the short step that plans are compared by, and folded in the longer.
        Long{stages + "--model gpt3-175b --devices 96 --pipeline 96 --global-batch 10000 "
                      "--stack ballast",
             10000, 2 * 96, "700MB"},
        Long{stages + "--model gpt-1t --devices 512 --tensor 8 --pipeline 64 --global-batch 3072",
             3072, 6 * 64},
        // Of the strategies that nobody named, those whose graphs are large are bounded first.
        Long{any + "--model gpt-1t --devices 512 --tensor 8 --pipeline 64 --global-batch 3072",
             3072, 6 * 64},
        Long{any + "--model gpt3-175b --devices 96 --pipeline 96 --global-batch 10000", 10000,
             2 * 96},
        Long{"--machine gh200-96gb-480gb --model gpt2 --set model.layers=1000 --global-batch 64",
             64, 16}}) {
    const std::string usage = "; grep -q . /proc/self/status; times | tail -n 1";
    const Outcome outcome = bench.shell("export BALLAST; bash -c '" + common + one.memory + " " +
                                        one.question + " > long.json || exit 9" + usage + "'");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    int minutes = 0;
    double seconds = 0;
    ASSERT_EQ(std::sscanf(outcome.output.c_str(), "%dm%lfs", &minutes, &seconds), 2)
        << outcome.output;
    // A whole step of the first was 156 s, the last one's choice of its open knobs 60.
    EXPECT_LT(60 * minutes + seconds, 15);
    const Json json = Json::parse(bench.read("long.json"));
    EXPECT_EQ(json["repetition"]["micro_batches"], one.micro_batches);
    EXPECT_LT(json["repetition"]["simulated_micro_batches"], one.most_simulated);
  }
}

}  // namespace
}  // namespace ballast
