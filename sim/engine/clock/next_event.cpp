#include "sim/engine/clock/next_event.h"

#include <bit>
#include <limits>

namespace ballast {
namespace {

// Later than every event; never leaves this file.
constexpr Instant kNever{std::numeric_limits<int64_t>::max()};

}  // namespace

NextEvent::NextEvent(int32_t slots)
    : leaves_(std::bit_ceil(static_cast<size_t>(slots > 0 ? slots : 1))),
      keys_(leaves_, Key{kNever, 0}),
      winners_(2 * leaves_) {
  for (size_t i = 0; i < leaves_; ++i) winners_[leaves_ + i] = static_cast<int32_t>(i);
  for (size_t i = leaves_ - 1; i >= 1; --i) winners_[i] = winners_[2 * i];
}

void NextEvent::set(int32_t slot, Instant time, int64_t order) {
  keys_[static_cast<size_t>(slot)] = {time, order};
  replay(slot);
}

void NextEvent::clear(int32_t slot) {
  keys_[static_cast<size_t>(slot)] = {kNever, 0};
  replay(slot);
}

std::optional<int32_t> NextEvent::first() const {
  const int32_t slot = winners_[1];
  if (time_of(slot) == kNever) return std::nullopt;
  return slot;
}

// Up to where another slot won before and wins still: nobody above has met this one.
void NextEvent::replay(int32_t slot) {
  for (size_t node = (leaves_ + static_cast<size_t>(slot)) / 2; node >= 1; node /= 2) {
    const int32_t left = winners_[2 * node];
    const int32_t right = winners_[2 * node + 1];
    const bool right_wins = keys_[static_cast<size_t>(right)] < keys_[static_cast<size_t>(left)];
    const int32_t winner = right_wins ? right : left;
    if (winner != slot && winner == winners_[node]) return;
    winners_[node] = winner;
  }
}

}  // namespace ballast
