// The earliest of a few pending events, at most one a slot: a heap that knows where each slot is.
//
// A lane has at most one event ahead of it and moves it often (rates change), which is a sift in
// the heap without searching, allocating or leaving dead entries. Most lanes of many stages have
// none at a time, and cost nothing then.
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
  std::optional<int32_t> first() const {
    return heap_.empty() ? std::nullopt : std::optional(heap_.front().slot);
  }
  // Requires that the slot has an event.
  Instant time_of(int32_t slot) const { return entry(slot).time; }
  int64_t order_of(int32_t slot) const { return entry(slot).order; }

 private:
  struct Entry {
    Instant time;
    int64_t order = 0;
    int32_t slot = -1;
    bool operator<(const Entry& other) const {
      return time != other.time ? time < other.time : order < other.order;
    }
  };

  const Entry& entry(int32_t slot) const {
    return heap_[static_cast<size_t>(at_[static_cast<size_t>(slot)])];
  }
  void put(size_t at, const Entry& entry);
  void rise(size_t at, const Entry& entry);
  void sink(size_t at, const Entry& entry);

  std::vector<Entry> heap_;  // the children of i are at 4 i + 1 and after, and later than it
  std::vector<int32_t> at_;  // by slot: its place in the heap, or -1
};

}  // namespace ballast
