// Which edges of a program streams have to keep: an edge is implied where the same lane has waited
// for that operation, or for a later one of its lane, before. More than half of a step's are.
//
// Streams, like lanes, do their work in order, so what an earlier wait of a stream has seen done is
// done for all that follows on it. Where the host does the work of an operation on a queued lane (a
// commit) only what the host itself has waited for counts. The executor still waits for every edge:
// this is about events. Will not do: find edges (link does).
#pragma once

#include <vector>

#include "sim/graph/core/graph.h"

namespace ballast {

// Work of the host that stands on a queued lane, or on a lane of the CPU.
bool is_work_of_the_host(const Op& op);

class NeededEdges {
 public:
  // `wraps`: of a step, which comes again and again; else of a program that runs once. Requires a
  // linked program.
  NeededEdges(const Program& program, LaneId lanes, bool wraps);

  // Whether operation `id` must wait for `before`. True also of what it has no edge from: whoever
  // asks knows of a reason that the graph does not.
  bool must_wait(OpId id, OpId before) const;
  // Whether any operation must wait for `id`.
  bool is_followed(OpId id) const { return followed_[static_cast<size_t>(id)]; }

 private:
  const Program& program_;
  std::vector<bool> needed_;    // by edge
  std::vector<bool> followed_;  // by operation
};

}  // namespace ballast
