#include "sim/engine/sharing/sharing.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ballast {
namespace {

// A whole capacity. Shares are integers of this unit: 2^40 keeps twelve digits and leaves room for
// a flow that asks for a million times the capacity.
constexpr int64_t kFull = int64_t{1} << 40;

// Shares are rounded to a unit each, so three thirds may add up to one unit more than the whole.
constexpr int64_t kRounding = 1 << 10;

constexpr auto kLeastLeft = static_cast<int64_t>(kLeastShare * static_cast<double>(kFull));

}  // namespace

Sharing::Sharing(std::span<const Capacity> capacities, int32_t flows)
    : capacities_(capacities.size()),
      flows_(static_cast<size_t>(flows)),
      uses_(static_cast<size_t>(flows) * kUses) {
  for (size_t c = 0; c < capacities.size(); ++c) {
    CHECK(capacities[c].amount > 0);
    capacities_[c].units = static_cast<double>(kFull) / capacities[c].amount;
  }
  changed_capacities_.reserve(capacities.size());
  group_capacities_.reserve(capacities.size());
  group_flows_.reserve(flows_.size());
  changed_flows_.reserve(flows_.size());
  solver_capacities_.resize(capacities.size());
  solver_filled_.resize(capacities.size());
  solver_rates_.resize(flows_.size());
  solver_uses_.reserve(uses_.size());
}

int64_t Sharing::left(const Shared& shared) { return std::max(kFull - shared.held, kLeastLeft); }

bool Sharing::oversubscribed(const Shared& shared) const {
  return shared.load > left(shared) + kRounding;
}

void Sharing::mark(int32_t capacity) {
  Shared& shared = capacities_[static_cast<size_t>(capacity)];
  if (shared.changed) return;
  shared.changed = true;
  changed_capacities_.push_back(capacity);
}

Sharing::Share Sharing::share_of(const Demand& demand) const {
  const Shared& shared = capacities_[static_cast<size_t>(demand.capacity)];
  return {demand.capacity, demand.held, std::llround(demand.amount * shared.units)};
}

void Sharing::begin(int32_t flow, std::span<const Demand> demands) {
  CHECK(demands.size() <= kUses);
  std::array<Share, kUses> shares;
  size_t count = 0;
  for (const Demand& demand : demands) {
    const Share share = share_of(demand);
    if (share.units > 0) shares[count++] = share;
  }
  begin(flow, std::span<const Share>(shares).first(count));
}

void Sharing::begin(int32_t flow, std::span<const Share> shares) {
  Flow& started = flows_[static_cast<size_t>(flow)];
  CHECK(started.uses == 0 && shares.size() <= kUses);
  started.rate = 1;
  for (const Share& part : shares) {
    Shared& shared = capacities_[static_cast<size_t>(part.capacity)];
    const int32_t id = flow * kUses + started.uses++;
    if (part.held) {
      uses_[static_cast<size_t>(id)] = {part.capacity, -1, -1, part.units, true};
      shared.held += part.units;
      if (oversubscribed(shared)) mark(part.capacity);
      continue;
    }
    uses_[static_cast<size_t>(id)] = {part.capacity, shared.users, -1, part.units};
    if (shared.users >= 0) uses_[static_cast<size_t>(shared.users)].previous = id;
    shared.users = id;
    shared.load += part.units;
    if (oversubscribed(shared)) mark(part.capacity);
  }
}

void Sharing::end(int32_t flow) {
  Flow& ended = flows_[static_cast<size_t>(flow)];
  for (int32_t i = 0; i < ended.uses; ++i) {
    const Use& use = uses_[static_cast<size_t>(flow * kUses + i)];
    Shared& shared = capacities_[static_cast<size_t>(use.capacity)];
    if (oversubscribed(shared)) mark(use.capacity);
    if (use.held) {
      shared.held -= use.share;
      continue;
    }
    shared.load -= use.share;
    if (use.next >= 0) uses_[static_cast<size_t>(use.next)].previous = use.previous;
    if (use.previous >= 0) {
      uses_[static_cast<size_t>(use.previous)].next = use.next;
    } else {
      shared.users = use.next;
    }
  }
  ended.uses = 0;
}

std::span<const int32_t> Sharing::settle() {
  changed_flows_.clear();
  if (changed_capacities_.empty()) return {};
  collect();
  solve();
  return changed_flows_;
}

void Sharing::describe(std::vector<int64_t>& state) const {
  for (size_t f = 0; f < flows_.size(); ++f) {
    if (flows_[f].uses > 0) state.push_back(static_cast<int64_t>(f));
    for (int32_t i = 0; i < flows_[f].uses; ++i) {
      const Use& use = uses_[f * kUses + static_cast<size_t>(i)];
      state.insert(state.end(), {use.capacity, use.next, use.share, use.held ? 1 : 0});
    }
  }
}

// Gathers the flows on the changed capacities, and whatever hangs together with them.
void Sharing::collect() {
  ++round_;
  group_capacities_.clear();
  group_flows_.clear();
  for (int32_t capacity : changed_capacities_) {
    Shared& shared = capacities_[static_cast<size_t>(capacity)];
    shared.changed = false;
    shared.visited = round_;
    group_capacities_.push_back(capacity);
  }
  changed_capacities_.clear();
  for (size_t next = 0; next < group_capacities_.size(); ++next) {
    const Shared& shared = capacities_[static_cast<size_t>(group_capacities_[next])];
    for (int32_t id = shared.users; id >= 0; id = uses_[static_cast<size_t>(id)].next) {
      const int32_t index = id / kUses;
      Flow& flow = flows_[static_cast<size_t>(index)];
      if (flow.visited == round_) continue;
      flow.visited = round_;
      flow.local = static_cast<int32_t>(group_flows_.size());
      group_flows_.push_back(index);
      for (int32_t i = 0; i < flow.uses; ++i) {
        const int32_t other = uses_[static_cast<size_t>(index * kUses + i)].capacity;
        Shared& reached = capacities_[static_cast<size_t>(other)];
        if (reached.visited == round_ || !oversubscribed(reached)) continue;
        reached.visited = round_;
        group_capacities_.push_back(other);
      }
    }
  }
}

void Sharing::solve() {
  solver_uses_.clear();
  int32_t local = 0;
  for (int32_t capacity : group_capacities_) {
    const Shared& shared = capacities_[static_cast<size_t>(capacity)];
    if (!oversubscribed(shared)) continue;
    for (int32_t id = shared.users; id >= 0; id = uses_[static_cast<size_t>(id)].next) {
      const Use& use = uses_[static_cast<size_t>(id)];
      const int32_t flow = flows_[static_cast<size_t>(id / kUses)].local;
      solver_uses_.push_back({flow, local, static_cast<double>(use.share)});
    }
    solver_capacities_[static_cast<size_t>(local)] = static_cast<double>(left(shared));
    ++local;
  }
  const std::span<double> rates = std::span(solver_rates_).first(group_flows_.size());
  fair_share(std::span(solver_capacities_).first(static_cast<size_t>(local)), solver_uses_, rates,
             solver_filled_);
  for (size_t i = 0; i < group_flows_.size(); ++i) {
    Flow& flow = flows_[static_cast<size_t>(group_flows_[i])];
    if (flow.rate == rates[i]) continue;
    flow.rate = rates[i];
    changed_flows_.push_back(group_flows_[i]);
  }
}

}  // namespace ballast
