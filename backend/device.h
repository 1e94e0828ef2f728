// Device: what carries out the operations of a graph. The executor decides when, a device how.
#pragma once

#include <cstdint>

#include "sim/graph/graph.h"

namespace ballast {

class Device {
 public:
  virtual ~Device() = default;

  // Carries out `op` (operation `id` of `sequence`) of step `step` and returns when it is done.
  // Called on the thread of the operation's lane, when everything it depends on has finished;
  // several lanes call at the same time. Throws Error where the environment fails.
  virtual void execute(const Sequence& sequence, OpId id, int32_t step) = 0;

  // The verdict on the step before `step`, whose gradients have all been judged: true if its
  // speculative update stands, false if Graph::repair must run. A step is judged once; asked
  // again, the answer is true.
  virtual bool commit(int32_t step) = 0;
};

}  // namespace ballast
