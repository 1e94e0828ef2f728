#include "autotune/studies/why_slower.h"

#include <algorithm>
#include <map>

#include "sim/graph/report/timeline.h"

namespace ballast {
namespace {

constexpr double kTooCloseToMeasure = 1e-4;  // of a step

// The longest path by kind of operation; waiting is one of them.
std::map<std::string, Duration> path_of(const Prediction& prediction) {
  std::map<std::string, Duration> times;
  for (const KindTime& kind : prediction.longest_path.by_kind) {
    times[name_of(kind)] += kind.time;
  }
  times["waiting"] += prediction.longest_path.waiting;
  return times;
}

}  // namespace

bool SlowerStep::is_tie() const { return share < kTooCloseToMeasure; }

SlowerStep why_slower(const Prediction& best, const Prediction& other) {
  CHECK(best.fits && other.fits);
  SlowerStep result;
  result.longer = other.step_time - best.step_time;
  result.share = result.longer.seconds() / best.step_time.seconds();
  std::map<std::string, Duration> difference = path_of(other);
  for (const auto& [name, time] : path_of(best)) {
    Duration& more = difference[name];
    more = more - time;
  }
  for (const auto& [name, more] : difference) result.path.push_back({name, more});
  std::stable_sort(result.path.begin(), result.path.end(),
                   [](const PathChange& a, const PathChange& b) { return a.more > b.more; });
  return result;
}

}  // namespace ballast
