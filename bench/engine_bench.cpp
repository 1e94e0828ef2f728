// Speed of the virtual clock: operations simulated per second, for graphs of growing size.
//
// The graph has the shape of an offloaded step: seven of ten operations on the compute lane, the
// others on the two copy lanes, the optimizer's lane and the checking lane; two edges an operation;
// copies and Adam ask for more of one memory than there is, so rates change all the time. In the
// second benchmark nothing is oversubscribed, which is the fast path.
// Counters: operations per second (all steps run, set-up and recording included), and a checksum
// of the result so that nothing is optimised away.
#include <benchmark/benchmark.h>

#include "sim/engine/engine.h"

namespace ballast {
namespace {

struct Case {
  Graph graph;
  CostTable costs;
};

LaneKind lane_for(int64_t i) {
  switch (i % 10) {
    case 2:
      return LaneKind::kCopyOut;
    case 5:
      return LaneKind::kCpu;
    case 7:
      return LaneKind::kCopyIn;
    case 9:
      return i % 20 == 9 ? LaneKind::kCheck : LaneKind::kCompute;
    default:
      return LaneKind::kCompute;
  }
}

// Capacities in units per second: of the memory Adam asks for 9 and a copy for 3, of the link a
// copy asks for 4.
struct Room {
  double memory = 0;
  double link = 0;
};

Case make_case(int64_t operations, Room room) {
  Case made;
  made.graph.lanes = kLaneKinds;
  made.costs.capacities = {{"dram", room.memory}, {"link", room.link}};
  Program& step = made.graph.step;
  step.edge_begin.push_back(0);
  for (int64_t i = 0; i < operations; ++i) {
    Op op;
    op.kind = OpKind::kGemm;
    const LaneKind lane = lane_for(i);
    op.lane = lane_of(0, lane);
    // Near and far back in the program; the first operations reach into the step before.
    for (const int64_t back : {int64_t{3}, int64_t{16}}) {
      const int64_t other = i - back;
      step.edges.push_back(other >= 0 ? Edge{static_cast<OpId>(other), 0}
                                      : Edge{static_cast<OpId>(other + operations), 1});
    }
    step.edge_begin.push_back(static_cast<int32_t>(step.edges.size()));
    step.ops.push_back(std::move(op));
    OpCost cost;
    cost.alone = {10'000 + (i * 7919) % 5'000};
    cost.handover = {500};
    if (lane == LaneKind::kCpu) {
      cost.alone = {4 * cost.alone.ps};
      cost.demands = {Demand{0, 9}};
      cost.demand_count = 1;
    } else if (lane == LaneKind::kCopyIn || lane == LaneKind::kCopyOut) {
      cost.alone = {2 * cost.alone.ps};
      cost.demands = {Demand{0, 3}, Demand{1, 4}};
      cost.demand_count = 2;
    }
    made.costs.ops.push_back(cost);
  }
  return made;
}

void simulate_graph(benchmark::State& state, Room room) {
  const Case made = make_case(state.range(0), room);
  int64_t steps = 0;
  int64_t checksum = 0;
  for (auto _ : state) {
    const Timeline timeline = simulate(made.graph.step, made.graph, made.costs);
    steps += timeline.first_step + timeline.steps;
    checksum = timeline.spans.back().end.ps;
    benchmark::DoNotOptimize(checksum);
  }
  state.SetComplexityN(state.range(0));
  state.counters["ops/s"] =
      benchmark::Counter(static_cast<double>(steps * state.range(0)), benchmark::Counter::kIsRate);
  state.counters["steps"] = static_cast<double>(steps) / static_cast<double>(state.iterations());
  state.counters["checksum"] = static_cast<double>(checksum % 1'000'003);
}

void contended(benchmark::State& state) { simulate_graph(state, {.memory = 10, .link = 6}); }
void uncontended(benchmark::State& state) { simulate_graph(state, {.memory = 100, .link = 60}); }

BENCHMARK(contended)
    ->RangeMultiplier(10)
    ->Range(1'000, 1'000'000)
    ->Arg(200'000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity();
BENCHMARK(uncontended)
    ->RangeMultiplier(10)
    ->Range(1'000, 1'000'000)
    ->Arg(200'000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity();

}  // namespace
}  // namespace ballast

BENCHMARK_MAIN();
