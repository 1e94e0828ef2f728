// Lower bounds of what the optimizer adds to a step, from the times of single buckets: before any
// optimizer pass is run for a plan.
//
//   Adam     all of it, on the GPU and on the CPU, for every number of buckets on the GPU
//   tails    a bucket's gradient leaves when it is made, is stepped on the CPU, and is back before
//            its weights are used in the next step. A plan that waits steps its first layers first,
//            once the last gradient is made, one bucket after another.
//
// Times are those of a step that records nothing. Where times were measured, more work may take
// less, and nothing is counted.
// Will not do: queues, exchanges between ranks, or norms (autotune/bound follows all of these).
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/profile.h"
#include "autotune/space.h"
#include "sim/engine/cost.h"

namespace ballast {

// Of one bucket choice; every list by index of BucketChoice::gpu_buckets.
struct AdamBound {
  std::vector<int64_t> gpu_ps;
  std::vector<int64_t> cpu_ps;
  std::vector<Bytes> gpu_state;  // master and moments
};

struct TailBound {
  std::vector<int64_t> speculate_ps;          // where weights stay
  std::vector<int64_t> speculate_flowing_ps;  // where any flow
  std::vector<int64_t> wait_ps;
};

class BucketBound {
 public:
  // `modules` as one rank steps them. References must outlive this object.
  BucketBound(const std::vector<Module>& modules, const Plan& base, const BucketChoice& bucket,
              const CostModel& costs);

  const AdamBound& adam() const { return adam_; }
  TailBound tails(const ForwardBackwardProfile& compute, CastPlacement cast) const;

 private:
  struct Times {  // of one bucket
    int64_t adam_gpu = 0, adam_cpu = 0;
    int64_t out16 = 0, out32 = 0, in16 = 0, in32 = 0;
    int64_t elements = 0;  // this rank's
  };

  size_t on_cpu(size_t index) const;

  const Plan& base_;
  const BucketChoice& choice_;
  std::vector<Bucket> buckets_;
  std::vector<Times> times_;
  AdamBound adam_;
};

}  // namespace ballast
