// Places every tensor of a program in the arena of its device and place.
#pragma once

#include <vector>

#include "sim/graph/graph.h"
#include "sim/graph/memory.h"

namespace ballast {

// Offsets are multiples of this, which suits vector loads, DMA and CUDA.
inline constexpr int64_t kArenaAlignment = 256;

// Carried tensors first, then the others in program order into freed space. Of two rules, best fit
// and lowest fit, the one that needs less memory is taken. Tensors that nothing touches take none.
ArenaPlan plan_arenas(const Graph& graph, const std::vector<Life>& lives);

}  // namespace ballast
