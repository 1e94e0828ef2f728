#include "autotune/complete/estimates/completion_promises.h"

#include <algorithm>
#include <limits>

#include "autotune/bounds/convex_floor.h"

namespace ballast {
namespace {

// A step is expected to fall no more steeply than between two counts, but for little.
constexpr double kAlike = 1.25;
// Of what buckets added to the GPU's computation each more adds this share at least, but for the
// last one of all, which is not full.
constexpr double kLeastAlike = 0.9;
// Operations that share a memory or its link take longer than each alone.
constexpr double kShared = 2;
// What weights that flow were found to gain at most over the same plan with weights that stay, once
// a step: this share of a step of one micro-batch, and so many times what is done for a bucket
// beside the compute lane. Among 7,257 pairs of completions of 900 settings 12.3 %, and 5.5 times.
constexpr double kMostGainOfFlow = 0.13;
constexpr double kMostBucketsOfFlow = 6;
// With one number of buckets they gain no more than with another, but for so many times what is
// done for one, where they gain anything: 7.0 at most among 25,512 of these.
constexpr double kMostBucketsApart = 7.5;

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

// What was timed of one kind, by buckets; times in seconds.
template <class Known>
class TimedKind {
 public:
  explicit TimedKind(const std::vector<Known>& known) : known_(known) {}

  std::vector<CurvePoint> curve(double flow) const {
    std::vector<CurvePoint> points;
    for (const Known& one : known_) {
      if (one.flow == flow) points.push_back({one.buckets, one.step.time.seconds()});
    }
    return points;
  }

  // At least of the compute lane.
  double computes(int64_t buckets) const {
    double most = 0;
    for (const Known& one : known_) {
      if (one.buckets > buckets) continue;
      const double compute = one.step.compute.seconds();
      most = std::max(most, compute);
      for (const Known& fewer : known_) {
        if (fewer.buckets >= one.buckets || fewer.flow != one.flow) continue;
        const double each = (compute - fewer.step.compute.seconds()) /
                            static_cast<double>(one.buckets - fewer.buckets);
        const auto full = static_cast<double>(std::max<int64_t>(0, buckets - one.buckets - 1));
        most = std::max(most, compute + kLeastAlike * each * full);
      }
    }
    return most;
  }

  // At least of the step.
  double takes(int64_t buckets, double flow, const Completion& completion) const {
    const double alike = std::max(computes(buckets), falls_to(buckets, flow));
    if (flow == 0) return std::max(alike, moved_from(buckets));
    double stays = std::max(falls_to(buckets, 0), moved_from(buckets));
    if (const Known* const known = find(buckets, 0)) stays = known->step.time.seconds();
    return std::max(alike, with_flow(stays, completion));
  }

  // The same of all from `fewest` to `most` that were not timed; of weights that flow by those that
  // stay.
  double takes_between(int64_t fewest, int64_t most, double flow,
                       const Completion& completion) const {
    const std::vector<CurvePoint> points = curve(0);
    double stays = moved_from(most);
    if (!points.empty() && flow > 0) {
      // A curve need not go on as it was, where it is not held at its other end.
      const int64_t last = points.back().at;
      const double beyond = std::max(stays, computes(std::max(fewest, last + 1)));
      stays = most > last ? beyond : points.back().value;
      if (const auto lowest = lowest_of_convex(points, fewest, std::min(most, last), kAlike)) {
        stays = std::min(stays, lowest->value);
      }
      for (const CurvePoint& point : points) {
        if (point.at >= fewest && point.at <= most) stays = std::min(stays, point.value);
      }
    }
    return std::max(computes(fewest), flow == 0 ? stays : with_flow(stays, completion));
  }

 private:
  const Known* find(int64_t buckets, double flow) const {
    const auto found = std::find_if(known_.begin(), known_.end(), [&](const Known& one) {
      return one.flow == flow && one.buckets == buckets;
    });
    return found == known_.end() ? nullptr : &*found;
  }

  // Of weights that stay, by those of which the CPU steps more buckets: of those that flow fewer do
  // with every bucket that the GPU steps.
  double moved_from(int64_t buckets) const {
    double least = 0;
    for (const Known& one : known_) {
      if (one.flow > 0 || one.buckets >= buckets || one.step.bucket.ps == 0) continue;
      const auto moved = static_cast<double>(buckets - one.buckets);
      least =
          std::max(least, one.step.time.seconds() - kShared * moved * one.step.bucket.seconds());
    }
    return least;
  }

  // By two with more buckets and as much flow, of which the one with fewer takes longer: a step
  // falls as the GPU takes buckets over, until it computes for as long as it takes.
  double falls_to(int64_t buckets, double flow) const {
    double least = 0, lowest = std::numeric_limits<double>::infinity();
    for (auto one = known_.rbegin(); one != known_.rend() && one->buckets > buckets; ++one) {
      if (one->flow != flow) continue;
      const double time = one->step.time.seconds();
      if (time > lowest) least = std::max(least, time);
      lowest = std::min(lowest, time);
    }
    return least;
  }

  // Of weights that flow, by a step of those that stay which takes `stays`, or more.
  double with_flow(double stays, const Completion& completion) const {
    double bucket = 0;
    for (const Known& one : known_) bucket = std::max(bucket, one.step.bucket.seconds());
    const double share = kMostGainOfFlow / static_cast<double>(completion.plan.accumulation());
    double gain = share * stays;
    if (bucket > 0) gain = std::min(gain, most_buckets_gained(bucket) * bucket);
    return stays - gain;
  }

  double most_buckets_gained(double bucket) const {
    double most = kMostBucketsOfFlow;
    for (const Known& one : known_) {
      const Known* const stays = one.flow > 0 ? find(one.buckets, 0) : nullptr;
      if (stays == nullptr) continue;
      const double gained = (stays->step.time.seconds() - one.step.time.seconds()) / bucket;
      most = std::min(most, std::max(0.0, gained + kMostBucketsApart));
    }
    return most;
  }

  const std::vector<Known>& known_;
};

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

bool CompletionPromises::may_use_room(const Completion& completion) const {
  if (!completion.plan.activations) return true;
  Completion staying = completion;
  for (ActivationFate& fate : staying.plan.activations->fate) {
    if (fate == ActivationFate::kOffload) fate = ActivationFate::kKeep;
  }
  if (staying == completion) return true;
  const std::lock_guard lock(mutex_);
  const std::vector<CurvePoint> points = TimedKind(known_of(staying)).curve(0);
  return std::none_of(points.begin(), points.end(),
                      [&](const CurvePoint& one) { return one.value < points.back().value; });
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
  const std::lock_guard lock(mutex_);
  const TimedKind kind(known_of(completion));
  return Duration::from_seconds(
      kind.takes(buckets_of(completion), flow_of(completion), completion));
}

std::optional<Promise> CompletionPromises::best_between(const Completion& completion,
                                                        int64_t fewest, int64_t most) const {
  const double flow = flow_of(completion);
  const std::lock_guard lock(mutex_);
  const TimedKind kind(known_of(completion));
  const std::vector<CurvePoint> points = kind.curve(flow);
  const std::optional<CurvePoint> lowest = lowest_of_convex(points, fewest, most, kAlike);
  if (!lowest) return std::nullopt;
  const bool is_beyond = points.empty() || lowest->at > points.back().at;
  double least = is_beyond ? 0 : std::max(kind.computes(fewest), lowest->value);
  if (is_beyond || flow > 0) {
    least = std::max(least, kind.takes_between(fewest, most, flow, completion));
  }
  return Promise{lowest->at, Duration::from_seconds(least)};
}

}  // namespace ballast
