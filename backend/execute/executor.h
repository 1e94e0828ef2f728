// Executor: the real clock. Runs the graph that the simulator ran, one thread a lane.
//
// Every lane takes its operations in program order, step after step, and waits for the edges of
// each. That is all: what may overlap, does. Where the device queues a lane
// (backend/execute/device.h), what another queued lane must wait for is handed over already, and
// waits there: the lane's thread runs ahead. Will not do: reorder, allocate, or know what an
// operation means (backend/execute/device does).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backend/execute/device.h"
#include "sim/base/host_clock.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/report/timeline.h"

namespace ballast {

struct RunOptions {
  int32_t first_step = 0;
  int32_t last_step = 0;       // inclusive
  int32_t recorded_steps = 8;  // spans of this many last steps are kept
  // Called on the calling thread several times a second while the lanes work: progress, signals.
  std::function<void()> tick;
};

struct RunResult {
  Timeline timeline;                 // of the recorded steps; step_time is the median period of all
  std::vector<Duration> step_times;  // every step's period, from the end of the one before
  int32_t last_step = -1;  // the last step that ran: earlier than asked after request_stop
  int32_t rollbacks = 0;
};

class Executor {
 public:
  // All must outlive the executor. `clock`: by which operations are recorded; a device that
  // tells when its own finished tells it by the host's. Requires link(graph).
  Executor(const Graph& graph, Device& device, const HostClock& clock = host_clock());

  // Runs the steps, and then, where the plan speculates, has the last one judged and repaired, so
  // that the state is final when it returns. Rethrows the first failure of any lane after all
  // lanes have stopped.
  RunResult run(const RunOptions& options);

  // The same program on the calling thread, one operation after another: the reference.
  RunResult run_sequentially(const RunOptions& options);

  // Lets every step finish that any lane has begun, then ends the run. Safe from any thread.
  void request_stop();
  // For ranks that end after the same step: the latest step that any lane has begun; none begins
  // another before stop_after. Safe from any thread.
  int32_t hold();
  // Ends the run after `step`, which no lane has passed. Safe from any thread.
  void stop_after(int32_t step);

 private:
  struct LaneRecord {
    std::vector<Span> spans;
  };

  void reset(const RunOptions& options);
  bool begin_step(int32_t step);
  void run_lane(LaneId lane);
  // False where the run was aborted meanwhile.
  bool wait_for_edges(OpId id, int32_t step);
  // Those of what is handed over with it, too.
  bool wait_for_all_edges(OpId id, int32_t step);
  void follow_edges(const Program& program, OpId id, int32_t step);
  void execute(OpId id, int32_t step, LaneId lane);
  void record(LaneId lane, const Span& span);
  void record_finished(LaneId lane);
  void drain_after(std::exception_ptr failure);
  void judge(OpId id, int32_t step);
  void wait_for_everything_before(OpId id, int32_t step);
  // Runs operations [begin, end) of a program once, concurrently, all other lanes at rest.
  void run_once(const Program& program, OpId begin, OpId end, int32_t step);
  void settle_last_step();
  void finish(OpId id, int32_t step);
  void abort_all(std::exception_ptr failure);
  void abandon(std::exception_ptr failure);
  RunResult collect() const;
  Instant now() const;

  const Graph& graph_;
  Device& device_;
  std::vector<std::vector<OpId>> lane_ops_;  // by lane, in program order
  // By operation: the last step in which it finished or, on a queued lane, was handed over.
  std::vector<std::atomic<int32_t>> completed_;
  std::vector<LaneRecord> records_;                // by lane; each written by its thread only
  std::vector<std::atomic<int64_t>> step_end_ps_;  // by step of the run
  RunOptions options_;
  std::mutex mutex_;  // guards the six below
  bool held_ = false;
  std::condition_variable released_;
  int32_t started_ = -1;    // latest step that any lane has begun
  int32_t last_step_ = -1;  // latest step that lanes may begin
  std::exception_ptr failure_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> stop_requested_{false};
  std::atomic<int32_t> rollbacks_{0};
  const HostClock& clock_;
  std::chrono::nanoseconds epoch_{};
};

}  // namespace ballast
