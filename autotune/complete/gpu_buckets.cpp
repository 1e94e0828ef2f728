#include "autotune/complete/gpu_buckets.h"

#include <algorithm>

#include "autotune/complete/completion_lists.h"
#include "autotune/complete/estimates/completion_bounds.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"

namespace ballast {
namespace {

// Kinds in a row that were asked about and were no faster than the best before the rest are left,
// of those that were timed as of the others. One that is far slower has cost one estimate, and
// counts half.
constexpr double kPatience = 3;
// A kind that promises no more than this share of a step less than the best is left alone, and a
// count of a kind that promises no more than that.
constexpr double kLeastGain = 0.01;
constexpr double kLeastGainOfCount = 0.003;
// A kind whose fullest plan takes so many times as long as the best is not looked at more closely.
constexpr double kFarSlower = 1.1;
// Two counts that are nearer than this share of all buckets are not told apart.
constexpr int64_t kGrains = 128;
// Counts of a kind that are timed at most.
constexpr int kMostTimed = 6;

// Completions that differ in how many buckets the GPU steps and in nothing else.
struct Kind {
  Completion any;
  std::vector<int64_t> listed;  // ascending
  int64_t most = 0;             // that may be asked about
  CompletionBound bound;        // of any count
  std::optional<Duration> best_timed{};
};

Completion with_buckets(Completion completion, std::optional<int64_t> buckets) {
  completion.plan.optimizer.gpu_buckets = buckets;
  return completion;
}

// Those of which a count was timed come first, from the shortest step on, then the others by what
// they promise.
std::vector<Kind> kinds_of(const Setting& setting,
                           const std::vector<const Completion*>& completions,
                           const CompletionPromises& promises) {
  std::vector<Kind> kinds;
  for (const Completion* completion : completions) {
    const Completion open = with_buckets(*completion, std::nullopt);
    const auto found = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const Kind& kind) { return kind.any == open; });
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
  for (Kind& kind : kinds) kind.best_timed = promises.best_timed(kind.any);
  std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
    if (a.best_timed.has_value() != b.best_timed.has_value()) return a.best_timed.has_value();
    if (a.best_timed) return *a.best_timed < *b.best_timed;
    return a.bound.at_least < b.bound.at_least;
  });
  return kinds;
}

// Counts of a kind that are bounded before any is built.
constexpr int64_t kBounded = 16;

struct Counts {
  int64_t fewest = 0, most = 0;
};

// Those between which all lie that may take less than `limit`: bounds fall with what the CPU steps
// no more, and rise with what the GPU does. Nothing where none does that may fit.
std::optional<Counts> that_may_win(const Setting& setting, const Completion& any, Counts all,
                                   Duration limit) {
  std::vector<Completion> spaced;
  const int64_t grain = std::max<int64_t>(1, (all.most - all.fewest) / kBounded);
  for (int64_t count = all.fewest; count < all.most; count += grain) {
    spaced.push_back(with_buckets(any, count));
  }
  spaced.push_back(with_buckets(any, all.most));
  std::vector<const Completion*> asked;
  for (const Completion& one : spaced) asked.push_back(&one);
  const std::vector<CompletionBound> bounds = completion_bounds(setting, asked);
  // More buckets on the GPU need no less there: of the first that cannot fit one between may.
  const auto too_full = std::find_if(bounds.begin(), bounds.end(),
                                     [](const CompletionBound& one) { return one.overfills_gpu; });
  if (too_full == bounds.begin()) return std::nullopt;
  const auto end = too_full == bounds.end() ? too_full : too_full + 1;
  const auto lowest = std::min_element(
      bounds.begin(), end, [](const auto& a, const auto& b) { return a.at_least < b.at_least; });
  // Beside the lowest of these one may be lower.
  const auto goes_on = [&](auto at) { return at == lowest || at->at_least < limit; };
  auto first = lowest, last = lowest;
  while (first != bounds.begin() && goes_on(first)) --first;
  while (last + 1 != end && goes_on(last)) ++last;
  const auto count_at = [&](auto at) {
    return *asked[static_cast<size_t>(at - bounds.begin())]->plan.optimizer.gpu_buckets;
  };
  return Counts{count_at(first), count_at(last) - (last == too_full ? 1 : 0)};
}

// Looks for the best count of one kind.
class BestCount {
 public:
  BestCount(const Setting& setting, const Kind& kind, CompletionEstimates& known)
      : setting_(setting), kind_(kind), known_(known) {
    grain_ = std::max<int64_t>(1, kind.most / kGrains);
    // Beside weights that only add to a step nothing but the most buckets gains.
    const Plan& plan = kind.any.plan;
    const bool flows = plan.weights.flow_share.value_or(0) > 0;
    if (flows && plan.accumulation() >= kFlowOnlyAdds) most_timed_ = 1;
  }

  // Of those that were not timed yet, one that takes less than `limit`, which others take.
  std::optional<TimedPlan> run(std::optional<Duration> limit) {
    limit_ = limit;
    int64_t fewest = kind_.listed.front();
    int64_t most = most_that_may_fit();
    if (most < fewest) return std::nullopt;
    if (limit) {
      const std::optional<Counts> may_win =
          that_may_win(setting_, kind_.any, {fewest, most}, *limit);
      if (!may_win || may_win->most < may_win->fewest) return std::nullopt;
      fewest = may_win->fewest;
      most = may_win->most;
    }
    if (!gaining_between(fewest, most)) return std::nullopt;
    int64_t last = std::clamp(most_timed_and_fitting().value_or(fewest - 1), fewest - 1, most);
    most = most_promising(last, most);
    if (last < most && gaining_between(last + 1, most)) {
      const std::optional<int64_t> fits = most_that_fit(fewest, most);
      if (!fits) return std::nullopt;
      last = *fits;
      if (!was_timed(last) && !time(last)) return std::nullopt;
    }
    for (int asked = timed_; asked < most_timed_ && !is_far_slower_; ++asked) {
      const std::optional<int64_t> next = gaining_between(fewest, last);
      if (!next) break;
      // What is too much for the CPU's memory needs more buckets on the GPU.
      if (!time(*next)) fewest = *next + 1;
    }
    return std::move(best_);
  }

  // How much of the patience a kind takes that was no faster; nothing where it does not fit.
  double cost() const { return is_far_slower_ ? 0.5 : timed_ > 0 ? 1 : 0; }

 private:
  Completion completion(int64_t buckets) const { return with_buckets(kind_.any, buckets); }

  bool was_timed(int64_t buckets) const { return known_.promises().was_timed(completion(buckets)); }

  // The count that promises most of those that are not timed, where it is worth a look.
  std::optional<int64_t> gaining_between(int64_t fewest, int64_t most) const {
    const std::optional<Promise> next = known_.promises().best_between(kind_.any, fewest, most);
    if (!next) return std::nullopt;
    return gains(next->at_least) ? std::optional(next->gpu_buckets) : std::nullopt;
  }

  // Of those above `timed`, up to `most`, the most that promises enough to be worth a look.
  int64_t most_promising(int64_t timed, int64_t most) const {
    while (limit_ && most > timed && !gains(known_.promises().at_least(completion(most)))) {
      most = std::max(timed, most - grain_);
    }
    return most;
  }

  bool gains(Duration at_least) const {
    return !limit_ || at_least.seconds() < (1 - kLeastGainOfCount) * limit_->seconds();
  }

  // False where it does not fit, of other memories than the GPU's.
  bool time(int64_t buckets) {
    const Completion one = completion(buckets);
    const std::optional<Duration> time = known_.step_time_if_fits(setting_, one);
    if (!time) return false;
    ++timed_;
    is_far_slower_ = timed_ == 1 && limit_ && time->seconds() > kFarSlower * limit_->seconds();
    if (limit_ && *time >= *limit_) return true;
    limit_ = time;
    best_ = TimedPlan{one.plan, *time};
    return true;
  }

  // As far as is known without a graph.
  int64_t most_that_may_fit() const {
    const auto full = std::find_if(kind_.listed.begin(), kind_.listed.end(),
                                   [&](int64_t listed) { return is_known_not_to_fit(listed); });
    return full == kind_.listed.end() ? kind_.most : *full - 1;
  }

  std::optional<int64_t> most_timed_and_fitting() const {
    for (auto listed = kind_.listed.rbegin(); listed != kind_.listed.rend(); ++listed) {
      if (was_timed(*listed) && excess(*listed).count <= 0) return *listed;
    }
    return std::nullopt;
  }

  // Where weights stay, for those that flow need no more.
  bool is_known_to_fit(int64_t buckets) const {
    Completion staying = completion(buckets);
    staying.plan.weights.flow_share = 0;
    const std::optional<Bytes> known = known_.known_gpu_excess(setting_, staying);
    return known && known->count <= 0;
  }

  bool is_known_not_to_fit(int64_t buckets) const {
    const std::optional<Bytes> known = known_.known_gpu_excess(setting_, completion(buckets));
    return known && known->count > 0;
  }

  // Bytes of the GPU beyond what is usable; negative where there is room.
  Bytes excess(int64_t buckets) const { return known_.gpu_excess(setting_, completion(buckets)); }

  // More buckets on the GPU need no less there. Of `fewest` to `most` the most that its memory
  // takes; nothing where it does not take `fewest`.
  std::optional<int64_t> most_that_fit(int64_t fewest, int64_t most) {
    const auto fits = [&](int64_t count) {
      return is_known_to_fit(count) || excess(count).count <= 0;
    };
    // Of those that may win the fewest are most likely to be too many.
    if (fewest > kind_.listed.front() && !fits(fewest)) return std::nullopt;
    std::vector<int64_t> counts = {fewest};
    for (const int64_t listed : kind_.listed) {
      if (listed > fewest && listed < most) counts.push_back(listed);
    }
    // What is known not to fit needs no graph.
    if (most > fewest) counts.push_back(is_known_not_to_fit(most + 1) ? most + 1 : most);
    const auto full = std::partition_point(counts.begin(), counts.end(), fits);
    if (full == counts.begin()) return std::nullopt;
    int64_t low = *std::prev(full);
    if (full == counts.end()) return low;
    int64_t high = *full;
    for (bool halves = false; high - low > grain_; halves = !halves) {
      const double room = -static_cast<double>(excess(low).count);
      const double beyond = static_cast<double>(excess(high).count);
      if (room * static_cast<double>(high - low) < room + beyond) break;  // for not one more
      const double share = halves ? 0.5 : room / std::max(1.0, room + beyond);
      // A little below where it would just fit: needs are not as even as counts are.
      const int64_t guess = low + static_cast<int64_t>(share * static_cast<double>(high - low));
      const int64_t between = std::clamp<int64_t>(guess, low + 1, high - 1);
      (excess(between).count <= 0 ? low : high) = between;
    }
    return low;
  }

  const Setting& setting_;
  const Kind& kind_;
  CompletionEstimates& known_;
  int64_t grain_ = 1;
  std::optional<Duration> limit_;
  std::optional<TimedPlan> best_;
  int timed_ = 0, most_timed_ = kMostTimed;
  bool is_far_slower_ = false;
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
  bool are_timed = true;
  for (const Kind& kind : kinds_of(setting, completions, known.promises())) {
    if (are_timed && !kind.best_timed) no_better = 0;
    are_timed = kind.best_timed.has_value();
    const bool may_win =
        !limit || kind.bound.at_least.seconds() < (1 - kLeastGain) * limit->seconds();
    if (no_better >= kPatience || !may_win || !known.promises().may_use_room(kind.any)) continue;
    if (interrupted && interrupted()) break;
    try {
      BestCount best_count(setting, kind, known);
      std::optional<TimedPlan> one = best_count.run(limit);
      if (one) {
        limit = one->step_time;
        fastest = std::move(one);
        no_better = 0;
      } else {
        no_better += best_count.cost();
      }
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
  return fastest;
}

}  // namespace ballast
