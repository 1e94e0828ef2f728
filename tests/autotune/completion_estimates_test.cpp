// Steps that are told from short ones, held against those that are predicted whole.
#include "autotune/complete/estimates/completion_estimates.h"

#include <cmath>
#include <gtest/gtest.h>

#include "autotune/complete/completion_lists.h"
#include "autotune/complete/estimates/completion_bounds.h"
#include "autotune/complete/layouts/open_layouts.h"
#include "sim/base/error.h"
#include "sim/graph/same_graph.h"
#include "tests/autotune/random_settings.h"

namespace ballast::tests {
namespace {

struct ToldSteps {
  int steps = 0;
  double sum = 0, worst = 0;  // of what an estimate is off by, a share
};

// Every so many-th completion of many micro-batches.
void compare_told(const Setting& setting, int every, ToldSteps& told_steps) {
  CompletionEstimates known;
  int met = 0;
  for (const std::vector<Completion>& group : completions_of(setup_of(setting))) {
    for (const Completion& completion : group) {
      if (completion.plan.accumulation() <= 8 || met++ % every != 0) continue;
      try {
        const std::optional<Duration> told = known.step_time_if_fits(setting, completion);
        if (!told) continue;
        Stack stack = setting.stack;
        stack.facts.attention = {completion.attention};
        const Prediction whole =
            predict(setting.model, as_built(completion.plan), setting.machine, stack, nullptr);
        if (!whole.fits) continue;
        const double off = std::abs(told->seconds() / whole.step_time.seconds() - 1);
        EXPECT_LE(off, 0.04) << name_of(setting) << ", micro-batches "
                             << completion.plan.accumulation();
        ++told_steps.steps;
        told_steps.sum += off;
        told_steps.worst = std::max(told_steps.worst, off);
      } catch (const Error&) {
        // The graph knows no such plan.
      }
    }
  }
}

TEST(CompletionEstimates, of_long_steps_are_near_them) {
  Numbers numbers(20261127);
  ToldSteps told_steps;
  for (int i = 0; i < 50; ++i) {
    Setting setting = random_setting(numbers);
    setting.plan.global_batch *= int64_t{4} << (i % 4);
    for (const OpenLayout& layout : open_layouts_or_none(setting)) {
      compare_told(layout.setting, 7, told_steps);
    }
  }
  std::printf("%d steps, off by %.2f %% on average, %.2f %% at most\n", told_steps.steps,
              100 * told_steps.sum / told_steps.steps, 100 * told_steps.worst);
  EXPECT_GE(told_steps.steps, 200);
  EXPECT_LE(told_steps.sum, 0.001 * told_steps.steps);
}

// Of many short kernels, which the host is the last to be done with.
Setting waiting_for_its_host() {
  PlanRequest request;
  request.strategy = "superoffload";
  request.knobs[KnobId::kSequenceLength] = 1024;
  Setting setting = setting_of("gpt2", 40, "gh200-96gb-480gb", request);
  setting.plan.global_batch = 64;
  setting.plan.micro_batch = 1;
  return setting;
}

// In a step of a few micro-batches the host catches up while the CPU steps.
TEST(CompletionEstimates, see_that_a_long_step_waits_for_its_host) {
  ToldSteps told_steps;
  compare_told(waiting_for_its_host(), 1, told_steps);
  EXPECT_GE(told_steps.steps, 4);
  EXPECT_LE(told_steps.worst, 0.005);
}

// Every tensor that flows is enqueued once for a forward and once for a backward.
TEST(CompletionBounds, count_the_host_of_weights_that_flow) {
  const Setting setting = waiting_for_its_host();
  CompletionEstimates known;
  int flowing = 0;
  for (const std::vector<Completion>& group : completions_of(setup_of(setting))) {
    for (const Completion& completion : group) {
      const Plan& plan = completion.plan;
      if (plan.optimizer.gpu_buckets != 0 || plan.weights.flow_share != 1.0) continue;
      const std::optional<Duration> time = known.step_time_if_fits(setting, completion);
      if (!time) continue;
      Completion staying = completion;
      staying.plan.weights.flow_share = 0;
      const auto bounds = completion_bounds(setting, {&completion, &staying});
      EXPECT_LE(bounds[0].at_least, *time);
      EXPECT_GE(bounds[0].at_least.seconds(), 1.15 * bounds[1].at_least.seconds());
      ++flowing;
    }
  }
  EXPECT_GT(flowing, 0);
}

// What a host gained before a step may last for all of a short one: more work takes no less time.
TEST(CompletionEstimates, of_long_steps_do_not_live_on_the_lead_of_a_short_one) {
  PlanRequest request;
  request.strategy = "zero-offload";
  request.knobs[KnobId::kSequenceLength] = 816;
  Setting setting = setting_of("gpt2", 12, "gh200-96gb-480gb", request);
  setting.stack = load_stack("torchtune-2024");
  // Of the fit of 2026-11-28: the host is slower than this GPU, and no later fit moves that.
  setting.stack.constants.launch = Duration::from_us(6.275573);
  setting.plan.micro_batch = 2;
  setting.plan.activations = ActivationPlan{};
  const auto time_of = [&](int64_t sequences) {
    setting.plan.global_batch = sequences;
    return predict(setting.model, setting.plan, setting.machine, setting.stack, nullptr).step_time;
  };
  const Duration whole = time_of(500);
  EXPECT_GE(time_of(504), whole);
  EXPECT_GE(time_of(4000).seconds(), 8 * whole.seconds() * 0.99);
}

// Of which a short step is spread and a longer one folded: neither tells the other's time.
TEST(CompletionEstimates, of_pipelines_are_told_from_steps_of_one_form) {
  PlanRequest request;
  request.strategy = "superoffload";
  request.knobs[KnobId::kDevices] = 2;
  request.knobs[KnobId::kPipeline] = 2;
  request.knobs[KnobId::kSequenceLength] = 512;
  Setting setting = setting_of("gpt2", 450, "alps-gh200-quad", request);
  setting.plan.global_batch = 64;
  setting.plan.optimizer.sync = SyncMode::kSpeculate;
  setting.plan.weights.flow_share = 0;
  setting.plan.activations = ActivationPlan{};
  setting.plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kOffload;
  ToldSteps told_steps;
  compare_told(setting, 5, told_steps);
  EXPECT_GT(told_steps.steps, 0);
}

}  // namespace
}  // namespace ballast::tests
