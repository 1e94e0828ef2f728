// Times what ranks exchange on this machine, by kind and size: threads of one process, or processes
// that a launcher of MPI started.
//
// Will not do: keep what it found (cli), or say how ranks share cores (sim/engine/cost).
#pragma once

#include <vector>

#include "backend/comm/communicator.h"
#include "backend/measure/operation_times.h"
#include "backend/measure/profile.h"

namespace ballast {

// Collectives of 16-bit values among all ranks, and among every group of them that a degree may
// have, all groups at once, from when all are ready until this rank may go on. Every rank calls;
// each has its own times.
std::vector<OperationTime> time_collectives(Communicator& ranks, ProfileEffort effort);

// The same among threads of this process; the times are those of the first.
std::vector<OperationTime> time_collectives_of_threads(int ranks, ProfileEffort effort);

}  // namespace ballast
