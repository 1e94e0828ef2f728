// What launchers leave in the environment of a process, and what is made of it: how many ranks,
// which of them this one is, and whether they can find each other.
#include "backend/comm/launch.h"

#include <gtest/gtest.h>
#include <map>
#include <string>

#include "sim/base/error.h"

namespace ballast {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch_with(const Variables& variables) {
  return launch_of([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// Empty where nothing is refused.
std::string refusal_of(const Variables& variables) {
  try {
    require_ranks_that_meet(launch_with(variables));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables kMvapich = {
    {"MV2_COMM_WORLD_SIZE", "4"}, {"MV2_COMM_WORLD_RANK", "3"}, {"MV2_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables kMpich = {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"MPI_LOCALRANKID", "1"}};
// What srun sets beside the job's own variables.
const Variables kSrun = {{"SLURM_JOB_ID", "7"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_PROCID", "3"},
                         {"SLURM_LOCALID", "1"}};
// What a batch script sees before it starts anything.
const Variables kBatchScript = {
    {"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}};
const Variables kTorchrun = {{"RANK", "3"},          {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},    {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29500"}};

Variables joined(Variables one, const Variables& other) {
  one.insert(other.begin(), other.end());
  return one;
}
Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(launch, by_nobody_is_one_rank) {
  for (const Variables& variables : {Variables{}, kBatchScript}) {
    const Launch launch = launch_with(variables);
    EXPECT_EQ(launch.ranks, 1);
    EXPECT_EQ(launch.rank, 0);
    EXPECT_FALSE(launch.local_rank);
    EXPECT_EQ(refusal_of(variables), "");
  }
}

TEST(launch, of_every_launcher_says_rank_ranks_and_local_rank) {
  for (const Variables& variables :
       {kOpenMpi, kMvapich, kMpich, with(kSrun, "PMIX_RANK", "3"), with(kSrun, "PMI_FD", "9"),
        joined(kOpenMpi, kBatchScript), kSrun, kTorchrun}) {
    const Launch launch = launch_with(variables);
    EXPECT_EQ(launch.ranks, 4);
    EXPECT_EQ(launch.rank, 3);
    EXPECT_EQ(launch.local_rank, 1);
  }
  EXPECT_STREQ(launch_with(kOpenMpi).by, "mpirun");
  EXPECT_STREQ(launch_with(kSrun).by, "srun");
  EXPECT_STREQ(launch_with(kTorchrun).by, "torchrun");
}

// Of those that know MPI none is refused; of the others each would train alone.
TEST(launch, ranks_that_cannot_find_each_other_are_refused) {
  for (const Variables& variables : {kOpenMpi, kMvapich, kMpich, with(kSrun, "PMIX_RANK", "3"),
                                     with(kSrun, "PMI_RANK", "3"), with(kSrun, "PALS_APID", "1")}) {
    EXPECT_EQ(refusal_of(variables), "");
  }
  const std::string srun = refusal_of(kSrun);
  EXPECT_TRUE(says(srun, "srun: it started 4 ranks without a PMI")) << srun;
  EXPECT_TRUE(says(srun, "use srun --mpi=pmix -n 4, or mpirun -n 4")) << srun;
  const std::string torchrun = refusal_of(kTorchrun);
  EXPECT_TRUE(says(torchrun, "torchrun: RANK and WORLD_SIZE say that it started 4 ranks"))
      << torchrun;
  EXPECT_TRUE(says(torchrun, "use mpirun -n 4, or srun --mpi=pmix -n 4")) << torchrun;
  // Operators of clusters set no local rank.
  Variables without_local_rank = kTorchrun;
  without_local_rank.erase("LOCAL_RANK");
  EXPECT_EQ(refusal_of(without_local_rank), torchrun);
}

TEST(launch, alone_by_any_launcher_is_refused_by_none) {
  for (const Variables& variables :
       {Variables{{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}},
        Variables{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}},
        Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}}) {
    EXPECT_EQ(launch_with(variables).ranks, 1);
    EXPECT_EQ(refusal_of(variables), "");
  }
}

// What many do: RANK and WORLD_SIZE from the variables of mpirun or srun.
TEST(launch, variables_of_torch_that_agree_with_a_launcher_of_mpi_change_nothing) {
  for (const Variables& variables : {kOpenMpi, kMpich, with(kSrun, "PMIX_RANK", "3")}) {
    const Variables both = joined(variables, kTorchrun);
    EXPECT_STREQ(launch_with(both).by, launch_with(variables).by);
    EXPECT_EQ(refusal_of(both), "");
    // One process each, whatever mpirun says of torch's own world.
    EXPECT_EQ(refusal_of(with(with(both, "WORLD_SIZE", "1"), "RANK", "0")), "");
  }
}

// srun starts a torchrun on each node, and that its processes: two launchers, of different ranks.
TEST(launch, launchers_that_start_each_other_are_refused) {
  const Variables inner = with(with(kTorchrun, "WORLD_SIZE", "16"), "RANK", "13");
  for (const Variables& outer : {kOpenMpi, kSrun, with(kSrun, "PMIX_RANK", "3")}) {
    const std::string refusal = refusal_of(joined(outer, inner));
    EXPECT_TRUE(says(refusal,
                     "it started rank 3 of 4, and RANK and WORLD_SIZE speak of rank 13 of "
                     "16"))
        << refusal;
    EXPECT_TRUE(says(refusal, "without torchrun between them")) << refusal;
  }
  // On one node srun starts one torchrun: the ranks are torch's, which bring no MPI.
  const Variables one_node = {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}};
  EXPECT_TRUE(says(refusal_of(joined(one_node, kTorchrun)), "torchrun: RANK and WORLD_SIZE"));
}

TEST(launch, variables_that_no_launcher_would_set_are_passed_over) {
  for (const Variables& variables :
       {Variables{{"RANK", "3"}}, Variables{{"WORLD_SIZE", "4"}},
        Variables{{"RANK", "a"}, {"WORLD_SIZE", "4"}},
        Variables{{"RANK", "4"}, {"WORLD_SIZE", "4"}},
        Variables{{"RANK", "-1"}, {"WORLD_SIZE", "4"}},
        Variables{{"OMPI_COMM_WORLD_SIZE", ""}, {"OMPI_COMM_WORLD_RANK", "0"}},
        Variables{{"SLURM_STEP_NUM_TASKS", "4x"}, {"SLURM_PROCID", "0"}},
        Variables{{"PMI_SIZE", "99999999999"}, {"PMI_RANK", "0"}}}) {
    EXPECT_EQ(launch_with(variables).ranks, 1);
  }
}

}  // namespace
}  // namespace ballast
