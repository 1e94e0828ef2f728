// Ties by hand: steps of whole milliseconds, so that shares are read off.
#include "autotune/search/ties.h"

#include <gtest/gtest.h>

namespace ballast::tests {
namespace {

Candidate candidate(double ms, int64_t gpu_buckets) {
  Candidate one;
  one.step_time = Duration::from_us(1000 * ms);
  one.plan.optimizer.sync = SyncMode::kWait;
  one.plan.optimizer.gpu_buckets = gpu_buckets;  // a moving part where it is not 0
  return one;
}

// 1000 and 1001 ms tie (0.1 %), 1003 is near (0.3 %), 1020 is neither.
SearchResult four() {
  SearchResult found;
  found.ranked = {candidate(1000, 3), candidate(1001, 0), candidate(1003, 0), candidate(1020, 0)};
  found.best = found.ranked.front();
  return found;
}

TEST(Ties, of_the_plans_that_tie_the_simplest_is_taken_and_the_next_is_behind_them) {
  SearchResult found = four();
  EXPECT_EQ(count_within(found, kTieShare), 2U);
  EXPECT_EQ(count_within(found, 1e-2), 3U);
  EXPECT_EQ(next_best(found), &found.ranked[2]);
  prefer_simple(found);
  EXPECT_EQ(found.best->step_time, Duration::from_us(1'001'000));
  // 1003 is within 0.2 % of 1001, but not of the shortest step: taking the simplest changes
  // nothing.
  EXPECT_EQ(count_within(found, kTieShare), 2U);
  EXPECT_EQ(next_best(found), &found.ranked[2]);
}

TEST(Ties, where_all_tie_the_last_is_the_next_and_alone_there_is_none) {
  SearchResult found = four();
  found.ranked.resize(2);
  EXPECT_EQ(next_best(found), &found.ranked[1]);
  found.ranked.resize(1);
  EXPECT_EQ(next_best(found), nullptr);
  EXPECT_EQ(count_within(found, kTieShare), 1U);
  found.ranked.clear();
  EXPECT_EQ(next_best(found), nullptr);
  EXPECT_EQ(count_within(found, kTieShare), 0U);
}

}  // namespace
}  // namespace ballast::tests
