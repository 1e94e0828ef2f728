// A step that is predicted from two shorter ones is the step that is simulated whole.
#include "sim/engine/repetition.h"

#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "sim/engine/cost.h"
#include "sim/engine/engine.h"
#include "sim/graph/build.h"
#include "sim/spec/machine_figures.h"
#include "tests/engine/tiny_machine.h"
#include "tests/settings.h"

namespace ballast {
namespace {

struct Question {
  Model model;
  Plan plan;
  Stack stack;
  std::string text;
};

// Plans of all kinds, at random but the same on every run.
class Questions {
 public:
  Question next() {
    Question question{tests::tiny_model(), plan(), stack(), ""};
    question.model.layers = 2 * question.plan.pipeline * question.plan.virtual_pipeline;
    const Plan& changed = question.plan;
    question.text = fmt::format(
        "{} micro-batches, pipeline {} x {} {}, data {} ZeRO {}, tensor {}, {} {} {} buckets on "
        "the "
        "GPU, flow {}, activations {}, launch {}",
        changed.accumulation(), changed.pipeline, changed.virtual_pipeline,
        to_string(changed.pipeline_schedule), changed.data, changed.zero_stage, changed.tensor,
        to_string(changed.optimizer.placement), to_string(changed.optimizer.sync),
        *changed.optimizer.gpu_buckets, *changed.weights.flow_share,
        static_cast<int>(changed.activations->fate[0]), question.stack.constants.launch.us());
    return question;
  }

 private:
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[std::uniform_int_distribution<size_t>(0, values.size() - 1)(random_)];
  }

  Plan plan() {
    Plan plan = tests::tiny_plan(one_of({OptimizerPlacement::kCpu, OptimizerPlacement::kGpu}));
    plan.optimizer.sync = one_of({SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate});
    plan.optimizer.gpu_buckets = one_of({0, 1, 2});
    plan.optimizer.cast = one_of({CastPlacement::kCpu, CastPlacement::kGpu});
    plan.activations = ActivationPlan{};
    plan.activations->fate.fill(one_of({ActivationFate::kKeep, ActivationFate::kOffload}));
    if (one_of({false, true})) {
      plan.activations->fate[static_cast<size_t>(ModuleKind::kNorm1)] = ActivationFate::kRecompute;
    }
    plan.weights.flow_share = one_of({0.0, 0.0, 0.5, 1.0});
    plan.pipeline = one_of({1, 1, 1, 2, 4});
    if (plan.pipeline > 1) {
      plan.virtual_pipeline = one_of({1, 2});
      plan.pipeline_schedule =
          one_of({PipelineSchedule::k1F1B, PipelineSchedule::kGpipe, PipelineSchedule::kEager1F1B});
      plan.weights.flow_share = 0;
    }
    plan.data = one_of({1, 1, 2});
    if (plan.data > 1) plan.zero_stage = plan.pipeline > 1 ? one_of({1, 2}) : one_of({1, 2, 3});
    if (plan.zero_stage > 0) plan.weights.flow_share = 0;
    plan.tensor = one_of({1, 1, 2});
    plan.devices = plan.pipeline * plan.data * plan.tensor;
    plan.micro_batch = 2;
    const int64_t micro_batches = 4 * one_of({12, 16, 23, 30});
    plan.global_batch = 2 * plan.data * micro_batches;
    return plan;
  }

  Stack stack() {
    Stack stack;
    stack.constants.launch = Duration::from_us(one_of({0.0, 0.5, 6.0, 40.0}));
    return stack;
  }

  std::mt19937 random_{20261123};
};

// Enough memory for everything, and one rank a device.
Machine machine_of() {
  Machine machine = tests::tiny_cluster();
  machine.gpu.memory.value = machine.cpu.memory.value = {int64_t{400} << 30};
  return machine;
}

// Addresses that are reused tie micro-batches by a pattern of their own, which a short step need
// not show whole; and lanes with time to spare may meet others elsewhere.
constexpr double kOfStep = 2e-4;
constexpr double kOfLane = 1e-2;
// Of 10,080 steps with other costs nine differed from the line through two, by at most 4.4e-4.
constexpr double kWithOtherCosts = 1e-3;

void expect_near(Duration one, Duration whole, Duration step, double share,
                 const std::string& text) {
  EXPECT_NEAR(one.seconds() - whole.seconds(), 0, share * step.seconds()) << text;
}

void expect_same(const std::vector<KindTime>& one, const std::vector<KindTime>& whole,
                 Duration step, const std::string& text) {
  ASSERT_EQ(one.size(), whole.size()) << text;
  for (const KindTime& kind : whole) {
    const auto found = std::find_if(one.begin(), one.end(), [&](const KindTime& other) {
      return other.kind == kind.kind && other.phase == kind.phase;
    });
    ASSERT_NE(found, one.end()) << text << ": " << name_of(kind);
    EXPECT_EQ(found->operations, kind.operations) << text << ": " << name_of(kind);
    expect_near(found->time, kind.time, step, kOfLane, text + ": " + name_of(kind));
  }
}

void expect_same(const Prediction& one, const Prediction& whole, const std::string& text) {
  expect_near(one.step_time, whole.step_time, whole.step_time, kOfStep, text);
  for (size_t i = 0; i < whole.peaks.size(); ++i) {
    EXPECT_EQ(one.peaks[i].live, whole.peaks[i].live) << text;
  }
  ASSERT_EQ(one.lanes.size(), whole.lanes.size()) << text;
  for (size_t i = 0; i < whole.lanes.size(); ++i) {
    expect_near(one.lanes[i].busy, whole.lanes[i].busy, whole.step_time, kOfLane,
                text + ", lane " + std::to_string(i));
  }
  expect_same(one.kinds, whole.kinds, whole.step_time, text);
  EXPECT_NEAR(one.gpu_work.count / whole.gpu_work.count, 1, 1e-12) << text;
  for (size_t p = 0; p < whole.provenance.size(); ++p) {
    EXPECT_NEAR(one.provenance[p], whole.provenance[p], kOfLane) << text;
  }
  EXPECT_EQ(one.rollback_time.has_value(), whole.rollback_time.has_value()) << text;
  if (whole.rollback_time) {
    expect_near(*one.rollback_time, *whole.rollback_time, whole.step_time, kOfStep, text);
  }
  Duration path = one.longest_path.waiting;
  for (const KindTime& kind : one.longest_path.by_kind) path += kind.time;
  EXPECT_EQ(path.ps, one.step_time.ps) << text;
}

void expect_same_bits(const Timeline& folded, const Timeline& whole, const std::string& text) {
  EXPECT_EQ(folded.step_time, whole.step_time) << text;
  EXPECT_EQ(folded.settled, whole.settled) << text;
  EXPECT_EQ(folded.first_step, whole.first_step) << text;
  ASSERT_EQ(folded.spans.size(), whole.spans.size()) << text;
  for (size_t i = 0; i < whole.spans.size(); ++i) {
    const Span& a = folded.spans[i];
    const Span& b = whole.spans[i];
    const bool same = a.op == b.op && a.step == b.step && a.begin == b.begin && a.end == b.end;
    ASSERT_TRUE(same) << text << ": span " << i;
  }
}

// A step that ends as the one before it did is the step that comes: to the bit what the clock finds
// that runs them all, for plans of all kinds and however many steps it may run.
TEST(Repetition, steps_that_end_alike_are_the_steps_that_are_run) {
  const int count = tests::settings_or(100);
  const Machine machine = machine_of();
  Questions questions;
  int folded = 0;
  for (int i = 0; i < count; ++i) {
    Question question = questions.next();
    question.plan = with_micro_batches(question.plan, 4 + 4 * (i % 3));
    const Graph graph = build(question.model, question.plan, question.stack.facts);
    const CostTable costs =
        costs_of(graph, CostModel(machine, question.plan, question.stack, nullptr));
    std::optional<Duration> of_many;
    for (const auto& [most, recorded] : {std::pair(32, 2), {4, 2}, {5, 0}, {7, 3}}) {
      SimulateOptions options{.max_steps = most, .record_steps = recorded};
      const Timeline one = simulate(graph.step, graph, costs, options);
      options.fold = false;
      const Timeline whole = simulate(graph.step, graph, costs, options);
      expect_same_bits(one, whole, fmt::format("{}, {} steps", question.text, most));
      folded += one.run < whole.run;
      if (most == 32 && whole.settled) of_many = whole.step_time;
    }
    // What predict() runs of a pipeline that waits: five steps at most.
    const Duration few = step_time_of(graph, question.plan, costs);
    if (of_many) expect_near(few, *of_many, *of_many, 1e-6, question.text);
  }
  std::printf("%d of %d runs folded\n", folded, 4 * count);
  EXPECT_GT(folded, count);
}

// BALLAST_SETTINGS asks for more of them.
TEST(Repetition, a_step_from_two_shorter_ones_is_the_whole_step) {
  const int count = tests::settings_or(60);
  const Machine machine = machine_of();
  Questions questions;
  int found = 0, equal = 0;
  for (int i = 0; i < count; ++i) {
    const Question question = questions.next();
    check(question.plan, question.model);
    const auto predicted = [&](const Plan& plan) {
      return predict(build(question.model, plan, question.stack.facts), question.model, plan,
                     machine, question.stack, nullptr);
    };
    const std::optional<Prediction> one = repeated(question.model, question.plan, predicted);
    if (!one) continue;
    ++found;
    EXPECT_TRUE(one->repetition.has_value()) << question.text;
    const Prediction whole = predicted(question.plan);
    expect_same(*one, whole, question.text);
    equal += one->step_time == whole.step_time;
  }
  std::printf("%d of %d steps from shorter ones, %d to the picosecond\n", found, count, equal);
  EXPECT_GT(found, count / 2);
  EXPECT_GT(equal, found * 9 / 10);
}

// Of 64 micro-batches a look at 26 saves too little, one at 14 does not.
TEST(Repetition, looks_a_little_longer_where_a_much_longer_look_is_not_worth_it) {
  Plan plan = Questions().next().plan;
  plan.pipeline = plan.virtual_pipeline = 1;
  const auto looks_at = [&](int64_t micro_batches) {
    std::vector<int64_t> counts;
    for (const ShorterSteps& one : shorter_steps(with_micro_batches(plan, micro_batches))) {
      counts.push_back(one.micro_batches + one.period);
    }
    return counts;
  };
  EXPECT_EQ(looks_at(28), std::vector<int64_t>{});
  EXPECT_EQ(looks_at(40), (std::vector<int64_t>{10}));
  EXPECT_EQ(looks_at(64), (std::vector<int64_t>{10, 14}));
  EXPECT_EQ(looks_at(78), (std::vector<int64_t>{10, 26}));
}

// With other costs one run of the longer step says what the two say: how much a period is.
TEST(Repetition, a_step_with_other_costs_is_a_line_through_the_two_steps_too) {
  const int count = tests::settings_or(60);
  const Machine machine = machine_of();
  Questions questions;
  int asked = 0, equal = 0;
  for (int i = 0; i < count; ++i) {
    const Question question = questions.next();
    const auto predicted = [&](const Plan& plan) {
      return predict(build(question.model, plan, question.stack.facts), question.model, plan,
                     machine, question.stack, nullptr);
    };
    const std::optional<Prediction> one = repeated(question.model, question.plan, predicted);
    if (!one) continue;
    for (const MachineFigure& rate : machine_rates(machine, question.plan)) {
      for (const double factor : {1 / 1.1, 1.1}) {
        const Machine other = with_figure(machine, rate, factor);
        const CostModel costs(other, question.plan, question.stack, nullptr);
        const Duration by_one = step_time_of(*one, question.plan, costs);
        const Duration by_two =
            one->repetition->lengthen(step_time_of(one->shorter->graph, question.plan, costs),
                                      step_time_of(one->graph, question.plan, costs));
        expect_near(by_one, by_two, by_two, kWithOtherCosts, question.text + ", " + rate.key);
        ++asked;
        equal += by_one == by_two;
      }
    }
  }
  std::printf("%d of %d to the picosecond\n", equal, asked);
  EXPECT_GT(asked, 5 * count);
  EXPECT_GT(equal, asked * 9 / 10);
}

// The whole step's memory is told beside a shorter step's graph, which has fewer operations.
TEST(Repetition, the_fullest_moment_of_a_long_step_is_named_as_its_own_graph_has_it) {
  const Machine machine = machine_of();
  Questions questions;
  int found = 0;
  for (int i = 0; i < 12; ++i) {
    Question question = questions.next();
    if (question.plan.pipeline > 1) continue;
    question.plan = with_micro_batches(question.plan, 400);
    question.model.layers = 10;
    question.stack = Stack{};
    ASSERT_TRUE(question.stack.memory_is_planned());
    check(question.plan, question.model);
    const Prediction one = predict(question.model, question.plan, machine, question.stack, nullptr);
    if (!one.repetition) continue;
    const Graph whole = build(question.model, question.plan, question.stack.facts);
    const std::vector<PlacePeak> peaks = memory_peaks(whole);
    ASSERT_EQ(one.peaks.size(), peaks.size());
    for (size_t p = 0; p < peaks.size(); ++p) {
      if (peaks[p].at < 0) continue;
      ++found;
      EXPECT_EQ(one.peaks[p].at, peaks[p].at) << question.text;
      EXPECT_EQ(one.peaks[p].at_text, describe(whole.op(peaks[p].at))) << question.text;
    }
  }
  EXPECT_GT(found, 8);
}

// Nothing of a step too long to simulate asks for the whole of it: not that no period shows, nor
// that the longest paths of the shorter steps go through other kinds of operations.
TEST(Repetition, a_step_too_long_to_simulate_is_averaged_whatever_its_longest_path) {
  Model model = tests::tiny_model();
  Plan plan = Questions().next().plan;
  plan.pipeline = plan.virtual_pipeline = 1;
  plan = with_micro_batches(plan, 16384);
  model.layers = 12;
  int64_t longest = 0;
  std::mutex mutex;
  const auto predicted = [&](const Plan& shorter) {
    const int64_t count = shorter.accumulation();
    {
      const std::lock_guard lock(mutex);
      longest = std::max(longest, count);
    }
    Prediction step;
    step.fits = step.settled = true;
    step.step_time = Duration::from_seconds(0.001 * static_cast<double>(count));
    const OpKind limiting = count < 50 ? OpKind::kGemm : OpKind::kCopy;
    step.longest_path.by_kind = {{limiting, Phase::kForward, step.step_time, count}};
    return step;
  };
  const std::optional<Prediction> one = repeated(model, plan, predicted);
  ASSERT_TRUE(one.has_value());
  EXPECT_LT(longest, 200);
  EXPECT_FALSE(one->settled);
  EXPECT_NEAR(one->step_time.seconds(), 16.384, 1e-9);
  ASSERT_EQ(one->longest_path.by_kind.size(), 1U);
  EXPECT_EQ(one->longest_path.by_kind.front().kind, OpKind::kCopy);
  EXPECT_NEAR(one->longest_path.by_kind.front().time.seconds(), 16.384, 1e-9);
}

}  // namespace
}  // namespace ballast
