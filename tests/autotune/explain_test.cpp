#include "autotune/studies/explain.h"

#include <atomic>
#include <gtest/gtest.h>
#include <stdexcept>

#include "sim/base/parallel.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

Prediction prediction_of(const Plan& plan) {
  return predict(small_model(), plan, gpu_machine(), nullptr);
}

TEST(Explain, knobs_that_differ_are_named_with_both_values) {
  Plan other = fixed_plan();
  EXPECT_TRUE(differing_knobs(fixed_plan(), other).empty());
  other.optimizer.sync = SyncMode::kSpeculate;
  other.activations->fate[static_cast<size_t>(ModuleKind::kFc1)] = ActivationFate::kRecompute;
  EXPECT_EQ(differing_knobs(fixed_plan(), other),
            (std::vector<std::string>{"activations: keep all, not recompute fc1",
                                      "optimizer.sync: wait, not speculate"}));
}

TEST(Explain, differences_on_the_critical_path_sum_to_the_difference_of_the_steps) {
  Plan other = fixed_plan();
  other.micro_batch = 1;
  const Comparison comparison =
      compare(fixed_plan(), prediction_of(fixed_plan()), other, prediction_of(other));
  Duration sum = comparison.waiting;
  for (const KindDifference& kind : comparison.critical) sum += kind.other - kind.best;
  EXPECT_NEAR(sum.seconds(), comparison.longer.seconds(), 1e-9);
  for (size_t i = 1; i < comparison.critical.size(); ++i) {
    const auto size = [&](size_t k) {
      return std::abs((comparison.critical[k].other - comparison.critical[k].best).ps);
    };
    EXPECT_GE(size(i - 1), size(i));
  }
}

TEST(Explain, a_slow_cpu_is_what_binds_a_step_that_waits_for_it) {
  Machine machine = gpu_machine();
  machine.cpu.adam["plain"] = flat(5e5);
  const Prediction prediction = predict(small_model(), fixed_plan(), machine, nullptr);
  const Binding binding = binding_of(prediction);
  EXPECT_EQ(binding.resource, "lane cpu");
  EXPECT_GT(binding.share, 0.9);
  EXPECT_LE(binding.share, 1.0);
}

TEST(Explain, every_alternative_changes_one_knob_and_none_beats_the_best) {
  const Model model = small_model();
  const Plan base = auto_plan();
  const Space space = space_of(model, base, OpenKnobs::all());
  const SearchResult result = search(model, base, space, gpu_machine(), nullptr, {});
  const std::vector<Alternative> all =
      alternatives(model, base, space, result.best->plan, gpu_machine(), nullptr, 2);
  EXPECT_GT(all.size(), 10U);
  for (const Alternative& alternative : all) {
    ASSERT_TRUE(alternative.step_time) << alternative.reason;
    EXPECT_GE(*alternative.step_time, result.best->step_time) << alternative.knob;
  }
}

TEST(Explain, the_text_says_what_binds_the_best_and_what_the_next_loses) {
  const SearchResult result = run_search(auto_plan(), OpenKnobs::all(), gpu_machine());
  const std::string text = explain(result, small_model(), gpu_machine(), nullptr);
  EXPECT_EQ(text.find("best: "), 0U);
  EXPECT_NE(text.find("the next-best plan loses"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
}

TEST(Explain, the_text_lists_the_reasons_where_nothing_fits) {
  Machine machine = gpu_machine();
  machine.gpu.memory = given(Bytes{1 << 10});
  const SearchResult result = run_search(auto_plan(), OpenKnobs{}, machine);
  const std::string text = explain(result, small_model(), machine, nullptr);
  EXPECT_NE(text.find("fits test-gpu"), std::string::npos);
  EXPECT_NE(text.find("GPU memory"), std::string::npos);
}

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
}  // namespace ballast::tests
