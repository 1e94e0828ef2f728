// The queue that a framework's host thread fills: when each operation of a GPU has been enqueued.
//
// A host enqueues the kernels of its device one after another, in the order of the program and
// ahead of the GPU; each costs it time (OpCost::host). An operation cannot run before it is
// enqueued, so a step of many short kernels lasts as long as its host does, while one short kernel
// beside long ones costs nothing. The host runs ahead until it has to know a result
// (OpCost::host_waits): then it waits for that operation, and the GPU may have run dry meanwhile.
// Some results are of every device's host (may the step be taken), some of one's own (how many rows
// go to each expert).
//
// Positions are sums over the program from one such wait to the next, so a look-up is O(1). Where
// no operation costs the host anything there is no queue: nothing waits for it.
// Will not do: know why an operation takes the host's time (sim/engine/kernels), or keep a clock.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/core/op_cost.h"

namespace ballast {

class HostQueue {
 public:
  // Of at most `steps` steps. `place_of`: by operation, the number by which it is known here.
  HostQueue(const Program& program, std::span<const int32_t> place_of, int32_t lanes,
            const CostTable& costs, int32_t steps);

  // The wait of the host that comes before an operation in the program, or in that of the step
  // before (`steps_ahead` 1); op -1 where there is none, and for what no host enqueues.
  Edge wait_before(int32_t op, int32_t step) const;
  // Before this instant the operation does not start. Requires that wait_before() is over.
  Instant enqueued(int32_t op, int32_t step) const;
  // To be called for every operation that starts later because it was not enqueued.
  void held_up(int32_t op) { host_of(op).holds_up = true; }
  // To be called for every operation that the host waits for.
  void waited(int32_t op, int32_t step, Instant now);

  // Appends how far the hosts are that wait for operations, relative to `now` and to the steps
  // complete. No lane may be more than a step ahead of these.
  void describe(Instant now, int32_t complete, std::vector<int64_t>& state) const;

  // A step has ended, `period` after the one before: whether hosts that wait for nothing let the
  // next one be like it. One that takes as long does; one that takes less is further ahead each
  // time, and does if it held up nothing since this was last asked.
  bool let_repeat(Duration period);

  bool empty() const { return places_.empty(); }

 private:
  struct Place {
    int32_t waits = 0;  // of the host of its device, before the operation in the program
    int32_t device = 0;
    bool queued = false;
    Duration before;  // host time since the last of them, of what stands before it
    Duration delay;   // from there to the earliest start
  };

  // One device's host.
  struct Host {
    std::vector<int32_t> waits;     // operations that it waits for, in program order
    std::vector<Duration> between;  // by waits before: host time up to the next one
    std::vector<Instant> went_on;   // by step and wait
    bool holds_up = false;          // since let_repeat() was last asked
  };

  Host& host_of(int32_t op) {
    return hosts_[static_cast<size_t>(places_[static_cast<size_t>(op)].device)];
  }

  // Where it stood when it began with the operations that follow so many waits in the program.
  static Instant start_of(const Host& host, int32_t waits, int32_t step);
  static void waited(Host& host, int32_t wait, int32_t step, Instant now);

  std::vector<Place> places_;  // by operation; empty where there is no queue
  std::vector<Host> hosts_;    // by device
  // Of an operation that every host waits for: which of its waits that is, by device.
  std::unordered_map<int32_t, std::vector<int32_t>> of_every_host_;
};

}  // namespace ballast
