// What `tune` does: a search that begins with first plans, held against simulating every plan.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>

#include "autotune/complete/first_plan.h"
#include "autotune/search/search.h"
#include "autotune/space/layout.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/predict.h"
#include "tests/autotune/random_settings.h"
#include "tests/settings.h"

namespace ballast::tests {
namespace {

struct Question {
  Setting setting;
  SearchSpace space;
};

// Of all layouts of Ballast's own plans; of the other knobs micro-batch and activations are open.
Question random_question(Numbers& numbers) {
  Question question;
  Setting& setting = question.setting;
  setting = random_setting(numbers);
  setting.model.layers = 1 + numbers.below(2);
  setting.stack = {};
  Plan& plan = setting.plan;
  plan.micro_batch.reset();
  plan.activations.reset();
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.stream_share = 0;
  plan.optimizer.sync = SyncMode::kWait;
  plan.weights.flow_share = 0;
  plan.tensor_sequence = false;
  plan.global_batch = plan.devices << numbers.below(2);
  setting.open = {};
  question.space.open.add(KnobId::kMicroBatch).add(KnobId::kActivations);
  question.space.layouts = all_legal_layouts(setting);
  return question;
}

SearchResult every_plan(const Question& question, size_t ranked) {
  SearchOptions options;
  options.threads = 1;
  options.exhaustive = true;
  options.ranked = ranked;
  return search(question.setting.model, question.space, question.setting.machine, nullptr, options);
}

SearchResult tuned(const Question& question) {
  SearchOptions options;
  options.threads = 1;
  begin_with_first_plan(question.setting, question.space.layouts, nullptr, options);
  return search(question.setting.model, question.space, question.setting.machine, nullptr, options);
}

// The least memory of a GPU that any of these plans needs where memory is not reused at once.
Bytes least_gpu(const SearchResult& all) {
  Bytes least = all.ranked.front().memory[0];
  for (const Candidate& one : all.ranked) least = std::min(least, one.memory[0]);
  return least;
}

// What a search begins with need not be of its space, so that it may find more than every plan of
// the space; never less, and what it finds fits.
void expect_as_good(const SearchResult& found, const SearchResult& all, const Setting& setting) {
  EXPECT_TRUE(found.complete());
  if (all.best) {
    ASSERT_TRUE(found.best);
    EXPECT_LE(found.best->step_time, all.best->step_time);
  }
  if (!found.best) return;
  EXPECT_TRUE(predict(setting.model, found.best->plan, setting.machine, nullptr).fits);
}

// BALLAST_SETTINGS asks for more of them: 200 take three minutes of a core.
TEST(TuneVerdicts, are_those_of_every_plan_one_by_one) {
  const auto settings = static_cast<size_t>(tests::settings_or(30));
  constexpr double kFactors[] = {0.6, 0.9, 0.99, 1.002, 1.2};
  Numbers numbers;
  std::vector<Question> questions;
  while (questions.size() < settings) {
    Question question = random_question(numbers);
    if (!question.space.layouts.empty()) questions.push_back(std::move(question));
  }
  std::vector<uint8_t> fitting(settings);
  parallel_for(settings, hardware_threads(), [&](size_t i) {
    Question& question = questions[i];
    SCOPED_TRACE(name_of(question.setting));
    Machine& machine = question.setting.machine;
    const SearchResult ample = every_plan(question, 1'000'000);
    if (ample.best) {
      Numbers own(i + 1);
      const double least = static_cast<double>(least_gpu(ample).count) * kFactors[own.below(5)];
      machine.gpu.memory.value = machine.gpu.reserved.value + Bytes{static_cast<int64_t>(least)};
    }
    const SearchResult all = every_plan(question, 1);
    expect_as_good(tuned(question), all, question.setting);
    fitting[i] = all.best.has_value();
  });
  const auto yes = std::count(fitting.begin(), fitting.end(), 1);
  EXPECT_GT(yes, settings / 4);
  EXPECT_LT(yes, settings * 3 / 4);
}

// A search that has no time left once its first plans are known answers with one of them; one that
// somebody interrupts with none.
TEST(TuneVerdicts, a_first_plan_is_an_answer_where_no_time_is_left) {
  Numbers numbers;
  int answered = 0;
  while (answered < 10) {
    const Question question = random_question(numbers);
    if (question.space.layouts.size() < 2) continue;
    SCOPED_TRACE(name_of(question.setting));
    SearchOptions options;
    options.threads = 1;
    begin_with_first_plan(question.setting, question.space.layouts, nullptr, options);
    if (options.starts.empty()) continue;
    options.deadline_s = 0;
    const Machine& machine = question.setting.machine;
    const SearchResult late =
        search(question.setting.model, question.space, machine, nullptr, options);
    EXPECT_EQ(late.stop, SearchStop::kDeadline);
    ASSERT_TRUE(late.best);
    EXPECT_TRUE(predict(question.setting.model, late.best->plan, machine, nullptr).fits);
    options.interrupted = [] { return true; };
    const SearchResult interrupted =
        search(question.setting.model, question.space, machine, nullptr, options);
    EXPECT_EQ(interrupted.stop, SearchStop::kInterrupt);
    EXPECT_FALSE(interrupted.best);
    ++answered;
  }
}

}  // namespace
}  // namespace ballast::tests
