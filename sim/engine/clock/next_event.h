// The earliest of a few pending events, at most one a slot: a heap that knows where each slot is.
//
// A lane has at most one event ahead of it and moves it often (rates change), which is a sift in
// the heap without searching, allocating or leaving dead entries. Most lanes of many stages have
// none at a time, and cost nothing then. Whoever takes the earliest event mostly gives the next one
// at once, so the place of a cleared first event stays open for it: one sift instead of two.
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
  std::optional<int32_t> first() {
    if (is_open_) close();
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
    // One comparison of both numbers: which event is earlier is chance, so each branch is a guess.
    bool operator<(const Entry& other) const { return key() < other.key(); }
    __extension__ using Key = __int128;
    Key key() const { return Key{time.ps} << 64 | static_cast<uint64_t>(order); }
  };

  const Entry& entry(int32_t slot) const {
    return heap_[static_cast<size_t>(at_[static_cast<size_t>(slot)])];
  }
  void close();
  void put(size_t at, const Entry& entry);
  void rise(size_t at, const Entry& entry);
  void sink(size_t at, const Entry& entry);

  std::vector<Entry> heap_;  // the children of i are at 4 i + 1 and after, and later than it
  std::vector<int32_t> at_;  // by slot: its place in the heap, or -1
  bool is_open_ = false;     // the first place is nobody's
};

}  // namespace ballast
