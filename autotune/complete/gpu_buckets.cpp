#include "autotune/complete/gpu_buckets.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "autotune/complete/completion_bounds.h"
#include "autotune/complete/completion_lists.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"

namespace ballast {
namespace {

// Kinds in a row of which some count fits that may be no faster than the best before the rest,
// which promise less, are left. One that is far slower has cost one estimate, and counts half.
constexpr double kPatience = 3;
// A kind that promises no more than this share of a step less than the best is left alone.
constexpr double kLeastGain = 0.01;
// A kind whose fullest plan takes so many times as long as the best is not looked at more closely.
constexpr double kFarSlower = 1.1;
// Two counts that are nearer than this share of all buckets are not told apart.
constexpr int64_t kGrains = 64;
// Each narrows where the shortest step lies to 0.62 of what it was.
constexpr int kNarrowings = 2;
constexpr double kGoldenShare = 0.381966;

// Completions that differ in how many buckets the GPU steps and in nothing else.
struct Kind {
  Completion any;
  std::vector<int64_t> listed;  // ascending
  int64_t most = 0;             // that may be asked about
  CompletionBound bound;        // of any count
};

bool is_far_slower(Duration time, const std::optional<Duration>& best) {
  return best && time.seconds() > kFarSlower * best->seconds();
}

Completion with_buckets(Completion completion, std::optional<int64_t> buckets) {
  completion.plan.optimizer.gpu_buckets = buckets;
  return completion;
}

std::vector<Kind> kinds_of(const Setting& setting,
                           const std::vector<const Completion*>& completions) {
  std::vector<Kind> kinds;
  for (const Completion* completion : completions) {
    const Completion open = with_buckets(*completion, std::nullopt);
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
      return kind.any.attention == open.attention && kind.any.plan == open.plan;
    });
    Kind& kind = found == kinds.end() ? kinds.emplace_back(Kind{open, {}, 0, {}}) : *found;
    kind.listed.push_back(*completion->plan.optimizer.gpu_buckets);
  }
  std::erase_if(kinds, [](const Kind& kind) { return kind.listed.size() < 2; });
  const int64_t all = most_gpu_buckets(setup_of(setting), setting.plan.zero_stage);
  std::vector<const Completion*> open;
  for (Kind& kind : kinds) {
    std::sort(kind.listed.begin(), kind.listed.end());
    const int64_t most = most_beside(*kind.any.plan.weights.flow_share, all);
    kind.most = std::max(kind.listed.back(), most);
    open.push_back(&kind.any);
  }
  const std::vector<CompletionBound> bounds = completion_bounds(setting, open);
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i].bound = bounds[i];
  std::erase_if(kinds, [](const Kind& kind) { return kind.bound.overfills; });
  std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
    return a.bound.at_least < b.bound.at_least;
  });
  return kinds;
}

// Looks for the best count of one kind.
class BestCount {
 public:
  BestCount(const Setting& setting, const Kind& kind, CompletionEstimates& known)
      : setting_(setting), kind_(kind), known_(known) {
    grain_ = std::max<int64_t>(1, kind.most / kGrains);
  }

  // `limit`: of the best of other kinds.
  std::optional<TimedPlan> run(std::optional<Duration> limit) {
    const std::optional<int64_t> most = most_that_fit();
    if (!most || !time(*most)) return std::nullopt;
    if (!is_far_slower(*time(*most), limit)) narrow(listed_below_best(*most), *most);
    const auto best = std::min_element(
        times_.begin(), times_.end(),
        [](const auto& a, const auto& b) { return is_faster(a.second, b.second); });
    return TimedPlan{completion(best->first).plan, *best->second};
  }

 private:
  static bool is_faster(const std::optional<Duration>& one, const std::optional<Duration>& other) {
    return one && (!other || *one < *other);
  }

  Completion completion(int64_t buckets) const { return with_buckets(kind_.any, buckets); }

  // Bytes of the GPU beyond what is usable; negative where there is room.
  Bytes excess(int64_t buckets) const { return known_.gpu_excess(setting_, completion(buckets)); }

  // Nothing where it does not fit.
  std::optional<Duration> time(int64_t buckets) {
    const auto [found, is_new] = times_.try_emplace(buckets);
    if (is_new) found->second = known_.step_time_if_fits(setting_, completion(buckets));
    return found->second;
  }

  // More buckets on the GPU need no less there. The most that its memory takes; nothing where it
  // takes none.
  std::optional<int64_t> most_that_fit() {
    size_t full = 0;
    while (full < kind_.listed.size() && excess(kind_.listed[full]).count <= 0) ++full;
    if (full == 0) return std::nullopt;
    int64_t low = kind_.listed[full - 1];
    int64_t high = full < kind_.listed.size() ? kind_.listed[full] : kind_.most;
    if (high == low || excess(high).count <= 0) return high;
    for (bool halves = false; high - low > grain_; halves = !halves) {
      const double room = -static_cast<double>(excess(low).count);
      const double beyond = static_cast<double>(excess(high).count);
      const double share = halves ? 0.5 : room / std::max(1.0, room + beyond);
      // A little below where it would just fit: needs are not as even as counts are.
      const int64_t guess = low + static_cast<int64_t>(share * static_cast<double>(high - low));
      const int64_t between = std::clamp<int64_t>(guess, low + 1, high - 1);
      (excess(between).count <= 0 ? low : high) = between;
    }
    return low;
  }

  // The listed count below which no shorter step is expected than above it.
  int64_t listed_below_best(int64_t most) {
    const auto end = std::lower_bound(kind_.listed.begin(), kind_.listed.end(), most);
    if (end == kind_.listed.begin()) return most;
    const int64_t last = *std::prev(end);
    const bool rises = is_faster(time(last), time(most));
    if (!rises || std::prev(end) == kind_.listed.begin()) return last;
    return *std::prev(end, 2);
  }

  // Golden section: a step gets shorter with every bucket that the GPU takes from the CPU, up to
  // where its own part of the step is the longer one.
  void narrow(int64_t low, int64_t high) {
    const auto part = [&] {
      return static_cast<int64_t>(kGoldenShare * static_cast<double>(high - low));
    };
    int64_t left = low + part(), right = high - part();
    for (int i = 0; i < kNarrowings && left < right; ++i) {
      if (is_faster(time(left), time(right))) {
        high = right;
        right = left;
        left = low + part();
      } else {
        low = left;
        left = right;
        right = high - part();
      }
    }
  }

  const Setting& setting_;
  const Kind& kind_;
  CompletionEstimates& known_;
  int64_t grain_ = 1;
  std::map<int64_t, std::optional<Duration>> times_;  // by count
};

}  // namespace

std::optional<TimedPlan> faster_gpu_buckets(const Setting& setting,
                                            const std::vector<const Completion*>& completions,
                                            std::optional<Duration> limit,
                                            CompletionEstimates& known,
                                            const std::function<bool()>& interrupted) {
  if (setting.plan.optimizer.gpu_buckets) return std::nullopt;
  std::optional<TimedPlan> fastest;
  double no_better = 0;
  for (const Kind& kind : kinds_of(setting, completions)) {
    const bool may_win =
        !limit || kind.bound.at_least.seconds() < (1 - kLeastGain) * limit->seconds();
    if (no_better >= kPatience || !may_win) break;
    if (interrupted && interrupted()) break;
    try {
      std::optional<TimedPlan> one = BestCount(setting, kind, known).run(limit);
      if (!one) continue;
      no_better += is_far_slower(one->step_time, limit) ? 0.5 : 1;
      if (limit && one->step_time >= *limit) continue;
      limit = one->step_time;
      fastest = std::move(one);
      no_better = 0;
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
  return fastest;
}

}  // namespace ballast
