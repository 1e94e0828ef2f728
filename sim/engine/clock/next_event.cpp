#include "sim/engine/clock/next_event.h"

#include <algorithm>

namespace ballast {
namespace {

constexpr size_t kChildren = 4;  // of a node: a level of few steps in one line of the cache

}  // namespace

NextEvent::NextEvent(int32_t slots) : at_(static_cast<size_t>(slots), -1) {
  heap_.reserve(at_.size());
}

void NextEvent::set(int32_t slot, Instant time, int64_t order) {
  const Entry entry{time, order, slot};
  int32_t& at = at_[static_cast<size_t>(slot)];
  if (is_open_ && at < 0) {
    is_open_ = false;
    sink(0, entry);
    return;
  }
  if (is_open_) close();
  if (at < 0) {
    heap_.emplace_back();
    rise(heap_.size() - 1, entry);
  } else if (entry < heap_[static_cast<size_t>(at)]) {
    rise(static_cast<size_t>(at), entry);
  } else {
    sink(static_cast<size_t>(at), entry);
  }
}

void NextEvent::clear(int32_t slot) {
  int32_t& at = at_[static_cast<size_t>(slot)];
  if (at < 0) return;
  if (is_open_) close();
  const auto hole = static_cast<size_t>(at);
  at = -1;
  is_open_ = hole == 0;
  if (is_open_) return;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (last.slot == slot) return;
  if (last < heap_[(hole - 1) / kChildren]) {
    rise(hole, last);
  } else {
    sink(hole, last);
  }
}

// The first place goes to the last event, or there is none.
void NextEvent::close() {
  is_open_ = false;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (!heap_.empty()) sink(0, last);
}

void NextEvent::put(size_t at, const Entry& entry) {
  heap_[at] = entry;
  at_[static_cast<size_t>(entry.slot)] = static_cast<int32_t>(at);
}

void NextEvent::rise(size_t at, const Entry& entry) {
  while (at > 0) {
    const size_t parent = (at - 1) / kChildren;
    if (!(entry < heap_[parent])) break;
    put(at, heap_[parent]);
    at = parent;
  }
  put(at, entry);
}

void NextEvent::sink(size_t at, const Entry& entry) {
  while (true) {
    const size_t first = kChildren * at + 1;
    if (first >= heap_.size()) break;
    const size_t end = std::min(first + kChildren, heap_.size());
    size_t least = first;
    for (size_t child = first + 1; child < end; ++child) {
      least = heap_[child] < heap_[least] ? child : least;
    }
    if (!(heap_[least] < entry)) break;
    put(at, heap_[least]);
    at = least;
  }
  put(at, entry);
}

}  // namespace ballast
