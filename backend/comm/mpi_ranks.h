// Ranks that are processes which mpirun or srun started, by MPI.
#pragma once

#include <memory>
#include <string>

#include "backend/comm/communicator.h"

namespace ballast {

// Whether this program was built with MPI.
bool mpi_is_built();

// Whether this MPI finds what srun started by a PMI that stands in the environment alone: Open MPI
// does; others may be linked with a library of Slurm's.
bool mpi_asks_for_pmi();

// Initialises MPI, once; the communicator lives until mpi_end. Throws Error where there is no MPI
// here, it has no threads, or it knows of other ranks than the launcher started.
Communicator& mpi_ranks();

// Ends MPI where it was begun. Where `exit_code` is not 0 all ranks end with this one, whatever
// they are doing.
void mpi_end(int exit_code);

}  // namespace ballast
