#include "backend/comm/launch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "sim/base/error.h"

namespace ballast {

namespace {

struct Launcher {
  const char* name;
  const char* ranks;
  const char* rank;
  const char* local_rank;
};
// Those whose processes know MPI, the innermost first: what a batch script of Slurm starts by
// mpirun has the variables of both.
//  * Open MPI: "Environment variables set for MPI applications" of its documentation.
//  * MVAPICH's mpirun_rsh: MV2_COMM_WORLD_* of its parameters.
//  * Those with a PMI, MPICH's and Intel's mpiexec: PMI_SIZE and PMI_RANK, and MPI_LOCALRANKID,
//    which both set.
//  * Slurm's srun, which alone sets the number of a step's tasks (man srun, OUTPUT ENVIRONMENT
//    VARIABLES): a batch script has a SLURM_PROCID and a SLURM_NTASKS too, and is one process.
constexpr std::array kLaunchers = {
    Launcher{"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
             "OMPI_COMM_WORLD_LOCAL_RANK"},
    Launcher{"mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"},
    Launcher{"mpirun", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"},
    Launcher{"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"}};
// What torch.distributed's env:// asks for, set by torchrun, accelerate, deepspeed and operators of
// clusters, not all of which set LOCAL_RANK
// (torch/distributed/elastic/agent/server/local_elastic_agent.py, torch/distributed/rendezvous.py).
constexpr Launcher kTorch = {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK"};

// By which a process that srun started finds the others: --mpi=pmix, pmi2, cray_shasta.
constexpr std::array kOfPmi = {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK",
                               "PMI_FD",    "PMI_JOBID",      "PALS_APID"};

std::optional<int> number_of(const Environment& environment, const char* variable) {
  const char* const text = environment(variable);
  if (text == nullptr) return std::nullopt;
  const std::string_view view = text;
  int value = 0;
  const auto [end, failure] = std::from_chars(view.data(), view.data() + view.size(), value);
  const bool whole = failure == std::errc{} && end == view.data() + view.size();
  return whole && value >= 0 ? std::optional(value) : std::nullopt;
}

// Nothing where its variables are not there, or say nothing that a launcher would.
std::optional<Launch> launch_by(const Launcher& launcher, const Environment& environment) {
  const std::optional<int> ranks = number_of(environment, launcher.ranks);
  const std::optional<int> rank = number_of(environment, launcher.rank);
  if (!ranks || !rank || *rank >= *ranks) return std::nullopt;
  return Launch{launcher.name, *ranks, *rank, number_of(environment, launcher.local_rank), true};
}

}  // namespace

Launch launch_of(const Environment& environment) {
  std::optional<Launch> found;
  for (const Launcher& launcher : kLaunchers) {
    if (!found) found = launch_by(launcher, environment);
  }
  if (found && std::string_view(found->by) == "srun") {
    found->knows_mpi = std::any_of(kOfPmi.begin(), kOfPmi.end(), [&](const char* variable) {
      return environment(variable) != nullptr;
    });
  }
  const std::optional<Launch> torch = launch_by(kTorch, environment);
  if (!torch || torch->ranks == 1) return found.value_or(Launch{});
  if (!found || found->ranks == 1) {
    Launch alone = *torch;
    alone.knows_mpi = false;
    return alone;
  }
  // Many set those variables from those of srun or mpirun.
  if (found->ranks == torch->ranks && found->rank == torch->rank) return *found;
  throw Error(
      found->by,
      "it started rank " + std::to_string(found->rank) + " of " + std::to_string(found->ranks) +
          ", and RANK and WORLD_SIZE speak of rank " + std::to_string(torch->rank) + " of " +
          std::to_string(torch->ranks),
      "start ballast by mpirun or srun itself, without torchrun between them, or unset RANK "
      "and WORLD_SIZE");
}

Launch launch_of_this() {
  return launch_of([](const char* name) { return std::getenv(name); });
}

RankOfThis rank_of_this() {
  try {
    const Launch launch = launch_of_this();
    if (std::string_view(launch.by) == kTorch.name) return {};
    return {launch.rank, launch.ranks};
  } catch (const Error&) {
    return {};
  }
}

void require_ranks_that_meet(const Launch& launch) {
  if (launch.ranks == 1 || launch.knows_mpi) return;
  const std::string ranks = std::to_string(launch.ranks);
  if (std::string_view(launch.by) == "srun") {
    throw Error(
        "srun",
        "it started " + ranks + " ranks without a PMI, by which MPI lets them find each other",
        "use srun --mpi=pmix -n " + ranks + ", or mpirun -n " + ranks);
  }
  throw Error(launch.by,
              "RANK and WORLD_SIZE say that it started " + ranks +
                  " ranks, which find each other by MPI, and it brings none",
              "use mpirun -n " + ranks + ", or srun --mpi=pmix -n " + ranks +
                  "; unset both where nothing started several");
}

}  // namespace ballast
