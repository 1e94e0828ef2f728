#include "backend/paced/paced_ranks.h"

#include <algorithm>

#include "sim/base/error.h"

namespace ballast {

Instant PacedRanks::meet(const PacedCollective& what, int rank, Instant begin) {
  CHECK(what.ranks >= 1 && what.stride >= 1);
  const int64_t width = what.ranks * what.stride;
  const int64_t first = rank / width * width + rank % what.stride;
  std::unique_lock lock(mutex_);
  const auto found = meetings_.try_emplace({what, first}).first;  // stays where it is
  Meeting& meeting = found->second;
  meeting.begin = meeting.here == 0 ? begin : std::max(meeting.begin, begin);
  if (++meeting.here == what.ranks) all_here_.notify_all();
  all_here_.wait(lock, [&] { return meeting.here == what.ranks; });
  const Instant together = meeting.begin;
  if (++meeting.gone == what.ranks) meetings_.erase(found);
  return together;
}

}  // namespace ballast
