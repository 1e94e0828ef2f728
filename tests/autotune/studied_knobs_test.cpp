// What ablation and explanation know of two plans: every knob that a search may change, once.
#include "autotune/studies/studied_knobs.h"

#include <gtest/gtest.h>

#include "autotune/space/layout.h"
#include "tests/autotune/support.h"
#include "tests/spec/knob_values.h"

namespace ballast::tests {
namespace {

const StudiedKnob* studied(KnobId id) {
  const StudiedKnob* found = nullptr;
  for (const StudiedKnob& one : studied_knobs()) {
    if (!one.knobs.has(id)) continue;
    EXPECT_EQ(found, nullptr) << knob_of(id).path;
    found = &one;
  }
  return found;
}

TEST(StudiedKnobs, every_knob_that_is_searched_is_studied_once) {
  for (const Knob& knob : knobs()) {
    const StudiedKnob* const found = studied(knob.id);
    if (knob.search != KnobSearch::kNone) EXPECT_NE(found, nullptr) << knob.path;
  }
  for (const StudiedKnob& one : studied_knobs()) EXPECT_FALSE(one.knobs.empty()) << one.name;
}

TEST(StudiedKnobs, the_text_of_a_knob_that_is_searched_tells_its_values_apart) {
  for (const Knob& knob : knobs()) {
    // Layouts are named by what differs from one device.
    if (knob.search != KnobSearch::kRank || knob.type == KnobType::kGroup) continue;
    const Plan before = knob_tests::with_values();
    for (const KnobValue& value : knob_tests::other_values(knob)) {
      Plan plan = before;
      knob.set(plan, value);
      if (plan == before) continue;
      EXPECT_NE(studied(knob.id)->text(plan), studied(knob.id)->text(before)) << knob.path;
    }
  }
}

// What an ablation does: all steps together lead from any plan of a search to any other.
TEST(StudiedKnobs, taking_all_of_them_from_a_plan_makes_that_plan) {
  Plan base = auto_plan(8);
  base.devices = base.data = 4;
  const std::vector<Plan> layouts = layouts_of(small_model(), base, knobs_of(KnobSearch::kLayout));
  ASSERT_GT(layouts.size(), 10U);
  for (const Plan& layout : layouts) {
    Plan start = base;
    start.activations = ActivationPlan{};
    start.micro_batch = 1;
    for (const StudiedKnob& one : studied_knobs()) copy_knobs(start, layout, one.knobs);
    EXPECT_EQ(start, layout) << layout_name(layout);
  }
}

}  // namespace
}  // namespace ballast::tests
