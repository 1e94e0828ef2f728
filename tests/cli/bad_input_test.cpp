// Whatever is wrong with the input: one line that says what, where and what to do, exit code 2
// (1 where a plan does not fit), and nothing half-written.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"
#include "tests/profiles/held_store.h"

namespace ballast {
namespace {

const char* const kTrain =
    "train --model tiny.json --store here.db --sequence-length 16 --global-batch 2 --steps 1 ";

class BadInput : public testing::Test {
 protected:
  void SetUp() override {
    bench.write_tiny_model();
    bench.write_store();
    bench.write("text.txt", std::string(4000, 'a'));
  }

  // Exit code 2 and one line, from "ballast: ", with each of the words.
  void expect_refusal(const std::string& arguments, const std::vector<std::string>& words) {
    const Outcome outcome = bench.run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.output;
    EXPECT_EQ(outcome.lines(), 1) << outcome.output;
    EXPECT_TRUE(outcome.output.starts_with("ballast: ")) << outcome.output;
    for (const std::string& word : words) EXPECT_TRUE(outcome.says(word)) << outcome.output;
  }

  Workbench bench;
};

const std::string kPredict = "predict --machine gh200-96gb-480gb --model ";

TEST_F(BadInput, unknown_verb_flag_and_value_are_named) {
  expect_refusal("predikt", {"predikt", "--help"});
  expect_refusal("predict --modle gpt2", {"--modle", "ballast predict --help"});
  expect_refusal("predict --model gpt2 --sequence-lenght=9", {"did you mean --sequence-length?"});
  expect_refusal(kPredict + "gpt2 --devices x", {"--devices"});
  expect_refusal("predict --machine gh200-96gb-480gb", {"--model", "no model"});
  expect_refusal("predict --model gpt2", {"--machine", "no machine"});
  expect_refusal("models show", {"no name"});
  expect_refusal(kPredict + "gpt2 --devices 2 --sequence-length 64 --sequence-length 128",
                 {"--sequence-length is given 2 times", "give it once"});
}

TEST_F(BadInput, names_that_are_not_shipped_come_with_the_nearest) {
  expect_refusal(kPredict + "gpt-14b", {"gpt-14b", "gpt-13b"});
  expect_refusal("predict --model gpt2 --machine gh200", {"gh200"});
  expect_refusal(kPredict + "gpt2 --strategy superofload", {"superofload", "superoffload"});
}

TEST_F(BadInput, parts_that_stages_cannot_share_are_refused) {
  const std::string sppo =
      "predict --machine hgx-a100-80gb --model llama-2-7b --devices 32 --sequence-length 131072 "
      "--strategy sppo --set plan.multiplex=true ";
  const auto refuses = [&](const std::string& flags, const std::string& knob,
                           const std::string& what) {
    expect_refusal(sppo + flags, {"plan, " + knob + ":", "multiplex", what});
  };
  const std::string one = "--global-batch 1 --micro-batch 1 ";
  refuses(one + "--sequence 32 --pipeline 1 --subsequences 4", "pipeline", "one stage");
  refuses(one + "--sequence 8 --pipeline 4 --subsequences 2", "subsequences",
          "4 stages share more than 2 parts");
  refuses(
      "--global-batch 4 --micro-batch 1 --sequence 8 --pipeline 4 --subsequences 8 "
      "--virtual-pipeline 2",
      "virtual_pipeline", "one chunk");
  refuses("--global-batch 2 --micro-batch 1 --sequence 8 --pipeline 4 --subsequences 8",
          "micro_batch", "one micro-batch");
  refuses("--global-batch 2 --micro-batch 1 --sequence 4 --pipeline 4 --subsequences 8", "data",
          "one micro-batch");
  refuses(one + "--sequence 4 --context 2 --pipeline 4 --subsequences 8", "context", "by heads");
  refuses(one + "--sequence 8 --pipeline 4 --subsequences 8 --set model.heads=16", "pipeline",
          "32 ranks");
  // What is named is kept, though a pipeline that nobody says more of waits, with weights that
  // stay.
  refuses(one + "--sequence 8 --pipeline 4 --subsequences 8 --set plan.optimizer.sync=delay",
          "optimizer.sync", "stages send weights that are stepped");
  refuses(one + "--sequence 8 --pipeline 4 --subsequences 8 --set plan.weights.flow_share=0.5",
          "weights.flow_share", "from where they stay");
  refuses(one +
              "--sequence 8 --pipeline 4 --subsequences 8 "
              "--set plan.activations.offload_per_mflop=0",
          "activations.qkv", "keys and values stay");
}

TEST_F(BadInput, parts_that_no_sequence_has_are_refused) {
  const std::string llama = kPredict + "llama-3-8b --global-batch 1 --sequence-length ";
  const std::string knob = "plan, subsequences:";
  expect_refusal(llama + "1000 --subsequences 2000", {knob, "2000 parts", "1000 tokens"});
  expect_refusal(llama + "8192 --subsequences 128", {knob, "64 tokens", "tile", "at most 64"});
  expect_refusal(llama + "8192 --subsequences 3", {knob, "does not divide the 8192 tokens"});
  expect_refusal(llama + "8192 --subsequences 0", {"subsequences"});
  expect_refusal(llama + "1048576 --subsequences 1024", {knob, "1024 parts in 32 layers"});
  expect_refusal(llama +
                     "6144 --subsequences 2 --devices 3 --context 3 "
                     "--set plan.subsequence_split=flops",
                 {knob, "3 does not divide", "tokens of a part"});
  expect_refusal(kPredict + "mixtral-8x7b --sequence-length 8192 --subsequences 4",
                 {knob, "experts"});
}

TEST_F(BadInput, batches_that_do_not_divide_over_a_pipeline_are_refused) {
  const std::string chunks = kPredict +
                             "gpt2 --strategy megatron --devices 8 --tensor 1 --pipeline 2 "
                             "--virtual-pipeline 2 --set plan.data=4 ";
  expect_refusal(chunks + "--micro-batch 1 --global-batch 6",
                 {"plan, global_batch:", "6 sequences do not divide over 4"});
  expect_refusal(chunks + "--micro-batch 2 --global-batch 12",
                 {"plan, micro_batch:", "2 does not divide the 3 sequences"});
  expect_refusal(chunks + "--micro-batch 1 --global-batch 12",
                 {"plan, pipeline:", "2 does not divide the 3 micro-batches"});
}

TEST_F(BadInput, more_pieces_of_a_loss_than_tokens_are_refused) {
  const std::string llama = kPredict + "llama-3-8b --sequence-length 4 --set plan.loss_chunks=8 ";
  expect_refusal(llama, {"plan, loss_chunks:", "8 pieces of 4 tokens", "name micro_batch"});
  expect_refusal(llama + "--micro-batch 1", {"plan, loss_chunks:", "use at most 4"});
}

TEST_F(BadInput, pieces_that_do_not_divide_a_sequence_are_refused) {
  const std::string llama = kPredict + "llama-3-8b --devices 4 --context 4 --global-batch 1 ";
  expect_refusal(llama + "--sequence-length 4100", {"plan, context_balance:", "4 ranks two pieces",
                                                    "8 pieces do not divide 4100", "use none"});
  expect_refusal(llama + "--sequence-length 4096 --set plan.context_balance=even",
                 {"context_balance", "even", "zigzag", "none", "helpers"});
}

TEST_F(BadInput, what_helpers_of_a_ring_cannot_share_is_refused) {
  const std::string ring =
      " --devices 4 --context 4 --global-batch 1 --set "
      "plan.context_balance=helpers ";
  const std::string knob = "plan, context_balance:";
  expect_refusal(kPredict + "llama-3-8b --sequence-length 8192 --subsequences 4" + ring,
                 {knob, "whole sequences", "4 parts", "use zigzag, or subsequences 1"});
  expect_refusal(kPredict + "mistral-7b --sequence-length 8192" + ring,
                 {knob, "windows of 4096", "use zigzag, or --set model.sliding_window=0"});
  expect_refusal(kPredict + "gpt-oss-20b --sequence-length 8192" + ring, {knob, "windows of 128"});
  expect_refusal(kPredict + "llama-3-8b --sequence-length 4098" + ring,
                 {"plan, sequence:", "4 does not divide the 4098 tokens", "use a divisor"});
}

TEST_F(BadInput, missing_and_damaged_configs_are_refused) {
  expect_refusal(kPredict + "nothing.json", {"nothing.json", "no such file"});
  bench.write("half.json", R"({"model_type": "gpt2", "n_embd": )");
  expect_refusal(kPredict + "half.json", {"half.json"});
  bench.write("zero.json", R"({"model_type": "gpt2", "n_embd": 0, "n_head": 2, "n_layer": 2,
    "n_positions": 64, "vocab_size": 256})");
  expect_refusal(kPredict + "zero.json", {"zero.json"});
  bench.write("negative.json", R"({"model_type": "gpt2", "n_embd": 32, "n_head": 2,
    "n_layer": -2, "n_positions": 64, "vocab_size": 256})");
  expect_refusal(kPredict + "negative.json", {"negative.json", "n_layer"});
}

TEST_F(BadInput, missing_damaged_and_mistyped_plans_are_refused) {
  expect_refusal("predict --plan none.json", {"none.json"});
  bench.write("half.json", "{\"schema\": \"ballast.plan/1\",");
  expect_refusal("predict --plan half.json", {"half.json"});
  bench.write("mistyped.json", R"({"schema": "ballast.plan/1", "modell": "gpt2"})");
  expect_refusal("predict --plan mistyped.json", {"mistyped.json"});
  expect_refusal(kPredict + "gpt2 --set plan.optimizer.cats=cpu", {"cats", "cast"});
  expect_refusal(kPredict + "gpt2 --set optimizer.cast=cpu", {"optimizer.cast", "plan"});
}

TEST_F(BadInput, damaged_machines_and_stores_are_refused) {
  bench.write("machine.json", R"({"schema": "ballast.machine/1", "nmae": "x"})");
  expect_refusal("predict --model gpt2 --machine machine.json", {"machine.json"});
  bench.write("garbage.db", std::string(5000, 'x'));
  expect_refusal("predict --model gpt2 --machine here --store garbage.db", {"garbage.db"});
  expect_refusal("predict --model gpt2 --machine here --store none.db",
                 {"none.db", "ballast profile"});
  EXPECT_FALSE(bench.exists("none.db"));
}

TEST_F(BadInput, sizes_that_are_zero_negative_or_do_not_divide_are_refused) {
  expect_refusal(kPredict + "gpt2 --global-batch 0", {"--global-batch"});
  expect_refusal(kPredict + "gpt2 --sequence-length -5", {"--sequence-length"});
  expect_refusal(kPredict + "gpt2 --devices 0", {"--devices"});
  expect_refusal(kPredict + "gpt2 --micro-batch 3 --global-batch 8", {"micro_batch", "divisor"});
  expect_refusal(kPredict + "gpt2 --sequence-length 4096", {"sequence_length", "1024"});
  expect_refusal(std::string(kTrain) + "--steps 0", {"--steps"});
}

TEST_F(BadInput, missing_damaged_and_short_data_is_refused) {
  expect_refusal(std::string(kTrain) + "--data nowhere", {"nowhere"});
  bench.write("short.txt", "abc");
  expect_refusal(std::string(kTrain) + "--data short.txt", {"short.txt"});
  bench.write("odd.bin", "abc");
  expect_refusal(std::string(kTrain) + "--data odd.bin", {"odd.bin"});
  bench.write("weights.safetensors", "not at all");
  expect_refusal(std::string(kTrain) + "--data text.txt --import weights.safetensors",
                 {"weights.safetensors"});
  expect_refusal(std::string(kTrain) + "--resume", {"--resume", "--checkpoint"});
  expect_refusal(std::string(kTrain) + "--checkpoint-period 5", {"--checkpoint-period", "folder"});
  expect_refusal(std::string(kTrain) + "--set plan.checkpoint_period_steps=5",
                 {"plan.checkpoint_period_steps", "--checkpoint DIR"});
}

TEST_F(BadInput, plans_for_another_machine_are_not_trained_here) {
  expect_refusal("train --model tiny.json --machine gh200-96gb-480gb", {"--machine here"});
  expect_refusal("verify --model tiny.json --devices 4 --set plan.context=4 --store here.db",
                 {"plan.context", "a ring of more than two ranks", "plan.context=2"});
  expect_refusal(
      "verify --model tiny.json --devices 2 --set plan.context=2 "
      "--set plan.context_balance=helpers --store here.db",
      {"plan.context_balance", "ranks attend for one another", "plan.context_balance=zigzag"});
}

TEST_F(BadInput, ranks_that_mpi_does_not_know_are_refused) {
  const Outcome outcome = bench.shell(
      "export BALLAST; WORLD_SIZE=4 RANK=1 LOCAL_RANK=1 $BALLAST train --model tiny.json "
      "--set model.dropout=0 --store here.db --data text.txt");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_TRUE(outcome.says("torchrun")) << outcome.output;
  EXPECT_TRUE(outcome.says("mpirun -n 4")) << outcome.output;
}

TEST_F(BadInput, plan_that_cannot_fit_is_infeasible_with_a_reason) {
  // 12.9 billion parameters at 16 bytes each are 192 GiB; the card has 24 GB.
  const std::string resident =
      "predict --model gpt-13b --machine rtx-4090-pcie --strategy resident";
  const Outcome text = bench.run(resident);
  EXPECT_EQ(text.code, 1);
  EXPECT_TRUE(text.says("does not fit: GPU memory")) << text.output;
  const Outcome json = bench.run(resident + " --json");
  EXPECT_EQ(json.code, 1);
  EXPECT_TRUE(json.says("\"fits\": false")) << json.output;
  const Outcome devices = bench.run(resident + " --devices 8");
  EXPECT_EQ(devices.code, 1);
  EXPECT_TRUE(devices.says("8 devices")) << devices.output;
}

TEST_F(BadInput, infeasible_search_writes_no_plan_and_names_the_reason) {
  const Outcome outcome = bench.run(
      "tune --model llama-3-70b --machine rtx-4090-pcie --strategy zero-offload --store s.db");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("do not fit")) << outcome.output;
  EXPECT_FALSE(bench.exists("plan.json"));
}

TEST_F(BadInput, full_disk_is_told_wherever_something_is_written) {
  expect_refusal(kPredict + "gpt2 --json > /dev/full", {"standard output"});
  expect_refusal(kPredict + "gpt2 --out /dev/full", {"/dev/full"});
  expect_refusal(kPredict + "gpt2 --trace /dev/full", {"/dev/full"});
  expect_refusal("report --model gpt2 --machine gh200-96gb-480gb --out /dev/full", {"/dev/full"});
  const Outcome exported = bench.run(std::string(kTrain) + "--data text.txt --export /dev/full");
  EXPECT_EQ(exported.code, 2) << exported.output;
  EXPECT_TRUE(exported.says("/dev/full")) << exported.output;
  const Outcome metrics = bench.run(std::string(kTrain) + "--data text.txt --metrics /dev/full");
  EXPECT_EQ(metrics.code, 2) << metrics.output;
  EXPECT_TRUE(metrics.says("--metrics /dev/full")) << metrics.output;
}

TEST_F(BadInput, failed_writes_leave_the_old_file) {
  expect_refusal(kPredict + "gpt2 --out no/such/folder/x.json", {"no/such/folder"});
  bench.write("old.json", "old");
  expect_refusal(kPredict + "gpt2 --set plan.dtype=fp8 --out old.json", {"dtype"});
  EXPECT_EQ(bench.read("old.json"), "old");
}

TEST_F(BadInput, a_store_in_use_is_waited_for_aloud) {
  HeldStore held(bench.path("here.db"));
  const Outcome outcome = bench.shell(
      "$BALLAST predict --model tiny.json --machine here --store here.db --sequence-length 16 "
      "--global-batch 2 2> errors.txt & pid=$!\n"
      "for i in $(seq 600); do grep -qs 'waiting for the store' errors.txt && break; sleep 0.05; "
      "done\nkill -KILL " +
      std::to_string(held.holder()) + "\nwait $pid");
  EXPECT_EQ(outcome.code, 0) << outcome.output << bench.read("errors.txt");
  EXPECT_TRUE(outcome.says("step")) << outcome.output;
  EXPECT_EQ(bench.read("errors.txt").find("waiting for the store here.db"), 0u)
      << bench.read("errors.txt");
}

TEST_F(BadInput, outputs_without_a_folder_are_refused_before_the_work) {
  expect_refusal("profile --store here.db --out none/machine.json", {"--out", "none"});
  expect_refusal(std::string(kTrain) + "--data text.txt --export none/weights", {"--export"});
  expect_refusal("tune --model gpt2 --machine gh200-96gb-480gb --store s.db --out .",
                 {"--out", "folder"});
  EXPECT_FALSE(bench.exists("s.db"));
}

TEST_F(BadInput, one_file_for_two_outputs_is_refused_and_nothing_is_written) {
  const std::string grid =
      "compare --model gpt2 --machine gh200-96gb-480gb --strategy superoffload,resident ";
  expect_refusal(grid + "--csv x --html ./x", {"--csv", "--html", "x"});
  expect_refusal(grid + "--out x --csv x", {"--out", "--csv"});
  EXPECT_FALSE(bench.exists("x"));
  expect_refusal(kPredict + "gpt2 --out p.json --plan-out p.json", {"--out", "--plan-out"});
  expect_refusal(kPredict + "gpt2 --trace p.json --store p.json", {"--trace", "--store"});
  expect_refusal("tune --model gpt2 --machine gh200-96gb-480gb --store plan.json",
                 {"--store", "--out (by default)", "plan.json"});
  bench.shell("ln -s weights metrics");
  bench.write("weights", "old");
  expect_refusal(std::string(kTrain) + "--data text.txt --export weights --metrics metrics",
                 {"--export", "--metrics"});
  EXPECT_EQ(bench.read("weights"), "old");
  // Pipes and terminals take what several write.
  EXPECT_EQ(bench.run(grid + "--csv /dev/null --html /dev/null").code, 0);
}

TEST_F(BadInput, a_file_that_is_read_is_not_overwritten) {
  EXPECT_EQ(bench.run(kPredict + "gpt2 --plan-out plan.json").code, 0);
  const std::string plan = bench.read("plan.json");
  expect_refusal("export --deepspeed plan.json --out plan.json", {"--out", "--deepspeed"});
  expect_refusal("predict --plan plan.json --trace ./plan.json", {"--trace", "--plan"});
  expect_refusal("report --plan plan.json --out plan.json", {"--out", "--plan"});
  expect_refusal(kPredict + "tiny.json --out tiny.json --sequence-length 16", {"--out", "--model"});
  expect_refusal(std::string(kTrain) + "--data text.txt --metrics text.txt", {"--data"});
  EXPECT_EQ(bench.read("plan.json"), plan);
  // A plan gives way to a better one.
  EXPECT_EQ(bench.run("predict --plan plan.json --plan-out plan.json").code, 0);
}

TEST_F(BadInput, numbers_that_no_formula_takes_are_refused) {
  const std::string paced = "verify --model tiny.json --machine gh200-96gb-480gb --device paced ";
  expect_refusal(paced + "--slow-down nan", {"--slow-down: nan", "finite"});
  expect_refusal(std::string(kTrain) + "--data text.txt --lr nan", {"--lr: nan", "finite"});
  for (const char* const seed : {"-1", "99999999999999999999", "1.5", "x"}) {
    expect_refusal(std::string(kTrain) + "--data text.txt --seed " + seed,
                   {"--seed: ", seed, "whole number"});
  }
  const Outcome negative = bench.run("tune --model gpt2 --deadline -1");
  EXPECT_EQ(negative.code, 2);
  EXPECT_LT(negative.output.size(), 120U) << negative.output;
  expect_refusal(kPredict + "gpt2 --set machine.link.gb_per_s=1e-300", {"106 days"});
  expect_refusal(kPredict + "gpt2 --set machine.gpu.memory_gb=nan", {"must be a number"});
  // Every micro-batch has its operations in the graph.
  expect_refusal(kPredict + "gpt2 --global-batch 100000000 --micro-batch 1",
                 {"100000000 micro-batches", "16384"});
  expect_refusal(
      kPredict + "llama-3-8b --set plan.optimizer.bucket_bytes=65536",
      {"optimizer.bucket_bytes: 122532 buckets", "use buckets of 3921026 bytes or more"});
}

TEST_F(BadInput, words_that_name_nothing_are_refused) {
  expect_refusal("import --megatron '' --model gpt2 --machine gh200-96gb-480gb", {"no flags"});
  expect_refusal("calibrate --stack torch-2025 --except nope", {"--except 'nope'"});
  expect_refusal("validate nope", {"published file 'nope'"});
  expect_refusal("strategies list resident", {"show resident"});
  expect_refusal(
      "compare --model gpt2 --machine gh200-96gb-480gb --devices 1,2 --set plan.devices=1,2",
      {"plan.devices=1,2", "--devices"});
  expect_refusal("tune --model gpt2 --machine gh200-96gb-480gb --ablation --ablation-from nope",
                 {"nope"});
}

TEST_F(BadInput, damaged_records_are_not_reported) {
  bench.write("verify.json", "{}");
  expect_refusal("report --verify verify.json", {"verify.json", "ballast verify"});
  bench.write("metrics.jsonl", "{\"step\": 0, \"loss\": 1, \"step_time_s\": 1}\n{\"step\":\n");
  expect_refusal("report --model gpt2 --machine gh200-96gb-480gb --metrics metrics.jsonl",
                 {"metrics.jsonl, line 2"});
  EXPECT_FALSE(bench.exists("report.html"));
}

// The library's own name of the fault is nobody's business.
TEST_F(BadInput, a_number_for_a_name_in_a_comparison_is_told_in_our_words) {
  const std::string compare =
      "compare --model gpt2 --machine gh200-96gb-480gb --strategy superoffload,zero-offload "
      "--global-batch 8 --out c.json";
  ASSERT_EQ(bench.run(compare).code, 0);
  nlohmann::json comparison = nlohmann::json::parse(bench.read("c.json"));
  comparison["cells"][1]["plan"]["machine"] = 7;
  bench.write("c.json", comparison.dump());
  const Outcome outcome = bench.run("report --compare c.json --out c.html");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_FALSE(outcome.says("json.exception")) << outcome.output;
  EXPECT_TRUE(outcome.says("c.json: holds what no verb of Ballast writes")) << outcome.output;
}

}  // namespace
}  // namespace ballast
