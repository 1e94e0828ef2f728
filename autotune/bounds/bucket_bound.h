// Lower bounds of what the optimizer adds to a step, from the times of single buckets: before any
// optimizer pass is run for a plan.
//
//   lanes    what all buckets keep each lane busy for
//   chains   gradients leave in the order in which they are made, one after another; the CPU steps
//            them, one after another; and a bucket is back before its weights are used in the next
//            step. A plan that waits steps its first layers first, once all gradients have left.
//
// Where times were measured, more work may take less, and nothing is counted.
// Will not do: norms of the CPU, or what flowing weights cost (autotune/bounds/bound follows all
// that a plan does).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "autotune/bounds/part_costs.h"
#include "autotune/space/space.h"
#include "sim/engine/cost.h"

namespace ballast {

// Least time of a step with one bucket size and one cast: by sync, by index of gpu_buckets, and
// for weights that all stay (0) or may flow (1).
using StepBound = std::vector<std::vector<std::array<int64_t, 2>>>;

class BucketBound {
 public:
  // `modules` as one rank steps them. References must outlive this object.
  BucketBound(const std::vector<Module>& modules, const Plan& base, const Space& space,
              const BucketChoice& bucket, const CostModel& costs);

  StepBound steps(const ForwardBackwardProfile& compute, CastPlacement cast) const;
  // What lanes and capacities do at least where weights flow: forward and backward, what fetches
  // them, gradients over the ranks and weights that stay home from them. By index of gpu_buckets
  // and of Space::flow_share. `fetch`: by module; empty where no weights may flow.
  std::vector<std::vector<int64_t>> flows(const ForwardBackwardProfile& compute,
                                          const std::vector<FetchProfile>& fetch) const;
  // Least bytes of master, moments and weights that live on the GPU, by the same indices.
  Bytes gpu_state(int16_t gpu_buckets, int16_t flow_share) const {
    return residences_[static_cast<size_t>(gpu_buckets)][static_cast<size_t>(flow_share)].on_gpu;
  }

 private:
  // How a step keeps what a rollback needs.
  enum Record : size_t { kNothing, kBits, kCopy, kRecords };
  struct Times {  // of one bucket, by site of the step where both can do it
    std::array<std::array<int64_t, kRecords>, 2> adam{};
    int64_t norm = 0;                // on the GPU
    int64_t cast = 0;                // of weights, on the CPU
    std::array<int64_t, 2> pack{};   // for 16 and for 32 bits
    std::array<int64_t, 2> out{};    // what moves it; 0 where packing does
    std::array<int64_t, 2> home{};   // with the cast of what arrives
    int64_t reduce = 0, gather = 0;  // exchanges with the ranks that hold the same weights
  };
  // What one choice of knobs meets in every bucket.
  struct Chosen {
    size_t border = 0;  // buckets before it are the CPU's
    SyncMode sync{};
    Record record{};
    size_t width = 0;  // of what crosses the link: 0 for 16 bits, 1 for 32
    bool cpu_casts = false;
  };

  size_t border_of(size_t index) const;
  void fill_times(const CostModel& costs);
  void fill_state(const std::vector<Module>& modules);
  std::array<int64_t, 2> lanes(const ForwardBackwardProfile& compute, const Chosen& chosen) const;
  std::array<int64_t, 2> chain(const ForwardBackwardProfile& compute, const Chosen& chosen) const;

  const Plan& base_;
  const Space& space_;
  const BucketChoice& choice_;
  std::vector<Bucket> buckets_;
  std::vector<Times> times_;
  // Where the weights of one choice of gpu_buckets and flow_share live.
  struct Residence {
    std::vector<bool> flowing;  // by module
    int64_t staying = 0;        // parameters that do not flow
    Bytes on_gpu;
  };
  std::vector<std::vector<Residence>> residences_;
};

}  // namespace ballast
