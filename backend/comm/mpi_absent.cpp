// What mpi_ranks.cpp does, in a program that was built without MPI: says so.
#include "backend/comm/mpi_ranks.h"
#include "sim/base/error.h"

namespace ballast {

bool mpi_is_built() { return false; }

bool mpi_asks_for_pmi() { return true; }

Communicator& mpi_ranks() {
  throw Error("mpirun", "this program was built without MPI",
              "build it where CMake finds one (libopenmpi-dev), or start it without mpirun: the "
              "ranks are then threads of one process");
}

void mpi_end(int) {}

}  // namespace ballast
