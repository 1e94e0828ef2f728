// Objectives by hand arithmetic, and sizes and limits against exhaustive searches.
#include "autotune/studies/objective.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tests/autotune/asking.h"

namespace ballast::tests {
namespace {

// 8,000 tokens in 2 s on four devices: 4,000 tokens/s.
Candidate four_devices() {
  Candidate candidate;
  candidate.plan.devices = 4;
  candidate.step_time = Duration::from_seconds(2);
  candidate.tokens_per_s = 4000;
  return candidate;
}

// A token takes 4 devices 1 ms / 4 each: 1 ms of device. At 3.60 an hour that is 1e-6; at 500 W
// half a joule.
TEST(Objective, money_and_energy_are_those_of_a_device_second) {
  const Economy economy = economy_of(four_devices(), {3.6, 500.0});
  EXPECT_DOUBLE_EQ(economy.tokens_per_s_per_device, 1000);
  EXPECT_NEAR(*economy.cost_per_million_tokens, 1.0, 1e-12);
  EXPECT_NEAR(*economy.joules_per_token, 0.5, 1e-12);
  EXPECT_FALSE(economy_of(four_devices(), {}).cost_per_million_tokens);
  EXPECT_FALSE(economy_of(four_devices(), {}).joules_per_token);
}

// 3.456e8 tokens at 4,000 a second are 86,400 s.
TEST(Objective, days_are_tokens_over_rate) {
  EXPECT_NEAR(days_of({3.456e8, 30}, four_devices()), 1.0, 1e-12);
}

TEST(Objective, names_are_read_back_and_others_refused) {
  for (const std::string& name : objective_names()) {
    EXPECT_EQ(to_string(parse_objective(name)), name);
  }
  EXPECT_THROW(parse_objective("speed"), Error);
}

// Points with 1, 2 and 4 devices of 100, 180 and 300 tokens/s: 100, 90 and 75 a device.
struct Ladder {
  std::vector<ObjectivePoint> points;
  int asked = 0;
  Ask ask;

  Ladder() {
    for (const int64_t devices : {1, 2, 4}) {
      ObjectivePoint point;
      point.devices = devices;
      point.question = small_question(fixed_plan(), gpu_machine());
      point.question->space.layouts[0].devices = devices;
      points.push_back(std::move(point));
    }
    ask = [this](const SearchQuestion& question) -> std::optional<SearchResult> {
      ++asked;
      SearchResult found;
      found.best.emplace();
      found.best->plan = question.space.layouts[0];
      const int64_t devices = found.best->plan.devices;
      found.best->tokens_per_s = devices == 1 ? 100 : devices == 2 ? 180 : 300;
      found.best->step_time = Duration::from_seconds(256 / found.best->tokens_per_s);
      return found;
    };
  }
};

TEST(Objective, each_chooses_the_point_that_it_counts) {
  Ladder ladder;
  ObjectiveRequest request;
  request.rates = {1.0, 100.0};
  ask_points(ladder.points, request, ladder.ask);
  EXPECT_EQ(ladder.asked, 3);
  EXPECT_EQ(best_point(ladder.points, request), 2u);
  request.objective = Objective::kTokensPerDevice;
  EXPECT_EQ(best_point(ladder.points, request), 0u);
  request.objective = Objective::kCostPerToken;
  EXPECT_EQ(best_point(ladder.points, request), 0u);
}

// 100 W: 1 J a token on one device, 100 * 2 / 180 = 1.11 J on two, 1.33 J on four.
TEST(Objective, energy_that_is_too_much_rules_a_point_out) {
  Ladder ladder;
  ObjectiveRequest request;
  request.rates.watts = 100;
  request.most_joules_per_token = 1.2;
  ask_points(ladder.points, request, ladder.ask);
  EXPECT_EQ(best_point(ladder.points, request), 1u);
  request.most_joules_per_token = 0.9;
  EXPECT_FALSE(best_point(ladder.points, request));
}

// A day has 86,400 s: 150 tokens/s are needed for 12.96e6 tokens, which two devices reach.
TEST(Objective, fewest_devices_for_a_deadline_are_found_without_asking_for_more) {
  Ladder ladder;
  ObjectiveRequest request;
  request.objective = Objective::kDevicesForDeadline;
  request.job = Job{12.96e6, 1};
  ask_points(ladder.points, request, ladder.ask);
  EXPECT_EQ(best_point(ladder.points, request), 1u);
  EXPECT_EQ(ladder.asked, 2);
  EXPECT_FALSE(ladder.points[2].found);
  request.job = Job{12.96e6, 0.1};
  ask_points(ladder.points, request, ladder.ask);
  EXPECT_FALSE(best_point(ladder.points, request));
}

// Two devices meet the deadline; that one does not is known only where its search was not stopped,
// or where the optimum cannot be so far away: 150 tokens/s are 1.5 times what was found.
TEST(Objective, point_whose_search_was_stopped_is_not_decided) {
  ObjectiveRequest request;
  request.objective = Objective::kDevicesForDeadline;
  request.job = Job{12.96e6, 1};
  const auto first = [&](SearchStop stop, std::optional<double> within) {
    Ladder ladder;
    const Ask ask = [&](const SearchQuestion& question) {
      std::optional<SearchResult> found = ladder.ask(question);
      found->stop = stop;
      found->proven_within = within;
      return found;
    };
    ask_points(ladder.points, request, ask);
    EXPECT_EQ(ladder.points[0].stop, stop);
    return is_decided(ladder.points[0], request);
  };
  EXPECT_TRUE(first(SearchStop::kNone, 0));
  EXPECT_FALSE(first(SearchStop::kDeadline, std::nullopt));
  EXPECT_FALSE(first(SearchStop::kDeadline, 1));
  EXPECT_FALSE(first(SearchStop::kDeadline, 0.34));  // 100 / 0.66 = 151.5
  EXPECT_TRUE(first(SearchStop::kDeadline, 0.33));   // 149.3
}

TEST(Objective, after_an_interruption_nothing_is_asked_and_nothing_decided) {
  Ladder ladder;
  const Ask ask = [&](const SearchQuestion& question) {
    std::optional<SearchResult> found = ladder.ask(question);
    if (ladder.asked == 2) {
      found->best.reset();
      found->stop = SearchStop::kInterrupt;
    }
    return found;
  };
  ask_points(ladder.points, {}, ask);
  EXPECT_EQ(ladder.asked, 2);
  EXPECT_TRUE(is_decided(ladder.points[0], {}));
  EXPECT_FALSE(is_decided(ladder.points[1], {}));
  EXPECT_FALSE(is_decided(ladder.points[2], {}));
  EXPECT_EQ(ladder.points[2].stop, SearchStop::kInterrupt);
}

// Sizes up to the limit fit: every limit is found, and with about 2 log2 searches.
TEST(LargestSize, is_found_wherever_the_limit_is) {
  for (int64_t limit = 0; limit <= 40; ++limit) {
    const Ask ask = [&](const SearchQuestion& question) -> std::optional<SearchResult> {
      SearchResult found;
      if (question.model.layers > limit) return found;
      found.best.emplace();
      found.best->plan.micro_batch = question.model.layers;
      return found;
    };
    SizeSearch sizes;
    sizes.most = 33;
    sizes.question = [](int64_t size) {
      SearchQuestion question;
      question.model.layers = size;
      return question;
    };
    const LargestSize largest = largest_size(sizes, ask);
    const int64_t expected = std::min<int64_t>(limit, 33);
    EXPECT_EQ(largest.size, expected);
    EXPECT_EQ(largest.next, limit < 33 ? limit + 1 : 0);
    EXPECT_LE(largest.searches, 14);
    EXPECT_EQ(largest.next_stop, SearchStop::kNone);
    if (expected > 0) EXPECT_EQ(largest.found->best->plan.micro_batch, expected);
  }
}

// Layers up to `fit` fit, from `undecided` on deadlines stop every search, and the search after
// `answers` is interrupted.
struct Limits {
  int64_t fit = 0;
  int64_t undecided = INT64_MAX;
  int64_t answers = INT64_MAX;
};

LargestSize largest_within(const Limits& limits) {
  int64_t asked = 0;
  const Ask ask = [&](const SearchQuestion& question) -> std::optional<SearchResult> {
    if (asked++ >= limits.answers) return std::nullopt;
    SearchResult found;
    const int64_t layers = question.model.layers;
    if (layers >= limits.undecided) {
      found.stop = SearchStop::kDeadline;
    } else if (layers <= limits.fit) {
      found.best.emplace();
      found.best->plan.micro_batch = layers;
    } else {
      found.reasons.push_back({"GPU memory", 1, {}, "too large", {1}});
    }
    return found;
  };
  SizeSearch sizes;
  sizes.most = 33;
  sizes.question = [](int64_t size) {
    SearchQuestion question;
    question.model.layers = size;
    return question;
  };
  return largest_size(sizes, ask);
}

TEST(LargestSize, says_of_a_size_whose_search_was_stopped_that_it_is_not_decided) {
  for (int64_t undecided = 1; undecided <= 20; ++undecided) {
    const LargestSize largest = largest_within({20, undecided});
    EXPECT_EQ(largest.size, undecided - 1);
    EXPECT_EQ(largest.next, undecided);
    EXPECT_EQ(largest.next_stop, SearchStop::kDeadline);
    EXPECT_TRUE(largest.next_reasons.empty());
  }
  // Larger sizes that are not decided do not matter where a smaller one is known not to fit.
  for (int64_t undecided = 22; undecided <= 33; ++undecided) {
    const LargestSize largest = largest_within({20, undecided});
    EXPECT_EQ(largest.size, 20);
    EXPECT_EQ(largest.next_stop, SearchStop::kNone);
    EXPECT_EQ(largest.next_reasons.size(), 1U);
  }
}

TEST(LargestSize, that_is_interrupted_never_says_that_the_next_does_not_fit) {
  const int64_t whole = largest_within({20}).searches;
  for (int64_t answers = 0; answers < whole; ++answers) {
    const LargestSize largest = largest_within({20, INT64_MAX, answers});
    EXPECT_LE(largest.size, 20);
    const bool last =
        answers + 1 == whole;  // all sizes were decided, the fastest plan is not known
    EXPECT_EQ(largest.next, largest.size + 1);
    EXPECT_EQ(largest.next_stop, last ? SearchStop::kNone : SearchStop::kInterrupt);
    if (largest.size == 0) continue;
    EXPECT_EQ(largest.found->best->plan.micro_batch, largest.size);
    EXPECT_EQ(largest.found->stop, SearchStop::kInterrupt);
    EXPECT_FALSE(largest.found->proven_within);
  }
}

TEST(LargestSize, of_layers_is_that_of_simulating_every_plan_of_every_size) {
  Machine machine = gpu_machine();
  machine.gpu.memory = given(Bytes{9 << 20});
  const auto question_of = [&](int64_t layers) {
    SearchQuestion question = small_question(fixed_plan(), machine);
    question.model.layers = layers;
    question.space.open.remove(KnobId::kGpuBuckets);
    return question;
  };
  int64_t by_hand = 0;
  while (by_hand < 40 && !all_plans(question_of(by_hand + 1)).empty()) ++by_hand;
  ASSERT_GT(by_hand, 1);
  ASSERT_LT(by_hand, 40);
  SizeSearch sizes;
  sizes.most = 40;
  sizes.question = question_of;
  const LargestSize largest = largest_size(sizes, searching());
  EXPECT_EQ(largest.size, by_hand);
  ASSERT_TRUE(largest.found && largest.found->best);
  EXPECT_EQ(largest.found->best->step_time, all_plans(question_of(by_hand)).front().step_time);
  EXPECT_FALSE(largest.next_reasons.empty());
}

TEST(Shapes, ascend_in_parameters_and_keep_their_grain) {
  const Family family = gpt_family();
  const std::vector<Shape> shapes = shapes_of(family, 4);
  int64_t before = 0;
  for (const Shape& shape : shapes) {
    EXPECT_EQ(shape.layers % 4, 0);
    const int64_t parameters = parameter_count(model_of(family, shape, 1024));
    EXPECT_GT(parameters, before);
    before = parameters;
  }
  EXPECT_GT(before, int64_t{1'000'000'000'000});
}

TEST(Limits, head_room_is_kept_free_by_the_best_plan) {
  SearchQuestion question = small_question(fixed_plan(), gpu_machine());
  const Bytes taken = gpu_memory(*searching()(question)->best);
  const Bytes headroom = question.machine.gpu.memory.value - taken + Bytes{1};
  question.machine = with_headroom(question.machine, headroom);
  const SearchResult found = *searching()(question);
  ASSERT_TRUE(found.best);
  EXPECT_LT(gpu_memory(*found.best), taken);
}

TEST(Limits, least_memory_is_that_of_the_leanest_of_all_plans) {
  SearchQuestion question = small_question(fixed_plan(), gpu_machine());
  Bytes leanest = question.machine.gpu.memory.value;
  for (const Candidate& candidate : all_plans(question)) {
    leanest = std::min(leanest, gpu_memory(candidate));
  }
  // Also from a machine that is too small for any.
  for (const Bytes memory : {Bytes{1 << 30}, Bytes{1 << 20}}) {
    question.machine.gpu.memory = given(memory);
    const auto least = least_memory_of(question, Place::kHbm, searching());
    ASSERT_TRUE(least);
    EXPECT_GE(*least, leanest);
    EXPECT_LE(static_cast<double>(least->count), 1.011 * static_cast<double>(leanest.count));
  }
  question.machine.cpu.memory = given(Bytes{1});
  EXPECT_FALSE(least_memory_of(question, Place::kHbm, searching()));
}

}  // namespace
}  // namespace ballast::tests
