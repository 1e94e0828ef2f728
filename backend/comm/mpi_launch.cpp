#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "backend/comm/mpi_ranks.h"

namespace ballast {
namespace {

struct Launcher {
  const char* size;
  const char* rank;
};
// OpenMPI's mpirun, those with a PMI (MPICH's mpiexec), and Slurm's srun, which alone sets the
// number of a step's tasks (man srun, OUTPUT ENVIRONMENT VARIABLES): a batch script has a
// SLURM_PROCID too.
constexpr std::array kLaunchers = {Launcher{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                   Launcher{"PMI_SIZE", "PMI_RANK"},
                                   Launcher{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view view = text;
  int value = otherwise;
  std::from_chars(view.data(), view.data() + view.size(), value);
  return value;
}

}  // namespace

int mpi_ranks_started() {
  for (const Launcher& launcher : kLaunchers) {
    if (const int size = number_of(launcher.size, 0); size > 0) return size;
  }
  return 1;
}

int mpi_rank_of_this() {
  for (const Launcher& launcher : kLaunchers) {
    if (number_of(launcher.size, 0) <= 0) continue;
    if (const int rank = number_of(launcher.rank, -1); rank >= 0) return rank;
  }
  return 0;
}

// torch/distributed/elastic/agent/server/local_elastic_agent.py sets all three.
int torchrun_ranks_started() {
  const bool started = number_of("RANK", -1) >= 0 && number_of("LOCAL_RANK", -1) >= 0;
  return started && mpi_ranks_started() == 1 ? std::max(1, number_of("WORLD_SIZE", 1)) : 1;
}

}  // namespace ballast
