// The clock of the host by which operations are recorded and checkpoints are timed.
#pragma once

#include <chrono>
#include <cstdint>

namespace ballast {

// Nanoseconds of a clock that never goes back, since an epoch that is the same all through a
// program.
inline int64_t host_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A clock that a training goes by: the host's, or one that a test lets pass as it likes. Nobody
// sleeps by it. From any thread.
class HostClock {
 public:
  virtual ~HostClock() = default;
  // Since some epoch; never less than what any thread was told before.
  virtual std::chrono::nanoseconds now() const {
    return std::chrono::nanoseconds(host_clock_ns());
  }
};

inline const HostClock& host_clock() {
  static const HostClock clock;
  return clock;
}

}  // namespace ballast
