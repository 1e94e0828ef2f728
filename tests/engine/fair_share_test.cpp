// The sharing of capacities, one idea a test: a sentence, the inequalities with their numbers, the
// result by hand, then the assertion.
#include "sim/engine/sharing/fair_share.h"

#include <gtest/gtest.h>

#include "sim/engine/sharing/sharing.h"

namespace ballast {
namespace {

using Rates = std::vector<double>;

// One flow that a capacity can carry runs at full speed.
//   4 x0 <= 10   ->   x0 = 1
TEST(FairShare, a_lone_flow_below_the_capacity_runs_at_full_speed) {
  const Rates rates = fair_share(Rates{10}, std::vector<FlowUse>{{0, 0, 4}}, 1);
  EXPECT_EQ(rates, (Rates{1}));
}

// A flow that uses nothing is not slowed by anyone.
TEST(FairShare, a_flow_without_uses_runs_at_full_speed) {
  const Rates rates = fair_share(Rates{10}, std::vector<FlowUse>{{0, 0, 20}, {2, 0, 20}}, 3);
  EXPECT_EQ(rates, (Rates{0.25, 1, 0.25}));
}

// A capacity that is exactly full slows nobody.
//   6 x0 + 4 x1 <= 10   ->   x = 1
TEST(FairShare, an_exactly_full_capacity_slows_nobody) {
  const Rates rates = fair_share(Rates{10}, std::vector<FlowUse>{{0, 0, 6}, {1, 0, 4}}, 2);
  EXPECT_EQ(rates, (Rates{1, 1}));
}

// Two equal flows share a link equally.
//   10 x0 + 10 x1 <= 10   ->   x = 1/2
TEST(FairShare, two_flows_share_a_link_equally) {
  const Rates rates = fair_share(Rates{10}, std::vector<FlowUse>{{0, 0, 10}, {1, 0, 10}}, 2);
  EXPECT_EQ(rates, (Rates{0.5, 0.5}));
}

// Flows of different demand are slowed by the same factor, not to the same bandwidth.
//   12 x0 + 4 x1 <= 8   ->   x = 8/16 = 1/2: bandwidths 6 and 2
TEST(FairShare, unequal_flows_are_slowed_by_the_same_factor) {
  const Rates rates = fair_share(Rates{8}, std::vector<FlowUse>{{0, 0, 12}, {1, 0, 4}}, 2);
  EXPECT_EQ(rates, (Rates{0.5, 0.5}));
}

// What a flow stopped elsewhere leaves goes to the others.
//   c0:  8 x0         <= 2     ->  x0 = 1/4 first
//   c1:  4 x0 + 4 x1  <= 4     ->  x1 = (4 - 4/4) / 4 = 3/4
TEST(FairShare, what_a_stopped_flow_leaves_goes_to_the_others) {
  const Rates rates =
      fair_share(Rates{2, 4}, std::vector<FlowUse>{{0, 0, 8}, {0, 1, 4}, {1, 1, 4}}, 2);
  EXPECT_EQ(rates, (Rates{0.25, 0.75}));
}

// A chain of three flows over two capacities: the middle one crosses both.
//   c0:  4 x0 + 4 x1  <= 4     ->  x0 = x1 = 1/2 first
//   c1:  4 x1 + 4 x2  <= 6     ->  x2 = (6 - 2) / 4 = 1
TEST(FairShare, a_flow_over_two_capacities_takes_the_tighter_one) {
  const Rates rates =
      fair_share(Rates{4, 6}, std::vector<FlowUse>{{0, 0, 4}, {1, 0, 4}, {1, 1, 4}, {2, 1, 4}}, 3);
  EXPECT_EQ(rates, (Rates{0.5, 0.5, 1}));
}

// Two uses of one capacity by the same flow add up.
//   (3 + 5) x0 <= 4   ->   x0 = 1/2
TEST(FairShare, uses_of_one_capacity_by_one_flow_add_up) {
  const Rates rates = fair_share(Rates{4}, std::vector<FlowUse>{{0, 0, 3}, {0, 0, 5}}, 1);
  EXPECT_EQ(rates, (Rates{0.5}));
}

// Two capacities that fill at the same level stop their flows together.
//   c0: 8 x0 <= 4, c1: 8 x1 <= 4, c2: 2 x0 + 2 x1 + 2 x2 <= 3  ->  x0 = x1 = 1/2 (c2 also fills)
TEST(FairShare, capacities_that_fill_together_stop_their_flows_together) {
  const Rates rates =
      fair_share(Rates{4, 4, 3},
                 std::vector<FlowUse>{{0, 0, 8}, {1, 1, 8}, {0, 2, 2}, {1, 2, 2}, {2, 2, 2}}, 3);
  EXPECT_EQ(rates, (Rates{0.5, 0.5, 0.5}));
}

// --- Sharing: the same rules under flows that come and go -------------------------------------

const std::vector<Capacity> kOneOfTen = {{"link", 10}};

std::vector<int32_t> changed(Sharing& sharing) {
  const auto view = sharing.settle();
  return {view.begin(), view.end()};
}

// While the sum of demands fits (4 + 6 <= 10) there is nothing to solve and nobody changes.
TEST(SharingTest, flows_that_fit_together_change_nothing) {
  Sharing sharing(kOneOfTen, 2);
  sharing.begin(0, std::vector<Demand>{{0, 4}});
  sharing.begin(1, std::vector<Demand>{{0, 6}});
  EXPECT_TRUE(changed(sharing).empty());
  EXPECT_EQ(sharing.rate(0), 1);
  EXPECT_EQ(sharing.rate(1), 1);
}

// 10 + 10 over 10: both at 1/2; when one ends the other is back at 1.
TEST(SharingTest, a_flow_speeds_up_again_when_the_other_ends) {
  Sharing sharing(kOneOfTen, 2);
  sharing.begin(0, std::vector<Demand>{{0, 10}});
  sharing.begin(1, std::vector<Demand>{{0, 10}});
  EXPECT_EQ(changed(sharing).size(), 2u);
  EXPECT_EQ(sharing.rate(0), 0.5);
  EXPECT_EQ(sharing.rate(1), 0.5);
  sharing.end(1);
  EXPECT_EQ(changed(sharing), (std::vector<int32_t>{0}));
  EXPECT_EQ(sharing.rate(0), 1);
}

// Three demands of a third each fill the capacity exactly, rounding or not.
TEST(SharingTest, three_thirds_fit) {
  Sharing sharing(kOneOfTen, 3);
  for (int32_t flow = 0; flow < 3; ++flow) {
    sharing.begin(flow, std::vector<Demand>{{0, 10.0 / 3}});
  }
  EXPECT_TRUE(changed(sharing).empty());
}

// Flows 0 and 1 meet on c0, flows 1 and 2 on c1; flow 2 never meets flow 0, yet feels its end.
TEST(SharingTest, a_change_reaches_flows_through_a_chain_of_capacities) {
  Sharing sharing(std::vector<Capacity>{{"c0", 10}, {"c1", 10}}, 3);
  sharing.begin(0, std::vector<Demand>{{0, 30}});
  sharing.begin(1, std::vector<Demand>{{0, 10}, {1, 10}});
  sharing.begin(2, std::vector<Demand>{{1, 10}});
  // c0: 30 x0 + 10 x1 <= 10 -> x0 = x1 = 1/4; c1: 10/4 + 10 x2 <= 10 -> x2 = 3/4.
  changed(sharing);
  EXPECT_DOUBLE_EQ(sharing.rate(0), 0.25);
  EXPECT_DOUBLE_EQ(sharing.rate(1), 0.25);
  EXPECT_DOUBLE_EQ(sharing.rate(2), 0.75);
  sharing.end(0);
  // c1: 10 x1 + 10 x2 <= 10 -> both 1/2: flow 2 slows down because flow 0 ended.
  EXPECT_EQ(changed(sharing).size(), 2u);
  EXPECT_DOUBLE_EQ(sharing.rate(1), 0.5);
  EXPECT_DOUBLE_EQ(sharing.rate(2), 0.5);
}

// Loads are sums of integers: after many begins and ends of awkward demands the capacity is empty
// again, and a flow of exactly its size runs at full speed.
TEST(SharingTest, nothing_is_left_behind_by_flows_that_ended) {
  Sharing sharing(kOneOfTen, 3);
  for (int i = 1; i <= 10000; ++i) {
    sharing.begin(0, std::vector<Demand>{{0, 10.0 / i}});
    sharing.begin(1, std::vector<Demand>{{0, 0.1 * i}});
    sharing.settle();
    sharing.end(0);
    sharing.end(1);
    sharing.settle();
  }
  sharing.begin(2, std::vector<Demand>{{0, 10}});
  EXPECT_TRUE(changed(sharing).empty());
  EXPECT_EQ(sharing.rate(2), 1);
}

}  // namespace
}  // namespace ballast
