// The front against all plans of small spaces, simulated.
#include "autotune/studies/frontier.h"

#include <gtest/gtest.h>
#include <set>
#include <tuple>

#include "tests/autotune/asking.h"

namespace ballast::tests {
namespace {

using Corner = std::tuple<int64_t, int64_t, int64_t>;  // devices, bytes, picoseconds

// All of one global batch, so that the fewest picoseconds are the most tokens a second.
std::set<Corner> corners_by_hand(const std::vector<SearchQuestion>& questions) {
  std::vector<Corner> all;
  for (const SearchQuestion& question : questions) {
    for (const Candidate& candidate : all_plans(question)) {
      all.emplace_back(candidate.plan.devices, gpu_memory(candidate).count, candidate.step_time.ps);
    }
  }
  std::set<Corner> corners;
  for (const auto& [devices, bytes, time] : all) {
    bool beaten = false;
    for (const auto& [d, b, t] : all) {
      const bool no_worse = d <= devices && b <= bytes && t <= time;
      beaten = beaten || (no_worse && (d < devices || b < bytes || t < time));
    }
    if (!beaten) corners.emplace(devices, bytes, time);
  }
  return corners;
}

std::set<Corner> corners_of(const Frontier& frontier) {
  std::set<Corner> corners;
  for (const FrontierPoint& point : frontier.points) {
    corners.emplace(point.devices, gpu_memory(point.candidate).count, point.candidate.step_time.ps);
  }
  return corners;
}

std::vector<SearchQuestion> one_and_two_devices() {
  Plan two = fixed_plan();
  two.devices = two.data = 2;
  two.micro_batch = 2;
  return {small_question(fixed_plan(), gpu_machine()), small_question(two, gpu_machine())};
}

TEST(Frontier, is_what_no_other_plan_of_the_whole_space_beats) {
  FrontierOptions options;
  options.least_step = 0;
  options.most_points = 100'000;
  const std::vector<SearchQuestion> questions = one_and_two_devices();
  const Frontier frontier = frontier_of(questions, options, searching());
  EXPECT_TRUE(frontier.whole);
  EXPECT_GT(frontier.points.size(), 5u);
  EXPECT_EQ(corners_of(frontier), corners_by_hand(questions));
}

TEST(Frontier, with_steps_holds_some_of_its_points_and_says_so) {
  FrontierOptions options;
  options.least_step = 0.1;
  options.most_points = 3;
  const std::vector<SearchQuestion> questions = one_and_two_devices();
  const Frontier frontier = frontier_of(questions, options, searching());
  EXPECT_FALSE(frontier.whole);
  EXPECT_LE(frontier.points.size(), 6u);
  const std::set<Corner> whole = corners_by_hand(questions);
  for (const Corner& corner : corners_of(frontier)) EXPECT_TRUE(whole.contains(corner));
  for (size_t i = 1; i < frontier.points.size(); ++i) {
    const FrontierPoint& before = frontier.points[i - 1];
    const FrontierPoint& point = frontier.points[i];
    if (before.devices != point.devices) continue;
    EXPECT_LE(static_cast<double>(gpu_memory(point.candidate).count),
              0.9 * static_cast<double>(gpu_memory(before.candidate).count));
  }
}

TEST(Frontier, begins_with_the_fastest_plan_without_a_limit) {
  const SearchQuestion question = small_question(fixed_plan(), gpu_machine());
  const Frontier frontier = frontier_of({question}, {}, searching());
  ASSERT_FALSE(frontier.points.empty());
  EXPECT_FALSE(frontier.points[0].memory_limit);
  EXPECT_EQ(frontier.points[0].candidate.step_time, searching()(question)->best->step_time);
  for (size_t i = 1; i < frontier.points.size(); ++i) {
    EXPECT_LE(gpu_memory(frontier.points[i].candidate), *frontier.points[i].memory_limit);
  }
}

TEST(Frontier, of_a_machine_that_nothing_fits_is_empty) {
  Machine machine = gpu_machine();
  machine.gpu.memory = given(Bytes{1 << 16});
  const Frontier frontier = frontier_of({small_question(fixed_plan(), machine)}, {}, searching());
  EXPECT_TRUE(frontier.points.empty());
}

TEST(Frontier, interrupted_keeps_what_it_has_and_is_not_whole) {
  int asked = 0;
  const Ask ask = [&](const SearchQuestion& question) -> std::optional<SearchResult> {
    if (++asked == 3) return std::nullopt;
    return searching()(question);
  };
  FrontierOptions options;
  options.least_step = 0;
  const Frontier frontier = frontier_of(one_and_two_devices(), options, ask);
  EXPECT_EQ(asked, 3);
  EXPECT_FALSE(frontier.whole);
  EXPECT_GE(frontier.points.size(), 1u);
  EXPECT_LE(frontier.points.size(), 2u);
}

}  // namespace
}  // namespace ballast::tests
