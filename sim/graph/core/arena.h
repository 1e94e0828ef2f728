// Places every tensor of a program in the arena of its device and place.
#pragma once

#include <vector>

#include "sim/graph/core/graph.h"
#include "sim/graph/report/memory.h"

namespace ballast {

// Offsets are multiples of this, which suits vector loads, DMA and CUDA.
inline constexpr int64_t kArenaAlignment = 256;

// Operations of the GPU for which memory that two lanes used is left alone after its last use in
// program order: about one layer's backward. The lanes run apart by about that much, so a lane that
// reuses memory at once would wait for the other.
inline constexpr int64_t kGraceOperations = 16;

// Carried tensors lie first. Where memory is reused at once (Graph::reuse) all others share one
// pool, each up to its last use. Else they share memory only within a pool: those that the same
// lanes touch. Staging buffers of a copy lane so follow one another on that lane alone, and never
// make the GPU wait for a copy that it does not need. In a pool tensors go in program order into
// freed space; of two rules, best fit and lowest fit, the one that needs less memory is taken.
// Tensors that nothing touches take none.
ArenaPlan plan_arenas(const Graph& graph, const std::vector<Life>& lives);

}  // namespace ballast
