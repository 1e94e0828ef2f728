// The way around the CPU: from a use of the weights that it steps last, over what is computed until
// the first gradient of a whole step is complete and all that the CPU does then, to the next use.
//
// Gradients leave in the order in which they are made, and the CPU steps bucket after bucket. The
// GPU steps the last buckets, which are the weights of the first layers. A plan that speculates
// steps those last that lie nearest to them; what the next forward computes before it needs them
// runs beside the CPU. A plan that waits steps those last whose gradients came first: of the last
// layer. One that delays uses weights before they are stepped, and has no such way.
// Will not do: norms, copies and casts, or a pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/bounds/layer_costs.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

class CpuChain {
 public:
  // `plan`: of one stage; micro_batch and activations have values. `profile`: of the plan.
  CpuChain(const Model& model, const Plan& plan, const LayerProfile& profile);

  // Least picoseconds of a step in which a rank's CPU steps `on_cpu` parameters at `adam`
  // picoseconds each, and the GPU steps no more than `on_gpu` of the layers' whole ones.
  int64_t step_ps(int64_t on_cpu, int64_t on_gpu, double adam) const;

  // Of `all` parameters that a rank steps, the fewest that the GPU must, for a step of `ps`. Of
  // each of them no more than `ranks` whole ones are stepped.
  int64_t least_on_gpu(double ps, int64_t all, int64_t ranks, double adam) const;

 private:
  // Before the CPU begins, wherever in the forward the weights are used that it steps last.
  int64_t before_ps_ = 0;
  // What a forward computes from them on, where they are of layer i or a later one.
  std::vector<int64_t> forward_from_ps_;
  std::vector<int64_t> parameters_up_to_;  // of the layers' weights, with those of layer i
};

}  // namespace ballast
