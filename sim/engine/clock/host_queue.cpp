#include "sim/engine/clock/host_queue.h"

#include <algorithm>
#include <limits>

namespace ballast {
namespace {

// A wait that is not over; nobody asks when the host went on.
constexpr Instant kNotYet{std::numeric_limits<int64_t>::min()};

bool takes_host_time(const CostTable& costs) {
  const std::vector<OpCost>& kinds = costs.ops.kinds();
  return std::any_of(kinds.begin(), kinds.end(),
                     [](const OpCost& cost) { return cost.host.ps > 0; });
}

}  // namespace

HostQueue::HostQueue(const Program& program, std::span<const int32_t> place_of, int32_t lanes,
                     const CostTable& costs, int32_t steps)
    : devices_(static_cast<int32_t>(div_ceil(lanes, kLaneKinds))) {
  if (!takes_host_time(costs)) return;
  std::vector<Duration> before(static_cast<size_t>(devices_));
  const auto close = [&] {
    between_.insert(between_.end(), before.begin(), before.end());
    std::fill(before.begin(), before.end(), Duration{});
  };
  places_.resize(program.ops.size());
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const OpCost& cost = costs.ops[i];
    Place& place = places_[static_cast<size_t>(place_of[i])];
    place.waits = static_cast<int32_t>(waits_.size());
    place.device = device_of(program.ops[i].lane);
    Duration& sum = before[static_cast<size_t>(place.device)];
    place.queued = cost.host.ps > 0 || cost.host_waits;
    place.before = sum;
    // It starts with its first kernel and does not end before its last one is enqueued.
    place.delay = std::max(cost.host_first, cost.host - cost.alone);
    sum += cost.host;
    if (!cost.host_waits) continue;
    waits_.push_back(place_of[i]);
    close();
  }
  close();
  went_on_.resize(static_cast<size_t>(steps) * waits_.size() * static_cast<size_t>(devices_),
                  kNotYet);
}

size_t HostQueue::index(int32_t step, int32_t wait, int32_t device) const {
  const auto waits = static_cast<size_t>(waits_.size());
  return (static_cast<size_t>(step) * waits + static_cast<size_t>(wait)) *
             static_cast<size_t>(devices_) +
         static_cast<size_t>(device);
}

Edge HostQueue::wait_before(int32_t op, int32_t step) const {
  const Place& place = places_[static_cast<size_t>(op)];
  if (place.waits > 0 && place.queued) return {waits_[static_cast<size_t>(place.waits) - 1], 0};
  if (waits_.empty() || step == 0 || !place.queued) return {};
  return {waits_.back(), 1};
}

// Where the host stood when it began with the operations that follow the same wait in the program.
Instant HostQueue::start_of(const Place& place, int32_t step) const {
  if (place.waits > 0) return went_on_[index(step, place.waits - 1, place.device)];
  const auto device = static_cast<size_t>(place.device);
  const auto last = static_cast<int32_t>(waits_.size());
  // Behind the last wait of a step the host goes on with the next one.
  const Duration tail =
      between_[static_cast<size_t>(last) * static_cast<size_t>(devices_) + device];
  if (last == 0) return {tail.ps * step};
  if (step == 0) return {};
  return went_on_[index(step - 1, last - 1, place.device)] + tail;
}

Instant HostQueue::enqueued(int32_t op, int32_t step) const {
  const Place& place = places_[static_cast<size_t>(op)];
  if (!place.queued) return {};
  return start_of(place, step) + place.before + place.delay;
}

void HostQueue::waited(int32_t op, int32_t step, Instant now) {
  const Place& at = places_[static_cast<size_t>(op)];
  for (int32_t device = 0; device < devices_; ++device) {
    Place place = at;
    place.device = device;
    const Duration enqueued = between_[static_cast<size_t>(at.waits * devices_ + device)];
    const Instant reached = start_of(place, step) + enqueued;
    went_on_[index(step, at.waits, device)] = std::max(now, reached);
  }
}

void HostQueue::describe(Instant now, int32_t complete, std::vector<int64_t>& state) const {
  const auto waits = static_cast<int32_t>(waits_.size());
  for (int32_t device = 0; device < devices_ && !empty(); ++device) {
    if (waits == 0) {
      state.push_back((Instant{between_[static_cast<size_t>(device)].ps * complete} - now).ps);
    }
    for (int32_t step = complete - 1; step <= complete + 1; ++step) {
      for (int32_t wait = 0; wait < waits; ++wait) {
        const size_t at = index(step, wait, device);
        if (step < 0 || at >= went_on_.size()) continue;
        const Instant instant = went_on_[at];
        state.push_back(instant == kNotYet ? kNotYet.ps : (instant - now).ps);
      }
    }
  }
}

}  // namespace ballast
