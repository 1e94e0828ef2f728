// Memory of a graph: what lies where, what fills the peak, and how it grows over a step.
#pragma once

#include <array>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/report/timeline.h"

namespace ballast {

struct Holder {
  Category category{};
  Bytes bytes;
};

struct PlacePeak {
  Place place{};
  Bytes arena;                  // what is reserved: the planned arena, reuse gaps included
  Bytes live;                   // most bytes alive at once, in program order
  OpId at = -1;                 // the operation at which that happens
  std::vector<Holder> holders;  // what is alive there, largest first; sums to `live`
};

// Requires place(graph). One entry per place, kHbm first.
std::vector<PlacePeak> memory_peaks(const Graph& graph);

// Bytes alive in a place over the last recorded step, one point per change, time from step start.
struct MemoryPoint {
  Duration at;
  Bytes live;
};
std::vector<MemoryPoint> memory_over_time(const Graph& graph, const Timeline& timeline,
                                          Place place);

// First and last operation of the step that touch each tensor; a tensor that carries its value
// over (read before it is written) lives through the whole step.
struct Life {
  OpId first = -1;
  OpId last = -1;
  bool carried = false;
};
std::vector<Life> lives_of(const Graph& graph);

}  // namespace ballast
