// Exchanges between processes take other times than those between threads of one: the store keeps
// them under names of their own, and they stand for the others where a launcher of MPI started this
// program.
#pragma once

#include "sim/spec/measurements.h"

namespace ballast {

// Times of processes, under the names by which the store tells them apart.
Measurements named_between_processes(const Measurements& measurements);
// What predicts processes: theirs in the place of threads'.
Measurements between_processes(Measurements all);

}  // namespace ballast
