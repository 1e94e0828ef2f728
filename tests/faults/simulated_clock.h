// SimulatedClock: a clock that stands still until something is said to take time.
//
// Each look at it takes a little, so that operations, which look as they begin and end, last. Time
// that passes in one thread passes in all: a disk that is waited for beside the steps disturbs them
// as long as it takes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "sim/base/host_clock.h"

namespace ballast::tests {

class SimulatedClock : public HostClock {
 public:
  explicit SimulatedClock(std::chrono::nanoseconds a_look) : a_look_(a_look.count()) {}

  std::chrono::nanoseconds now() const override {
    return std::chrono::nanoseconds(time_.fetch_add(a_look_));
  }
  void pass(std::chrono::nanoseconds time) { time_ += time.count(); }

 private:
  const int64_t a_look_;
  mutable std::atomic<int64_t> time_{0};
};

}  // namespace ballast::tests
