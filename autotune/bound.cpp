#include "autotune/bound.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

#include "autotune/parallel.h"

namespace ballast {
namespace {

// Long before any step, and far enough from the least number to add durations to.
constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;

std::array<int16_t, 3> compute_key(const Choice& c) {
  return {c.micro_batch, c.activations, c.cast};
}
std::array<int16_t, 5> optimizer_key(const Choice& c) {
  return {c.bucket, c.gpu_buckets, c.cast, c.sync, c.flow_share};
}

// One choice for every key among all of them, and the index of each key.
template <class Key, class KeyOf>
std::vector<Choice> representatives(const std::vector<Choice>& choices, const KeyOf& key_of,
                                    std::map<Key, size_t>& index) {
  std::vector<Choice> result;
  for (const Choice& choice : choices) {
    if (index.emplace(key_of(choice), result.size()).second) result.push_back(choice);
  }
  return result;
}

Duration lowered(int64_t ps) {
  return {static_cast<int64_t>(static_cast<double>(ps) * (1 - kBoundSlack))};
}

CategoryBytes added(const CategoryBytes& a, const CategoryBytes& b) {
  CategoryBytes sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

}  // namespace

WorkBound work_bound(const Workload& work, const std::vector<Capacity>& capacities) {
  WorkBound bound;
  const auto offer = [&](Duration time, const std::string& resource) {
    if (time > bound.time) bound = {time, resource};
  };
  for (size_t i = 0; i < work.lane.size(); ++i) {
    offer({work.lane[i]}, fmt::format("lane {}", to_string(static_cast<LaneKind>(i))));
  }
  for (size_t i = 0; i < capacities.size() && i < work.capacity.size(); ++i) {
    offer(Duration::from_seconds(work.capacity[i]), "capacity " + capacities[i].name);
  }
  return bound;
}

Bounds::Bounds(const Model& model, const Plan& base, const Space& space, const CostModel& costs,
               int threads)
    : space_(space) {
  const std::vector<Choice> choices = choices_of(space, base);
  const std::vector<Choice> computes = representatives(choices, compute_key, compute_index_);
  const std::vector<Choice> optimizers = representatives(choices, optimizer_key, optimizer_index_);
  const bool may_flow = space.flow_share.back() > 0;
  compute_.resize(computes.size());
  parallel_for(computes.size(), threads, [&](size_t i) {
    compute_[i] =
        forward_backward_profile(model, plan_of(space, base, computes[i]), costs, may_flow);
  });
  const OptimizerProfiler profiler(model, plan_of(space, base, choices.front()), costs);
  optimizer_.resize(optimizers.size());
  parallel_for(optimizers.size(), threads, [&](size_t i) {
    optimizer_[i] = profiler.profile(plan_of(space, base, optimizers[i]));
  });
}

const ForwardBackwardProfile& Bounds::forward_backward(const Choice& choice) const {
  return compute_[compute_index_.at(compute_key(choice))];
}

const OptimizerProfile& Bounds::optimizer(const Choice& choice) const {
  return optimizer_[optimizer_index_.at(optimizer_key(choice))];
}

Workload Bounds::work(const Choice& choice) const {
  const ForwardBackwardProfile& compute = forward_backward(choice);
  const OptimizerProfile& steps = optimizer(choice);
  Workload work = compute.work;
  work.add(steps.work, 1);
  for (size_t m = 0; m < compute.fetch.size(); ++m) {
    const FetchProfile& fetch = compute.fetch[m];
    if (steps.flowing[m] && fetch.visits > 0) {
      work.add(fetch.one, static_cast<double>(fetch.visits));
    }
  }
  return work;
}

Duration Bounds::quick(const Choice& choice) const {
  const Workload all = work(choice);
  int64_t most = *std::max_element(all.lane.begin(), all.lane.end());
  const double capacity = *std::max_element(all.capacity.begin(), all.capacity.end());
  most = std::max(most, Duration::from_seconds(capacity).ps);
  return lowered(most);
}

Duration Bounds::step_time(const Choice& choice) const {
  return std::max(quick(choice), lowered(cycles(forward_backward(choice), optimizer(choice))));
}

// The longest path from the compute lane's positions through the optimizer's operations, which
// each wait for their lane and for what they read; then around to the next step. Positions are
// counted from the step's first operation on the compute lane; a value of a step before is "long
// ago" and constrains nothing.
int64_t Bounds::cycles(const ForwardBackwardProfile& compute,
                       const OptimizerProfile& optimizer) const {
  const size_t modules = optimizer.flowing.size();
  std::vector<int64_t> value(static_cast<size_t>(optimizer.values), kLongAgo);
  std::copy(compute.gradient_ready_ps.begin(), compute.gradient_ready_ps.end(), value.begin());
  std::array<int64_t, kLaneKinds> lane{};
  lane.fill(kLongAgo);
  int64_t& compute_end = lane[static_cast<size_t>(LaneKind::kCompute)];
  compute_end = compute.work.lane[static_cast<size_t>(LaneKind::kCompute)];
  for (const ChainOp& op : optimizer.chain) {
    const bool inside = op.lane == LaneKind::kCompute && !op.at_end;
    int64_t& free = lane[static_cast<size_t>(op.lane)];
    int64_t start = inside ? kLongAgo : free;
    for (auto r = op.reads_begin; r < op.writes_begin; ++r) {
      const auto read = static_cast<size_t>(optimizer.accesses[static_cast<size_t>(r)]);
      start = std::max(start, value[read]);
    }
    const int64_t end = start + op.ps;
    // What the GPU steps between backward operations lengthens the lane, wherever it lies.
    free = inside ? free + op.ps : end;
    for (auto w = op.writes_begin; w < op.writes_end; ++w) {
      value[static_cast<size_t>(optimizer.accesses[static_cast<size_t>(w)])] = end;
    }
  }
  int64_t longest = compute_end;
  for (size_t m = 0; m < modules; ++m) {
    if (compute.first_use_ps[m] < 0 || optimizer.flowing[m]) continue;
    longest = std::max(longest, value[modules + m] - compute.first_use_ps[m]);
  }
  for (const OptimizerProfile::Home& home : optimizer.homes) {
    const auto m = static_cast<size_t>(home.module);
    if (compute.first_use_ps[m] < 0 || compute.fetch.empty()) continue;
    longest = std::max(longest, value[static_cast<size_t>(home.value)] + compute.fetch[m].first_ps -
                                    compute.first_use_ps[m]);
  }
  for (const int32_t read : optimizer.commit_reads) {
    longest = std::max(longest, value[static_cast<size_t>(read)] - compute.first_backward_ps);
  }
  return longest;
}

std::array<Bytes, kPlaces> Bounds::least_memory(const Choice& choice) const {
  const ForwardBackwardProfile& compute = forward_backward(choice);
  const OptimizerProfile& steps = optimizer(choice);
  std::array<Bytes, kPlaces> least{};
  for (size_t p = 0; p < kPlaces; ++p) {
    const Bytes carried = sum_of(steps.carried[p]);
    least[p] =
        std::max({carried + sum_of(compute.with_gradients.peak[p]),
                  carried + steps.carried_gradients[p] + sum_of(compute.without_gradients.peak[p]),
                  sum_of(steps.peak.peak[p])});
  }
  return least;
}

std::vector<PlacePeak> Bounds::memory(const Choice& choice) const {
  const ForwardBackwardProfile& compute = forward_backward(choice);
  const OptimizerProfile& steps = optimizer(choice);
  std::vector<PlacePeak> peaks;
  for (size_t p = 0; p < kPlaces; ++p) {
    CategoryBytes resident = steps.carried[p];
    resident[static_cast<size_t>(Category::kGradients)] += steps.carried_gradients[p];
    CategoryBytes most = added(steps.carried[p], compute.with_gradients.peak[p]);
    for (const CategoryBytes& other :
         {added(resident, compute.without_gradients.peak[p]), steps.peak.peak[p]}) {
      if (sum_of(other) > sum_of(most)) most = other;
    }
    PlacePeak peak;
    peak.place = static_cast<Place>(p);
    peak.arena = peak.live = sum_of(most);
    for (size_t c = 0; c < most.size(); ++c) {
      if (most[c].count > 0) peak.holders.push_back({static_cast<Category>(c), most[c]});
    }
    std::stable_sort(peak.holders.begin(), peak.holders.end(),
                     [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
    peaks.push_back(std::move(peak));
  }
  return peaks;
}

}  // namespace ballast
