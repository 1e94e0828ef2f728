#include "autotune/complete/layouts/ranking.h"

#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>

#include "autotune/complete/complete.h"
#include "autotune/space/layout.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "tests/autotune/random_settings.h"

namespace ballast::tests {
namespace {

// The fastest of all layouts, each completed alone; nothing where none fits.
std::optional<Duration> fastest_of_each(const Setting& setting, const std::vector<Plan>& layouts) {
  std::optional<Duration> fastest;
  for (const Plan& layout : layouts) {
    try {
      const Completed one =
          complete({setting.model, layout, setting.machine, setting.stack}, nullptr);
      if (!one.prediction.fits) continue;
      if (!fastest || one.prediction.step_time < *fastest) fastest = one.prediction.step_time;
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
  return fastest;
}

int64_t decided(const SearchResult& found) {
  return found.simulated + found.bounded + found.infeasible + found.not_looked_at;
}

Setting eight_gpus(const char* stack) {
  PlanRequest request;
  request.strategy = "megatron";
  request.knobs[KnobId::kDevices] = int64_t{8};
  request.knobs[KnobId::kGlobalBatch] = int64_t{32};
  request.knobs[KnobId::kSequenceLength] = int64_t{2048};
  Setting setting = setting_of("llama-3-8b", 8, "dgx-h100-80gb", request);
  setting.stack = load_stack(stack);
  for (const std::string& path : load_strategy("megatron").layout) {
    setting.open.add(find_knob(path)->id);
  }
  setting.open.add(KnobId::kData);
  return setting;
}

// Nothing that bounds or limits leave alone is faster: what is found is no slower than the fastest
// of all layouts, each completed without knowing of the others. And complete(), which asks a few of
// them alone how many buckets the GPU should step, comes near it.
TEST(rank_layouts, best_is_no_slower_than_every_layout_completed_alone) {
  Numbers numbers(20261127);
  int asked = 0;
  int fitting = 0;
  while (asked < 40) {
    const Setting setting = random_setting(numbers);
    std::vector<Plan> layouts;
    try {
      layouts = legal_layouts_of_all(setting);
    } catch (const Error&) {
      continue;
    }
    ++asked;
    const SearchResult found = rank_layouts(setting, layouts, nullptr, {});
    const std::optional<Duration> fastest = fastest_of_each(setting, layouts);
    const std::string name = name_of(setting);
    EXPECT_TRUE(found.complete()) << name;
    EXPECT_EQ(found.layouts, std::ssize(layouts)) << name;
    EXPECT_EQ(decided(found), found.layouts) << name;
    EXPECT_EQ(found.best.has_value(), fastest.has_value()) << name;
    if (!found.best || !fastest) continue;
    ++fitting;
    EXPECT_LE(found.best->step_time, *fastest) << name;
    const Completed chosen = complete(setting, nullptr);
    EXPECT_GE(chosen.prediction.step_time, found.best->step_time) << name;
    EXPECT_LE(chosen.prediction.step_time.seconds(), 1.02 * fastest->seconds()) << name;
  }
  EXPECT_GT(fitting, 20);
}

// Each of another layout, in ascending order, and as `predict` tells it.
TEST(rank_layouts, ranks_the_best_plan_of_each_layout) {
  const Setting setting = eight_gpus("megatron-core-2024");
  RankingOptions options;
  options.ranked = 4;
  const SearchResult found = rank_layouts(setting, legal_layouts_of_all(setting), nullptr, options);
  ASSERT_EQ(found.ranked.size(), 4U);
  EXPECT_EQ(found.best->step_time, found.ranked.front().step_time);
  for (size_t i = 0; i < found.ranked.size(); ++i) {
    const Candidate& one = found.ranked[i];
    const Prediction predicted =
        predict(setting.model, one.plan, setting.machine, setting.stack, nullptr);
    EXPECT_TRUE(predicted.fits);
    EXPECT_EQ(predicted.step_time, one.step_time);
    EXPECT_LE(one.bound, one.step_time);
    if (i > 0) EXPECT_LE(found.ranked[i - 1].step_time, one.step_time);
    for (size_t j = 0; j < i; ++j) {
      const Plan& faster = found.ranked[j].plan;
      EXPECT_TRUE(layout_name(faster) != layout_name(one.plan) ||
                  faster.zero_stage != one.plan.zero_stage)
          << i << " and " << j;
    }
  }
}

TEST(rank_layouts, where_nothing_fits_the_nearest_says_why) {
  Setting setting = eight_gpus("typical");
  setting.machine.gpu.memory.value = setting.machine.gpu.reserved.value + Bytes{int64_t{1} << 30};
  setting.machine.cpu.memory.value = setting.machine.cpu.reserved.value + Bytes{int64_t{1} << 30};
  const std::vector<Plan> layouts = legal_layouts_of_all(setting);
  const SearchResult found = rank_layouts(setting, layouts, nullptr, {});
  EXPECT_TRUE(found.complete());
  EXPECT_FALSE(found.best);
  EXPECT_EQ(found.infeasible, std::ssize(layouts));
  ASSERT_EQ(found.reasons.size(), 1U);
  EXPECT_EQ(found.reasons.front().count, found.infeasible);
  EXPECT_NE(found.reasons.front().detail.find("too much"), std::string::npos)
      << found.reasons.front().detail;
}

TEST(rank_layouts, any_plan_is_enough_where_that_is_asked) {
  const Setting setting = eight_gpus("typical");
  RankingOptions options;
  options.any_is_enough = true;
  options.ranked = 1;
  const SearchResult found = rank_layouts(setting, legal_layouts_of_all(setting), nullptr, options);
  ASSERT_TRUE(found.best);
  EXPECT_TRUE(found.complete());
  EXPECT_LT(found.simulated,
            rank_layouts(setting, legal_layouts_of_all(setting), nullptr, {}).simulated);
}

// What was found by then is told, and what nobody looked at is counted.
TEST(rank_layouts, an_interruption_leaves_the_best_so_far) {
  const Setting setting = eight_gpus("typical");
  const std::vector<Plan> layouts = legal_layouts_of_all(setting);
  RankingOptions options;
  bool any = false;
  options.progress = [&](const LayoutProgress& at) { any = at.best.has_value(); };
  options.interrupted = [&] { return any; };
  const SearchResult found = rank_layouts(setting, layouts, nullptr, options);
  EXPECT_EQ(found.stop, SearchStop::kInterrupt);
  EXPECT_TRUE(found.best);
  EXPECT_GT(found.not_looked_at, 0);
  EXPECT_EQ(decided(found), found.layouts);
  options.interrupted = [] { return true; };
  const SearchResult nothing = rank_layouts(setting, layouts, nullptr, options);
  EXPECT_EQ(nothing.stop, SearchStop::kInterrupt);
  EXPECT_FALSE(nothing.best);
  EXPECT_EQ(decided(nothing), nothing.layouts);
  // Nobody looked at what no bound decides.
  const SearchResult whole = rank_layouts(setting, layouts, nullptr, {});
  EXPECT_LT(found.simulated, whole.simulated);
  EXPECT_LE(found.infeasible + found.bounded, whole.infeasible + whole.bounded);
  EXPECT_EQ(nothing.simulated, 0);
  EXPECT_GE(nothing.not_looked_at, whole.simulated);
}

// However few the layouts, and whenever it comes: what was cut short is not decided.
TEST(rank_layouts, what_was_cut_short_is_not_complete) {
  const Setting setting = eight_gpus("megatron-core-2024");
  const std::vector<Plan> all = legal_layouts_of_all(setting);
  for (const size_t count : {size_t{1}, size_t{5}}) {
    const std::vector<Plan> layouts(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    const SearchResult whole = rank_layouts(setting, layouts, nullptr, {});
    for (int asked_before = 0; asked_before < 40; asked_before += 3) {
      std::atomic<int> asked{0};
      RankingOptions options;
      options.interrupted = [&] { return ++asked > asked_before; };
      const SearchResult found = rank_layouts(setting, layouts, nullptr, options);
      EXPECT_EQ(decided(found), found.layouts) << asked_before;
      if (found.complete()) {
        EXPECT_EQ(found.best->step_time, whole.best->step_time) << asked_before;
      } else {
        EXPECT_EQ(found.stop, SearchStop::kInterrupt) << asked_before;
      }
    }
  }
}

}  // namespace
}  // namespace ballast::tests
