#include "sim/base/median.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(Median, odd_count_gives_the_value_in_the_middle) {
  EXPECT_EQ(median(std::vector<double>{9, 1, 4}), 4);
  EXPECT_EQ(median(std::vector<Duration>{{9}, {1}, {4}}).ps, 4);
  EXPECT_EQ(median(std::vector<double>{7}), 7);
}

TEST(Median, even_count_gives_the_mean_of_the_two_in_the_middle) {
  EXPECT_EQ(median(std::vector<double>{10, 1, 2, 5}), 3.5);
  EXPECT_EQ(median(std::vector<Duration>{{100}, {10}, {20}, {50}}).ps, 35);
  EXPECT_EQ(median(std::vector<Duration>{{1}, {2}}).ps, 1);  // rounds down to a picosecond
}

}  // namespace
}  // namespace ballast
