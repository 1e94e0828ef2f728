// Hand-made sequences and costs for tests of the virtual clock and of what is read off timelines.
#pragma once

#include <initializer_list>
#include <vector>

#include "sim/graph/core/graph.h"
#include "sim/graph/core/op_cost.h"
#include "sim/graph/report/timeline.h"

namespace ballast::tests {

// Builds a graph operation by operation, with edges and costs given by hand.
class TinyGraph {
 public:
  explicit TinyGraph(int devices = 1) {
    graph.lanes = devices * kLaneKinds;
    graph.step.edge_begin.push_back(0);
  }

  CapacityId capacity(double amount) {
    costs.capacities.push_back({"capacity", amount});
    return static_cast<CapacityId>(costs.capacities.size()) - 1;
  }

  // Appends an operation that takes `ps` picoseconds alone.
  OpId op(LaneKind lane, int64_t ps, std::initializer_list<Edge> edges = {},
          std::initializer_list<Demand> demands = {}) {
    return op_on(0, lane, ps, edges, demands);
  }

  OpId op_on(int device, LaneKind lane, int64_t ps, std::initializer_list<Edge> edges = {},
             std::initializer_list<Demand> demands = {}) {
    Op added;
    added.kind = OpKind::kGemm;
    added.lane = lane_of(device, lane);
    graph.step.ops.push_back(added);
    graph.step.edges.insert(graph.step.edges.end(), edges);
    graph.step.edge_begin.push_back(static_cast<int32_t>(graph.step.edges.size()));
    OpCost cost;
    cost.alone = {ps};
    for (const Demand& demand : demands) {
      cost.demands[static_cast<size_t>(cost.demand_count++)] = demand;
    }
    costs.ops.push_back(cost);
    return static_cast<OpId>(graph.step.ops.size()) - 1;
  }

  Graph graph;
  CostTable costs;
};

// The span of an operation in a step. Requires that it was recorded.
inline Span span_of(const Timeline& timeline, OpId op, int32_t step) {
  for (const Span& span : timeline.spans) {
    if (span.op == op && span.step == step) return span;
  }
  CHECK(false);
}

}  // namespace ballast::tests
