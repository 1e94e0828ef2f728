// Max-min fair sharing of capacities among flows, by progressive filling: a pure solver.
//
// A flow's rate x is *normalised*: its share, 0 to 1, of the speed that it has alone. Rates are
// normalised because memory systems grant bandwidth in proportion to the requests outstanding, so
// flows that meet at a bottleneck are slowed by the same factor, not to the same bandwidth.
//
//   for every capacity c:  sum over flows i of  amount[i][c] * x[i]  <=  capacity[c],  x[i] <= 1
//
// and no x can grow without making a smaller or equal one smaller (Bertsekas and Gallager, Data
// Networks, 2nd ed., section 6.5.2: all rates grow together; where a capacity fills, the flows
// that cross it stop). Will not do: know operations, time, or which flows are related.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ballast {

// At rate 1 the flow takes `amount` of the capacity; amounts of the same pair add up.
struct FlowUse {
  int32_t flow = 0;
  int32_t capacity = 0;
  double amount = 0;
};

// Writes every flow's rate into `rates` (its size is the number of flows). Requires capacities > 0
// and amounts > 0. A flow that uses nothing has rate 1. `filled` is working space, one entry per
// capacity. Same input, same bits out; nothing is allocated.
void fair_share(std::span<const double> capacities, std::span<const FlowUse> uses,
                std::span<double> rates, std::span<double> filled);

// The same with its own working space.
std::vector<double> fair_share(std::span<const double> capacities, std::span<const FlowUse> uses,
                               int32_t flows);

}  // namespace ballast
