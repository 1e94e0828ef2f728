// The clock of the host by which operations are recorded.
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

}  // namespace ballast
