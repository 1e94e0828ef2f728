// MPI's C++ interface, which was removed from the standard, is not linked.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "backend/comm/mpi_ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mpi.h>
#include <mutex>
#include <thread>

#include "backend/comm/launch.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

using namespace std::chrono_literals;

// Of one message; a count of MPI is an int.
constexpr int64_t kMostBytes = int64_t{1} << 30;
// What an owner receives at once of each of the others.
constexpr int64_t kTileBytes = int64_t{1} << 20;

class MpiRanks : public Communicator {
 public:
  MpiRanks();
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  void reduce_scatter(Channel channel, const RankGroup& group, std::span<const SummedPart> parts,
                      const SumFormat& format) override;
  void all_gather(Channel channel, const RankGroup& group,
                  std::span<const GatheredPart> parts) override;
  void all_to_all(Channel channel, const RankGroup& group,
                  std::span<const ExchangedPart> parts) override;
  void fail(const std::string& why) override;

 private:
  using Requests = std::vector<MPI_Request>;
  // Messages of a channel have a tag of their own, so none waits for those of another.
  static int tag_of(Channel channel) { return static_cast<int>(channel); }
  void send(Channel channel, int to, const std::byte* from, int64_t bytes, Requests& requests);
  void receive(Channel channel, int from, std::byte* to, int64_t bytes, Requests& requests);
  void wait(Requests& requests) const;
  void sum_part(Channel channel, const GroupMembers& members, const SummedPart& part,
                const SumFormat& format);

  int rank_ = 0;
  int local_rank_ = 0;
  int local_size_ = 1;
  int size_ = 1;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::mutex mutex_;  // guards why_
  std::string why_;
  std::atomic<bool> failed_{false};
};

MpiRanks::MpiRanks() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    throw Error("MPI", "it lets only one thread at a time communicate",
                "use one that was built with MPI_THREAD_MULTIPLE");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  const Launch launch = launch_of_this();
  if (launch.ranks != size_) {
    throw Error("MPI",
                std::string(launch.by) + " started " + std::to_string(launch.ranks) +
                    " ranks, and it knows of " + std::to_string(size_),
                "use srun --mpi=pmix, or the mpirun of this MPI");
  }
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  MPI_Comm machine = MPI_COMM_NULL;
  MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine);
  MPI_Comm_rank(machine, &local_rank_);
  MPI_Comm_size(machine, &local_size_);
  MPI_Comm_free(&machine);
  // Containers of one machine are several to MPI, which asks who shares memory.
  if (launch.local_rank) local_rank_ = *launch.local_rank;
}

void MpiRanks::send(Channel channel, int to, const std::byte* from, int64_t bytes,
                    Requests& requests) {
  for (int64_t at = 0; at < bytes; at += kMostBytes) {
    const auto count = static_cast<int>(std::min(kMostBytes, bytes - at));
    MPI_Isend(from + at, count, MPI_BYTE, to, tag_of(channel), comm_, &requests.emplace_back());
  }
}

void MpiRanks::receive(Channel channel, int from, std::byte* to, int64_t bytes,
                       Requests& requests) {
  for (int64_t at = 0; at < bytes; at += kMostBytes) {
    const auto count = static_cast<int>(std::min(kMostBytes, bytes - at));
    MPI_Irecv(to + at, count, MPI_BYTE, from, tag_of(channel), comm_, &requests.emplace_back());
  }
}

// Asks now and then instead of spinning: ranks share cores with each other's computation. What this
// rank's own failure leaves open ends with the program.
void MpiRanks::wait(Requests& requests) const {
  constexpr int kEagerly = 200;
  for (int asked = 0;; ++asked) {
    int done = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done != 0) return;
    if (failed_) throw Error("MPI", "this rank has failed", "see its message");
    if (asked < kEagerly) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(50us);
    }
  }
}

// Messages of one pair of ranks arrive in the order in which they were sent, which is that of the
// parts and, of a part, that of its tiles.
void MpiRanks::reduce_scatter(Channel channel, const RankGroup& group,
                              std::span<const SummedPart> parts, const SumFormat& format) {
  const GroupMembers members = members_of(group);
  const int64_t size = kernels::bytes_of(format.stored);
  Requests sent;
  for (const SummedPart& part : parts) {
    if (part.owner == members.self) continue;
    const int to = members.ranks[static_cast<size_t>(part.owner)];
    for (int64_t at = 0; at < part.count * size; at += kTileBytes) {
      send(channel, to, part.from + at, std::min(kTileBytes, part.count * size - at), sent);
    }
  }
  for (const SummedPart& part : parts) {
    if (part.owner == members.self) sum_part(channel, members, part, format);
  }
  wait(sent);
}

void MpiRanks::sum_part(Channel channel, const GroupMembers& members, const SummedPart& part,
                        const SumFormat& format) {
  const int64_t size = kernels::bytes_of(format.stored);
  const size_t count = members.ranks.size();
  const auto self = static_cast<size_t>(members.self);
  std::vector<std::vector<std::byte>> arrived(count);
  const size_t first = part.adds ? 1 : 0;  // of the ranks' in the sum
  std::vector<const std::byte*> from(first + count);
  for (int64_t at = 0; at < part.count * size; at += kTileBytes) {
    const int64_t bytes = std::min(kTileBytes, part.count * size - at);
    Requests received;
    if (part.adds) from[0] = part.to + at;
    for (size_t i = 0; i < count; ++i) {
      if (i == self) {
        from[first + i] = part.from + at;
        continue;
      }
      arrived[i].resize(static_cast<size_t>(bytes));
      receive(channel, members.ranks[i], arrived[i].data(), bytes, received);
      from[first + i] = arrived[i].data();
    }
    wait(received);
    sum_in_order(from, part.to + at, bytes / size, format);
  }
}

void MpiRanks::all_gather(Channel channel, const RankGroup& group,
                          std::span<const GatheredPart> parts) {
  const GroupMembers members = members_of(group);
  Requests requests;
  for (const GatheredPart& part : parts) {
    const int owner = members.ranks[static_cast<size_t>(part.owner)];
    if (part.owner != members.self) {
      receive(channel, owner, part.to, part.bytes, requests);
      continue;
    }
    for (const int rank : members.ranks) {
      if (rank != rank_) send(channel, rank, part.from, part.bytes, requests);
    }
    if (part.from != part.to && part.bytes > 0) {
      std::copy_n(part.from, static_cast<size_t>(part.bytes), part.to);
    }
  }
  wait(requests);
}

void MpiRanks::all_to_all(Channel channel, const RankGroup& group,
                          std::span<const ExchangedPart> parts) {
  const GroupMembers members = members_of(group);
  Requests requests;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ExchangedPart& part = parts[i];
    if (static_cast<int>(i) == members.self) {
      if (part.from_bytes > 0) {
        std::copy_n(part.from, static_cast<size_t>(part.from_bytes), part.to);
      }
      continue;
    }
    receive(channel, members.ranks[i], part.to, part.to_bytes, requests);
    send(channel, members.ranks[i], part.from, part.from_bytes, requests);
  }
  wait(requests);
}

void MpiRanks::fail(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  if (why_.empty()) why_ = why;
  failed_ = true;
}

MpiRanks* begun = nullptr;

}  // namespace

bool mpi_is_built() { return true; }

bool mpi_asks_for_pmi() {
#ifdef OPEN_MPI
  return true;
#else
  return false;
#endif
}

Communicator& mpi_ranks() {
  static MpiRanks ranks;
  begun = &ranks;
  return ranks;
}

void mpi_end(int exit_code) {
  if (begun == nullptr) return;
  if (exit_code != 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  MPI_Finalize();
}

}  // namespace ballast
