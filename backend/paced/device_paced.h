// The paced device: computes nothing, but every operation lasts as long as on another machine,
// times a slow-down, in real time, sharing included. So the executor's real concurrency can be
// held against the virtual clock for machines that are not here.
//
// What an operation lasts, and at what rates those run that overlap, are given as data and as a
// function; both come from whoever may ask sim/engine. The rules are those of the virtual clock:
// an operation that had to wait for another lane begins OpCost::handover after its release.
//
// A thread wakes late (0.1 ms on a quiet machine, several ms on a busy one), and a chain of
// hundreds of operations would add that up. So an operation is taken to begin when the operations
// that it depends on were *due* to end, though only if the executor called within
// `PacedOptions::forgiven` after the last of them really returned: then only the system's delay is
// left out. An executor that lets an operation wait for anything else loses that time for good.
// The times that the executor reports are those of the real clock.
//
// Several ranks are several devices, each with a graph, an executor and capacities of its own, as
// each has a GPU, a CPU and network cards. A collective begins on all ranks of its group when the
// last of them comes to it (paced_ranks.h), and lasts as long as the tables say.
// Will not do: decide when an operation runs (backend/execute/executor).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backend/execute/device.h"
#include "backend/paced/paced_ranks.h"
#include "backend/paced/pacer.h"
#include "sim/graph/core/capabilities.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/core/op_cost.h"
#include "sim/graph/report/timeline.h"

namespace ballast {

// The machine that is imitated. Both tables refer to the same capacities.
struct PacedMachine {
  CostTable step;    // of Graph::step
  CostTable repair;  // of Graph::repair
  RateFunction rates;
};

struct PacedOptions {
  double slow_down = 1;                         // real seconds for a second of the machine; above 0
  Duration forgiven = Duration::from_us(2000);  // of real time; 0: no lateness is left out
  std::function<bool(int32_t step)> verdict{};  // of Device::commit; null: all updates stand
  // Where several ranks run beside each other, each on a device and an executor of its own: what
  // they have in common, which must outlive the devices, and which of them this one is. Null: the
  // one rank stands for all, as in a prediction.
  PacedRanks* ranks = nullptr;
  int rank = 0;
};

// How late the executor called, over all operations: real time.
struct Lateness {
  int64_t operations = 0;
  Duration forgiven;  // in sum
  Duration longest_forgiven;
  int64_t charged_operations = 0;  // later than forgiven, the first of a run included
  Duration charged;                // what those were late, in sum
};

// Everything: it computes nothing.
const Capabilities& paced_capabilities();

class PacedDevice : public Device {
 public:
  // The graph must outlive the device. Requires link(graph) and a cost for every operation.
  PacedDevice(const Graph& graph, PacedMachine machine, PacedOptions options);

  void execute(const Program& program, OpId id, int32_t step) override;
  bool commit(int32_t step) override;

  Lateness lateness() const;

 private:
  struct Record {
    int32_t step = -1;
    Instant due_end;
    Instant returned;  // when its thread knew
  };
  // Of an operation's latest steps. A reader that is further behind was not held up by it.
  static constexpr int32_t kSteps = 4;
  using Records = std::vector<std::array<Record, kSteps>>;

  Instant begin_of(const Program& program, OpId id, int32_t step, Duration handover);
  bool count_lateness(Duration late);
  Records& records_of(const Program& program);
  Duration slowed(Duration duration) const;

  const Graph& graph_;
  PacedMachine machine_;
  PacedOptions options_;
  Pacer pacer_;
  mutable std::mutex mutex_;  // guards all below
  Records step_records_;
  Records repair_records_;
  std::vector<Record> lanes_;  // the latest operation of each lane
  int32_t judged_;             // the latest step that commit() was asked about
  Lateness lateness_;
};

// A timeline of the paced device in the time of the machine that it imitates.
Timeline at_full_speed(Timeline timeline, double slow_down);

}  // namespace ballast
