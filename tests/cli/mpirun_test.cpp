// Ranks that mpirun starts: the program as a user runs it, against the same plan as threads of one
// process. Skipped by name where there is no mpirun, or a program without MPI.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>

#include "backend/comm/mpi_ranks.h"
#include "tests/cli/support.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

class MpiRun : public testing::Test {
 protected:
  void SetUp() override {
    if (!mpi_is_built()) GTEST_SKIP() << "this program was built without MPI";
    if (bench.shell("command -v mpirun").code != 0) GTEST_SKIP() << "there is no mpirun";
    bench.write_tiny_model();
    bench.write_store();
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox " + std::to_string(i * i) + "\n";
    bench.write("text.txt", text);
  }

  static std::string train(const std::string& flags, int zero_stage = 2, int ranks = 2) {
    const std::string count = std::to_string(ranks);
    return "$BALLAST train --model tiny.json --set model.dropout=0 --store here.db "
           "--sequence-length 16 "
           "--global-batch 4 --data text.txt --devices " +
           count + " --set plan.data=" + count +
           " --set plan.weights.flow_share=0 --set plan.zero_stage=" + std::to_string(zero_stage) +
           " " + flags;
  }
  Outcome ranks(int count, const std::string& line) const {
    return bench.shell(
        "export BALLAST; timeout 120 mpirun --allow-run-as-root --oversubscribe -n " +
        std::to_string(count) + " " + line);
  }

  Workbench bench;
};

TEST_F(MpiRun, processes_train_to_the_bits_of_threads) {
  for (const int stage : {2, 3}) {
    const Outcome threads =
        bench.shell(train("--steps 6 --export threads.safetensors --json 2> /dev/null", stage));
    ASSERT_EQ(threads.code, 0) << threads.output;
    const Outcome processes =
        ranks(2, train("--steps 6 --export processes.safetensors --json 2> /dev/null", stage));
    ASSERT_EQ(processes.code, 0) << processes.output;
    EXPECT_EQ(bench.read("threads.safetensors"), bench.read("processes.safetensors"));
    const Json one = Json::parse(threads.output);
    const Json other = Json::parse(processes.output);  // of one rank: else it would not parse
    EXPECT_EQ(one["last_loss"], other["last_loss"]);
    EXPECT_EQ(one["validation_loss"], other["validation_loss"]);
  }
}

// Ranks that split products or sequences, and those that have all stages of a pipeline each.
TEST_F(MpiRun, every_degree_has_the_bits_of_threads) {
  struct Degrees {
    int ranks;
    const char* flags;
  };
  const Degrees kPlans[] = {
      {2, "--devices 2 --set plan.tensor=2"},
      {2, "--devices 2 --set plan.tensor=2 --set plan.tensor_sequence=true"},
      {2, "--devices 2 --set plan.sequence=2"},
      {2, "--devices 4 --set plan.data=2 --set plan.pipeline=2 --set plan.zero_stage=1"},
      {4, "--devices 4 --set plan.tensor=2 --set plan.data=2 --set plan.zero_stage=3"},
  };
  for (const Degrees& degrees : kPlans) {
    const std::string line =
        "$BALLAST train --model tiny.json --set model.dropout=0 --store here.db "
        "--sequence-length 16 --global-batch 4 --data text.txt "
        "--set plan.weights.flow_share=0 --steps 5 --json " +
        std::string(degrees.flags);
    const Outcome threads = bench.shell(line + " --export threads.safetensors 2> /dev/null");
    ASSERT_EQ(threads.code, 0) << threads.output;
    const Outcome processes =
        ranks(degrees.ranks, line + " --export processes.safetensors 2> /dev/null");
    ASSERT_EQ(processes.code, 0) << processes.output;
    EXPECT_EQ(bench.read("threads.safetensors"), bench.read("processes.safetensors"))
        << degrees.flags;
    EXPECT_EQ(Json::parse(threads.output)["last_loss"], Json::parse(processes.output)["last_loss"]);
  }
}

TEST_F(MpiRun, processes_resume_what_threads_kept) {
  const Outcome first = bench.shell(train("--steps 6 --checkpoint kept"));
  ASSERT_EQ(first.code, 0) << first.output;
  const Outcome more = ranks(2, train("--checkpoint kept --resume --steps 9"));
  EXPECT_EQ(more.code, 0) << more.output;
  EXPECT_TRUE(bench.exists("kept/step-00000009.safetensors")) << more.output;
}

TEST_F(MpiRun, another_number_of_ranks_is_refused) {
  const Outcome outcome = ranks(3, train("--steps 6"));
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_TRUE(outcome.says("it started 3 ranks, and the plan has 2")) << outcome.output;
}

// Each of them would train alone, all of it, and write what the others write.
TEST_F(MpiRun, processes_that_cannot_find_each_other_are_refused) {
  const std::string torch = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=here MASTER_PORT=29500 ";
  const std::string slurm = "SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 ";
  for (const std::string& line :
       {train("--steps 2"), std::string("$BALLAST profile --ranks 2 --store here.db"),
        std::string("$BALLAST profile --store here.db"),
        std::string("$BALLAST verify --model tiny.json --store here.db --data text.txt")}) {
    const Outcome torchrun = bench.shell(torch + line);
    EXPECT_EQ(torchrun.code, 2) << line << torchrun.output;
    EXPECT_TRUE(torchrun.says("it started 2 ranks")) << line << torchrun.output;
    const bool is_for_ranks = line != "$BALLAST profile --store here.db";
    EXPECT_TRUE(torchrun.says(is_for_ranks ? "mpirun" : "start it alone"))
        << line << torchrun.output;
    const Outcome srun = bench.shell(slurm + line);
    EXPECT_EQ(srun.code, 2) << line << srun.output;
    EXPECT_TRUE(srun.says("srun: it started 2 ranks")) << line << srun.output;
  }
  EXPECT_FALSE(bench.exists("kept"));
}

TEST_F(MpiRun, what_measures_a_machine_is_started_alone) {
  for (const char* line : {"$BALLAST profile --quick --store here.db",
                           "$BALLAST tune --measure 1 --model tiny.json --store here.db"}) {
    const Outcome outcome = ranks(2, line);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_TRUE(outcome.says("beside the others; start it alone")) << outcome.output;
  }
}

// Each process writes its shard; as one, or as threads, others go on with them.
TEST_F(MpiRun, processes_keep_a_part_each_and_threads_and_one_alone_resume_it) {
  const Outcome first = ranks(2, train("--steps 6 --checkpoint kept --checkpoint-period 2"));
  ASSERT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(bench.shell("ls kept/shard-00000006-*-of-2.safetensors | wc -l").output, "2\n");
  EXPECT_EQ(bench.shell("ls kept | wc -l").output, "7\n");
  ASSERT_EQ(bench.shell("cp -r kept threads && cp -r kept alone").code, 0);
  const Outcome processes =
      ranks(2, train("--checkpoint kept --resume --steps 9 --export a.safetensors"));
  EXPECT_EQ(processes.code, 0) << processes.output;
  const Outcome threads =
      bench.shell(train("--checkpoint threads --resume --steps 9 --export b.safetensors", 3));
  EXPECT_EQ(threads.code, 0) << threads.output;
  EXPECT_EQ(bench.read("a.safetensors"), bench.read("b.safetensors"));
  const Outcome alone = bench.shell(train("--checkpoint alone --resume --steps 9", 0, 1));
  EXPECT_EQ(alone.code, 0) << alone.output;
  const Outcome several = bench.shell(train("--steps 1 --devices 1"));
  EXPECT_EQ(several.code, 2) << several.output;
  EXPECT_TRUE(several.says("there are several plans")) << several.output;
}

// Nothing hangs: `timeout` would end with 124.
TEST_F(MpiRun, a_rank_that_is_killed_ends_the_others) {
  const std::string line =
      "sh -c 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then (sleep 3; kill -9 $$) & fi; exec " +
      train("--steps 1000000") + "'";
  const Outcome outcome = ranks(2, line);
  EXPECT_NE(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.code, 124) << outcome.output;
  EXPECT_TRUE(outcome.says("rank 1")) << outcome.output;
}

// How long it takes to end is looked at by hand (scripts/kill_ranks.py), for it says little of a
// machine that does other things too.
TEST_F(MpiRun, what_killed_ranks_leave_is_resumed_by_another_number_of_them) {
  if (bench.shell("command -v python3").code != 0) GTEST_SKIP() << "there is no python3";
  const Outcome outcome = bench.shell("python3 " BALLAST_SOURCE_DIR
                                      "/scripts/kill_ranks.py $BALLAST --kills 2 --seed 3 "
                                      "--splits data,expert --most-seconds 120 "
                                      "--store here.db");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("2 kills, each left a run that resumes")) << outcome.output;
}

}  // namespace
}  // namespace ballast
