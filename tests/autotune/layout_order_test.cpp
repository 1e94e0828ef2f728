#include "autotune/complete/layouts/layout_order.h"

#include <gtest/gtest.h>

#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

OpenLayout layout(const std::string& strategy, int64_t stage, int64_t seconds) {
  OpenLayout layout;
  layout.setting.model = small_model();
  layout.setting.plan = auto_plan(8);
  layout.setting.plan.strategy = strategy;
  layout.setting.plan.zero_stage = stage;
  layout.at_least = Duration{seconds * 1'000'000'000'000};
  return layout;
}

Duration seconds(int64_t count) { return Duration{count * 1'000'000'000'000}; }

using Indices = std::vector<size_t>;

TEST(layout_order, asks_one_of_each_kind_first_and_then_by_bound) {
  const std::vector<OpenLayout> layouts = {layout("one", 1, 10), layout("one", 1, 11),
                                           layout("one", 3, 12), layout("two", 1, 13)};
  LayoutOrder order(layouts);
  EXPECT_EQ(order.take(4, std::nullopt), (Indices{0, 2, 3, 1}));
  EXPECT_TRUE(order.take(4, std::nullopt).empty());
}

// The first kind needs four times its bound, so its second layout promises 22 s and the other 13.
TEST(layout_order, a_kind_that_was_far_above_its_bounds_comes_later) {
  const std::vector<OpenLayout> layouts = {layout("one", 1, 10), layout("two", 1, 11),
                                           layout("one", 1, 11), layout("two", 1, 12)};
  LayoutOrder order(layouts);
  EXPECT_EQ(order.take(2, std::nullopt), (Indices{0, 1}));
  EXPECT_FALSE(order.learn(0, seconds(40)));
  EXPECT_FALSE(order.learn(1, seconds(13)));
  EXPECT_EQ(order.take(2, seconds(30)), (Indices{3, 2}));
}

TEST(layout_order, what_cannot_be_better_is_left_alone) {
  const std::vector<OpenLayout> layouts = {layout("one", 1, 10), layout("one", 1, 12),
                                           layout("two", 1, 15), layout("one", 1, 11)};
  LayoutOrder order(layouts);
  EXPECT_EQ(order.take(1, std::nullopt), (Indices{0}));
  order.learn(0, seconds(14));
  // The bound of the third is above the best.
  EXPECT_EQ(order.take(1, seconds(14)), (Indices{3}));
  // Where a kind needs nine times its bounds, another of its layouts promises three times its own.
  LayoutOrder slow(layouts);
  slow.take(1, std::nullopt);
  slow.learn(0, seconds(90));
  EXPECT_EQ(slow.take(4, seconds(20)), (Indices{2}));
}

TEST(layout_order, a_kind_is_left_alone_once_two_were_slower_than_its_best) {
  const std::vector<OpenLayout> layouts = {layout("one", 1, 10), layout("one", 1, 11),
                                           layout("one", 1, 12), layout("one", 1, 13)};
  LayoutOrder order(layouts);
  order.take(3, std::nullopt);
  order.learn(0, seconds(14));
  EXPECT_TRUE(order.learn(1, seconds(15)));
  order.learn(2, seconds(16));
  EXPECT_TRUE(order.take(1, seconds(14)).empty());
}

// Its own time is not known, so that it makes no other of its kind promise more than before.
TEST(layout_order, one_that_is_no_faster_than_the_best_counts_as_slower) {
  const std::vector<OpenLayout> layouts = {layout("one", 1, 10), layout("one", 1, 11),
                                           layout("one", 1, 12), layout("one", 1, 13)};
  LayoutOrder order(layouts);
  order.take(3, std::nullopt);
  EXPECT_FALSE(order.learn_slower(0, seconds(14)));
  EXPECT_TRUE(order.learn_slower(1, seconds(14)));
  EXPECT_EQ(order.take(1, seconds(14)), (Indices{3}));
  EXPECT_TRUE(order.learn_slower(2, seconds(14)));
  EXPECT_TRUE(order.take(1, seconds(14)).empty());
}

}  // namespace
}  // namespace ballast::tests
