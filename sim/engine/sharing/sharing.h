// Which operations run at the moment, what they take of the shared capacities, and at what rate
// each of them runs: the book-keeping around fair_share.
//
// Only a capacity that is oversubscribed at full speed can slow anyone. So after a change only the
// flows are solved again that hang together through oversubscribed capacities that the change
// touched; where there are none, every flow runs at rate 1 and nothing is solved.
// Will not do: know time or work. Allocates nothing after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/engine/sharing/fair_share.h"
#include "sim/graph/core/op_cost.h"

namespace ballast {

class Sharing {
 public:
  // At most `flows` flows at a time, numbered from 0. Requires capacities above 0.
  Sharing(std::span<const Capacity> capacities, int32_t flows);

  // A demand in the unit in which this object counts; one of no units is to be left out.
  struct Share {
    int32_t capacity = -1;
    bool held = false;
    int64_t units = 0;
  };
  Share share_of(const Demand& demand) const;

  // A flow starts, at rate 1 until settle() says otherwise; it must not be running. Demands: at
  // most kUses, as shares too.
  void begin(int32_t flow, std::span<const Demand> demands);
  void begin(int32_t flow, std::span<const Share> shares);
  void end(int32_t flow);

  // Takes in all begins and ends since the last call; returns the flows whose rate is now another.
  // The view is good until the next call of any member.
  std::span<const int32_t> settle();

  // Appends all that rates to come depend on beside the capacities: who uses what, in what order.
  // To be asked after settle().
  void describe(std::vector<int64_t>& state) const;

  double rate(int32_t flow) const { return flows_[static_cast<size_t>(flow)].rate; }

 private:
  // One flow's use of one capacity, in the list of that capacity's users.
  struct Use {
    int32_t capacity = -1;
    int32_t next = -1;
    int32_t previous = -1;
    int64_t share = 0;  // of the capacity, in units of 1 / kFull
    bool held = false;  // then it is in no list
  };
  static constexpr int32_t kUses = 7;  // as many as OpCost::demands

  struct Flow {
    double rate = 1;
    int32_t uses = 0;
    int32_t visited = 0;  // the last settle() that saw it
    int32_t local = 0;    // its number there
  };

  struct Shared {
    double units = 0;    // kFull / amount
    int64_t load = 0;    // sum of shares; integers, so that adding and removing leaves no rest
    int64_t held = 0;    // sum of those that are held; what is left is for the others
    int32_t users = -1;  // first Use of the list
    int32_t visited = 0;
    bool changed = false;
  };

  static int64_t left(const Shared& shared);
  bool oversubscribed(const Shared& shared) const;
  void mark(int32_t capacity);
  void collect();
  void solve();

  std::vector<Shared> capacities_;
  std::vector<Flow> flows_;
  std::vector<Use> uses_;  // kUses a flow
  int32_t round_ = 0;

  // Working space of settle().
  std::vector<int32_t> changed_capacities_;
  std::vector<int32_t> group_capacities_;
  std::vector<int32_t> group_flows_;
  std::vector<int32_t> changed_flows_;
  std::vector<double> solver_capacities_;
  std::vector<double> solver_filled_;
  std::vector<double> solver_rates_;
  std::vector<FlowUse> solver_uses_;
};

}  // namespace ballast
