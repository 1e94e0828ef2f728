// One piece of work after another on a thread of its own: what is written while training goes on.
//
// The thread starts with this, so that a system that gives no more threads says so before a run. It
// leaves cores to the threads of steps (nice): nothing waits for it but the next piece.
// Will not do: queue (the next piece begins once the one before has been waited for), or know what
// is written.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "sim/base/host_clock.h"

namespace ballast {

class BackgroundWrite {
 public:
  struct Times {  // of a HostClock
    std::chrono::nanoseconds begin{}, end{};
  };

  // Throws Error where there is no thread to be had.
  explicit BackgroundWrite(const HostClock& clock = host_clock());
  // Lets the work that is under way end.
  ~BackgroundWrite();
  BackgroundWrite(const BackgroundWrite&) = delete;
  BackgroundWrite& operator=(const BackgroundWrite&) = delete;

  // Requires that what was begun before has been waited for.
  void begin(std::function<void()> work);
  // From begin() until the work has ended, whichever way.
  bool is_under_way() const;
  // What was begun has thrown, and nobody has waited for it yet.
  bool has_failed() const;
  // Returns once no work is under way, and rethrows what it threw.
  void wait();
  // Of the work that ended last; of one under way `end` is later than any.
  Times times() const;

 private:
  void run();

  const HostClock& clock_;
  mutable std::mutex mutex_;  // guards all but the clock and the thread
  std::condition_variable changed_;
  std::function<void()> work_;  // set from begin() until it has ended
  std::exception_ptr failure_;
  Times times_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ballast
