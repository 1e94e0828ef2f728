#include "sim/base/parallel.h"

#include <atomic>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>

namespace ballast {
namespace {

TEST(ParallelFor, every_index_is_visited_once) {
  std::vector<std::atomic<int>> visits(1000);
  parallel_for(visits.size(), 4, [&](size_t i) { ++visits[i]; });
  for (const std::atomic<int>& count : visits) EXPECT_EQ(count, 1);
  parallel_for(0, 4, [&](size_t) { FAIL(); });
}

TEST(ParallelFor, the_first_failure_is_thrown_on) {
  try {
    parallel_for(100, 3, [](size_t i) {
      if (i >= 7) throw std::runtime_error(std::to_string(i));
    });
    FAIL() << "it must throw";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "7");
  }
}

}  // namespace
}  // namespace ballast
