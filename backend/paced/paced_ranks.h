// Where ranks on paced devices meet: a collective begins when the last rank of its group has come.
//
// Reckoned in due times, as the pacer has them: the begin of all is the latest due begin, whenever
// their threads wake.
// Will not do: move data, or know how long a collective takes (the cost table of each device).
#pragma once

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "backend/paced/pacer.h"
#include "sim/base/units.h"

namespace ballast {

// The same on all ranks of a group: they run one program.
struct PacedCollective {
  bool repair = false;  // of Graph::repair, else of Graph::step
  int32_t op = 0;
  int32_t step = 0;
  int64_t stride = 1;  // ranks from one of the group to the next, as CollectiveWork has it
  int64_t ranks = 1;   // of the group
  auto operator<=>(const PacedCollective&) const = default;
};

class PacedRanks {
 public:
  PacedRanks() : epoch_(std::chrono::steady_clock::now()) {}

  Pacer::Epoch epoch() const { return epoch_; }

  // Holds the calling thread until every rank of the group is here; returns the latest begin.
  Instant meet(const PacedCollective& what, int rank, Instant begin);

 private:
  struct Meeting {
    int64_t here = 0;
    int64_t gone = 0;
    Instant begin;
  };

  const Pacer::Epoch epoch_;
  std::mutex mutex_;  // guards all below
  std::condition_variable all_here_;
  std::map<std::pair<PacedCollective, int64_t>, Meeting> meetings_;  // by the group's first rank
};

}  // namespace ballast
