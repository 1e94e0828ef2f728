// In which order the threads of a rank's lanes hand collectives over: that of the program, step by
// step, whatever the lanes' own pace.
//
// Each lane is in that order by itself. Collectives of two lanes are of two communicators, whose
// kernels may each hold multiprocessors that the other's need. NCCL asks that they be submitted in
// one order on all ranks (its guide, usage/communicators, "Using multiple NCCL communicators
// concurrently"), which this does; that they also run at different times, as it advises, is left
// to what the operations depend on.
// A thread waits here for others of its rank alone, for what stands before its own in the program,
// which none of them hands over later than it depends on: so it ends.
// Will not do: order what the GPU does, or know the other ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "sim/graph/core/graph.h"

namespace ballast {

class CollectiveOrder {
 public:
  // `ops`: of the step, in program order. Where all are of one lane nothing is waited for.
  CollectiveOrder(const Graph& graph, const std::vector<OpId>& ops);

  // While it lives no other collective is handed over; those after it are once it has ended.
  class Turn {
   public:
    explicit Turn(CollectiveOrder* order) : order_(order) {}
    Turn(Turn&& other) noexcept : order_(other.order_) { other.order_ = nullptr; }
    Turn& operator=(Turn&&) = delete;
    ~Turn();

   private:
    CollectiveOrder* order_;  // null: it takes part in no order
  };
  // Returns when all before it have been handed over. Of operations that are no collectives at
  // once. Throws Error where this rank has failed.
  Turn wait_for(OpId op);

  // The step's first is next: part of a step is about to be handed over once more. While no lane
  // hands anything over.
  void begin_again();
  // This rank goes no further; from any thread.
  void fail();

 private:
  std::vector<int32_t> places_;  // by operation; -1: not in this order
  int32_t count_ = 0;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  int32_t next_ = 0;
  bool failed_ = false;
};

}  // namespace ballast
