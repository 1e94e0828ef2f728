#include "autotune/complete/estimates/completion_promises.h"

#include <algorithm>

#include "autotune/bounds/convex_floor.h"

namespace ballast {
namespace {

// A step is expected to fall no more steeply than between two counts, but for little.
constexpr double kAlike = 1.25;
// Operations that share a memory or its link take longer than each alone.
constexpr double kShared = 2;
// What weights that flow were found to gain of a step of one micro-batch at most, over the same
// plan with weights that stay: they gain it once a step.
constexpr double kMostGainOfFlow = 0.13;

double most_gain_of_flow(const Completion& completion) {
  return kMostGainOfFlow / static_cast<double>(completion.plan.accumulation());
}

int64_t buckets_of(const Completion& completion) {
  return completion.plan.optimizer.gpu_buckets.value_or(0);
}
double flow_of(const Completion& completion) {
  return completion.plan.weights.flow_share.value_or(0);
}

Completion kind_of_completion(Completion completion) {
  completion.plan.optimizer.gpu_buckets.reset();
  completion.plan.weights.flow_share.reset();
  return completion;
}

// `known`: of one kind, by buckets.
template <class Known>
std::vector<CurvePoint> curve_of(const std::vector<Known>& known, double flow) {
  std::vector<CurvePoint> points;
  for (const Known& one : known) {
    if (one.flow == flow) points.push_back({one.buckets, one.step.time.seconds()});
  }
  return points;
}

// Seconds, from here on.
template <class Known>
double compute_of(const std::vector<Known>& known, int64_t buckets) {
  double most = 0;
  for (const Known& one : known) {
    if (one.buckets <= buckets) most = std::max(most, one.step.compute.seconds());
  }
  return most;
}

// Of weights that stay, by those of which the CPU steps more buckets: of those that flow fewer do
// with every bucket that the GPU steps.
template <class Known>
double least_of_staying(const std::vector<Known>& known, int64_t buckets) {
  double least = 0;
  for (const Known& one : known) {
    if (one.flow > 0 || one.buckets >= buckets || one.step.bucket.ps == 0) continue;
    const auto moved = static_cast<double>(buckets - one.buckets);
    least = std::max(least, one.step.time.seconds() - kShared * moved * one.step.bucket.seconds());
  }
  return least;
}

// Of the same buckets and weights that stay.
template <class Known>
double time_of_staying(const std::vector<Known>& known, int64_t buckets) {
  for (const Known& one : known) {
    if (one.flow == 0 && one.buckets == buckets) return one.step.time.seconds();
  }
  return 0;
}

}  // namespace

size_t CompletionPromises::find(const Completion& any) const {
  const auto found =
      std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) { return kind.any == any; });
  return static_cast<size_t>(found - kinds_.begin());
}

const std::vector<CompletionPromises::Known>& CompletionPromises::known_of(
    const Completion& completion) const {
  static const std::vector<Known> nothing;
  const size_t kind = find(kind_of_completion(completion));
  return kind == kinds_.size() ? nothing : kinds_[kind].known;
}

void CompletionPromises::learn(const Completion& completion, const TimedStep& step) {
  Completion any = kind_of_completion(completion);
  const std::lock_guard lock(mutex_);
  const size_t kind = find(any);
  if (kind == kinds_.size()) kinds_.push_back({std::move(any), {}});
  std::vector<Known>& known = kinds_[kind].known;
  const Known one{buckets_of(completion), flow_of(completion), step};
  const auto later =
      std::upper_bound(known.begin(), known.end(), one.buckets,
                       [](int64_t buckets, const Known& other) { return buckets < other.buckets; });
  known.insert(later, one);
}

bool CompletionPromises::was_timed(const Completion& completion) const {
  const std::lock_guard lock(mutex_);
  const std::vector<Known>& known = known_of(completion);
  return std::any_of(known.begin(), known.end(), [&](const Known& one) {
    return one.buckets == buckets_of(completion) && one.flow == flow_of(completion);
  });
}

std::optional<Duration> CompletionPromises::best_timed(const Completion& completion) const {
  const std::lock_guard lock(mutex_);
  std::optional<Duration> best;
  for (const Known& one : known_of(completion)) {
    if (one.flow != flow_of(completion) || (best && one.step.time >= *best)) continue;
    best = one.step.time;
  }
  return best;
}

Duration CompletionPromises::at_least(const Completion& completion) const {
  const int64_t buckets = buckets_of(completion);
  const double flow = flow_of(completion);
  const std::lock_guard lock(mutex_);
  const std::vector<Known>& known = known_of(completion);
  double least = compute_of(known, buckets);
  if (flow == 0) {
    least = std::max(least, least_of_staying(known, buckets));
  } else {
    const double stays = time_of_staying(known, buckets);
    least = std::max(least, (1 - most_gain_of_flow(completion)) * stays);
  }
  return Duration::from_seconds(least);
}

std::optional<Promise> CompletionPromises::best_between(const Completion& completion,
                                                        int64_t fewest, int64_t most) const {
  const double flow = flow_of(completion);
  const std::lock_guard lock(mutex_);
  const std::vector<Known>& known = known_of(completion);
  const std::vector<CurvePoint> points = curve_of(known, flow);
  const std::optional<CurvePoint> lowest = lowest_of_convex(points, fewest, most, kAlike);
  if (!lowest) return std::nullopt;
  const bool is_beyond = points.empty() || lowest->at > points.back().at;
  double least = compute_of(known, fewest);
  // A curve need not go on as it was, where it is not held at its other end.
  const double stays = least_of_staying(known, most);
  if (!is_beyond) {
    least = std::max(least, lowest->value);
  } else if (flow == 0) {
    least = std::max(least, stays);
  } else {
    least = std::max(least, (1 - most_gain_of_flow(completion)) * stays);
  }
  return Promise{lowest->at, Duration::from_seconds(least)};
}

}  // namespace ballast
