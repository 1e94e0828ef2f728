#include "backend/measure/machine_load.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(MachineLoad, ticks_of_all_cores_are_those_that_worked) {
  const auto ticks = core_ticks("cpu  100 20 30 9999 77 4 5 6 0 0");
  ASSERT_TRUE(ticks);
  EXPECT_EQ(ticks->busy, 100 + 20 + 30 + 4 + 5 + 6);  // neither idle nor waiting for a disk
  EXPECT_EQ(ticks->stolen, 6);
  for (const char* other : {"", "cpu", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3", "intr 1 2 3 4 5 6 7 8",
                            "cpu  1 2 three 4 5 6 7 8"}) {
    EXPECT_FALSE(core_ticks(other)) << other;
  }
}

TEST(MachineLoad, is_told_where_others_had_cores_that_were_missing) {
  EXPECT_EQ(busy_text({1.0, 0.05, 2}), "");  // nobody else
  EXPECT_EQ(busy_text({4.0, 20, 64}), "");   // there are enough for both
  const std::string told = busy_text({0.9, 1.04, 2});
  EXPECT_NE(told.find("1.0 of this machine's 2 cores"), std::string::npos) << told;
}

TEST(MachineLoad, of_no_time_is_not_known) { EXPECT_FALSE(LoadWatch().load()); }

}  // namespace
}  // namespace ballast
