// Collectives of a rank whose memory is a GPU's, by NCCL: every group of every lane has a
// communicator of its own, so that none queues behind another, as the prediction has it.
//
// The calls are those of backend/comm/communicator.h, but ordered by streams: they return when the
// work is in its stream, and wait() is what tells that it is done. Communicators never block the
// host: where a rank fails, or another one is heard to have failed, all of this rank's are aborted
// and whoever waits throws. Waits sleep in the driver: one thread of the rank asks now and then
// whether NCCL or another rank has failed, and its abort ends what they wait for. Sums are NCCL's,
// in an order of its own and in the type that is stored: every rank has the same bits, but not
// those of the host's communicators.
//
// Whoever calls keeps the order of the ranks' program on each lane; one thread a lane at a time.
// Kernels of two communicators may need the multiprocessors that the other's hold: a device that
// enqueues lanes from several threads must enqueue them in one order on all ranks too.
// Will not do: know what an operation means, pack what does not lie side by side, or run where all
// of a group's ranks have one GPU (NCCL does not).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "backend/comm/communicator.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/libraries/nccl_library.h"
#include "sim/base/error.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// Whose ranks one communicator joins: those that lie `ranks.stride` apart, for the operations of
// one lane.
struct NcclGroup {
  LaneId lane = 0;
  RankGroup ranks;
};

// What the collectives of a graph need, each once, in an order that is the same on every rank.
// Throws Error for the messages between stages of a pipeline, whose ends are in one graph.
std::vector<NcclGroup> nccl_groups_of(const Graph& graph);

// From where and to where one collective of a graph goes, and in what it is summed.
struct NcclBuffers {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  kernels::Format format{};
};

// Values of a rank that lie side by side.
struct ValueRun {
  std::byte* values = nullptr;
  int64_t count = 0;
};

class NcclRanks {
 public:
  // Makes the communicators, in the order of `groups`, which is the same on every rank of `host`:
  // the first rank of each group makes its id, and `host` brings it to the others. Returns when
  // all ranks have come. What is referred to must outlive this. Throws Error, which names the
  // communicator, where NCCL cannot, and with the rank where another one failed.
  NcclRanks(const NcclFunctions& functions, CudaRuntime& runtime, Communicator& host,
            const std::vector<NcclGroup>& groups);
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;
  // Aborts what close() did not end: others may wait for this rank, which goes no further.
  ~NcclRanks();

  // `count` values of every rank, summed, on all of them; `from` may be `to`.
  void all_reduce(const NcclGroup& group, const std::byte* from, std::byte* to, int64_t count,
                  kernels::Format format, CudaStream stream);
  // The same of several runs, in place, as one launch.
  void all_reduce(const NcclGroup& group, std::span<const ValueRun> runs, kernels::Format format,
                  CudaStream stream);
  // The values of `from`, `count` for each rank in their order, summed: its own on each.
  void reduce_scatter(const NcclGroup& group, const std::byte* from, std::byte* to, int64_t count,
                      kernels::Format format, CudaStream stream);
  // `bytes` of every rank, in their order, on all of them.
  void all_gather(const NcclGroup& group, const std::byte* from, std::byte* to, int64_t bytes,
                  CudaStream stream);
  // The same of parts of any owner and size; what is added to must be among the contributions.
  void reduce_scatter(const NcclGroup& group, std::span<const SummedPart> parts,
                      kernels::Format format, CudaStream stream);
  void all_gather(const NcclGroup& group, std::span<const GatheredPart> parts, CudaStream stream);
  void all_to_all(const NcclGroup& group, std::span<const ExchangedPart> parts, CudaStream stream);
  // The bytes of rank `root` of the group, on all of them.
  void broadcast(const NcclGroup& group, int root, std::span<std::byte> bytes, CudaStream stream);
  // To and from rank `other` of the group, which does the opposite.
  void send(const NcclGroup& group, int other, std::span<const std::byte> bytes, CudaStream stream);
  void receive(const NcclGroup& group, int other, std::span<std::byte> bytes, CudaStream stream);

  // One collective of a graph, whose bytes are shared evenly; where they do not divide, the last
  // ranks have fewer. A send-receive is a round of a ring: to the next rank, from the one before.
  void run(LaneId lane, const CollectiveWork& work, const NcclBuffers& buffers, CudaStream stream);

  // Returns when the work before `event` is done. Throws Error where a communicator, this rank or
  // another one has failed, however long the GPU would have waited.
  void wait(CudaEvent event);

  // This rank goes no further: tells `host`, and aborts its communicators. The first failure
  // counts. From any thread.
  void fail(const std::string& why);

  // Ends all communicators in their order, on every rank; their work is done.
  void close();

 private:
  struct One {
    NcclGroup group;
    GroupMembers members;
    nccl::Communicator* native = nullptr;
  };

  NcclRanks(const NcclFunctions& functions, CudaRuntime& runtime, Communicator& host)
      : functions_(functions), runtime_(runtime), host_(host) {}
  void create(const NcclGroup& group);
  const One& one_of(const NcclGroup& group) const;
  // Enqueues what `calls` calls, together; they return their results.
  template <class Calls>
  void together(const One& one, const char* attempt, const Calls& calls);
  void run_uneven(const NcclGroup& group, const CollectiveWork& work, const NcclBuffers& buffers,
                  CudaStream stream);
  void exchange_evenly(const NcclGroup& group, const CollectiveWork& work,
                       const NcclBuffers& buffers, CudaStream stream);
  // What NCCL knows of a communicator by now; of one that was closed, no failure.
  nccl::Result state_of(const One& one);
  // `attempt`: at what this rank hears of it.
  void throw_if_another_failed(const std::string& attempt);
  // Until NCCL has begun what it was asked for.
  void settle(const One& one, const std::string& attempt);
  void check(const One& one, nccl::Result result, const std::string& attempt);
  void check_all();
  void throw_if_failed();  // with mutex_ held
  // Until `stop`, or until something has failed and was aborted.
  void watch(const std::stop_token& stop);
  void abort_all(const std::string& why);  // with mutex_ held

  const NcclFunctions& functions_;
  CudaRuntime& runtime_;
  Communicator& host_;
  std::vector<One> all_;            // as they were created
  mutable std::mutex mutex_;        // guards calls of NCCL, so that none meets an abort, and why_
  std::optional<std::string> why_;  // it failed, once it did
  std::optional<Error> error_;      // with which it failed first, where that was NCCL's
  std::condition_variable_any stopped_;
  std::jthread watcher_;
};

}  // namespace ballast
