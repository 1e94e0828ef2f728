#include "autotune/complete/complete.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "autotune/search/search.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

// As Ballast runs it, nothing measured.
Completed completed(const Plan& plan, const Machine& machine) {
  return complete({small_model(), plan, machine, Stack{}}, nullptr);
}

TEST(Complete, fills_in_auto_knobs_and_leaves_the_others) {
  Plan plan = fixed_plan();
  plan.weights.flow_share.reset();
  plan.optimizer.gpu_buckets.reset();
  const Plan whole = completed(plan, gpu_machine()).setting.plan;
  EXPECT_FALSE(has_auto(whole));
  EXPECT_EQ(whole.micro_batch, plan.micro_batch);
  EXPECT_EQ(whole.activations, plan.activations);
  EXPECT_EQ(whole.optimizer.sync, plan.optimizer.sync);
  Plan same = fixed_plan();
  same.memory_reuse = MemoryReuse::kApart;
  EXPECT_EQ(completed(fixed_plan(), gpu_machine()).setting.plan, same);
}

TEST(Complete, reuses_memory_at_once_where_nothing_fits_otherwise) {
  Plan plan = fixed_plan();
  plan.micro_batch.reset();
  Machine machine = gpu_machine();
  // What the plan that takes least would need apart.
  Bytes least = machine.gpu.memory.value;
  SearchOptions options;
  options.exhaustive = true;
  options.ranked = 1000;
  for (const Candidate& one : run_search(plan, OpenKnobs{}, machine, options).ranked) {
    least = std::min(least, one.memory[static_cast<size_t>(Place::kHbm)]);
  }
  machine.gpu.memory = given(least);
  EXPECT_EQ(completed(plan, machine).setting.plan.memory_reuse, MemoryReuse::kApart);
  machine.gpu.memory = given(least - Bytes{1});
  EXPECT_EQ(completed(plan, machine).setting.plan.memory_reuse, MemoryReuse::kAtOnce);
  EXPECT_TRUE(completed(plan, machine).prediction.fits);
  plan.memory_reuse = MemoryReuse::kApart;
  EXPECT_FALSE(completed(plan, machine).prediction.fits);
}

// On a superchip, where it is mostly the fastest; and not where a framework cannot.
TEST(Complete, sends_all_activations_away_only_where_the_framework_can_and_it_is_fastest) {
  PlanRequest request;
  request.strategy = "superoffload";
  request.knobs[KnobId::kGlobalBatch] = int64_t{8};
  request.knobs[KnobId::kSequenceLength] = int64_t{2048};
  const Plan plan = resolve_plan(request);
  const auto chosen = [&](const std::string& stack, const Plan& of) {
    return complete(
        {load_model("llama-3-8b"), of, load_machine("gh200-96gb-480gb"), load_stack(stack)},
        nullptr);
  };
  ActivationPlan all_away;
  all_away.fate.fill(ActivationFate::kOffload);
  int can = 0;
  Plan named = plan;
  named.activations = all_away;
  for (const Shipped& shipped : shipped_stacks()) {
    if (!load_stack(shipped.name).facts.offloads_activations) continue;
    EXPECT_LE(chosen(shipped.name, plan).prediction.step_time,
              chosen(shipped.name, named).prediction.step_time)
        << shipped.name;
    ++can;
  }
  EXPECT_GE(can, 3);
  const Completed typical = chosen(std::string(kTypicalStack), plan);
  EXPECT_NE(typical.setting.plan.activations->fate, all_away.fate);
  EXPECT_GT(typical.prediction.step_time,
            chosen(std::string(kTypicalStack), named).prediction.step_time)
      << "so it would be chosen";
}

TEST(Complete, buckets_that_nobody_names_grow_with_a_model_that_has_many) {
  Setting setting;
  setting.usual_buckets = true;
  setting.plan.optimizer.placement = OptimizerPlacement::kCpu;
  const auto bucket_of = [&](const char* model, int64_t tensor) {
    setting.model = load_model(model);
    setting.plan.tensor = tensor;
    adopt(setting, Stack{});
    return setting.plan.optimizer.bucket_bytes;
  };
  const Bytes usual = OptimizerPlan{}.bucket_bytes;
  EXPECT_EQ(bucket_of("gpt-1t", 1), usual * 8);
  EXPECT_EQ(bucket_of("gpt-1t", 2), usual * 4);
  EXPECT_EQ(bucket_of("llama-3-70b", 1), usual);
  setting.plan.zero_stage = 3;
  setting.plan.data = setting.plan.devices = 8;
  EXPECT_EQ(bucket_of("gpt-1t", 1), usual);
  setting.plan.zero_stage = 0;
  setting.usual_buckets = false;
  setting.plan.optimizer.bucket_bytes = usual * 2;
  EXPECT_EQ(bucket_of("gpt-1t", 1), usual * 2);
}

TEST(Complete, says_why_where_nothing_fits) {
  Machine machine = gpu_machine();
  machine.cpu.memory = given(Bytes{1 << 10});
  machine.gpu.memory = given(Bytes{1 << 10});
  const Completed nearest = completed(auto_plan(), machine);
  EXPECT_FALSE(nearest.prediction.fits);
  EXPECT_NE(nearest.prediction.reason.find("usable"), std::string::npos)
      << nearest.prediction.reason;
  EXPECT_FALSE(has_auto(nearest.setting.plan));
}

TEST(Complete, interrupted_before_a_plan_was_found_does_not_say_that_nothing_fits) {
  try {
    complete({small_model(), auto_plan(), gpu_machine(), Stack{}}, nullptr, [] { return true; });
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("interrupted"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ballast::tests
