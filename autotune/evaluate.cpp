#include "autotune/evaluate.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"

namespace ballast {

Bytes excess_of(const std::array<Bytes, kPlaces>& memory, const Usable& usable) {
  Bytes excess;
  for (size_t p = 0; p < kPlaces; ++p) excess = std::max(excess, memory[p] - usable[p]);
  return excess;
}

Outcome evaluate(const Model& model, const Plan& plan, const std::vector<MemoryReuse>& ways,
                 const Usable& usable, const CostModel& costs) {
  CHECK(!ways.empty() && ways.front() == plan.memory_reuse.value_or(MemoryReuse::kApart));
  Graph graph = build_placed(model, plan, StackFacts{});
  Outcome outcome;
  outcome.memory_reuse = plan.memory_reuse;
  for (size_t way = 1;; ++way) {
    outcome.memory = graph.arenas.size;
    if (excess_of(outcome.memory, usable).count <= 0) break;
    if (way == ways.size()) {
      outcome.peaks = memory_peaks(graph);
      return outcome;
    }
    outcome.memory_reuse = graph.reuse = ways[way];
    place(graph);
  }
  link(graph);
  outcome.step_time = step_time_of(graph, plan, costs);
  return outcome;
}

}  // namespace ballast
