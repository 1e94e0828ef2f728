// Lower bounds of a plan's step time and memory, without its graph: what search discards most
// plans by. Admissible: no simulated step is shorter and no arena smaller than its bound, so what
// a bound rules out, simulation would have ruled out too.
//
// The step time is the greatest of
//   work      time that a lane, a shared capacity at full speed, or the host is busy for in a step;
//   cycles    from a weight's first use, on the compute lane to the gradients, through the
//             optimizer's operations in their order, home, and to its use in the next step. A
//             chain that ends where it began, one step later, is no longer than a step.
// Memory is what lives through a step and the most activations (and gradients) alive at once.
// Will not do: overlap that shares a capacity, hand-overs, or reuse of memory.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "autotune/bounds/bucket_bound.h"
#include "autotune/bounds/part_costs.h"
#include "autotune/space/space.h"
#include "sim/base/parallel.h"
#include "sim/engine/cost.h"
#include "sim/graph/report/memory.h"
#include "sim/spec/machine.h"

namespace ballast {

// Relative slack of the engine's settled period, by which a bound of time is lowered.
inline constexpr double kBoundSlack = 1e-6;
Duration lowered(int64_t ps);

class Bounds {
 public:
  // References must outlive this object.
  Bounds(const Model& model, const Plan& base, const Space& space, const CostModel& costs);

  // The tasks that profile what is not known yet: forward and backward of the micro-batch and
  // activations of these choices, with every cast; and whole choices. The optimizer's knobs of the
  // former are not read. What they find counts once all of them have run.
  void open(const std::vector<Choice>& cells, Tasks& tasks);
  void refine(const std::vector<Choice>& choices, Tasks& tasks);

  // Of forward, backward and single buckets (autotune/bounds/bucket_bound): looked up. Requires the
  // tasks of open().
  Duration quick(const Choice& choice) const;
  // Least memory of the GPU, from what open() knows.
  PlacePeak quick_memory(const Choice& choice) const;
  // The whole bound, never below quick(). This and the following require those of both.
  Duration step_time(const Choice& choice) const;
  // Least memory, one entry a place with its holders; `arena` is the bound itself.
  std::vector<PlacePeak> memory(const Choice& choice) const;
  // The same bytes, without saying who holds them.
  std::array<Bytes, kPlaces> least_memory(const Choice& choice) const;

  Workload work(const Choice& choice) const;

 private:
  struct Half {
    ForwardBackwardProfile profile;
    // By cast and bucket choice.
    std::vector<std::vector<StepBound>> steps;
    std::vector<std::vector<std::vector<std::vector<int64_t>>>> flows;
  };

  void profile(const Choice& cell, Half& half) const;
  const ForwardBackwardProfile& forward_backward(const Choice& choice) const;
  // Empty where no weights may flow.
  const std::vector<FetchProfile>& fetch(const Choice& choice) const;
  const OptimizerProfile& optimizer(const Choice& choice) const;
  int64_t cycles(const Choice& choice) const;

  const Model& model_;
  const Plan& base_;
  const Space& space_;
  const CostModel& costs_;
  OptimizerProfiler profiler_;
  std::vector<BucketBound> buckets_;  // by bucket choice
  // By micro_batch and activations; by bucket, gpu_buckets, cast, sync and flow_share.
  std::map<std::array<int16_t, 2>, Half> compute_;
  std::map<std::array<int16_t, 5>, OptimizerProfile> optimizer_;
};

}  // namespace ballast
