// Frontier: the plans that no other beats in throughput, GPU memory and number of devices at once.
//
// By epsilon-constraints (Haimes, Lasdon and Wismer, IEEE Trans. SMC 1 (1971) 296-297): the fastest
// plan is on the front; with the memory limit just below what it takes the fastest that is left is
// the next, until nothing fits. Each point is as exact as its search.
// Will not do: search (it asks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "autotune/search/search_question.h"

namespace ballast {

struct FrontierPoint {
  int64_t devices = 0;
  std::optional<Bytes> memory_limit;  // of tensors on a GPU; nothing: all that the machine has
  Candidate candidate;
};

struct FrontierOptions {
  size_t most_points = 10;  // for each question
  // A point takes at least this share less GPU memory than the one before. 0: the whole front.
  double least_step = 0.2;
};

struct Frontier {
  std::vector<FrontierPoint> points;  // fewest devices first, then fastest first
  bool whole = true;  // false: cut off by the options, a deadline or an interruption
};

// Of plans that are equally fast a search ranks only those that it simulated, so that one which
// takes less memory can be missed; with a step of 0 the next search finds it.
Frontier frontier_of(const std::vector<SearchQuestion>& questions, const FrontierOptions& options,
                     const Ask& ask);

// Whether `one` is at least as good in all three, and better in one.
bool dominates(const FrontierPoint& one, const FrontierPoint& other);

}  // namespace ballast
