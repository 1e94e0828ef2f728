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
// OpenMPI's mpirun, and those with a PMI (MPICH's mpiexec).
constexpr std::array kLaunchers = {Launcher{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                   Launcher{"PMI_SIZE", "PMI_RANK"}};

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
    if (const int rank = number_of(launcher.rank, -1); rank >= 0) return rank;
  }
  return 0;
}

}  // namespace ballast
