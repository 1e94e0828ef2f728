#include "autotune/search/stop_watch.h"

#include <atomic>

#include "sim/base/parallel.h"
#include "sim/base/stop.h"

namespace ballast {

SearchStop StopWatch::asked_to_stop() const {
  if (options_.interrupted && options_.interrupted()) return SearchStop::kInterrupt;
  const bool is_late = options_.deadline_s && seconds() > *options_.deadline_s;
  return is_late ? SearchStop::kDeadline : SearchStop::kNone;
}

Round simulate_round(const StopWatch& watch, bool late_is_enough, size_t count, int threads,
                     const std::function<Outcome(size_t)>& simulate) {
  std::atomic<SearchStop> stop = SearchStop::kNone;
  const std::function<bool()> is_cut = [&] {
    if (stop != SearchStop::kNone) return true;
    const SearchStop asked = watch.asked_to_stop();
    if (asked == SearchStop::kNone) return false;
    if (asked == SearchStop::kDeadline && !late_is_enough) return false;
    stop = asked;
    return true;
  };
  Round round;
  round.outcomes.resize(count);
  parallel_for(count, threads, [&](size_t i) {
    round.outcomes[i] = unless_stopped(is_cut, [&] { return simulate(i); });
  });
  round.stop = stop;
  return round;
}

}  // namespace ballast
