// StopWatch: when a search must stop, by a deadline or because somebody asks.
//
// Will not do: stop for want of patience, which the search counts (autotune/search/search.cpp).
#pragma once

#include <atomic>
#include <chrono>

#include "autotune/search/search.h"

namespace ballast {

class StopWatch {
 public:
  // `options` must outlive this, which begins to count.
  explicit StopWatch(const SearchOptions& options) : options_(options) {}

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  // By several threads, where `options.interrupted` may be.
  SearchStop asked_to_stop() const {
    if (options_.interrupted && options_.interrupted()) return SearchStop::kInterrupt;
    const bool is_late = options_.deadline_s && seconds() > *options_.deadline_s;
    return is_late ? SearchStop::kDeadline : SearchStop::kNone;
  }

 private:
  using Clock = std::chrono::steady_clock;

  const SearchOptions& options_;
  const Clock::time_point begin_ = Clock::now();
};

// What ended the work of several threads: once one of them was told to stop, none asks again.
class SharedStop {
 public:
  explicit SharedStop(const StopWatch& watch) : watch_(watch) {}

  bool must_stop() {
    if (stop_ == SearchStop::kNone) {
      if (const SearchStop asked = watch_.asked_to_stop(); asked != SearchStop::kNone) {
        stop_ = asked;
      }
    }
    return stop_ != SearchStop::kNone;
  }
  SearchStop stop() const { return stop_; }

 private:
  const StopWatch& watch_;
  std::atomic<SearchStop> stop_ = SearchStop::kNone;
};

}  // namespace ballast
