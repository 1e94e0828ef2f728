// The closed loop with a world that differs from the profile in a known way: the engine plays it,
// on the timings times a factor by kind of operation.
#include <cmath>
#include <gtest/gtest.h>

#include "autotune/studies/closed_loop.h"
#include "sim/engine/cost.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

// What is true of each kind of operation: a factor on what was timed.
using World = std::map<OpKind, double>;

Plan with_fate(ActivationFate fate) {
  Plan plan = fixed_plan();
  for (int i = 0; i < kModuleKinds; ++i) {
    const auto kind = static_cast<ModuleKind>(i);
    const bool starts_layer = kind == ModuleKind::kFc2 && fate == ActivationFate::kRecompute;
    if (saves_output(kind) && !starts_layer) plan.activations->fate[static_cast<size_t>(i)] = fate;
  }
  return plan;
}

// Everything on the GPU: one lane does nearly all work.
Plan resident(int64_t micro_batch) {
  Plan plan = fixed_plan();
  plan.micro_batch = micro_batch;
  plan.optimizer.gpu_buckets = 100;
  return plan;
}

class ClosedLoop : public testing::Test {
 protected:
  const Model model = small_model();
  const Machine machine = gpu_machine();
  Knowledge knowledge;
  Measurements truth;
  World world;
  std::vector<Plan> ran;
  std::vector<Plan> recorded;  // of Refit's that changed something: how many runs there were
  int64_t interrupt_after = 100;

  // Times the operations of these plans, as the profile would, and makes up the world.
  void time(const std::vector<Plan>& plans) {
    for (const Plan& plan : plans) {
      const Prediction prediction = predict(model, plan, machine, nullptr);
      for (size_t i = 0; i < prediction.graph.step.ops.size(); ++i) {
        const Op& op = prediction.graph.step.ops[i];
        if (std::holds_alternative<std::monostate>(op.work)) continue;
        const Duration alone = prediction.costs.ops[i].alone;
        const auto factor = world.find(op.kind);
        knowledge.timed[cost_key(op)] = measurement_of(op, {alone, {}});
        truth[cost_key(op)] =
            measurement_of(op, {alone * (factor == world.end() ? 1 : factor->second), {}});
      }
    }
  }

  Duration predicted(const Plan& plan, const Measurements& measurements) const {
    return predict(model, plan, machine, &measurements).step_time;
  }

  PlanRun run_truly(const Plan& plan, double disturbed = 1) const {
    const Prediction real = predict(model, plan, machine, &truth);
    PlanRun run;
    run.plan = plan;
    run.predicted = predicted(plan, knowledge.timed);
    run.step_time = real.step_time * disturbed;
    run.operations = operation_spans(real.graph, real.timeline);
    for (auto& [key, span] : run.operations) span.mean = span.mean * disturbed;
    return run;
  }

  std::vector<Candidate> candidates(const std::vector<Plan>& plans) const {
    std::vector<Candidate> list;
    for (const Plan& plan : plans) {
      Candidate& candidate = list.emplace_back();
      candidate.plan = plan;
      candidate.step_time = predicted(plan, knowledge.timed);
    }
    return list;
  }

  MeasureResult loop(const std::vector<Plan>& plans, int64_t count,
                     std::vector<PlanRun> known = {}) {
    MeasureHooks hooks;
    hooks.run = [&](const Plan& plan, const Prediction&) -> std::optional<PlanRun> {
      if (static_cast<int64_t>(ran.size()) == interrupt_after) return std::nullopt;
      ran.push_back(plan);
      return run_truly(plan);
    };
    hooks.refitted = [&](const Refit& refit) {
      EXPECT_LT(refit.misfit_after, refit.misfit_before + 1e-9);
      recorded = ran;
    };
    MeasureRequest request{model, machine, knowledge, candidates(plans)};
    request.plans = count;
    request.known = std::move(known);
    return measure(std::move(request), hooks);
  }
};

TEST(OperationSpans, mean_of_the_middle_half_of_the_steps_leaves_a_disturbed_step_out) {
  // Steps end at 100, 200, 300, 400 and 900, so their periods are unknown, 100, 100, 100, 500: the
  // middle half of the four known ones is steps 2 and 3. Each has two equal copies, of 10 and 30.
  Graph graph;
  Op copy;
  copy.kind = OpKind::kCopy;
  copy.work = CopyWork{.bytes = {100}};
  Op commit;
  commit.kind = OpKind::kCommit;
  graph.step.ops = {copy, copy, commit};
  Timeline timeline;
  timeline.steps = 5;
  for (int32_t step = 0; step < 5; ++step) {
    const int64_t end = step == 4 ? 900 : 100 * (step + 1);
    const int64_t first = step == 4 ? 400 : 10;
    timeline.spans.push_back({0, step, {end - first - 50}, {end - 50}});
    timeline.spans.push_back({1, step, {end - 30}, {end}});
    timeline.spans.push_back({2, step, {end - 5}, {end}});
  }
  const OperationSpans spans = operation_spans(graph, timeline);
  ASSERT_EQ(spans.size(), 1u);  // a commit costs nothing
  EXPECT_EQ(spans.at(cost_key(copy)).mean.ps, 20);
  EXPECT_EQ(spans.at(cost_key(copy)).count, 2);
}

TEST(OperationSpans, single_step_counts_as_it_is) {
  Graph graph;
  Op copy;
  copy.kind = OpKind::kCopy;
  copy.work = CopyWork{.bytes = {100}};
  graph.step.ops = {copy};
  Timeline timeline;
  timeline.steps = 1;
  timeline.spans.push_back({0, 0, {5}, {12}});
  EXPECT_EQ(operation_spans(graph, timeline).at(cost_key(copy)).mean.ps, 7);
  EXPECT_TRUE(operation_spans(graph, Timeline{}).empty());
}

TEST_F(ClosedLoop, run_shows_that_everything_takes_twice_as_long) {
  // One lane and every operation doubled: the step doubles, but for hand-overs of 2 us. So the
  // prediction is short by half before, and right after.
  for (int kind = 0; kind < kOpKinds; ++kind) {
    world[static_cast<OpKind>(kind)] = 2;
  }
  time({resident(4)});
  const MeasureResult result = loop({resident(4)}, 1);
  ASSERT_EQ(result.measured.size(), 1u);
  const MeasuredPlan& plan = result.measured[0];
  EXPECT_NEAR(plan.error_before(), -0.5, 0.02);
  EXPECT_NEAR(plan.error_after(), 0, 0.005);
  EXPECT_LT(result.misfit, 0.005);
}

TEST_F(ClosedLoop, refit_finds_the_time_alone_of_operations_that_run_in_company) {
  // Offloading keeps both directions of the link busy beside the compute lane: copies slow each
  // other. The factor is that of the world all the same, and not that of the slowed spans.
  world[OpKind::kCopy] = 3;
  const Plan plan = with_fate(ActivationFate::kOffload);
  time({plan});
  const std::vector<PlanRun> runs = {run_truly(plan)};
  const Refit fitted = refit({model, machine, knowledge, runs});
  EXPECT_GT(fitted.misfit_before, 0.1);
  EXPECT_LT(fitted.misfit_after, 0.02);
  EXPECT_TRUE(fitted.added.empty());
  int copies = 0;
  for (const auto& [key, factor] : fitted.knowledge.corrections.operations) {
    const bool is_copy = key.starts_with("copy");
    copies += is_copy;
    EXPECT_NEAR(factor, is_copy ? 3 : 1, is_copy ? 0.15 : 0.05) << key;
  }
  EXPECT_GT(copies, 1);
}

TEST_F(ClosedLoop, ranking_turns_where_copies_are_slower_than_the_profile_says) {
  // Of the profile: copies are hidden, so offloading beats recomputing every layer. In the world
  // copies take thirty times as long, and what hid behind the products sticks out.
  world[OpKind::kCopy] = 30;
  Plan offload = with_fate(ActivationFate::kOffload);
  Plan recompute = with_fate(ActivationFate::kRecompute);
  offload.optimizer.gpu_buckets = recompute.optimizer.gpu_buckets = 100;
  time({offload, recompute});
  ASSERT_LT(predicted(offload, knowledge.timed), predicted(recompute, knowledge.timed));
  ASSERT_GT(predicted(offload, truth), predicted(recompute, truth));
  const MeasureResult both = loop({offload, recompute}, 2);
  EXPECT_EQ(ran, (std::vector<Plan>{offload, recompute}));
  EXPECT_EQ(both.measured[0].run.plan, recompute);
  EXPECT_TRUE(both.others.empty());
  // The run of the first taught about copies, so the second was predicted well before it ran.
  EXPECT_LT(both.measured[1].error_before(), -0.3);
  EXPECT_NEAR(both.measured[0].error_before(), 0, 0.05);
  EXPECT_NEAR(both.measured[1].error_after(), 0, 0.05);
}

TEST_F(ClosedLoop, what_did_not_run_is_ranked_by_the_factor_of_operations_like_its_own) {
  // None of the products of micro-batch 2 is among those of micro-batch 4, which alone runs.
  world[OpKind::kGemm] = 1.5;
  world[OpKind::kAttention] = 2;
  time({resident(4), resident(2)});
  const MeasureResult result = loop({resident(4), resident(2)}, 1);
  ASSERT_EQ(result.others.size(), 1u);
  const double real = predicted(resident(2), truth).seconds();
  const double before = predicted(resident(2), knowledge.timed).seconds();
  EXPECT_LT(before / real, 0.95);
  EXPECT_NEAR(result.others[0].step_time.seconds() / real, 1, 0.02);
  EXPECT_NEAR(result.others[0].tokens_per_s * result.others[0].step_time.seconds(), 4 * 64, 1e-6);
}

TEST_F(ClosedLoop, operations_that_were_never_timed_are_added_by_their_run) {
  world[OpKind::kGemm] = 2;
  time({resident(4)});
  const Measurements timed = std::move(knowledge.timed);
  knowledge.timed.clear();
  const std::vector<PlanRun> runs = {run_truly(resident(4))};
  const Refit fitted = refit({model, machine, knowledge, runs});
  EXPECT_EQ(fitted.added.size(), timed.size());
  const Measurements now = corrected(fitted.knowledge.timed, fitted.knowledge.corrections);
  EXPECT_NEAR(predicted(resident(4), now).seconds() / predicted(resident(4), truth).seconds(), 1,
              0.005);
}

TEST_F(ClosedLoop, one_disturbed_run_of_three_does_not_count) {
  world[OpKind::kGemm] = 2;
  const std::vector<Plan> plans = {resident(4), resident(2), resident(1)};
  time(plans);
  Plan other = resident(4);
  other.optimizer.sync = SyncMode::kSpeculate;
  Plan third = resident(4);
  third.optimizer.cast = CastPlacement::kCpu;
  const std::vector<PlanRun> runs = {run_truly(resident(4)), run_truly(other, 5), run_truly(third)};
  const Refit fitted = refit({model, machine, knowledge, runs});
  const Measurements now = corrected(fitted.knowledge.timed, fitted.knowledge.corrections);
  EXPECT_NEAR(predicted(resident(4), now).seconds() / runs[0].step_time.seconds(), 1, 0.03);
}

TEST_F(ClosedLoop, another_refit_of_the_same_runs_changes_nothing) {
  world[OpKind::kCopy] = 3;
  const Plan plan = with_fate(ActivationFate::kOffload);
  time({plan});
  const std::vector<PlanRun> runs = {run_truly(plan)};
  const Refit first = refit({model, machine, knowledge, runs});
  const Refit second = refit({model, machine, first.knowledge, runs});
  EXPECT_LE(second.misfit_after, first.misfit_after);
  for (const auto& [key, factor] : second.knowledge.corrections.operations) {
    EXPECT_NEAR(factor / first.knowledge.corrections.operations.at(key), 1, 0.02) << key;
  }
}

TEST_F(ClosedLoop, runs_of_an_interrupted_call_are_not_run_again) {
  world[OpKind::kGemm] = 1.5;
  const std::vector<Plan> plans = {resident(4), resident(2), resident(1)};
  time(plans);
  interrupt_after = 1;
  const MeasureResult cut = loop(plans, 3);
  EXPECT_TRUE(cut.interrupted);
  ASSERT_EQ(cut.measured.size(), 1u);
  EXPECT_EQ(cut.others.size(), 2u);
  EXPECT_EQ(recorded.size(), 1u);  // what was learnt was handed over before the interruption

  interrupt_after = 100;
  const std::vector<Plan> before = std::exchange(ran, {});
  const MeasureResult rest = loop(plans, 3, {cut.measured[0].run});
  EXPECT_FALSE(rest.interrupted);
  EXPECT_EQ(rest.measured.size(), 3u);
  EXPECT_EQ(ran.size(), 2u);
  for (const Plan& plan : ran) EXPECT_NE(plan, before[0]);
  int known = 0;
  for (const MeasuredPlan& plan : rest.measured) known += plan.known;
  EXPECT_EQ(known, 1);

  ran.clear();
  std::vector<PlanRun> all;
  for (const MeasuredPlan& plan : rest.measured) all.push_back(plan.run);
  const MeasureResult again = loop(plans, 3, all);
  EXPECT_TRUE(ran.empty());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again.measured[i].run.plan, rest.measured[i].run.plan);
    EXPECT_EQ(again.measured[i].run.step_time, rest.measured[i].run.step_time);
  }
}

TEST_F(ClosedLoop, interruption_before_the_first_run_leaves_the_candidates_as_they_were) {
  time({resident(4), resident(2)});
  interrupt_after = 0;
  const MeasureResult result = loop({resident(4), resident(2)}, 2);
  EXPECT_TRUE(result.interrupted && result.measured.empty() && recorded.empty());
  ASSERT_EQ(result.others.size(), 2u);
  EXPECT_EQ(result.others[0].step_time, predicted(result.others[0].plan, knowledge.timed));
}

TEST_F(ClosedLoop, of_plans_that_tie_the_one_least_like_the_runs_is_next) {
  // Nothing flows and everything is stepped by the GPU, so neither bucket size nor cast matters
  // much: all three tie. The third differs from the first in two knobs, the second in one.
  Plan buckets = resident(4);
  buckets.optimizer.bucket_bytes = {2 << 20};
  Plan both = buckets;
  both.optimizer.sync = SyncMode::kSpeculate;
  both.optimizer.undo = UndoKind::kExact;
  time({resident(4), buckets, both});
  std::vector<Candidate> tied = candidates({resident(4), buckets, both});
  for (Candidate& candidate : tied) candidate.step_time = Duration::from_us(100);
  MeasureHooks hooks;
  hooks.run = [&](const Plan& plan, const Prediction&) {
    ran.push_back(plan);
    PlanRun run = run_truly(plan);
    run.operations.clear();  // teaches nothing, so the candidates go on to tie
    return std::optional<PlanRun>(run);
  };
  MeasureRequest request{model, machine, knowledge, tied};
  request.plans = 2;
  measure(std::move(request), hooks);
  EXPECT_EQ(ran, (std::vector<Plan>{resident(4), both}));
}

TEST_F(ClosedLoop, more_plans_than_there_are_run_once_each) {
  time({resident(4), resident(2)});
  const MeasureResult result = loop({resident(4), resident(2)}, 10);
  EXPECT_EQ(ran.size(), 2u);
  EXPECT_EQ(result.measured.size(), 2u);
  EXPECT_LE(result.measured[0].run.step_time, result.measured[1].run.step_time);
}

}  // namespace
}  // namespace ballast::tests
