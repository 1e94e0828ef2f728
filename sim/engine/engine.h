// The virtual clock: runs the operations of a program, step after step, until the period of a
// step settles, and returns when each of them ran.
//
//  * Every lane runs its operations in program order and wraps around to the next step. An
//    operation starts when its lane is free and the operation of each of its edges has finished
//    the step that the edge names; steps before the first count as finished.
//  * An operation that its lane had to wait with, for one of another lane, starts OpCost::handover
//    after it was released. The hand-over is not part of its span and uses no capacity.
//  * An operation that its device's host has not enqueued yet waits for that
//  (sim/engine/clock/host_queue).
//  * Operations that run at the same time share capacities: each runs at its fair rate
//    (sim/engine/sharing/fair_share.h), which changes when others start or end.
//  * Time is whole picoseconds; events order by (time, insertion number). The same input gives
//    the same timeline, byte for byte.
//  * What happens depends on nothing but the state: where each lane is, what it has left to do or
//    waits for, who shares what, how far each host is. A step that ends in the state in which the
//    one before it ended comes again and again, so the later ones are that one, later (`fold`).
//
// Will not do: compute a duration (sim/engine/cost), read an operation's work or tensors.
#pragma once

#include <cstdint>
#include <span>

#include "sim/graph/core/graph.h"
#include "sim/graph/core/op_cost.h"
#include "sim/graph/report/timeline.h"

namespace ballast {

struct SimulateOptions {
  // The run ends once the periods of three successive steps are equal within 1e-6, or here.
  int32_t max_steps = 32;
  int32_t record_steps = 2;  // the last ones run; at most max_steps. 0: the time alone is asked for
  bool fold = true;          // false: every step is run, for the same timeline
  std::span<const OpId> spans_of{};  // of the recorded steps these alone, in this order; none: all
};

// Steady state of the program, whose lanes are those of the graph. Timeline::step_time is the
// settled period (the end of the last operation of a step minus that of the step before) or, with
// `settled` false, the mean period of the last half of the steps run. With max_steps 1 that is the
// time of one run from a standing start. Requires linked edges and one cost per operation; a
// program that waits for itself fails CHECK.
Timeline simulate(const Program& program, const Graph& graph, const CostTable& costs,
                  const SimulateOptions& options = {});

}  // namespace ballast
