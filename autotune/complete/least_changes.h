// Least changes: what would have to give for a setting that does not fit, one limit at a time.
//
// Each value is told by feasibility(), so that a change that is named leads to a plan, and with the
// value before it none of those that are tried fits. Memories grow by whole gigabytes to
// kMostTimesMemory, devices double, a batch is halved, a sequence is cut by 1024 tokens a rank that
// a plan names, or by a 32nd of a long one. Memory that a plan needs is assumed to grow with its
// sequence. Will not do: change two limits at once, or a knob that is no limit (complete.h fills
// those in).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "autotune/complete/feasibility.h"

namespace ballast {

enum class Limit : uint8_t { kGpuMemory, kCpuMemory, kDevices, kSequence, kBatch, kMicroBatch };
inline constexpr int kLimits = static_cast<int>(Limit::kMicroBatch) + 1;
std::string_view to_string(Limit value);  // "gpu_memory", "cpu_memory", "devices", ...

// Of so many times the memory that there is no machine is made: where that is not enough, more
// memory is no way out.
inline constexpr int64_t kMostTimesMemory = 16;

// In gigabytes (1e9 bytes) of a device, devices, tokens of a sequence, or sequences.
struct LeastChange {
  Limit limit{};
  double now = 0;
  std::optional<double> fits;  // the value nearest to `now` with which a plan fits
  // The neighbour of `fits` towards `now`, with which none that is tried does; where none fits, the
  // farthest value that was asked about.
  double does_not_fit = 0;
};

// `setting` does not fit. `on_devices`: the same question of another number of devices, where
// every degree and strategy that nobody named is open; throws Error where it cannot be asked.
struct LeastChangeQuestion {
  Setting setting;
  std::function<Setting(int64_t devices)> on_devices;
  std::function<bool()> interrupted;  // may be null
  // Hears what is looked at next, from two threads; may be empty.
  std::function<void(Limit, double value)> looks_at{};
};
// In the order of Limit, without those that no number of steps can change: a batch of one
// sequence, a machine that has no more devices, a micro-batch that is not named. Ends with those
// that are done where it is interrupted.
std::vector<LeastChange> least_changes(const LeastChangeQuestion& question);

}  // namespace ballast
