// How this process was started, from what launchers leave in its environment: alone, or as one of
// several ranks, and whether they can find each other.
//
// Will not do: call MPI (mpi_ranks).
#pragma once

#include <functional>
#include <optional>

namespace ballast {

struct Launch {
  const char* by = "";  // "mpirun", "srun", "torchrun"; empty: by none that starts ranks
  int ranks = 1;
  int rank = 0;
  std::optional<int> local_rank;  // among the ranks of its machine, where the launcher says it
  bool knows_mpi = true;          // false: its ranks cannot find each other by MPI
};

// The value of a variable, or null.
using Environment = std::function<const char*(const char* name)>;

// Throws Error where two launchers speak of different ranks: one started the other, and each would
// take this process for another rank.
Launch launch_of(const Environment& environment);
// Of this process.
Launch launch_of_this();
// Among the ranks that MPI brings together: alone where launchers contradict each other, and where
// torch's variables alone speak of several, which stand in shells and pods that start nothing too.
struct RankOfThis {
  int rank = 0;
  int ranks = 1;
};
RankOfThis rank_of_this();

// Throws Error where several ranks were started that cannot find each other: each of them would
// train alone, all of it.
void require_ranks_that_meet(const Launch& launch);

}  // namespace ballast
