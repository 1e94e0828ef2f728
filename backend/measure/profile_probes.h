// Probes: how one thing is timed, alone and beside another, and the small ones that need no model.
//
// The protocol (one for all): warm up; hold every thread at a barrier; release; repeat until the
// median absolute deviation of the repeats is small or the time is used up; verify what was
// written. A time is the median, its error the deviation. Will not do: build a Machine
// (profile_host), or time a model's operations (profile_operations).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/execute/arena.h"
#include "kernels/kernels.h"
#include "kernels/threads.h"
#include "sim/base/units.h"

namespace ballast {

struct ProbeLimits {
  int least_repeats = 5;
  int most_repeats = 200;
  double seconds = 0.12;          // no new repeat begins later
  double small_deviation = 0.01;  // of the median: enough
};

struct Timing {
  Duration median;
  Duration deviation;  // median absolute deviation
  int repeats = 0;
};
Timing summarise(std::vector<Duration> samples);  // Requires at least one.
// Whether these repeats agree as well as the limits ask.
bool is_settled(const std::vector<Duration>& samples, const ProbeLimits& limits);

// One repeat of what is timed; `repeat` counts from 0 (the warm-up is -1).
using Body = std::function<void(int repeat)>;
Timing time_alone(const Body& body, const ProbeLimits& limits);

// Both at once, each on a thread of its own, again and again for `seconds`; repeats count that
// began and ended while the other was still at work.
std::array<Timing, 2> time_together(const Body& first, const Body& second, double seconds);

// Two operations that ran alone and beside each other.
struct Beside {
  std::array<double, 2> demand{};  // of the shared capacity when alone: bytes per second
  std::array<double, 2> rate{};    // beside the other, as a share of the speed alone
};

// The capacity with which max-min sharing (sim/engine/sharing/fair_share.h) nears all pairs most:
// the least squares of log rates, where a pair predicts min(1, capacity / sum of its demands) for
// both. At least `least`; the largest sum of demands where nothing was slowed.
double shared_capacity(const std::vector<Beside>& pairs, double least);

// --- Copies between the two arenas ------------------------------------------------------------

// Bytes of which no two nearby ranges are equal, and none is 0.
void fill_pattern(std::byte* data, int64_t bytes);

// Walks through both arenas from repeat to repeat, as a training step does, so that small copies
// do not stay in a cache that a step would have filled with something else.
class CopyProbe {
 public:
  CopyProbe(Arena& source, Arena& destination) : source_(source), destination_(destination) {}
  void fill();  // the source with bytes that verify() knows; before the first copy
  void copy(int64_t bytes, int repeat);
  // Whether every byte of the copy of this repeat arrived.
  bool verify(int64_t bytes, int repeat) const;

 private:
  int64_t offset(int64_t bytes, int repeat) const;
  Arena& source_;
  Arena& destination_;
};

// --- The optimizer's kernels ------------------------------------------------------------------

// State of `capacity` parameters (a multiple of 64), and the kernels over a part of them.
class OptimizerProbe {
 public:
  explicit OptimizerProbe(int64_t capacity);

  int64_t capacity() const { return capacity_; }
  void adam(kernels::Workers& workers, const kernels::Table& table, int64_t parameters);
  void cast(kernels::Workers& workers, const kernels::Table& table, int64_t elements);
  void snapshot(int64_t parameters);

  // Whether `table` leaves the same master as the reference after a step over these parameters.
  bool verify(const kernels::Table& table, int64_t parameters);

 private:
  kernels::AdamArrays arrays(int64_t parameters);
  void reset(int64_t parameters);
  float* values(int64_t array);
  // Walks through the state from call to call, as CopyProbe does.
  int64_t next_begin(int64_t count);

  int64_t capacity_;
  Arena arena_;
  int64_t at_ = 0;
};

// --- Threads ----------------------------------------------------------------------------------

// From a finished operation to one that waits for it on another thread, which has been asleep for
// about a millisecond: std::atomic, as the executor does it.
Timing time_handover(const ProbeLimits& limits);

// An operation that does next to nothing, called and recorded as the executor does it.
Timing time_least_operation(const ProbeLimits& limits);

}  // namespace ballast
