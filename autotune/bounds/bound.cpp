#include "autotune/bounds/bound.h"

#include <algorithm>

#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

std::array<int16_t, 2> compute_key(const Choice& c) { return {c.micro_batch, c.activations}; }
std::array<int16_t, 5> optimizer_key(const Choice& c) {
  return {c.bucket, c.gpu_buckets, c.cast, c.sync, c.flow_share};
}

CategoryBytes added(const CategoryBytes& a, const CategoryBytes& b) {
  CategoryBytes sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

}  // namespace

Duration lowered(int64_t ps) {
  return {static_cast<int64_t>(static_cast<double>(ps) * (1 - kBoundSlack))};
}

Bounds::Bounds(const Model& model, const Plan& base, const Space& space, const CostModel& costs)
    : model_(model),
      base_(base),
      space_(space),
      costs_(costs),
      profiler_(model, plan_of(space, base, Choice{}), costs) {
  for (const BucketChoice& bucket : space.buckets) {
    buckets_.emplace_back(profiler_.modules(), base, space, bucket, costs);
  }
}

PlacePeak Bounds::quick_memory(const Choice& choice) const {
  const BucketBound& bucket = buckets_[static_cast<size_t>(choice.bucket)];
  CategoryBytes bytes =
      forward_backward(choice).with_gradients.peak[static_cast<size_t>(Place::kHbm)];
  bytes[static_cast<size_t>(Category::kWeights)] +=
      bucket.gpu_state(choice.gpu_buckets, choice.flow_share);
  return peak_of(Place::kHbm, bytes);
}

void Bounds::open(const std::vector<Choice>& cells, Tasks& tasks) {
  for (Choice cell : cells) {
    cell.bucket = cell.gpu_buckets = cell.cast = cell.sync = cell.flow_share = 0;
    const auto [found, is_new] = compute_.try_emplace(compute_key(cell));
    if (is_new) tasks.push_back([this, cell, &half = found->second] { profile(cell, half); });
  }
}

void Bounds::profile(const Choice& cell, Half& half) const {
  const bool may_flow = space_.flow_share.back() > 0;
  const std::vector<FetchProfile> none;
  half.profile = forward_backward_profile(model_, plan_of(space_, base_, cell), costs_,
                                          may_flow ? space_.cast : std::vector<CastPlacement>{});
  for (size_t cast = 0; cast < space_.cast.size(); ++cast) {
    half.steps.emplace_back();
    half.flows.emplace_back();
    for (const BucketBound& bucket : buckets_) {
      half.steps.back().push_back(bucket.steps(half.profile, space_.cast[cast]));
      half.flows.back().push_back(
          bucket.flows(half.profile, may_flow ? half.profile.fetch[cast] : none));
    }
  }
}

void Bounds::refine(const std::vector<Choice>& choices, Tasks& tasks) {
  for (const Choice& choice : choices) {
    const auto [found, is_new] = optimizer_.try_emplace(optimizer_key(choice));
    if (!is_new) continue;
    tasks.push_back([this, choice, &profile = found->second] {
      profile = profiler_.profile(plan_of(space_, base_, choice));
    });
  }
}

const std::vector<FetchProfile>& Bounds::fetch(const Choice& choice) const {
  static const std::vector<FetchProfile> none;
  const auto& by_cast = forward_backward(choice).fetch;
  return by_cast.empty() ? none : by_cast[static_cast<size_t>(choice.cast)];
}

const ForwardBackwardProfile& Bounds::forward_backward(const Choice& choice) const {
  return compute_.at(compute_key(choice)).profile;
}

const OptimizerProfile& Bounds::optimizer(const Choice& choice) const {
  return optimizer_.at(optimizer_key(choice));
}

Workload Bounds::work(const Choice& choice) const {
  const ForwardBackwardProfile& compute = forward_backward(choice);
  const OptimizerProfile& steps = optimizer(choice);
  Workload work = compute.work;
  work.add(steps.work, 1);
  const std::vector<FetchProfile>& by_module = fetch(choice);
  for (size_t m = 0; m < by_module.size(); ++m) {
    if (steps.flowing[m] && by_module[m].visits > 0) {
      work.add(by_module[m].one, static_cast<double>(by_module[m].visits));
    }
  }
  return work;
}

Duration Bounds::quick(const Choice& choice) const {
  const Half& half = compute_.at(compute_key(choice));
  const auto cast = static_cast<size_t>(choice.cast);
  const auto bucket = static_cast<size_t>(choice.bucket);
  const auto on_gpu = static_cast<size_t>(choice.gpu_buckets);
  const auto share = static_cast<size_t>(choice.flow_share);
  const int64_t steps = half.steps[cast][bucket][static_cast<size_t>(choice.sync)][on_gpu]
                                  [space_.flow_share[share] > 0 ? 1 : 0];
  return lowered(std::max(steps, half.flows[cast][bucket][on_gpu][share]));
}

Duration Bounds::step_time(const Choice& choice) const {
  const int64_t most = std::max(work(choice).busiest_ps(), cycles(choice));
  return std::max(quick(choice), lowered(most));
}

// The longest path from the compute lane's positions through the optimizer's operations, which
// each wait for their lane and for what they read; then around to the next step. Positions are
// counted from the step's first operation on the compute lane; a value of a step before is "long
// ago" and constrains nothing.
int64_t Bounds::cycles(const Choice& choice) const {
  const ForwardBackwardProfile& compute = forward_backward(choice);
  const OptimizerProfile& optimizer = this->optimizer(choice);
  const std::vector<FetchProfile>& by_module = fetch(choice);
  const size_t modules = optimizer.flowing.size();
  std::vector<int64_t> value(static_cast<size_t>(optimizer.values), kLongAgo);
  std::copy(compute.gradient_ready_ps.begin(), compute.gradient_ready_ps.end(), value.begin());
  std::array<int64_t, kLaneKinds> lane{};
  lane.fill(kLongAgo);
  int64_t& compute_end = lane[static_cast<size_t>(LaneKind::kCompute)];
  compute_end = compute.work.lane[static_cast<size_t>(LaneKind::kCompute)];
  auto access = optimizer.accesses.begin();
  for (const int32_t index : optimizer.chain) {
    const ChainOp& op = optimizer.distinct[static_cast<size_t>(index)];
    const bool inside = op.lane == LaneKind::kCompute && !op.at_end;
    int64_t& free = lane[static_cast<size_t>(op.lane)];
    int64_t start = inside ? kLongAgo : free;
    for (const auto end_of_reads = access + op.reads; access != end_of_reads; ++access) {
      start = std::max(start, value[static_cast<size_t>(*access)]);
    }
    const int64_t end = start + op.ps;
    // What the GPU steps between backward operations lengthens the lane, wherever it lies.
    free = inside ? free + op.ps : end;
    for (const auto end_of_writes = access + op.writes; access != end_of_writes; ++access) {
      value[static_cast<size_t>(*access)] = end;
    }
  }
  int64_t longest = compute_end;
  for (size_t m = 0; m < modules; ++m) {
    if (compute.first_use_ps[m] < 0 || optimizer.flowing[m]) continue;
    longest = std::max(longest, value[modules + m] - compute.first_use_ps[m]);
  }
  for (const OptimizerProfile::Home& home : optimizer.homes) {
    const auto m = static_cast<size_t>(home.module);
    if (compute.first_use_ps[m] < 0 || by_module.empty()) continue;
    longest = std::max(longest, value[static_cast<size_t>(home.value)] + by_module[m].first_ps -
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
    peaks.push_back(peak_of(static_cast<Place>(p), most));
  }
  return peaks;
}

}  // namespace ballast
