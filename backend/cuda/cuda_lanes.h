// The lanes of a GPU as streams: what orders operations between them, and tells when they ran.
//
// An operation on a stream that is timed stands between two events of its own, one that others only
// follow is before one. Another stream follows it by waiting for the second; the host's threads
// wait for that one too; the time between both is the operation's. What neither is asked of has
// none: an event takes the host and the GPU longer than a short kernel does. An edge that an
// earlier wait implies (cuda_edges.h) asks for nothing. Of a run that is launched as one
// (cuda_segments.h) the graph itself waits and records, for each of its operations as needed.
// Streams of lanes: compute, copy-in, copy-out, upload and communicators; the others are threads of
// the CPU. Will not do: launch anything between the events (device_cuda), or decide what follows
// what (the graph's edges do, as the executor asks).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_edges.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/execute/device.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// Times of events on the host's steady clock. The two clocks are set against each other whenever
// the device is idle; between, they part by a few microseconds a second at most.
class CudaClock {
 public:
  // `stream` is used to note the time.
  CudaClock(CudaRuntime& runtime, CudaStream stream);
  ~CudaClock();
  CudaClock(const CudaClock&) = delete;
  CudaClock& operator=(const CudaClock&) = delete;

  // While the device is idle.
  void set();
  // Now and then, on the thread of the stream: events that are far apart lose precision.
  void keep_near();
  // Of an event that is done; nanoseconds.
  int64_t time_of(CudaEvent event);

 private:
  // To the event after the anchor, once it is done.
  void move_on();

  CudaRuntime& runtime_;
  CudaStream stream_;
  std::mutex mutex_;  // guards all below
  CudaEvent anchor_, next_event_;
  int64_t anchor_ns_ = 0;
  int64_t noted_ns_ = 0;  // when the last of both was recorded
  // Of the event that follows the anchor: not recorded; a thread is in the driver for it, no other
  // touches it; recorded.
  enum class Next : uint8_t { kFree, kTaken, kRecorded };
  Next next_ = Next::kFree;
  bool is_set_ = false;
};

// Returns when the work before the event is done. Of one of several ranks it throws Error where
// another one fails, for whose part the work may wait for ever.
using CudaWait = std::function<void(CudaEvent event)>;

class CudaLanes {
 public:
  // Both must outlive this. All operations of every so many steps are timed; of other steps what
  // ends them, the last on each stream, from which the times of steps are known. `wait`: how the
  // host waits; null: as the runtime does.
  CudaLanes(const Graph& graph, CudaRuntime& runtime, int32_t timed_steps_apart = 1,
            CudaWait wait = nullptr);
  ~CudaLanes();
  CudaLanes(const CudaLanes&) = delete;
  CudaLanes& operator=(const CudaLanes&) = delete;

  // Every so many steps the same events are recorded: the edges of a graph reach two steps back at
  // most, and the host may be a step ahead.
  static constexpr int32_t kEventSteps = 4;

  static bool queues(LaneId lane);
  CudaStream stream(LaneId lane) const { return streams_[static_cast<size_t>(lane)]; }

  // Between both the operation is enqueued on the stream that begin() returns.
  CudaStream begin(const Program& program, OpId id, int32_t step);
  void end(const Program& program, OpId id, int32_t step);

  // Instead of both, for a run of the step's operations that is launched as one graph in between.
  // Its operations are timed from one event to the next: the first of a stretch has its time, the
  // others none. Where all steps are timed no stretch goes on over a wait.
  struct RunOp {
    OpId op = -1;
    std::vector<Edge> waits;  // what it waits for within the run, by its edges
    bool begins_stretch = false, ends_stretch = false;
  };
  using Run = std::vector<RunOp>;
  // Once, so that no launch looks for it.
  Run run_of(std::span<const OpId> ops) const;
  CudaStream begin_run(const Run& run, int32_t step);
  void end_run(const Run& run, int32_t step);
  // Around operation `i` of a run while its stream captures: what it waits for, unless it is the
  // first, and what follows it are nodes of the graph. They are events of this step, whose turn
  // comes again after kEventSteps.
  void begin_noting(const Run& run, size_t i, int32_t step);
  void end_noting(const Run& run, size_t i, int32_t step);

  // As Device says. The GPU is asked now and then what has finished, and always when it is drained.
  void follow(const Program& program, OpId id, OpId before, int32_t step_of_before);
  std::vector<FinishedOperation> take_finished(LaneId lane);
  void drain();
  // The same where a rank has failed, once nothing waits for it any more.
  void synchronize_streams();

 private:
  // An operation's run in one step.
  struct Ticket {
    CudaEvent begin, end;
    int32_t step = -1;
    bool in_flight = false;  // its times have not been taken
  };
  using Tickets = std::vector<std::array<Ticket, kEventSteps>>;

  struct InFlight {
    OpId op = -1;
    int32_t step = 0;
    Ticket* ticket = nullptr;
    CudaEvent begin, end;  // of a run also those of others
  };

  bool is_repair(const Program& program) const { return &program == &graph_.repair; }
  bool is_timed(const Program& program, OpId id, int32_t step) const;
  const NeededEdges& edges(const Program& program) const {
    return is_repair(program) ? repair_edges_ : step_edges_;
  }
  bool is_followed(const Program& program, OpId id) const;
  Ticket& ticket(const Program& program, OpId id, int32_t step);
  // Before its events are recorded again. A rollback runs the step's beginning again, before its
  // first times were asked for.
  void settle(const Ticket& ticket, LaneId lane);
  void make_events(Ticket& ticket, LaneId lane, bool begins, bool ends);
  void take_first(LaneId lane, std::vector<FinishedOperation>& finished);
  void wait_for(CudaEvent event);

  const Graph& graph_;
  CudaRuntime& runtime_;
  int32_t timed_steps_apart_;
  NeededEdges step_edges_, repair_edges_;
  std::vector<bool> ends_step_;      // of the step's: the last of its lane
  std::vector<CudaStream> streams_;  // by lane; none for the lanes of the CPU
  CudaWait wait_;
  std::vector<CudaEvent> drained_;  // by lane, where `wait_` is another's
  Tickets step_tickets_, repair_tickets_;
  std::vector<std::string> step_names_, repair_names_;          // of operations, for profilers
  std::vector<std::deque<InFlight>> in_flight_;                 // by lane, each used by its thread
  std::vector<std::vector<FinishedOperation>> finished_early_;  // by lane, likewise
  std::vector<int32_t> unasked_;  // by lane: calls since the GPU was asked; likewise
  CudaClock clock_;
};

}  // namespace ballast
