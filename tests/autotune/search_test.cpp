#include "autotune/search/search.h"

#include <atomic>
#include <gtest/gtest.h>
#include <limits>

#include "autotune/search/evaluate.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

// Small enough to simulate every plan: 4 micro-batches, 4 + 14 activations, and two more knobs.
OpenKnobs few_knobs() {
  OpenKnobs open;
  open.add(KnobId::kMicroBatch).add(KnobId::kActivations);
  return open;
}

void expect_same_best(const Plan& base, const OpenKnobs& open, const Machine& machine) {
  const SearchResult pruned = run_search(base, open, machine);
  SearchOptions options;
  options.exhaustive = true;
  const SearchResult whole = run_search(base, open, machine, options);
  ASSERT_TRUE(pruned.best && whole.best);
  EXPECT_EQ(pruned.best->plan, whole.best->plan);
  EXPECT_EQ(pruned.best->step_time, whole.best->step_time);
  EXPECT_EQ(pruned.considered, whole.considered);
  EXPECT_EQ(whole.simulated + whole.infeasible, whole.considered);
  EXPECT_LT(pruned.simulated, whole.simulated);
  EXPECT_EQ(pruned.bounded + pruned.simulated + pruned.infeasible, pruned.considered);
}

TEST(Search, bounds_leave_the_same_best_as_simulating_every_plan) {
  expect_same_best(fixed_plan(), few_knobs(), gpu_machine());
  expect_same_best(fixed_plan(), few_knobs(), host_machine());
}

TEST(Search, bounds_leave_the_same_best_where_the_optimizers_knobs_are_free) {
  OpenKnobs open;
  open.add(KnobId::kBucketBytes).add(KnobId::kGpuBuckets).add(KnobId::kCast).add(KnobId::kSync);
  open.add(KnobId::kFlowShare).add(KnobId::kUndo);
  expect_same_best(fixed_plan(), open, gpu_machine());
  expect_same_best(fixed_plan(), open, host_machine());
  open.delay = true;
  Machine slow_link = gpu_machine();
  slow_link.link.host_to_device = slow_link.link.device_to_host = flat(1e9);
  expect_same_best(fixed_plan(), open, slow_link);
}

// Of kernels that are faster than copies, slower, and slow one way.
TEST(Search, bounds_leave_the_same_best_where_kernels_read_and_write_cpu_memory) {
  OpenKnobs open;
  open.add(KnobId::kBucketBytes).add(KnobId::kGpuBuckets).add(KnobId::kCast).add(KnobId::kSync);
  open.add(KnobId::kFlowShare).add(KnobId::kUndo);
  Plan plan = fixed_plan();
  plan.optimizer.transfers = StateTransfers::kDirect;
  expect_same_best(plan, open, host_machine());
  Machine machine = gpu_machine();
  for (const auto& [reads, writes] : {std::pair(1e11, 1e11), {1e9, 1e9}, {1e11, 1e9}}) {
    machine.link.kernel_reads = flat(reads);
    machine.link.kernel_writes = flat(writes);
    expect_same_best(plan, open, machine);
  }
  plan.optimizer.placement = OptimizerPlacement::kGpu;  // no state to move, and no rates needed
  expect_same_best(plan, few_knobs(), gpu_machine());
}

// The first micro-batch makes the codes of weights, at a price that others do not pay.
TEST(Search, bounds_leave_the_same_best_where_codes_of_weights_are_kept) {
  Plan plan = fixed_plan();
  plan.global_batch = 8;
  plan.dtype = DType::kBf16;
  plan.products = ProductFormat::kFp8;
  plan.weights.keep_codes = true;
  for (Machine machine : {gpu_machine(), host_machine()}) {
    machine.gpu.matmul[DType::kE4m3] = machine.gpu.matmul[DType::kBf16];
    expect_same_best(plan, few_knobs(), machine);
  }
}

// Offloads everything, so that two lanes touch most of its memory.
Plan offloading_plan() {
  Plan plan = fixed_plan();
  for (int i = 0; i < kModuleKinds; ++i) {
    if (!saves_output(static_cast<ModuleKind>(i))) continue;
    plan.activations->fate[static_cast<size_t>(i)] = ActivationFate::kOffload;
  }
  return plan;
}

// A byte less than the plan takes apart is enough where memory is reused at once: only then is it,
// and only where nobody says otherwise.
TEST(Search, memory_is_reused_at_once_only_where_a_plan_does_not_fit_otherwise) {
  OpenKnobs open;
  open.add(KnobId::kMemoryReuse);
  const SearchResult ample = run_search(offloading_plan(), open, gpu_machine());
  EXPECT_FALSE(ample.best->plan.memory_reuse);
  const Bytes apart = ample.best->memory[static_cast<size_t>(Place::kHbm)];
  Machine machine = gpu_machine();
  machine.gpu.memory = given(apart - Bytes{1});
  const SearchResult tight = run_search(offloading_plan(), open, machine);
  ASSERT_TRUE(tight.best);
  EXPECT_EQ(tight.best->plan.memory_reuse, MemoryReuse::kAtOnce);
  EXPECT_LT(tight.best->memory[static_cast<size_t>(Place::kHbm)], apart);
  // The plan that is returned is the one that was simulated.
  const Prediction again = predict(small_model(), tight.best->plan, machine, nullptr);
  EXPECT_TRUE(again.fits);
  EXPECT_EQ(again.step_time, tight.best->step_time);
  EXPECT_FALSE(run_search(offloading_plan(), OpenKnobs{}, machine).best);
  Plan said = offloading_plan();
  said.memory_reuse = MemoryReuse::kApart;
  EXPECT_FALSE(run_search(said, open, machine).best);
}

TEST(Search, bounds_leave_the_same_best_where_memory_is_short_and_reused_at_once) {
  OpenKnobs open = few_knobs();
  open.add(KnobId::kGpuBuckets).add(KnobId::kSync).add(KnobId::kMemoryReuse);
  for (const int64_t mib : {7, 8, 9}) {
    Machine machine = gpu_machine();
    machine.gpu.memory = given(Bytes{mib << 20});
    expect_same_best(fixed_plan(), open, machine);
  }
}

TEST(Search, bounds_leave_the_same_best_where_memory_is_short) {
  OpenKnobs open = few_knobs();
  open.add(KnobId::kGpuBuckets).add(KnobId::kSync);
  Machine machine = gpu_machine();
  machine.gpu.memory = given(Bytes{9 << 20});
  const SearchResult result = run_search(fixed_plan(), open, machine);
  ASSERT_TRUE(result.best);
  EXPECT_GT(result.infeasible, 0);
  expect_same_best(fixed_plan(), open, machine);
}

TEST(Search, bounds_leave_the_same_best_where_ranks_share_the_optimizer) {
  Plan base = fixed_plan();
  base.devices = base.data = 2;
  base.micro_batch = 2;
  OpenKnobs open;
  open.add(KnobId::kMicroBatch).add(KnobId::kGpuBuckets).add(KnobId::kSync).add(KnobId::kFlowShare);
  expect_same_best(base, open, gpu_machine());
}

TEST(Search, the_best_plan_takes_as_long_as_its_prediction) {
  const SearchResult result = run_search(auto_plan(), OpenKnobs::all(), gpu_machine());
  ASSERT_TRUE(result.best);
  const Prediction prediction = predict(small_model(), result.best->plan, gpu_machine(), nullptr);
  EXPECT_EQ(prediction.step_time, result.best->step_time);
  EXPECT_DOUBLE_EQ(prediction.tokens_per_s, result.best->tokens_per_s);
  EXPECT_EQ(prediction.peaks.front().arena, result.best->memory.front());
}

TEST(Search, the_result_does_not_depend_on_the_number_of_threads) {
  SearchOptions options;
  options.threads = 1;
  const SearchResult one = run_search(auto_plan(), OpenKnobs{}, host_machine(), options);
  options.threads = 5;
  const SearchResult five = run_search(auto_plan(), OpenKnobs{}, host_machine(), options);
  EXPECT_EQ(one.simulated, five.simulated);
  EXPECT_EQ(one.bounded, five.bounded);
  ASSERT_EQ(one.ranked.size(), five.ranked.size());
  for (size_t i = 0; i < one.ranked.size(); ++i) {
    EXPECT_EQ(one.ranked[i].plan, five.ranked[i].plan);
    EXPECT_EQ(one.ranked[i].step_time, five.ranked[i].step_time);
  }
}

// Least GPU memory of the plans of a space that do, or do not, have this fate among them.
Bytes least_gpu_memory(const Model& model, const Plan& base, ActivationFate fate, bool with) {
  OpenKnobs open;
  open.add(KnobId::kActivations);
  const Space space = space_of(model, base, open);
  std::optional<Bytes> least;
  for (const Choice& choice : choices_of(space, base)) {
    const Plan plan = plan_of(space, base, choice);
    if (has_fate(plan, fate) != with) continue;
    const Bytes arena = build(model, plan).arenas.size.front();
    least = std::min(least.value_or(arena), arena);
  }
  return least.value();
}

// Searches activations alone on a machine whose GPU has this much memory.
SearchResult search_activations(const Model& model, const Plan& base, Bytes gpu_memory) {
  OpenKnobs open;
  open.add(KnobId::kActivations);
  Machine machine = gpu_machine();
  machine.gpu.memory = given(gpu_memory);
  return search(model, base, space_of(model, base, open), machine, nullptr, {});
}

TEST(Search, recomputes_where_memory_leaves_no_other_way) {
  const Model model = small_model();
  const Plan base = fixed_plan();
  const Bytes without = least_gpu_memory(model, base, ActivationFate::kRecompute, false);
  ASSERT_LT(least_gpu_memory(model, base, ActivationFate::kRecompute, true), without);
  const SearchResult roomy = search_activations(model, base, without);
  const SearchResult tight = search_activations(model, base, without - Bytes{1});
  ASSERT_TRUE(roomy.best && tight.best);
  EXPECT_TRUE(has_fate(tight.best->plan, ActivationFate::kRecompute));
  EXPECT_LE(roomy.best->step_time, tight.best->step_time);
  EXPECT_GT(tight.infeasible, roomy.infeasible);
}

// Long sequences, so that the inputs of eight layers (0.5 MiB each) outweigh what one layer needs.
TEST(Search, offloads_where_memory_leaves_no_other_way) {
  Model model = small_model();
  model.layers = 8;
  model.vocab = 64;
  model.max_positions = 512;
  Plan base = fixed_plan();
  base.sequence_length = 512;
  const Bytes without = least_gpu_memory(model, base, ActivationFate::kOffload, false);
  ASSERT_LT(least_gpu_memory(model, base, ActivationFate::kOffload, true), without);
  const SearchResult result = search_activations(model, base, without - Bytes{1});
  ASSERT_TRUE(result.best);
  EXPECT_TRUE(has_fate(result.best->plan, ActivationFate::kOffload));
}

TEST(Search, an_empty_space_says_how_many_plans_fail_for_which_reason) {
  Machine machine = gpu_machine();
  machine.gpu.memory = given(Bytes{1 << 20});
  const SearchResult result = run_search(auto_plan(), OpenKnobs::all(), machine);
  EXPECT_FALSE(result.best);
  EXPECT_TRUE(result.ranked.empty());
  EXPECT_EQ(result.simulated, 0);
  EXPECT_EQ(result.infeasible, result.considered);
  ASSERT_FALSE(result.reasons.empty());
  int64_t sum = 0;
  for (const InfeasibleReason& reason : result.reasons) {
    sum += reason.count;
    EXPECT_NE(reason.reason.find("GPU memory"), std::string::npos);
    EXPECT_NE(reason.detail.find("usable"), std::string::npos);
    EXPECT_GT(reason.excess.count, 0);
  }
  EXPECT_EQ(sum, result.infeasible);
  EXPECT_GE(result.reasons.front().count, result.reasons.back().count);
}

TEST(Search, more_devices_than_the_machine_has_is_a_reason) {
  Plan base = auto_plan(8);
  base.devices = base.data = 4;
  const SearchResult result = run_search(base, OpenKnobs{}, gpu_machine());
  EXPECT_FALSE(result.best);
  ASSERT_EQ(result.reasons.size(), 1U);
  EXPECT_EQ(result.reasons.front().reason, "devices");
  EXPECT_EQ(result.reasons.front().count, result.considered);
}

TEST(Search, of_plans_that_take_equally_long_the_one_with_fewer_moving_parts_comes_first) {
  OpenKnobs open;
  open.add(KnobId::kMicroBatch).add(KnobId::kActivations).add(KnobId::kFlowShare);
  SearchOptions options;
  options.exhaustive = true;
  options.ranked = 1000;
  const SearchResult result = run_search(fixed_plan(), open, gpu_machine(), options);
  bool ties = false;
  for (size_t i = 1; i < result.ranked.size(); ++i) {
    const Candidate& before = result.ranked[i - 1];
    const Candidate& after = result.ranked[i];
    ASSERT_LE(before.step_time, after.step_time);
    if (before.step_time != after.step_time) continue;
    ties = true;
    EXPECT_LE(moving_parts(before.plan), moving_parts(after.plan));
  }
  EXPECT_EQ(result.ranked.size(), static_cast<size_t>(result.simulated));
  EXPECT_TRUE(ties);
}

TEST(Search, a_tolerance_saves_simulations_and_is_kept) {
  SearchOptions options;
  const SearchResult exact = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
  options.tolerance = 0.05;
  const SearchResult near = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
  EXPECT_LE(near.simulated, exact.simulated);
  EXPECT_LE(near.proven_within.value(), 0.05);
  EXPECT_LE(near.best->step_time, exact.best->step_time * 1.06);
  EXPECT_EQ(exact.proven_within, 0);
  // What was ruled out within the tolerance counts in what is proven.
  for (const double tolerance : {0.02, 0.1, 0.3, 0.9}) {
    options.tolerance = tolerance;
    const SearchResult one = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
    EXPECT_LE(one.best->step_time.seconds() * (1 - one.proven_within.value()),
              exact.best->step_time.seconds() * (1 + 1e-9))
        << tolerance;
  }
}

// 64 micro-batches where the space is simulated as a whole, a dozen where they are alike: the line
// through the short steps leads to the long one, and the best is the one that all simulations give.
TEST(Search, long_steps_are_told_by_short_ones_and_the_best_is_simulated_as_a_whole) {
  const Model model = small_model();
  const Machine machine = gpu_machine();
  Plan base = auto_plan(64);
  base.micro_batch = 1;
  SearchOptions all;
  all.exhaustive = true;
  base.optimizer.gpu_buckets = 0;
  const OpenKnobs open;
  const SearchResult whole = run_search(base, open, machine, all);
  SearchOptions short_steps;
  short_steps.estimates = true;
  const SearchResult quick = run_search(base, open, machine, short_steps);
  ASSERT_TRUE(whole.best && quick.best);
  EXPECT_EQ(quick.best->plan, whole.best->plan);
  EXPECT_EQ(quick.best->step_time, whole.best->step_time);

  const CostModel costs(machine, base, Stack{}, nullptr);
  const Usable usable = {machine.gpu.memory.value, machine.cpu.memory.value, Bytes{}};
  const Space space = space_of(model, base, open);
  int extrapolated = 0;
  for (const Choice& choice : every(choices_of(space, base), 7)) {
    const Plan plan = plan_of(space, base, choice);
    const Outcome told = estimate(model, plan, space.memory_reuse, usable, costs);
    const Outcome simulated = evaluate(model, plan, space.memory_reuse, usable, costs);
    ASSERT_EQ(told.step_time.has_value(), simulated.step_time.has_value());
    if (!told.step_time) continue;
    extrapolated += told.extrapolated ? 1 : 0;
    EXPECT_NEAR(told.step_time->seconds() / simulated.step_time->seconds(), 1, kUncertain);
  }
  EXPECT_GT(extrapolated, 5);
}

// A plan bound to another chip's memory copies over the slower link between the chips, and one that
// names an Adam steps at its rate: to the search as to the prediction.
TEST(Search, prices_the_machine_that_the_prediction_prices) {
  Machine machine = gpu_machine();
  machine.link.remote = given(Bandwidth::from_gb_per_s(1));
  machine.cpu.adam["slow"] = flat(1e7);
  for (const NumaBinding numa : {NumaBinding::kLocal, NumaBinding::kRemote}) {
    for (const char* adam : {"best", "slow"}) {
      Plan plan = fixed_plan();
      plan.numa = numa;
      plan.optimizer.adam = adam;
      const SearchResult found = run_search(plan, OpenKnobs{}, machine);
      ASSERT_TRUE(found.best);
      EXPECT_EQ(found.best->step_time.ps,
                predict(small_model(), plan, machine, nullptr).step_time.ps)
          << to_string(numa) << " " << adam;
    }
  }
}

TEST(Search, a_deadline_that_has_passed_leaves_the_rest_unproven) {
  SearchOptions options;
  options.deadline_s = 0;
  const SearchResult result = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
  EXPECT_EQ(result.stop, SearchStop::kDeadline);
  EXPECT_FALSE(result.complete());
  EXPECT_EQ(result.simulated, 0);
  EXPECT_EQ(result.not_looked_at, result.considered);
  EXPECT_FALSE(result.proven_within);
}

// Asked so many times before it is interrupted, between two rounds or in the midst of a simulation,
// a search stops there, asks no more, and what it claims to have proven by then holds.
TEST(Search, interruption_is_seen_anywhere_and_leaves_the_best_so_far) {
  constexpr int kTries = 100;
  std::atomic<int> asked = 0;
  int before = std::numeric_limits<int>::max();
  SearchOptions options;
  options.threads = 1;
  options.interrupted = [&] { return asked++ == before; };
  const SearchResult whole = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
  const int most = asked;
  ASSERT_GT(most, kTries);
  EXPECT_EQ(whole.simulated,
            run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), {}).simulated);
  int64_t simulated = 0;
  int with_a_best = 0;
  for (int i = 0; i <= kTries; ++i) {
    asked = 0;
    before = i * most / kTries;
    const SearchResult result = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
    EXPECT_GE(result.simulated, simulated);
    simulated = result.simulated;
    EXPECT_EQ(result.considered,
              result.bounded + result.simulated + result.infeasible + result.not_looked_at);
    // Nothing is ruled out before there is a best.
    if (!result.best) EXPECT_EQ(result.bounded, 0);
    EXPECT_EQ(result.not_looked_at > 0, !result.complete());
    EXPECT_EQ(result.complete(), i == kTries);
    EXPECT_EQ(asked, result.complete() ? most : before + 1);
    if (result.complete()) continue;
    EXPECT_EQ(result.stop, SearchStop::kInterrupt);
    if (!result.best || !result.proven_within) continue;
    ++with_a_best;
    EXPECT_LE(result.best->step_time.seconds() * (1 - *result.proven_within),
              whole.best->step_time.seconds() * (1 + 1e-9));
  }
  EXPECT_EQ(simulated, whole.simulated);
  EXPECT_GT(with_a_best, 3);
}

// It used no bound, so it has proven nothing.
TEST(Search, exhaustive_one_that_is_interrupted_proves_nothing) {
  std::atomic<int> asked = 0;
  int before = std::numeric_limits<int>::max();
  SearchOptions options;
  options.threads = 1;
  options.exhaustive = true;
  options.interrupted = [&] { return asked++ == before; };
  run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
  const int most = asked;
  for (const int share : {0, 1, 2, 3}) {  // of four
    asked = 0;
    before = most * share / 4;
    const SearchResult result = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
    EXPECT_EQ(result.stop, SearchStop::kInterrupt);
    EXPECT_EQ(asked, before + 1);
    EXPECT_EQ(result.best.has_value(), share > 0);
    EXPECT_FALSE(result.proven_within);
    EXPECT_EQ(result.bounded, 0);
    EXPECT_EQ(result.not_looked_at, result.considered - result.simulated - result.infeasible);
  }
}

TEST(Search, progress_never_reports_a_worse_best) {
  SearchOptions options;
  std::optional<Duration> best;
  int reports = 0;
  options.progress = [&](const SearchProgress& progress) {
    ++reports;
    if (best) {
      EXPECT_LE(progress.best.value(), *best);
    }
    best = progress.best;
  };
  const SearchResult result = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
  EXPECT_GT(reports, 0);
  EXPECT_EQ(best, result.best->step_time);
}

TEST(Search, impatience_ends_with_the_best_so_far_and_says_so) {
  SearchOptions options;
  const SearchResult whole = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
  options.patience = 1;
  const SearchResult hasty = run_search(auto_plan(), OpenKnobs::all(), gpu_machine(), options);
  ASSERT_TRUE(hasty.best);
  EXPECT_EQ(hasty.stop, SearchStop::kPatience);
  EXPECT_GT(hasty.not_looked_at, 0);
  EXPECT_LT(hasty.bounded, whole.bounded);
  EXPECT_LT(hasty.simulated, whole.simulated);
  EXPECT_GE(hasty.best->step_time, whole.best->step_time);
  // What it claims to have proven holds.
  const double least = hasty.best->step_time.seconds() * (1 - hasty.proven_within.value());
  EXPECT_LE(least, whole.best->step_time.seconds() * (1 + 1e-9));
}

}  // namespace
}  // namespace ballast::tests
