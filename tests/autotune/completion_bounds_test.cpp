#include "autotune/complete/completion_bounds.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include "autotune/complete/completion_estimates.h"
#include "autotune/complete/completion_lists.h"
#include "autotune/complete/open_layouts.h"
#include "sim/base/error.h"
#include "tests/autotune/random_settings.h"

namespace ballast::tests {
namespace {

struct Compared {
  int completions = 0;
  int informed = 0;  // whose bound is more than half of what they take
};

// Completions of one kind of attention in one layout.
void compare(const Setting& setting, const std::vector<const Completion*>& completions,
             Compared& compared) {
  const std::vector<CompletionBound> bounds = completion_bounds(setting, completions);
  CompletionEstimates estimates;
  for (size_t i = 0; i < completions.size(); ++i) {
    try {
      const std::optional<Duration> time = estimates.step_time_if_fits(setting, *completions[i]);
      if (!time) continue;
      EXPECT_LE(bounds[i].at_least, *time) << name_of(setting) << ", micro-batch "
                                 << *completions[i]->plan.micro_batch;
      ++compared.completions;
      if (2 * bounds[i].at_least.ps > time->ps) ++compared.informed;
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
}

void compare_completions(const Setting& layout, Compared& compared) {
  std::vector<std::vector<Completion>> groups;
  try {
    groups = completions_of(setup_of(layout));
  } catch (const Error&) {
    return;  // none is legal
  }
  for (const AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kEager}) {
    std::vector<const Completion*> completions;
    for (const std::vector<Completion>& group : groups) {
      for (const Completion& completion : group) {
        if (completion.attention == kind) completions.push_back(&completion);
      }
    }
    compare(layout, completions, compared);
  }
}

// A bound above what a completion takes would leave out the fastest. BALLAST_SETTINGS asks for
// more.
TEST(CompletionBounds, are_never_above_what_a_completion_takes) {
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
    compare_completions(layouts[static_cast<size_t>(i) % layouts.size()].setting, compared);
  }
  EXPECT_GT(compared.completions, 300);
  EXPECT_GT(2 * compared.informed, compared.completions);
}

}  // namespace
}  // namespace ballast::tests
