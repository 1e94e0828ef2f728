// What the optimizer's CPU does, for the profile of the host and of a GPU alike: Adam by
// implementation, size and threads, casts, sums of squares, snapshots, and how fast memory moves.
//
// Will not do: put a CPU beside anything else (profile_host, profile_cuda).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/measure/profile.h"

namespace ballast {

class CpuProfiler {
 public:
  struct Settings {
    int threads = 1;             // of the optimizer
    int64_t cores = 1;           // that this process may use
    int64_t largest_bucket = 0;  // parameters; 64 Ki and up
    ProbeLimits limits;
    std::function<std::string()> source;  // of a number that was just measured
  };
  // What is measured goes into `cpu`, which must outlive this.
  CpuProfiler(Settings settings, Cpu& cpu) : settings_(std::move(settings)), cpu_(cpu) {}

  // In order: Adam of every implementation, Adam by threads, cast, sum of squares, snapshot.
  std::vector<Probe> probes();

  // Read and written by all of the optimizer's threads, and by one: copies far larger than the
  // caches. The second goes into `cpu.core_bandwidth`.
  struct MemoryRates {
    Bandwidth all;
    Bandwidth one;
    int threads = 1;  // all of them
    std::string text() const;
  };
  MemoryRates memory();

  // Working memory and threads, made when first used; until release().
  OptimizerProbe& optimizer();
  kernels::Workers& workers();
  void release();

 private:
  std::string adam(const kernels::Table& table);
  std::string adam_by_threads();
  std::string casts();
  std::string snapshots();
  // Elements per second by size of what `body` does with so many.
  Curve curve(const std::function<void(int64_t elements)>& body) const;
  Bandwidth copied_by(int threads, Arena& from, Arena& to) const;

  Settings settings_;
  Cpu& cpu_;
  std::unique_ptr<OptimizerProbe> optimizer_;
  std::unique_ptr<kernels::Workers> workers_;
};

// What a step of Adam moves: gradient read; master and both moments read and written.
inline constexpr int64_t kAdamBytes = 4 + 6 * 4;

}  // namespace ballast
