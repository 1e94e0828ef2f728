#include "autotune/studies/frontier.h"

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"

namespace ballast {
namespace {

// Plans that may tie with the fastest and take less memory.
constexpr size_t kRanked = 32;
constexpr auto kGpu = static_cast<size_t>(Place::kHbm);

Bytes gpu_memory_of(const FrontierPoint& point) { return point.candidate.memory[kGpu]; }

// Of the plans that are as fast as the best, the one that takes least GPU memory.
const Candidate& leanest(const SearchResult& found) {
  const Candidate* lean = &*found.best;
  for (const Candidate& candidate : found.ranked) {
    if (candidate.step_time != found.best->step_time) continue;
    if (candidate.memory[kGpu] < lean->memory[kGpu]) lean = &candidate;
  }
  return *lean;
}

// The most that the next point may take.
Bytes next_limit(Bytes taken, double least_step) {
  const auto less = static_cast<int64_t>(static_cast<double>(taken.count) * (1 - least_step));
  return {std::min(taken.count - 1, less)};
}

// Walks one question; false if it was interrupted.
bool walk(SearchQuestion question, const FrontierOptions& options, const Ask& ask,
          Frontier& frontier) {
  const Bytes reserved = question.machine.gpu.reserved.value;
  std::optional<Bytes> limit;
  for (size_t i = 0; i < options.most_points; ++i) {
    if (limit) question.ranked = kRanked;
    if (limit) question.machine.gpu.memory.value = *limit + reserved;
    const std::optional<SearchResult> found = ask(question);
    if (!found) return false;
    if (!found->complete()) frontier.whole = false;
    if (!found->best) return found->stop != SearchStop::kInterrupt;
    const Candidate& candidate = leanest(*found);
    frontier.points.push_back({candidate.plan.devices, limit, candidate});
    limit = next_limit(candidate.memory[kGpu], options.least_step);
    if (limit->count <= 0) return true;
  }
  frontier.whole = false;
  return true;
}

}  // namespace

bool dominates(const FrontierPoint& one, const FrontierPoint& other) {
  const double fast = one.candidate.tokens_per_s;
  const double other_fast = other.candidate.tokens_per_s;
  const bool no_worse = one.devices <= other.devices &&
                        gpu_memory_of(one) <= gpu_memory_of(other) && fast >= other_fast;
  const bool better =
      one.devices < other.devices || gpu_memory_of(one) < gpu_memory_of(other) || fast > other_fast;
  return no_worse && better;
}

Frontier frontier_of(const std::vector<SearchQuestion>& questions, const FrontierOptions& options,
                     const Ask& ask) {
  CHECK(options.least_step >= 0 && options.least_step < 1 && options.most_points > 0);
  Frontier frontier;
  frontier.whole = options.least_step == 0;
  for (const SearchQuestion& question : questions) {
    if (walk(question, options, ask, frontier)) continue;
    frontier.whole = false;
    break;
  }
  const std::vector<FrontierPoint> all = frontier.points;
  std::erase_if(frontier.points, [&](const FrontierPoint& point) {
    return std::any_of(all.begin(), all.end(),
                       [&](const FrontierPoint& other) { return dominates(other, point); });
  });
  std::stable_sort(frontier.points.begin(), frontier.points.end(),
                   [](const FrontierPoint& a, const FrontierPoint& b) {
                     if (a.devices != b.devices) return a.devices < b.devices;
                     return a.candidate.tokens_per_s > b.candidate.tokens_per_s;
                   });
  return frontier;
}

}  // namespace ballast
