// One operation, costed alone.
#pragma once

#include <string_view>
#include <vector>

#include "sim/engine/cost.h"

namespace ballast::tests {

struct Costed {
  OpCost cost;
  std::vector<Capacity> capacities;

  // The demand on the capacity of this name, 0 if there is none.
  double demand(std::string_view name) const {
    double sum = 0;
    for (int8_t i = 0; i < cost.demand_count; ++i) {
      const Demand& demand = cost.demands[static_cast<size_t>(i)];
      if (capacities[static_cast<size_t>(demand.capacity)].name == name) sum += demand.amount;
    }
    return sum;
  }
  double us() const { return cost.alone.us(); }
};

// What a plan and a stack say about how well the machine is used.
struct Usage {
  Plan plan;
  Stack stack;
};

inline Costed cost_with(const Op& op, const Machine& machine, const Usage& usage,
                        const Measurements* measurements = nullptr) {
  Program program;
  program.ops = {op};
  Graph graph;
  graph.lanes = kLaneKinds;
  const CostTable table =
      CostModel(machine, usage.plan, usage.stack, measurements).table(program, graph);
  return {table.ops[0], table.capacities};
}

}  // namespace ballast::tests
