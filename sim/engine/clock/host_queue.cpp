#include "sim/engine/clock/host_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

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
                     const CostTable& costs, int32_t steps) {
  if (!takes_host_time(costs)) return;
  hosts_.resize(static_cast<size_t>(div_ceil(lanes, kLaneKinds)));
  std::vector<Duration> before(hosts_.size());
  const auto wait = [&](size_t device, int32_t place) {
    Host& host = hosts_[device];
    host.waits.push_back(place);
    host.between.push_back(before[device]);
    before[device] = {};
  };
  places_.resize(program.ops.size());
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const OpCost& cost = costs.ops[i];
    Place& place = places_[static_cast<size_t>(place_of[i])];
    place.device = device_of(program.ops[i].lane);
    const auto device = static_cast<size_t>(place.device);
    place.waits = static_cast<int32_t>(hosts_[device].waits.size());
    place.queued = cost.host.ps > 0 || cost.host_waits != HostWait::kNone;
    place.before = before[device];
    // It starts with its first kernel and does not end before its last one is enqueued.
    place.delay = std::max(cost.host_first, cost.host - cost.alone);
    before[device] += cost.host;
    if (cost.host_waits == HostWait::kOfItsDevice) wait(device, place_of[i]);
    if (cost.host_waits != HostWait::kOfEveryDevice) continue;
    std::vector<int32_t>& which = of_every_host_[place_of[i]];
    for (size_t d = 0; d < hosts_.size(); ++d) {
      which.push_back(static_cast<int32_t>(hosts_[d].waits.size()));
      wait(d, place_of[i]);
    }
  }
  for (size_t d = 0; d < hosts_.size(); ++d) {
    hosts_[d].between.push_back(before[d]);
    hosts_[d].went_on.resize(static_cast<size_t>(steps) * hosts_[d].waits.size(), kNotYet);
  }
}

Edge HostQueue::wait_before(int32_t op, int32_t step) const {
  const Place& place = places_[static_cast<size_t>(op)];
  const std::vector<int32_t>& waits = hosts_[static_cast<size_t>(place.device)].waits;
  if (place.waits > 0 && place.queued) return {waits[static_cast<size_t>(place.waits) - 1], 0};
  if (waits.empty() || step == 0 || !place.queued) return {};
  return {waits.back(), 1};
}

Instant HostQueue::start_of(const Host& host, int32_t waits, int32_t step) {
  const auto in_step = static_cast<int32_t>(host.waits.size());
  if (waits > 0) return host.went_on[static_cast<size_t>(step * in_step + waits - 1)];
  // Behind the last wait of a step the host goes on with the next one.
  const Duration tail = host.between.back();
  if (in_step == 0) return {tail.ps * step};
  if (step == 0) return {};
  return host.went_on[static_cast<size_t>(step * in_step - 1)] + tail;
}

Instant HostQueue::enqueued(int32_t op, int32_t step) const {
  const Place& place = places_[static_cast<size_t>(op)];
  if (!place.queued) return {};
  const Host& host = hosts_[static_cast<size_t>(place.device)];
  return start_of(host, place.waits, step) + place.before + place.delay;
}

void HostQueue::waited(Host& host, int32_t wait, int32_t step, Instant now) {
  const auto in_step = static_cast<int32_t>(host.waits.size());
  const Instant reached = start_of(host, wait, step) + host.between[static_cast<size_t>(wait)];
  host.went_on[static_cast<size_t>(step * in_step + wait)] = std::max(now, reached);
}

void HostQueue::waited(int32_t op, int32_t step, Instant now) {
  const auto every = of_every_host_.find(op);
  if (every == of_every_host_.end()) {
    waited(host_of(op), places_[static_cast<size_t>(op)].waits, step, now);
    return;
  }
  for (size_t device = 0; device < hosts_.size(); ++device) {
    waited(hosts_[device], every->second[device], step, now);
  }
}

void HostQueue::describe(Instant now, int32_t complete, std::vector<int64_t>& state) const {
  for (const Host& host : hosts_) {
    const auto waits = static_cast<int32_t>(host.waits.size());
    for (int32_t step = complete - 1; step <= complete + 1; ++step) {
      for (int32_t wait = 0; wait < waits; ++wait) {
        const auto at = static_cast<size_t>(step * waits + wait);
        if (step < 0 || at >= host.went_on.size()) continue;
        const Instant instant = host.went_on[at];
        state.push_back(instant == kNotYet ? kNotYet.ps : (instant - now).ps);
      }
    }
  }
}

bool HostQueue::let_repeat(Duration period) {
  bool let = true;
  for (Host& host : hosts_) {
    const bool held_up = std::exchange(host.holds_up, false);
    const Duration step = host.between.back();
    if (host.waits.empty()) let = let && (step == period || (step < period && !held_up));
  }
  return let;
}

}  // namespace ballast
