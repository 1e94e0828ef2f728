// Ranks that are threads of one process: what one gives the others read from its memory.
//
// For plans of several devices on one machine, and for tests. A rank that fails wakes all that
// wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "backend/comm/communicator.h"

namespace ballast {

class LocalRanks {
 public:
  explicit LocalRanks(int ranks);
  ~LocalRanks();
  // Must not outlive this.
  Communicator& of(int rank) const;
  // The rank that failed first, or -1.
  int failed() const;
  // With its number and reason.
  std::optional<std::string> failure() const;

 private:
  class Rank;
  // Where the ranks of one group meet for the exchanges of one channel.
  struct Meeting {
    std::vector<const void*> given;  // by index in the group: of the round that is being filled
    std::vector<const void*> seen;   // of the round before
    int64_t arrived = 0;
    int64_t round = 0;
    std::condition_variable changed;
  };

  // Waits until every rank of the group has come with what it gives; returns that of all. Who
  // begins an exchange gives up where a rank has failed; once begun, all of them end it, for they
  // read each other's memory.
  enum class Moment : uint8_t { kBegin, kEnd };
  std::vector<const void*> meet(Channel channel, const GroupMembers& members, int64_t stride,
                                Moment moment, const void* given);
  void fail(int rank, const std::string& why);

  mutable std::mutex mutex_;  // guards all below
  std::map<std::tuple<Channel, int, int64_t, size_t>, Meeting> meetings_;
  struct Failure {
    int rank = 0;
    std::string why;
  };
  std::optional<Failure> failure_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace ballast
