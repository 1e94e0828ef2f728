// Times are exact up to 106 days, and an Error beyond: never a wrong time.
#include "sim/base/units.h"

#include <gtest/gtest.h>
#include <limits>

namespace ballast {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(Units, sums_of_times_are_exact_up_to_the_longest_time_that_is_held) {
  EXPECT_EQ((Duration{kMost - 1} + Duration{1}).ps, kMost);
  EXPECT_EQ((Instant{kMost - 5} + Duration{5}).ps, kMost);
  EXPECT_EQ((Instant{kMost} - Instant{1}).ps, kMost - 1);
}

TEST(Units, a_sum_that_no_clock_holds_is_an_error_in_every_operator) {
  Duration sum{kMost};
  EXPECT_THROW(sum += Duration{1}, Error);
  EXPECT_EQ(sum.ps, kMost);
  EXPECT_THROW(Duration{kMost} + Duration{1}, Error);
  EXPECT_THROW(Duration{-kMost} - Duration{2}, Error);
  EXPECT_THROW(Instant{kMost} + Duration{1}, Error);
  EXPECT_THROW(Instant{-kMost} - Instant{2}, Error);
}

TEST(Units, sizes_are_told_in_the_unit_in_which_they_are_not_0) {
  EXPECT_EQ(bytes_text({0}), "0 bytes");
  EXPECT_EQ(bytes_text({999}), "999 bytes");
  EXPECT_EQ(bytes_text({1'000}), "1.0 KB");
  EXPECT_EQ(bytes_text({16 << 20}), "16.8 MB");
  EXPECT_EQ(bytes_text({12'345'000'000}), "12.345 GB");
  EXPECT_EQ(bytes_text({999'960}), "1.0 MB");
  EXPECT_EQ(bytes_text({999'949'999}), "999.9 MB");
  EXPECT_EQ(bytes_text({999'950'000}), "1.000 GB");
}

}  // namespace
}  // namespace ballast
