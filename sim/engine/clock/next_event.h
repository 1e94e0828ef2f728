// The earliest of a fixed number of pending events, at most one a slot: a tournament tree.
//
// A lane has at most one event ahead of it and moves it often (rates change), which a tree of
// winners does in log2(slots) comparisons without searching, allocating or leaving dead entries.
// Events order by (time, order), so a run does not depend on the slots' numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/base/units.h"

namespace ballast {

class NextEvent {
 public:
  explicit NextEvent(int32_t slots);

  // Gives the slot an event, in place of the one it has. `order` decides among equal times.
  void set(int32_t slot, Instant time, int64_t order);
  void clear(int32_t slot);

  // The slot of the earliest event; empty if no slot has one.
  std::optional<int32_t> first() const;
  Instant time_of(int32_t slot) const { return keys_[static_cast<size_t>(slot)].time; }

 private:
  struct Key {
    Instant time;
    int64_t order = 0;
    auto operator<=>(const Key&) const = default;
  };

  void replay(int32_t slot);

  size_t leaves_ = 1;             // slots rounded up to a power of two
  std::vector<Key> keys_;         // by slot; kNone where there is no event
  std::vector<int32_t> winners_;  // node i has the children 2i and 2i+1; leaves start at leaves_
};

}  // namespace ballast
