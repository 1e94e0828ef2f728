// Corrections: factors on what was timed, and how the store keeps them.
#include "profiles/corrections.h"

#include <gtest/gtest.h>

#include "profiles/load.h"
#include "profiles/store.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using profile_tests::TemporaryFolder;

const Origin kOrigin{"0.1.0", "abc123"};
const Host kHost{"here", "H100", "535.1"};

Measurement timed(int64_t median_ps, const std::string& group) {
  Measurement value;
  value.median = {median_ps};
  value.deviation = {median_ps / 10};
  value.group = group;
  return value;
}

TEST(Corrections, own_factor_of_an_operation_goes_before_that_of_its_group) {
  const Measurements known = {
      {"a", timed(100, "g")}, {"b", timed(100, "g")}, {"c", timed(100, "other")}};
  const Measurements now = corrected(known, {{{"a", 1.5}}, {{"g", 2}}});
  EXPECT_EQ(now.at("a").median.ps, 150);
  EXPECT_EQ(now.at("a").deviation.ps, 15);
  EXPECT_EQ(now.at("b").median.ps, 200);
  EXPECT_EQ(now.at("c").median.ps, 100);
}

TEST(Corrections, only_what_changed_is_told) {
  const Corrections before = {{{"a", 1.5}, {"b", 2}}, {{"g", 1.2}}};
  const Corrections now = {{{"a", 1.5001}, {"b", 2.1}, {"c", 1}}, {{"g", 1.2}}};
  const Corrections changes = changes_of(before, now);
  EXPECT_EQ(changes.operations, (std::map<std::string, double>{{"b", 2.1}, {"c", 1}}));
  EXPECT_TRUE(changes.groups.empty());
}

TEST(Corrections, store_applies_the_newest_and_outlives_another_timing) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kOrigin);
  EXPECT_TRUE(store.corrections(kHost).empty());
  store.append(kHost, {{"a", timed(100, "g")}, {"b", timed(100, "g")}});
  store.append(kHost, Corrections{{{"a", 3}}, {{"g", 1.5}}});
  store.append(kHost, Corrections{{{"a", 2}}, {}});
  EXPECT_EQ(store.measurements(kHost).at("a").median.ps, 200);
  EXPECT_EQ(store.measurements(kHost).at("b").median.ps, 150);
  store.append(kHost, {{"a", timed(110, "g")}});
  EXPECT_EQ(store.measurements(kHost).at("a").median.ps, 220);
  EXPECT_EQ(store.timings(kHost).at("a").median.ps, 110);
  const Host elsewhere{"here", "H100", "550.2"};
  EXPECT_TRUE(store.corrections(elsewhere).empty());
}

TEST(Corrections, new_profile_of_the_machine_begins_afresh) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kOrigin);
  Machine machine = load_machine("rtx-4090-pcie");
  machine.name = "here";
  store.append(machine);
  store.append(kHost, Corrections{{{"a", 3}}, {}});
  EXPECT_EQ(store.corrections(kHost).operations.at("a"), 3);
  machine.name = "another";
  store.append(machine);
  EXPECT_FALSE(store.corrections(kHost).empty());
  machine.name = "here";
  store.append(machine);
  EXPECT_TRUE(store.corrections(kHost).empty());
  store.append(kHost, Corrections{{{"a", 4}}, {}});
  EXPECT_EQ(store.corrections(kHost).operations.at("a"), 4);
}

}  // namespace
}  // namespace ballast
