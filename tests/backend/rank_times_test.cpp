// What `profile --ranks` times: every kind, in every group that a degree of so many ranks may have.

#include "backend/measure/rank_times.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

namespace ballast {
namespace {

using Group = std::pair<int64_t, int64_t>;  // ranks, and how far they lie apart

std::map<Group, std::set<CollectiveKind>> kinds_by_group(int ranks) {
  std::map<Group, std::set<CollectiveKind>> kinds;
  for (const OperationTime& time : time_collectives_of_threads(ranks, ProfileEffort::kQuick)) {
    const auto& work = std::get<CollectiveWork>(time.op.work);
    kinds[{work.ranks, work.stride}].insert(work.kind);
    EXPECT_GT(time.median.ps, 0);
  }
  return kinds;
}

TEST(rank_times, are_of_every_group_that_a_degree_may_have) {
  const std::set<CollectiveKind> sums = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                         CollectiveKind::kAllGather, CollectiveKind::kAllToAll};
  std::set<CollectiveKind> all = sums;
  all.insert(CollectiveKind::kSendReceive);
  EXPECT_EQ(kinds_by_group(2), (std::map<Group, std::set<CollectiveKind>>{{{2, 1}, all}}));
  EXPECT_EQ(kinds_by_group(3), (std::map<Group, std::set<CollectiveKind>>{{{3, 1}, sums}}));
  EXPECT_EQ(kinds_by_group(4), (std::map<Group, std::set<CollectiveKind>>{
                                   {{4, 1}, sums}, {{2, 1}, all}, {{2, 2}, all}}));
}

}  // namespace
}  // namespace ballast
