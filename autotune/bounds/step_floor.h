// The least that an optimizer step takes for each parameter of a rank, whatever its buckets: what
// cell bounds add to the time of forward and backward.
//
// Rates are the least over sizes of a bucket from 2^20 to 2^32 bytes, less 1 %, since a machine's
// curves may bend between the sizes that are asked. Where times were measured, more work may take
// less, and every rate is 0.
#pragma once

#include <map>
#include <string>

#include "autotune/space/space.h"
#include "sim/engine/cost.h"
#include "sim/spec/plan.h"

namespace ballast {

// Picoseconds a parameter, on the lane that does it.
struct StepFloor {
  double gpu_adam = 0;
  double cpu_adam = 0;
  double out = 0;     // a gradient to the CPU, as narrow as the space allows
  double fetch = 0;   // a flowing weight to the GPU, likewise
  double reduce = 0;  // a gradient over the ranks that hold the same weights
  double gather = 0;  // a weight from the ranks that step its shards; 0 where none talk
  // Of the thread that enqueues copies: picoseconds a copy that brings a weight's tensor in.
  int64_t fetch_host = 0;
  // Of turns that all stages share (Plan::multiplex), picoseconds a byte; 0 where none are.
  double send = 0;       // from a device of one stage to those in its place in the others
  double broadcast = 0;  // of weights, to the devices of all stages
  double scatter = 0;    // of gradients, summed over them by share
  bool on_gpu = false;   // some parameters may be stepped by the GPU
  double most_flow = 0;  // share of the layers whose weights may flow
};

// Floors of many layouts; what depends on no layout is priced once.
class StepFloors {
 public:
  explicit StepFloors(const CostModel& costs) : costs_(costs) {}

  StepFloor of(const Plan& layout, const Space& space);

 private:
  const CostModel& costs_;
  std::map<std::string, StepFloor> rates_;
};

}  // namespace ballast
