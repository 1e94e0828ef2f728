// The table of knobs holds every field of a plan, once.
#include "sim/spec/knobs.h"

#include <gtest/gtest.h>
#include <set>
#include <utility>

#include "tests/spec/knob_values.h"

namespace ballast {
namespace {

using knob_tests::other_values;
using knob_tests::with_values;

// Stands for any one field in an aggregate's braces.
struct AnyField {
  template <class Field>
  operator Field() const;
};
template <size_t>
using AnyFieldAt = AnyField;

template <class Struct, size_t... kIndex>
constexpr bool takes(std::index_sequence<kIndex...>) {
  return requires { Struct{AnyFieldAt<kIndex>{}...}; };
}
constexpr size_t kMostFields = 64;
// How many fields the braces of a struct take: as many as it has.
template <class Struct, size_t kCount = kMostFields>
constexpr size_t fields_of() {
  static_assert(kCount > 0);
  if constexpr (takes<Struct>(std::make_index_sequence<kCount>())) {
    return kCount;
  } else {
    return fields_of<Struct, kCount - 1>();
  }
}
static_assert(fields_of<Plan>() < kMostFields);

size_t rows_of(std::string_view object) {
  size_t rows = 0;
  for (const Knob& knob : knobs()) rows += knob.object() == object;
  return rows;
}

// A field that is added to a plan without a row in sim/spec/knobs.cpp fails here.
TEST(Knobs, every_field_of_a_plan_is_in_the_table) {
  constexpr size_t kObjectsWithoutARow = 2;  // weights and optimizer, which are always there
  EXPECT_EQ(fields_of<Plan>(), rows_of("") + kObjectsWithoutARow);
  EXPECT_EQ(fields_of<WeightsPlan>(), rows_of("weights"));
  EXPECT_EQ(fields_of<OptimizerPlan>(), rows_of("optimizer"));
  EXPECT_EQ(fields_of<ActivationPlan>(), rows_of("activations"));
}

// Two rows of one field would leave another field without one.
TEST(Knobs, each_row_changes_a_field_of_its_own) {
  for (const Knob& knob : knobs()) {
    if (knob.type == KnobType::kGroup) continue;
    const Plan before = with_values();
    for (const KnobValue& value : other_values(knob)) {
      Plan plan = before;
      knob.set(plan, value);
      EXPECT_EQ(knob.get(plan), value) << knob.path;
      if (knob.get(before) == value) continue;
      EXPECT_NE(plan, before) << knob.path;
      EXPECT_NE(plan_key(plan), plan_key(before)) << knob.path;
      EXPECT_EQ(plan_key(plan, {knob.id}), plan_key(before, {knob.id})) << knob.path;
      const std::vector<const Knob*> changed = differing(plan, before);
      ASSERT_EQ(changed.size(), 1) << knob.path;
      EXPECT_EQ(changed.front()->id, knob.id);
      knob.set(plan, knob.get(before));
      EXPECT_EQ(plan, before) << knob.path;
    }
  }
}

TEST(Knobs, a_knob_that_may_be_open_can_be_auto) {
  for (const Knob& knob : knobs()) {
    if (!knob.may_be_auto) continue;
    EXPECT_EQ(default_of(knob), KnobValue()) << knob.path;
    Plan plan = with_values();
    const Plan before = plan;
    knob.set(plan, {});
    EXPECT_EQ(knob.get(plan), KnobValue()) << knob.path;
    EXPECT_EQ(text_of(knob, knob.get(plan)), "auto");
    EXPECT_NE(plan, before) << knob.path;
    EXPECT_NE(plan_key(plan), plan_key(before)) << knob.path;
    EXPECT_FALSE(differing(plan, before).empty()) << knob.path;
  }
}

TEST(Knobs, members_of_a_group_that_is_auto_are_auto_and_setting_one_gives_the_others_defaults) {
  Plan plan;
  const Knob& look_ahead = knob_of(KnobId::kActivationsLookAhead);
  EXPECT_EQ(look_ahead.get(plan), KnobValue());
  look_ahead.set(plan, int64_t{2});
  ActivationPlan expected;
  expected.look_ahead = 2;
  EXPECT_EQ(plan.activations, expected);
}

TEST(Knobs, names_are_told_apart_and_every_row_can_be_explained) {
  std::set<std::string_view> paths;
  std::set<std::string_view> flags;
  for (const Knob& knob : knobs()) {
    EXPECT_TRUE(paths.insert(knob.path).second) << knob.path;
    EXPECT_EQ(find_knob(knob.path), &knob);
    EXPECT_EQ(&knob_of(knob.id), &knob);
    EXPECT_FALSE(knob.help.empty()) << knob.path;
    EXPECT_EQ(knob.help.find('\n'), std::string_view::npos) << knob.path;
    EXPECT_FALSE(knob.help.ends_with('.')) << knob.path;
    EXPECT_TRUE(knob.flag.name.empty() || flags.insert(knob.flag.name).second) << knob.path;
    const bool is_number = knob.type == KnobType::kWhole || knob.type == KnobType::kBytes;
    EXPECT_EQ(is_number, knob.least < knob.most) << knob.path;
    const bool is_choice = knob.type == KnobType::kChoice || knob.type == KnobType::kFates;
    EXPECT_EQ(is_choice, !knob.choices.empty()) << knob.path;
    EXPECT_TRUE(knob.type == KnobType::kGroup || knob.may_be_auto || !other_values(knob).empty());
  }
  EXPECT_EQ(find_knob("optimizer.casts"), nullptr);
  EXPECT_EQ(find_knob("optimizer"), nullptr);
}

// A default that no plan file may hold could not be read back.
TEST(Knobs, defaults_are_legal) {
  for (const Knob& knob : knobs()) {
    const KnobValue usual = default_of(knob);
    if (const int64_t* whole = std::get_if<int64_t>(&usual)) {
      if (knob.type == KnobType::kChoice) {
        EXPECT_NE(std::find(knob.choices.begin(), knob.choices.end(), *whole), knob.choices.end())
            << knob.path;
      } else {
        EXPECT_GE(*whole, knob.least) << knob.path;
        EXPECT_LE(*whole, knob.most) << knob.path;
      }
    }
  }
}

TEST(Knobs, texts_name_choices) {
  Plan plan;
  plan.optimizer.cast = CastPlacement::kCpu;
  const Knob& cast = knob_of(KnobId::kCast);
  EXPECT_EQ(text_of(cast, cast.get(plan)), "cpu");
  EXPECT_EQ(cast.object(), "optimizer");
  EXPECT_EQ(cast.key(), "cast");
  EXPECT_EQ(text_of(KnobSet{KnobId::kCast, KnobId::kDevices}), "devices, optimizer.cast");
}

}  // namespace
}  // namespace ballast
