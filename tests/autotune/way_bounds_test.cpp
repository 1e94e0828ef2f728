#include "autotune/complete/way_bounds.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include "autotune/complete/open_layouts.h"
#include "autotune/complete/way_estimates.h"
#include "autotune/complete/way_lists.h"
#include "sim/base/error.h"
#include "tests/autotune/random_settings.h"

namespace ballast::tests {
namespace {

struct Compared {
  int ways = 0;
  int informed = 0;  // whose bound is more than half of what they take
};

// Ways of one kind of attention in one layout.
void compare(const Setting& setting, const std::vector<const Way*>& ways, Compared& compared) {
  const std::vector<Duration> least = least_times(setting, ways);
  WayEstimates estimates;
  for (size_t i = 0; i < ways.size(); ++i) {
    try {
      const std::optional<Duration> time = estimates.step_time_if_fits(setting, *ways[i]);
      if (!time) continue;
      EXPECT_LE(least[i], *time) << name_of(setting) << ", micro-batch "
                                 << *ways[i]->plan.micro_batch;
      ++compared.ways;
      if (2 * least[i].ps > time->ps) ++compared.informed;
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
}

void compare_ways(const Setting& layout, Compared& compared) {
  std::vector<std::vector<Way>> groups;
  try {
    groups = ways_of(setup_of(layout));
  } catch (const Error&) {
    return;  // none is legal
  }
  for (const AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kEager}) {
    std::vector<const Way*> ways;
    for (const std::vector<Way>& group : groups) {
      for (const Way& way : group) {
        if (way.attention == kind) ways.push_back(&way);
      }
    }
    compare(layout, ways, compared);
  }
}

// A bound above what a way takes would leave out the fastest. BALLAST_SETTINGS asks for more.
TEST(WayBounds, are_never_above_what_a_way_takes) {
  const char* const asked = std::getenv("BALLAST_SETTINGS");
  Numbers numbers(20261123);
  Compared compared;
  for (int i = 0; i < (asked == nullptr ? 40 : std::atoi(asked)); ++i) {
    const Setting setting = random_setting(numbers);
    std::vector<OpenLayout> layouts;
    try {
      layouts = open_layouts(setting, nullptr);
    } catch (const Error&) {
      continue;  // no legal layout
    }
    compare_ways(layouts[static_cast<size_t>(i) % layouts.size()].setting, compared);
  }
  EXPECT_GT(compared.ways, 300);
  EXPECT_GT(2 * compared.informed, compared.ways);
}

}  // namespace
}  // namespace ballast::tests
