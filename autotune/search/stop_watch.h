// StopWatch: when a search must stop, by a deadline or because somebody asks; and rounds of
// simulations that end there.
//
// Will not do: stop for want of patience, which the search counts (autotune/search/search.cpp).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "autotune/search/evaluate.h"
#include "autotune/search/search.h"

namespace ballast {

class StopWatch {
 public:
  // `options` must outlive this, which begins to count.
  explicit StopWatch(const SearchOptions& options) : options_(options) {}

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  // By several threads, where `options.interrupted` may be.
  SearchStop asked_to_stop() const;

 private:
  using Clock = std::chrono::steady_clock;

  const SearchOptions& options_;
  const Clock::time_point begin_ = Clock::now();
};

struct Round {
  std::vector<std::optional<Outcome>> outcomes;  // nothing of what was left when it was stopped
  SearchStop stop = SearchStop::kNone;
};

// Simulates so many plans on up to `threads` threads. A deadline ends that only where
// `late_is_enough`; once a thread was told to stop, none asks again.
Round simulate_round(const StopWatch& watch, bool late_is_enough, size_t count, int threads,
                     const std::function<Outcome(size_t)>& simulate);

}  // namespace ballast
