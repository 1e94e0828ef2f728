// Durations of a graph's operations as plain data: what the virtual clock runs on, and what the
// paced device plays back in real time. Computed by sim/engine/cost, or by anyone else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/machine.h"

namespace ballast {

using CapacityId = int32_t;

// Something that operations running at the same time share: bytes per second of DRAM or of a link,
// CPU cores. `amount` is in units per second (cores: core-seconds per second).
struct Capacity {
  std::string name;
  double amount = 0;
  // Cores and multiprocessors: an operation takes as many of them whether it is fast or slow.
  bool is_occupied = false;
  bool operator==(const Capacity&) const = default;
};

// However much of a capacity is held, this share of it is left to the others: nobody stands still,
// and rates can be solved for.
inline constexpr double kLeastShare = 0.1;

// While it runs at full speed an operation uses `amount` units per second of the capacity.
struct Demand {
  CapacityId capacity = -1;
  double amount = 0;
  // Held for as long as it runs, at whatever rate: the others share what is left.
  bool held = false;
  bool operator==(const Demand&) const = default;
};

// Whose host enqueues nothing that follows an operation in the program before that is done.
enum class HostWait : uint8_t { kNone, kOfItsDevice, kOfEveryDevice };

struct OpCost {
  Duration alone;     // with nothing else running
  Duration handover;  // added once if it had to wait for another lane
  // Of the thread that enqueues a device's operations: for all its kernels, and for the first.
  Duration host;
  Duration host_first;
  HostWait host_waits = HostWait::kNone;
  std::array<Demand, 7> demands{};  // the first `demand_count` are set
  int8_t demand_count = 0;
  Provenance provenance = Provenance::kRoofline;
  bool operator==(const OpCost&) const = default;
};

// What each operation of a program costs, in its order. A step repeats few kinds of operations:
// each kind is stored once, whoever repeats it takes four bytes.
class OpCosts {
 public:
  size_t size() const { return kind_of_.size(); }
  const OpCost& operator[](size_t op) const { return kinds_[kind_at(op)]; }
  // Index into kinds(). Two operations of one kind have the same lane.
  size_t kind_at(size_t op) const { return static_cast<size_t>(kind_of_[op]); }
  const std::vector<OpCost>& kinds() const { return kinds_; }
  std::vector<OpCost>& kinds() { return kinds_; }
  // What all operations take, each alone.
  Duration sum_alone() const {
    Duration sum;
    for (const int32_t kind : kind_of_) sum += kinds_[static_cast<size_t>(kind)].alone;
    return sum;
  }

  void reserve(size_t count) { kind_of_.reserve(count); }
  int32_t add_kind(const OpCost& cost) {
    kinds_.push_back(cost);
    return static_cast<int32_t>(kinds_.size()) - 1;
  }
  void append(int32_t kind) { kind_of_.push_back(kind); }
  // Of a kind of its own.
  void push_back(const OpCost& cost) { append(add_kind(cost)); }

  bool operator==(const OpCosts&) const = default;

 private:
  std::vector<OpCost> kinds_;
  std::vector<int32_t> kind_of_;  // by operation
};

// Costs of every operation of a program, and the capacities they refer to.
struct CostTable {
  std::vector<Capacity> capacities;
  OpCosts ops;
  bool operator==(const CostTable&) const = default;
};

}  // namespace ballast
