// A trainer that can be trusted: what a folder of checkpoints belongs to, when a run is given up,
// what is said aloud, and weights that other programs load.
#include <cmath>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "backend/measure/profile.h"
#include "cli/flags/inputs.h"
#include "profiles/store.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

class Train : public testing::Test {
 protected:
  Train() {
    bench.write_tiny_model();
    bench.write_store();
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox " + std::to_string(i * i) + "\n";
    bench.write("text.txt", text);
  }

  Outcome train(const std::string& flags) const {
    return bench.run(
        "train --model tiny.json --store here.db --sequence-length 16 --global-batch 2 "
        "--data text.txt " +
        flags);
  }
  void expect_refusal(const std::string& flags, const std::vector<std::string>& parts) const {
    const Outcome outcome = train(flags);
    EXPECT_EQ(outcome.code, 2) << flags << '\n' << outcome.output;
    EXPECT_EQ(outcome.lines(), 1) << flags << '\n' << outcome.output;
    for (const std::string& part : parts) EXPECT_TRUE(outcome.says(part)) << outcome.output;
  }

  Workbench bench;
};

TEST_F(Train, a_folder_of_checkpoints_belongs_to_one_run) {
  ASSERT_EQ(train("--steps 6 --checkpoint kept").code, 0);
  expect_refusal("--steps 3 --checkpoint kept",
                 {"checkpoints of another run", "step-00000006", "--replace-checkpoints"});
  EXPECT_TRUE(bench.exists("kept/step-00000006.safetensors"));
  expect_refusal("--steps 9 --checkpoint kept --resume --set model.heads=1",
                 {"\"heads\": 2", "\"heads\": 1"});
  expect_refusal("--steps 3 --checkpoint kept --resume --replace-checkpoints", {"goes on"});
  const Outcome replaced = train("--steps 3 --checkpoint kept --replace-checkpoints");
  EXPECT_EQ(replaced.code, 0) << replaced.output;
  EXPECT_FALSE(bench.exists("kept/step-00000006.safetensors"));
  EXPECT_TRUE(bench.exists("kept/step-00000003.safetensors"));
}

TEST_F(Train, two_processes_in_one_folder_are_kept_apart) {
  const std::string train =
      "$BALLAST train --model tiny.json --store here.db --sequence-length 16 --global-batch 2 "
      "--data text.txt --checkpoint kept ";
  const Outcome second =
      bench.shell(train + "--steps 100000000 --metrics m.jsonl > first.txt 2>&1 & pid=$!\n" +
                  "for i in $(seq 600); do grep -qs step m.jsonl && break; sleep 0.1; done\n" +
                  train + "--steps 3 --resume; echo exit $?\nkill -INT $pid; wait $pid");
  EXPECT_TRUE(second.says("another process trains in this folder")) << second.output;
  EXPECT_TRUE(second.says("exit 2")) << second.output;
}

TEST_F(Train, a_run_that_was_stopped_is_not_done) {
  const Outcome stopped = bench.shell(
      "$BALLAST train --model tiny.json --store here.db --sequence-length 16 --global-batch 2 "
      "--data text.txt --steps 100000000 --metrics m.jsonl & pid=$!\n"
      "for i in $(seq 600); do grep -qs step m.jsonl && break; sleep 0.1; done\n"
      "kill -INT $pid; wait $pid");
  EXPECT_EQ(stopped.code, 3) << stopped.output;
  EXPECT_TRUE(stopped.says("nothing was kept")) << stopped.output;
  expect_refusal("--steps 3 --pause-for-checkpoints", {"--pause-for-checkpoints", "--checkpoint"});
}

// The median step is compared with what such a step is predicted to take.
TEST_F(Train, steps_that_are_rolled_back_are_compared_with_such_a_prediction) {
  const std::string flags = "--set plan.optimizer.sync=speculate --steps 12 --clip ";
  const Json all = Json::parse(train(flags + "0.0001 --json 2> progress.txt").output);
  EXPECT_GE(all["rollbacks"], 11);
  EXPECT_GT(all["predicted_median_s"], all["predicted_step_time_s"]);
  const Json none = Json::parse(train(flags + "0 --json 2> progress.txt").output);
  EXPECT_EQ(none["rollbacks"], 0);
  EXPECT_EQ(none["predicted_median_s"], none["predicted_step_time_s"]);
  const Outcome text = train(flags + "0.0001");
  EXPECT_TRUE(text.says(" with a rollback (")) << text.output;
  EXPECT_TRUE(text.says("--set plan.optimizer.sync=wait, is faster")) << text.output;
}

TEST_F(Train, the_held_out_loss_is_of_the_same_sequences_whatever_the_micro_batch) {
  const auto held_out = [&](const std::string& flags) {
    const Outcome outcome =
        train("--steps 1 --lr 1e-20 --min-lr 0 --dtype fp32 --json " + flags + " 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    const Json json = Json::parse(outcome.output);
    EXPECT_EQ(json["validation_sequences"], 64);
    return json["validation_loss"].get<double>();
  };
  const double one = held_out("--micro-batch 1");
  EXPECT_NEAR(held_out("--micro-batch 2") / one, 1, 1e-5);
  EXPECT_GT(std::abs(held_out("--micro-batch 2 --seed 2") / one - 1), 1e-5);
}

TEST_F(Train, what_changed_since_a_run_began_is_said) {
  ASSERT_EQ(train("--steps 3 --checkpoint kept").code, 0);
  EXPECT_FALSE(train("--steps 3 --checkpoint kept --resume").says("note:"));
  bench.write("other.txt", bench.read("text.txt") + "more");
  const Outcome changed = bench.run(
      "train --model tiny.json --store here.db --sequence-length 16 --global-batch 2 "
      "--data other.txt --steps 4 --checkpoint kept --resume --seed 9 --beta1 0.8 --min-lr 0");
  EXPECT_EQ(changed.code, 0) << changed.output;
  EXPECT_TRUE(changed.says("other.txt of")) << changed.output;
  EXPECT_TRUE(changed.says("--seed 9 is not used")) << changed.output;
  EXPECT_TRUE(changed.says("--beta1 0.8 (it was 0.9)")) << changed.output;
  EXPECT_TRUE(changed.says("--min-lr 0 (it was 0.0001)")) << changed.output;
  const Outcome empty = train("--steps 2 --checkpoint fresh --resume");
  EXPECT_EQ(empty.code, 0);
  EXPECT_TRUE(empty.says("fresh holds no checkpoint")) << empty.output;
}

// The micro-batch of a run stays that of the run, whatever would be chosen now, unless one is named
// or it would no longer do.
TEST_F(Train, a_run_goes_on_with_the_micro_batch_that_it_had) {
  const std::string resumed = " --checkpoint kept --resume";
  for (const char* const other : {"1", "2"}) {
    ASSERT_EQ(train(std::string("--steps 2 --checkpoint kept --micro-batch ") + other).code, 0);
    const Outcome same = train("--steps 3" + resumed);
    EXPECT_EQ(same.code, 0) << same.output;
    EXPECT_FALSE(same.says("micro_batch")) << same.output;
    const std::string named = other == std::string("1") ? "2" : "1";
    const Outcome changed = train("--steps 4 --micro-batch " + named + resumed);
    EXPECT_TRUE(changed.says("micro_batch " + named + " (it was " + other + ")")) << changed.output;
    bench.shell("rm -r kept");
  }
  // The newest is damaged, and the one before says what it was.
  ASSERT_EQ(train("--steps 2 --checkpoint kept --checkpoint-period 1 --micro-batch 1").code, 0);
  bench.write("kept/step-00000002.safetensors", "no checkpoint");
  const Outcome older = train("--steps 3" + resumed);
  EXPECT_EQ(older.code, 0) << older.output;
  EXPECT_TRUE(older.says("step-00000002.safetensors is not whole")) << older.output;
  EXPECT_FALSE(older.says("micro_batch")) << older.output;
  bench.shell("rm -r kept");
  ASSERT_EQ(train("--steps 2 --checkpoint kept --micro-batch 2").code, 0);
  const Outcome less = bench.run(
      "train --model tiny.json --store here.db --sequence-length 16 --global-batch 3 "
      "--data text.txt --steps 3" +
      resumed);
  EXPECT_EQ(less.code, 0) << less.output;
  EXPECT_TRUE(less.says("micro_batch 1 (it was 2)") || less.says("micro_batch 3 (it was 2)"))
      << less.output;
}

TEST_F(Train, a_run_that_is_not_finite_ends_with_its_last_good_checkpoint) {
  for (const std::string flags : {"--weight-decay 1e30", "--lr 1e30 --warmup 0"}) {
    const Outcome outcome =
        train("--steps 100000 --checkpoint kept --replace-checkpoints --checkpoint-period 1 " +
              flags + " 2>&1 >/dev/null");
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    EXPECT_TRUE(outcome.says("training ends")) << outcome.output;
    EXPECT_TRUE(outcome.says("step ")) << outcome.output;
    EXPECT_TRUE(outcome.says("checkpoint")) << outcome.output;
  }
  ASSERT_EQ(train("--steps 4 --checkpoint good").code, 0);
  const Outcome outcome = train(
      "--steps 100000 --checkpoint good --resume --checkpoint-period 1000 --weight-decay 1e30");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("the last good checkpoint is good/step-00000004")) << outcome.output;
  EXPECT_TRUE(bench.exists("good/step-00000004.safetensors"));
  const Outcome json = train("--steps 50 --weight-decay 1e30 --json 2>/dev/null");
  EXPECT_EQ(json.code, 1);
  EXPECT_TRUE(Json::parse(json.output)["diverged_at_step"].is_number()) << json.output;
}

TEST_F(Train, text_read_as_bytes_into_a_larger_vocabulary_is_said) {
  const Outcome larger = train("--steps 1 --set model.vocab=512");
  EXPECT_EQ(larger.code, 0) << larger.output;
  EXPECT_TRUE(larger.says("note: text.txt is read as its bytes, the first 256 of 512 tokens"))
      << larger.output;
  EXPECT_FALSE(train("--steps 1").says("is read as its bytes"));
}

// Programs that compute on every core take turns with the training, which then takes longer.
TEST_F(Train, a_busy_machine_is_said) {
  const std::string busy =
      "others=; for i in $(seq $((2 * $(nproc)))); do "
      "timeout 60 sh -c 'while :; do :; done' & others=\"$others $!\"; done; ";
  const std::string long_run =
      "$BALLAST train --model tiny.json --store here.db --sequence-length 16 --global-batch 2 "
      "--data text.txt --steps 1500; code=$?; kill $others; wait; exit $code";
  const Outcome told = bench.shell(busy + long_run);
  EXPECT_EQ(told.code, 0) << told.output;
  EXPECT_TRUE(told.says("note: other programs had ")) << told.output;
}

TEST_F(Train, numbers_of_the_optimizer_are_checked) {
  expect_refusal("--beta1 1", {"--beta1", "below 1"});
  expect_refusal("--beta2 0.999999999999", {"--beta2", "below 1"});
  expect_refusal("--beta2 -0.1", {"--beta2"});
  expect_refusal("--epsilon 0", {"--epsilon"});
  expect_refusal("--epsilon 1e-60", {"--epsilon", "1e-38"});
  expect_refusal("--weight-decay 1e60", {"--weight-decay", "1e38"});
  expect_refusal("--lr 0.001 --min-lr 0.01", {"--min-lr", "--lr 0.001"});
}

// Each reaches the weights: two runs that differ in nothing else end apart.
TEST_F(Train, numbers_of_the_optimizer_are_obeyed) {
  const auto loss = [&](const std::string& flags) {
    const Outcome outcome = train("--steps 12 --warmup 2 --json " + flags + " 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output)["validation_loss"].get<double>();
  };
  const double usual = loss("");
  EXPECT_EQ(loss("--beta1 0.9 --beta2 0.95 --epsilon 1e-8 --min-lr 0.0001"), usual);
  for (const std::string flags :
       {"--beta1 0.5", "--beta2 0.5", "--epsilon 0.1", "--min-lr 0.001"}) {
    EXPECT_NE(loss(flags), usual) << flags;
  }
}

TEST_F(Train, the_period_of_a_plan_is_obeyed_and_a_flag_wins_aloud) {
  const std::string plan = "--steps 7 --set plan.checkpoint_period_steps=3 --checkpoint ";
  ASSERT_EQ(train(plan + "planned").code, 0);
  EXPECT_TRUE(bench.exists("planned/step-00000006.safetensors"));
  const Outcome both = train(plan + "both --checkpoint-period 5");
  EXPECT_TRUE(both.says("5 steps apart, as --checkpoint-period says")) << both.output;
  EXPECT_TRUE(bench.exists("both/step-00000005.safetensors"));
}

// 12 bytes for each of 124,439,808 parameters.
TEST_F(Train, what_checkpoints_take_is_predicted_beside_the_step) {
  const std::string predict =
      "predict --model gpt2 --machine gh200-96gb-480gb --global-batch 8 --strategy resident ";
  const Outcome none = bench.run(predict + "--json");
  EXPECT_FALSE(Json::parse(none.output).contains("checkpoints"));
  const std::string with = predict + "--set plan.checkpoint_period_steps=100 ";
  const Json json = Json::parse(bench.run(with + "--json").output);
  EXPECT_EQ(json["checkpoints"]["bytes"], 1'493'277'696);
  EXPECT_EQ(json["checkpoints"]["period_steps"], 100);
  EXPECT_EQ(json["step_time_s"], Json::parse(none.output)["step_time_s"]);
  const Outcome text = bench.run(with);
  EXPECT_TRUE(text.says("a checkpoint of 1.39 GiB every 100 steps is not in the step time"))
      << text.output;
}

// A disk that needs ten times as long slows more steps, and one that needs longer than the period
// holds training up.
TEST_F(Train, what_checkpoints_cost_beside_the_steps_is_predicted) {
  const auto predict = [&](const std::string& more) {
    const Outcome outcome = bench.run(
        "predict --model gpt2 --machine gh200-96gb-480gb --global-batch 8 --strategy zero-offload "
        "--json --checkpoint-period 100 " +
        more);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output);
  };
  const Json fast = predict("--checkpoint-write-seconds 1");
  const Json slow = predict("--checkpoint-write-seconds 1000");
  const double step = fast["step_time_s"];
  const Json& row = fast["checkpoints"];
  EXPECT_GT(row["copy_s"], 0);
  EXPECT_EQ(row["write_s"], 1);
  EXPECT_GE(row["step_beside_write_s"], step);
  EXPECT_GT(row["overhead_percent"], 0);
  EXPECT_GT(slow["checkpoints"]["overhead_percent"].get<double>(),
            100 * (1000 / (100 * step) - 1) * 0.9);
  const Outcome refused = bench.run("predict --model gpt2 --checkpoint-write-seconds 1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(refused.says("--checkpoint-period")) << refused.output;
}

TEST_F(Train, a_bound_on_what_checkpoints_cost_chooses_their_period) {
  const Outcome bounded = train("--steps 60 --checkpoint kept --checkpoint-overhead 20%");
  EXPECT_EQ(bounded.code, 0) << bounded.output;
  EXPECT_TRUE(bounded.says("bound 20%")) << bounded.output;
  EXPECT_TRUE(bench.exists("kept/step-00000060.safetensors"));
  const Json json = Json::parse(train("--steps 9 --checkpoint paused --checkpoint-period 2 "
                                      "--pause-for-checkpoints --json 2>/dev/null")
                                    .output)["checkpoints"];
  EXPECT_EQ(json["kept_before_the_end"], 4);
  EXPECT_EQ(json["waited_s"], 0);
  for (const std::string share : {"0", "-1%", "101%", "3.5x", "nan", "%"}) {
    expect_refusal("--checkpoint x --checkpoint-overhead " + share, {"--checkpoint-overhead"});
  }
  expect_refusal("--checkpoint-overhead 1%", {"--checkpoint DIR"});
  expect_refusal("--checkpoint x --checkpoint-overhead 1% --checkpoint-period 3",
                 {"--checkpoint-period"});
}

TEST_F(Train, large_exports_are_several_files_with_an_index) {
  const std::string flags = "--steps 2 --json --max-shard-size 20KB --export ";
  const Outcome out = train(flags + "several 2>/dev/null");
  ASSERT_EQ(out.code, 0) << out.output;
  EXPECT_FALSE(bench.exists("several/model.safetensors"));
  const Json index = Json::parse(bench.read("several/model.safetensors.index.json"));
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    EXPECT_TRUE(bench.exists("several/" + file.get<std::string>())) << tensor;
  }
  EXPECT_EQ(train("--steps 2 --import several --json 2>/dev/null").code, 0);
  expect_refusal("--steps 1 --max-shard-size 20KB --export one.safetensors",
                 {"--max-shard-size", "one file"});
  expect_refusal("--steps 1 --max-shard-size 20KB", {"--max-shard-size", "--export DIR"});
  expect_refusal("--steps 1 --max-shard-size 20 --export other", {"'20' is no size"});
  EXPECT_EQ(train("--steps 1 --export whole 2>/dev/null").code, 0);
  expect_refusal(flags + "whole", {"--export whole", "would be loaded in place"});
}

TEST_F(Train, exported_folders_hold_a_config_and_are_imported) {
  const Outcome out = train("--steps 3 --export model --json 2>/dev/null");
  ASSERT_EQ(out.code, 0) << out.output;
  const Json config = Json::parse(bench.read("model/config.json"));
  EXPECT_EQ(config["model_type"], "gpt2");
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_TRUE(bench.exists("model/model.safetensors"));
  // A rate too small for any weight in fp32: what was exported is what is evaluated.
  const Outcome again = bench.run(
      "train --model model --import model --store here.db --sequence-length 16 --global-batch 2 "
      "--data text.txt --steps 1 --lr 1e-30 --json 2>&1");
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(again.output.find("note:"), std::string::npos) << again.output;
  EXPECT_TRUE(train("--steps 1 --import model --set model.norm_epsilon=0.01")
                  .says("model/config.json is of another model: here norm_epsilon=0.01"));
  expect_refusal("--steps 1 --set model.norm_epsilon=0.01 --export other",
                 {"--export other", "norm_epsilon=0.01", "FILE.safetensors"});
  EXPECT_FALSE(bench.exists("other"));
  EXPECT_EQ(train("--steps 1 --export weights.safetensors").code, 0);
  EXPECT_TRUE(bench.exists("weights.safetensors"));
}

// Results do not depend on them, so the losses of every step are the same text.
TEST_F(Train, compute_threads_change_nothing_but_the_time) {
  const Outcome alone = train("--steps 4 --metrics one.jsonl --compute-threads 1");
  ASSERT_EQ(alone.code, 0) << alone.output;
  EXPECT_FALSE(alone.says("note:")) << alone.output;
  expect_refusal("--steps 1 --compute-threads 0", {"--compute-threads"});
  expect_refusal("--steps 1 --compute-threads -2", {"--compute-threads"});
  expect_refusal("--steps 1 --compute-threads 100000", {"100000 threads on", "usable cores"});
  expect_refusal("--steps 1 --device cuda:0 --compute-threads 1", {"of --device host"});
  if (host_facts().cores < 2) GTEST_SKIP() << "one core";
  const Outcome two = train("--steps 4 --metrics two.jsonl --compute-threads 2");
  ASSERT_EQ(two.code, 0) << two.output;
  EXPECT_TRUE(two.says("this machine was profiled with 1")) << two.output;
  EXPECT_TRUE(two.says("ballast profile --compute-threads 2")) << two.output;
  const auto losses = [&](const char* name) {
    std::string all;
    std::istringstream lines(bench.read(name));
    for (std::string line; std::getline(lines, line);)
      all += Json::parse(line)["loss"].dump() + " ";
    return all;
  };
  EXPECT_EQ(losses("one.jsonl"), losses("two.jsonl"));
  EXPECT_FALSE(losses("one.jsonl").empty());
}

// Operations are timed with as many threads as the plan is run with, and kept apart.
TEST_F(Train, verify_times_operations_with_the_threads_that_it_is_told) {
  const std::string verify =
      "verify --model tiny.json --store here.db --sequence-length 16 --global-batch 2 "
      "--data text.txt --steps 3 ";
  const Outcome paced = bench.run(verify + "--device paced --compute-threads 1");
  EXPECT_EQ(paced.code, 2) << paced.output;
  EXPECT_TRUE(paced.says("of --device host")) << paced.output;
  if (host_facts().cores < 2) GTEST_SKIP() << "one core";
  const Outcome two = bench.run(verify + "--compute-threads 2");
  EXPECT_EQ(two.code, 0) << two.output;
  const Store store(bench.path("here.db"), {"test", ""});
  Machine here = *store.newest_machine("here");
  EXPECT_TRUE(store.measurements(host_of(here)).empty());
  here.gpu.compute_threads = 2;
  EXPECT_FALSE(store.measurements(host_of(here)).empty());
}

}  // namespace
}  // namespace ballast
