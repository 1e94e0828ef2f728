// Device: what carries out the operations of a graph. The executor decides when, a device how.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/graph/core/graph.h"

namespace ballast {

// What has become of an operation that was handed over to a queue; nanoseconds of the steady clock.
struct FinishedOperation {
  OpId op = -1;
  int32_t step = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// Lanes are of two kinds. A *worker* lane's thread does the work itself: execute() returns when it
// is done. A *queued* lane's thread only hands over: execute() returns at once, and the operations
// of the lane run one after another in that order. Those of a queued lane that depend on another
// queued lane wait in their queue, so threads run ahead of the device; only what depends on work of
// a worker lane is handed over no sooner than that work is done.
class Device {
 public:
  virtual ~Device() = default;

  // Whether a lane is queued.
  virtual bool queues(LaneId) const { return false; }

  // Carries out, or hands over, `op` (operation `id` of `program`) of step `step`. Called on the
  // thread of the operation's lane, when everything it depends on has finished or, on queued lanes,
  // has been handed over and is followed; several lanes call at the same time. On queued lanes also
  // called for a commit, which was judged before: others may follow its place in the queue. Throws
  // Error where the environment fails.
  virtual void execute(const Program& program, OpId id, int32_t step) = 0;

  // The operations of its lane behind operation `id` of the step that are handed over together with
  // it: what they depend on must be, before it is executed. Each is still executed in its turn.
  virtual std::span<const OpId> handed_over_with(OpId) const { return {}; }

  // Operation `id`, which is executed next on its lane, may begin only after `before`, which was
  // handed over to another, queued lane in step `step_of_before` (of the same program). Where the
  // host does the work of `id` this returns when `before` is done. Never called for worker lanes'
  // operations, which are done when they are executed.
  virtual void follow(const Program&, OpId /*id*/, OpId /*before*/, int32_t /*step_of_before*/) {}

  // The verdict on the step before `step`, whose gradients have all been judged: true if its
  // speculative update stands, false if Graph::repair must run. A step is judged once; asked
  // again, the answer is true. What the commit depends on has finished.
  virtual bool commit(int32_t step) = 0;

  // What has finished on a queued lane since the last call, in order. On the lane's thread, or on
  // any while no lane runs.
  virtual std::vector<FinishedOperation> take_finished(LaneId) { return {}; }

  // A lane has failed with `why`: whoever waits for other ranks is to wait no longer. From any
  // thread, several times.
  virtual void abandon(const std::string& /*why*/) {}

  // Returns when everything that was handed over is done. While no lane hands anything over.
  virtual void drain() {}
};

}  // namespace ballast
