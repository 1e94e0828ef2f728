// Memory of a graph: what lies where, what fills the peak, and how it grows over a step.
#pragma once

#include <array>
#include <string>
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
  OpId at = -1;                 // the operation of that graph at which that happens
  std::string at_text;          // what it is: peaks may go where their graph does not
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

// Bytes alive during each operation of the step, of the tensors whose index `counts` admits.
template <class Counts>
std::vector<Bytes> live_bytes(const Graph& graph, const std::vector<Life>& lives,
                              const Counts& counts) {
  const size_t ops = graph.step.ops.size();
  std::vector<Bytes> live(ops + 1);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Life& life = lives[t];
    if (life.first < 0 || !counts(t)) continue;
    const Bytes bytes = graph.tensors[t].all_bytes();
    live[life.carried ? 0 : static_cast<size_t>(life.first)] += bytes;
    live[(life.carried ? ops - 1 : static_cast<size_t>(life.last)) + 1] -= bytes;
  }
  for (size_t i = 1; i < ops; ++i) live[i] += live[i - 1];
  live.resize(ops);
  return live;
}

// Where they are most, and first of equals; -1 where nothing is ever alive.
struct LivePeak {
  Bytes live;
  OpId at = -1;
};
LivePeak peak_of(const std::vector<Bytes>& live);

// What `counts` admits of that is alive during one operation, summed by category.
template <class Counts>
std::array<Bytes, kCategories> held_at(OpId op, const Graph& graph, const std::vector<Life>& lives,
                                       const Counts& counts) {
  std::array<Bytes, kCategories> held{};
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Life& life = lives[t];
    const bool alive = life.first >= 0 && (life.carried || (life.first <= op && op <= life.last));
    if (!alive || !counts(t)) continue;
    held[static_cast<size_t>(graph.tensors[t].category)] += graph.tensors[t].all_bytes();
  }
  return held;
}

}  // namespace ballast
