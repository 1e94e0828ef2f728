// Runs of operations on the compute stream that a GPU may launch as one recorded graph: modules
// whose arguments are the same in every step, which nothing else comes between. Only the first of a
// run waits for another lane, only the last is waited for, and no value of the host goes into any.
//
// Will not do: record or launch (device_cuda).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/graph/core/graph.h"

namespace ballast {

struct CudaSegment {
  std::vector<OpId> ops;  // in program order, two at least
};

// Of the step's program. Requires link(graph).
// `is_apart`: what is left out besides.
std::vector<CudaSegment> cuda_segments(const Graph& graph,
                                       const std::function<bool(const Op& op)>& is_apart = {});

}  // namespace ballast
