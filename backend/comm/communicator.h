// Communicator: exchanges among the ranks of a plan, each of which runs a graph of its own.
//
// What is exchanged is a list of parts, the same on every rank but for addresses: who owns a part
// sums it (reduce-scatter) or has it for the others (all-gather). Sums go in the order of the
// ranks, in fp32, and are rounded once: so N ranks give the bits of one that adds the same
// gradients in the same order. Two engines: threads of one process (local_ranks.h) and processes
// of MPI (mpi_ranks.h).
// Will not do: know what an operation means (backend/host), or when it runs (executor).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "sim/graph/core/edit.h"

namespace ballast {

// Exchanges of a channel follow each other in the order of every rank's program; those of another
// do not wait for them.
// Every lane of the graph has one.
enum class Channel : uint16_t {
  kControl,  // verdicts on a step, and state that is saved or restored
  kData = 1 + static_cast<uint16_t>(LaneKind::kDataNetwork),  // of the first device's lane
  // Of the thread that writes a checkpoint beside the steps. No lane has it, and every MPI a tag of
  // that number (MPI 4.1, 9.1.2: the upper bound is at least 32,767).
  kCheckpoint = 32767,
};
constexpr Channel channel_of(LaneId lane) { return static_cast<Channel>(1 + lane); }

// `owner`: index in the group. Where the owner puts the sum may be its own contribution.
struct SummedPart {
  int owner = 0;
  const std::byte* from = nullptr;  // this rank's contribution
  std::byte* to = nullptr;          // where the sum goes; read on the owner only
  int64_t count = 0;                // values
  bool adds = false;                // to what is there, which comes first in the sum
};
struct GatheredPart {
  int owner = 0;
  const std::byte* from = nullptr;  // read on the owner only
  std::byte* to = nullptr;          // on every rank; may be `from` on the owner
  int64_t bytes = 0;
};

// What this rank gives one rank of its group, and where what that one gives it goes; of itself too.
struct ExchangedPart {
  const std::byte* from = nullptr;
  int64_t from_bytes = 0;
  std::byte* to = nullptr;
  int64_t to_bytes = 0;
};

// In what contributions and sum are stored, and to what a sum is rounded before.
struct SumFormat {
  kernels::Format stored{};
  kernels::Format rounded{};
};

// Which of a group's ranks this is, and their numbers among all.
struct GroupMembers {
  int self = 0;
  std::vector<int> ranks;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Which of the ranks on this machine it is, from 0 in the order of their numbers.
  virtual int local_rank() const { return rank(); }
  // How many of them are on this machine.
  virtual int local_size() const { return size(); }

  // Every rank of the group calls with the same parts in the same order. They return when this
  // rank's memory may be used again. Throw Error, which names the rank, where another one failed.
  virtual void reduce_scatter(Channel channel, const RankGroup& group,
                              std::span<const SummedPart> parts, const SumFormat& format) = 0;
  virtual void all_gather(Channel channel, const RankGroup& group,
                          std::span<const GatheredPart> parts) = 0;
  // Every rank gives every other one a part of its own, of any size; parts in the order of the
  // group's ranks. What one gives is as long as what the other takes.
  virtual void all_to_all(Channel channel, const RankGroup& group,
                          std::span<const ExchangedPart> parts) = 0;

  // This rank goes no further: whoever waits for it, now or later, throws Error with its number and
  // `why`. The first failure counts. From any thread.
  virtual void fail(const std::string& why) = 0;
  // What another rank, or this one, has failed with, where an engine knows that outside of an
  // exchange ("rank 2: why"): for whoever waits for a GPU instead. MPI ends all processes itself.
  virtual std::optional<std::string> failure() const { return {}; }

  // The sum of `values` (of `count`) of every rank, on all of them, in place.
  void all_reduce(Channel channel, const RankGroup& group, std::byte* values, int64_t count,
                  const SumFormat& format);
  // The same of what lies elsewhere.
  void all_reduce(Channel channel, const RankGroup& group, const std::byte* from, std::byte* to,
                  int64_t count, const SumFormat& format);
  // The bytes of rank `root` of the group, on all of them.
  void broadcast(Channel channel, const RankGroup& group, int root, std::span<std::byte> bytes);

  // The group of `group.ranks` that lie `group.stride` apart and that this rank is of.
  GroupMembers members_of(const RankGroup& group) const;
};

// Sums `count` values of all parts, in their order, in fp32; rounds the sum, and stores it, where
// one of them may be.
void sum_in_order(std::span<const std::byte* const> parts, std::byte* to, int64_t count,
                  const SumFormat& format);

// What rank 0 says, on every rank; all of them call.
std::string told_by_first(Communicator& ranks, std::string text);

// What every rank says, by rank, on all of them; all call.
std::vector<std::string> told_by_all(Communicator& ranks, Channel channel, const std::string& text);

// Of the numbers of all ranks the sum over those on this machine, taken to be average ones; all
// call.
int64_t sum_on_this_machine(Communicator& ranks, int64_t own);

// "rank 2: why"; what every other rank throws.
std::string failure_text(int rank, const std::string& why);

}  // namespace ballast
