// Profiles: what two halves of a plan ask of a machine, computed once for many plans.
//
//   forward and backward   decided by micro_batch and activations
//   optimizer              decided by buckets, gpu_buckets, cast, sync and flow share
//
// Both come out of the very passes that build the graph (sim/graph/build.h), run on a program that
// is cut down to what the half needs: at most three micro-batches, or no activations at all. So a
// profile cannot disagree with the graph about which operations there are or what they cost.
// Will not do: link a graph or simulate it; combine the halves (autotune/bounds/bound).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/engine/cost.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/report/memory.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

inline constexpr int kMostCapacities = 12;

// Time that operations keep lanes, shared capacities and the host thread that enqueues them busy
// for, if each ran alone. No step is shorter than the busiest of them.
struct Workload {
  std::array<int64_t, kLaneKinds> lane{};          // picoseconds
  std::array<double, kMostCapacities> capacity{};  // seconds, by index in CostTable::capacities
  int64_t host = 0;                                // picoseconds

  int64_t busiest_ps() const;

  void add(const Op& op, const OpCost& cost, const CostTable& table, double times);
  void add(const Workload& other, double times);
};

using CategoryBytes = std::array<Bytes, kCategories>;
Bytes sum_of(const CategoryBytes& bytes);
// These bytes as the peak of a place, holders largest first.
PlacePeak peak_of(Place place, const CategoryBytes& bytes);
// Master and both moments of so many parameters.
Bytes optimizer_state(int64_t parameters, const OptimizerPlan& plan);

// Of what ran before a path began: long before any step, and far enough from the least number to
// add durations to.
inline constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;

// Most bytes alive at once, and what they are.
struct MemoryProfile {
  std::array<CategoryBytes, kPlaces> peak{};
};

// Copies that bring one module's weights in, where they flow.
struct FetchProfile {
  Workload one;          // one visit
  int64_t visits = 0;    // a step
  int64_t first_ps = 0;  // least time from home to use
};

// What a plan does between two optimizer steps: all passes of build() up to those of residency and
// optimizer. The plan's pipeline must be 1.
Graph forward_backward_graph(const Model& model, const Plan& plan);
// The same as the framework with these facts does it, which are those of the plan (facts_of()).
Graph forward_backward_graph(const Model& model, const Plan& plan, const StackFacts& facts);

// `plan` with so many micro-batches, and nothing of an optimizer.
Plan sample_plan(const Plan& plan, int64_t micro_batches);

// True where weights are gathered before each use.
inline bool gathers(const Plan& plan) { return plan.zero_stage == 3 && plan.replicas() > 1; }

struct ForwardBackwardProfile {
  Workload work;
  // Of the compute lane, by module: work before its weights are first read, and work up to where
  // its gradient is complete.
  std::vector<int64_t> first_use_ps;
  std::vector<int64_t> gradient_ready_ps;
  int64_t first_backward_ps = 0;  // work before the first backward
  MemoryProfile with_gradients;   // activations, batches, gradients and gathered weights
  MemoryProfile without_gradients;
  // By cast as asked for, then by module: what flows is as wide as the cast leaves it.
  std::vector<std::vector<FetchProfile>> fetch;
};

// `plan`: micro_batch and activations are read. `fetched`: where weights may flow, every cast that
// they may have; else nothing.
ForwardBackwardProfile forward_backward_profile(const Model& model, const Plan& plan,
                                                const CostModel& costs,
                                                const std::vector<CastPlacement>& fetched);

// An operation of an optimizer, as the longest path through them needs it.
struct ChainOp {
  int64_t ps = 0;
  // How many entries of OptimizerProfile::accesses are its own, after those of the operation
  // before: what it reads, then what it writes.
  int32_t reads = 0;
  int32_t writes = 0;
  LaneKind lane{};
  bool at_end = false;  // on the compute lane, after all backward work
  auto operator<=>(const ChainOp&) const = default;
};

struct OptimizerProfile {
  Workload work;
  std::vector<bool> flowing;  // by module
  // Values that the operations pass on: the gradient of module i is value i, its weights on the
  // GPU value modules + i; the others are numbered from there.
  int32_t values = 0;
  std::vector<int32_t> accesses;
  // Operations in program order, as indices into those that differ: plans of small buckets have
  // thousands, a search keeps a thousand profiles, and buckets of a size are stepped alike.
  std::vector<int32_t> chain;
  std::vector<ChainOp> distinct;
  std::vector<int32_t> commit_reads;  // values of the last step that the commit waits for
  struct Home {
    int32_t value = 0;  // where a flowing module is fetched from
    int32_t module = 0;
  };
  std::vector<Home> homes;
  // Bytes that live through the whole step, gradients apart, and the peak of all.
  std::array<CategoryBytes, kPlaces> carried{};
  std::array<Bytes, kPlaces> carried_gradients{};
  MemoryProfile peak;
};

// Makes optimizer profiles of one model; what they share is built once.
class OptimizerProfiler {
 public:
  // References must outlive this object.
  OptimizerProfiler(const Model& model, const Plan& base, const CostModel& costs);

  // Every knob of the plan's optimizer and its flow share must have a value. May be called from
  // several threads.
  OptimizerProfile profile(const Plan& plan) const;

  // Of one rank: its part of the matrices, and under ZeRO-3 its shard.
  const std::vector<Module>& modules() const { return skeleton_.modules; }

 private:
  const Model& model_;
  const CostModel& costs_;
  Graph skeleton_;  // uses of weights and gradients alone
};

}  // namespace ballast
