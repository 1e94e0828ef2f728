#include "autotune/search/ties.h"

#include <algorithm>

namespace ballast {

Duration shortest_step(const SearchResult& found) {
  const auto faster = [](const Candidate& a, const Candidate& b) {
    return a.step_time < b.step_time;
  };
  return std::min_element(found.ranked.begin(), found.ranked.end(), faster)->step_time;
}

size_t count_within(const SearchResult& found, double share) {
  const auto& ranked = found.ranked;
  if (ranked.empty()) return 0;
  const double least = shortest_step(found).seconds();
  const auto behind = [&](const Candidate& one) {
    return one.step_time.seconds() >= (1 + share) * least;
  };
  return static_cast<size_t>(std::find_if(ranked.begin() + 1, ranked.end(), behind) -
                             ranked.begin());
}

void prefer_simple(SearchResult& found) {
  if (found.ranked.empty()) return;
  const auto tied = static_cast<std::ptrdiff_t>(count_within(found, kTieShare));
  std::stable_sort(found.ranked.begin(), found.ranked.begin() + tied,
                   [](const Candidate& a, const Candidate& b) {
                     return moving_parts(a.plan) < moving_parts(b.plan);
                   });
  found.best = found.ranked.front();
}

const Candidate* next_best(const SearchResult& found) {
  if (found.ranked.size() < 2) return nullptr;
  return &found.ranked[std::min(count_within(found, kTieShare), found.ranked.size() - 1)];
}

}  // namespace ballast
