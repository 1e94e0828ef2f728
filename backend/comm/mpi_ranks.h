// Ranks that are processes which mpirun or srun started, by MPI.
#pragma once

#include <memory>
#include <string>

#include "backend/comm/communicator.h"

namespace ballast {

// Whether this program was built with MPI.
bool mpi_is_built();

// How many processes a launcher of MPI started, of which this is one; 1 where none did. Of what its
// environment says (OpenMPI, launchers with a PMI, and srun), without a call of MPI.
int mpi_ranks_started();
int mpi_rank_of_this();  // 0 where none did

// How many ranks torchrun started, of which this is one; 1 where it did not. They do not know MPI.
int torchrun_ranks_started();

// Initialises MPI, once; the communicator lives until mpi_end. Throws Error where there is no MPI
// here, or it has no threads.
Communicator& mpi_ranks();

// Ends MPI where it was begun. Where `exit_code` is not 0 all ranks end with this one, whatever
// they are doing.
void mpi_end(int exit_code);

}  // namespace ballast
