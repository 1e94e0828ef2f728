// Times the operations of a plan's graph one by one, on the device that would train it.
//
// Will not do: keep what it found (profiles/store), or predict from it (sim/engine).
#pragma once

#include <functional>
#include <vector>

#include "backend/train/trainer.h"
#include "sim/base/units.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// An operation of the graph (the first with its cost key) and how long it takes with nothing else
// running.
struct OperationTime {
  Op op;
  Duration median;
  Duration deviation;  // median absolute deviation
};

// Times every distinct operation (by cost_key) of the plan's graph on the options' device: the
// program is run one operation at a time, each on the thread of its lane, warm-up first, until the
// medians settle or `seconds` are over. Tokens are random. What a device queues is timed by the
// device. `must_stop` (may be null) is asked before every operation: once it says so, the times are
// those of the programs that had ended, none where that was the warm-up at most.
std::vector<OperationTime> measure_operations(const Model& model, const Plan& plan, double seconds,
                                              const TrainerOptions& options,
                                              const std::function<bool()>& must_stop = {});

}  // namespace ballast
