// Promises: the least that a completion's step may take by what was timed of others that differ
// from it in how many buckets the GPU steps, or in how much of the weights flows, and in nothing
// else. What cannot be the fastest by them is not built.
//
//  * Every bucket that the GPU steps adds to its computation, and weights that flow add nothing to
//    it: the compute lane is busy for no less than it was with no more buckets, and each more adds
//    as much again (kLeastAlike).
//  * A bucket that the GPU steps instead of the CPU shortens a step by no more than all that was
//    done for it beside the compute lane, one after another (TimedStep::bucket).
//  * Weights that flow add copies to the step of the same plan with weights that stay. They may
//    gain some of it, for the last buckets need not be home before it begins (kMostGainOfFlow,
//    kMostBucketsOfFlow).
//  * Where a step takes less with more buckets, it takes no less with fewer: among 27,356 of those
//    pairs with a third one.
//  * Activations that leave add copies to the step of the same plan in which they stay: among 8,242
//    of those pairs they gained 0.5 % at most. What they gain they gain by room for more buckets.
//
// The last three were found so and are not proven; nor is it that a step is roughly convex in the
// number of buckets, by which the count is named that may be best. They choose what is looked at,
// and never say what a plan takes. Will not do: build a graph
// (autotune/complete/estimates/completion_estimates.h).
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "autotune/calibrate/published_cases.h"
#include "sim/base/units.h"

namespace ballast {

// Micro-batches of a step from which on weights that flow are not timed where the same plan fits
// with weights that stay: they gain 3 % at most.
inline constexpr int64_t kFlowOnlyAdds = 4;

// Of a step that was timed.
struct TimedStep {
  Duration time;
  Duration compute;  // of the operations of its busiest compute lane, each alone; zero: not known
  // Of all operations on other lanes for the bucket of which they take most; zero: not known.
  Duration bucket;
};

// Of a number of buckets on the GPU.
struct Promise {
  int64_t gpu_buckets = 0;
  Duration at_least;  // zero where nothing is known
};

// May be asked and taught from several threads.
class CompletionPromises {
 public:
  void learn(const Completion& completion, const TimedStep& step);

  // Zero where nothing is known.
  Duration at_least(const Completion& completion) const;

  // Of all that differ from a completion in having from `fewest` to `most` buckets and were not
  // timed, the one that promises most; nothing where all were timed.
  std::optional<Promise> best_between(const Completion& completion, int64_t fewest,
                                      int64_t most) const;

  // The shortest that was timed of those that differ from it in their buckets alone.
  std::optional<Duration> best_timed(const Completion& completion) const;

  // Whether the room that activations make which leave the GPU may shorten a step. Not where they
  // stay and a step was longer with the most buckets that were timed than with fewer.
  bool may_use_room(const Completion& completion) const;

  // Whether this very completion was.
  bool was_timed(const Completion& completion) const;

 private:
  struct Known {
    int64_t buckets = 0;  // that the GPU steps
    double flow = 0;
    TimedStep step;
  };
  struct Kind {
    Completion any;            // without buckets and flow
    std::vector<Known> known;  // by buckets
  };
  // The number of a kind; that of all kinds where it is not among them.
  size_t find(const Completion& any) const;
  const std::vector<Known>& known_of(const Completion& completion) const;

  mutable std::mutex mutex_;
  std::vector<Kind> kinds_;
};

}  // namespace ballast
