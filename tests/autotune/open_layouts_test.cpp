#include "autotune/complete/layouts/open_layouts.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "autotune/complete/complete.h"
#include "autotune/complete/feasibility.h"
#include "autotune/space/layout.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/graph/build.h"
#include "tests/numbers.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

Machine four_gpus() {
  Machine machine = gpu_machine();
  machine.devices = machine.devices_per_node = 4;
  machine.network = machine.node;
  return machine;
}

// Four devices, whose degrees and stage are open.
Setting open_setting(int64_t global_batch = 8) {
  Setting setting;
  setting.model = small_model();
  setting.plan = auto_plan(global_batch);
  setting.plan.devices = setting.plan.data = 4;
  setting.machine = four_gpus();
  setting.open = {KnobId::kTensor, KnobId::kPipeline, KnobId::kZeroStage, KnobId::kData};
  return setting;
}

// Whether any plan of any layout fits: all of them, one layout after the other.
bool any_layout_fits(const Setting& setting) {
  for (const Plan& plan : layouts_of(setting.model, setting.plan, setting.open)) {
    try {
      if (feasibility({setting.model, plan, setting.machine, setting.stack}).fits) return true;
    } catch (const Error&) {
      continue;
    }
  }
  return false;
}

TEST(open_layouts, are_all_legal_ones_and_each_is_settled) {
  const Setting setting = open_setting();
  const std::vector<OpenLayout> found = open_layouts(setting, nullptr);
  EXPECT_EQ(found.size(), layouts_of(setting.model, setting.plan, setting.open).size());
  for (const OpenLayout& layout : found) {
    EXPECT_FALSE(layout.setting.has_open_layout());
    EXPECT_GT(layout.at_least.ps, 0);
  }
}

// A choice among layouts says how far it is, and at the end that nothing is left.
TEST(open_layouts, whoever_listens_hears_how_far_the_choice_is) {
  const Setting setting = open_setting();
  std::vector<LayoutProgress> heard;
  const Completed chosen =
      complete(setting, nullptr, {}, [&](const LayoutProgress& at) { heard.push_back(at); });
  ASSERT_GE(heard.size(), 2U);
  for (size_t i = 1; i < heard.size(); ++i) {
    EXPECT_EQ(heard[i].layouts, std::ssize(open_layouts(setting, nullptr)));
    EXPECT_GT(heard[i].looked_at, heard[i - 1].looked_at);
    EXPECT_LE(heard[i].best->ps, heard[i - 1].best->ps);
  }
  EXPECT_GT(heard.front().left, 0);
  EXPECT_EQ(heard.back().left, 0);
  const double estimated = heard.back().best->seconds() / chosen.prediction.step_time.seconds();
  EXPECT_NEAR(estimated, 1, 0.05);
  const Completed unheard = complete(setting, nullptr);
  EXPECT_EQ(unheard.setting.plan, chosen.setting.plan);
}

// However early a deadline comes, layouts were seen of all parts of the list; where none comes, all
// were, in the order of open_layouts().
TEST(open_layouts, are_judged_in_steps_through_the_list) {
  const Setting setting = open_setting();
  const std::vector<Plan> legal = legal_layouts(setting);
  ASSERT_GT(legal.size(), 4U);
  std::vector<Plan> list;
  for (const Plan& plan : legal) list.insert(list.end(), 40, plan);
  Setting like = setting;
  like.plan = list.front();
  const std::vector<OpenLayout> early = judged_layouts(like, list, nullptr, [] { return true; });
  ASSERT_LT(early.size(), list.size());
  for (const Plan& plan : legal) {
    EXPECT_TRUE(std::any_of(early.begin(), early.end(), [&](const OpenLayout& one) {
      return one.setting.plan == plan;
    })) << layout_name(plan);
  }
  const std::vector<OpenLayout> all = judged_layouts(like, legal, nullptr, {});
  const std::vector<OpenLayout> open = open_layouts(setting, nullptr);
  ASSERT_EQ(all.size(), open.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].setting.plan, open[i].setting.plan);
    EXPECT_EQ(all[i].at_least, open[i].at_least);
  }
}

TEST(open_layouts, keep_what_is_named) {
  Setting setting = open_setting();
  setting.open.remove(KnobId::kZeroStage);
  setting.plan.zero_stage = 3;
  for (const OpenLayout& layout : open_layouts(setting, nullptr)) {
    const Plan& plan = layout.setting.plan;
    if (plan.pipeline == 1 && plan.replicas() > 1) EXPECT_EQ(plan.zero_stage, 3);
  }
  setting.open.remove(KnobId::kData);
  setting.plan.data = 2;
  for (const OpenLayout& layout : open_layouts(setting, nullptr)) {
    EXPECT_EQ(layout.setting.plan.data, 2);
  }
}

// No other completion is faster by more than the tolerance of a search, and the verdict is that of
// all of them, for memories from far too small to ample.
TEST(open_layouts, verdicts_are_those_of_every_layout_one_by_one) {
  Numbers numbers;
  int fitting = 0;
  constexpr int kSettings = 24;
  for (int i = 0; i < kSettings; ++i) {
    Setting setting = open_setting(4 << numbers.below(3));
    setting.model.layers = 2 + 2 * numbers.below(2);
    const double scale = std::exp2(static_cast<double>(numbers.below(70)) / 10);
    setting.machine.gpu.memory = given(Bytes{std::llround(2e5 * scale)});
    setting.machine.cpu.memory = given(Bytes{int64_t{1} << (20 + numbers.below(8))});
    const bool expected = any_layout_fits(setting);
    fitting += expected ? 1 : 0;
    EXPECT_EQ(feasibility(setting).fits, expected) << i;
    EXPECT_EQ(fits_at_all(setting, {}).fits, expected) << i;
    EXPECT_EQ(complete(setting, nullptr).prediction.fits, expected) << i;
  }
  EXPECT_GT(fitting, kSettings / 5);
  EXPECT_LT(fitting, kSettings * 4 / 5);
}

// It ends at once, by an Error or without a plan, where somebody who is not stopped is told of one.
TEST(open_layouts, a_question_that_is_stopped_finds_no_plan) {
  const Setting setting = open_setting();
  ASSERT_TRUE(fits_at_all(setting, {}).fits);
  bool found = false;
  try {
    found = fits_at_all(setting, [] { return true; }).fits;
  } catch (const Error&) {
    // Nothing was looked at.
  }
  EXPECT_FALSE(found);
}

TEST(open_layouts, the_chosen_one_is_about_as_fast_as_the_fastest) {
  const Setting setting = open_setting();
  const Completed chosen = complete(setting, nullptr);
  ASSERT_TRUE(chosen.prediction.fits);
  for (const Plan& plan : layouts_of(setting.model, setting.plan, setting.open)) {
    const Completed one = complete({setting.model, plan, setting.machine}, nullptr);
    EXPECT_LE(chosen.prediction.step_time.seconds(), 1.02 * one.prediction.step_time.seconds())
        << layout_name(plan);
  }
}

TEST(open_layouts, other_strategies_are_chosen_among) {
  Setting setting = open_setting();
  setting.open = {};
  setting.plan.strategy = "slow";
  setting.plan.zero_stage = 2;
  Start other{setting.plan, {}};
  other.plan.strategy = "fast";
  other.plan.optimizer.placement = OptimizerPlacement::kGpu;
  other.plan.optimizer.sync = SyncMode::kWait;
  other.plan.optimizer.gpu_buckets = 0;
  other.plan.weights.flow_share = 0;
  setting.plan.weights.flow_share = 1;
  setting.plan.optimizer.gpu_buckets = 0;
  setting.others = {other};
  EXPECT_EQ(complete(setting, nullptr).setting.plan.strategy, "fast");
}

// Sums to which several products add (routed and shared experts, latent attention) are exchanged
// once: a graph of every shipped model can be built however its matrices are split.
TEST(open_layouts, every_shipped_model_splits_its_matrices) {
  for (const Shipped& shipped : shipped_models()) {
    Model model = load_model(shipped.name);
    model.layers = std::min<int64_t>(model.layers, 4);
    for (const bool overlaps : {false, true}) {
      Plan plan = fixed_plan();
      plan.devices = plan.tensor = 2;
      plan.micro_batch = plan.global_batch = 1;
      plan.tensor_sequence = overlaps;
      plan.optimizer.bucket_bytes = {64 << 20};
      StackFacts facts;
      facts.tensor_overlap = overlaps ? Overlap::kFull : Overlap::kNone;
      if (model.heads % plan.tensor != 0 || model.kv_heads % plan.tensor != 0) continue;
      EXPECT_GT(build(model, plan, facts).step.ops.size(), 0u) << shipped.name;
    }
  }
}

}  // namespace
}  // namespace ballast::tests
