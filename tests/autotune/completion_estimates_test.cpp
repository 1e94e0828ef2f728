// Steps that are told from short ones, held against those that are predicted whole.
#include "autotune/complete/estimates/completion_estimates.h"

#include <cmath>
#include <gtest/gtest.h>

#include "autotune/complete/completion_lists.h"
#include "autotune/complete/open_layouts.h"
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

// The host enqueues many short kernels, and is the last to be done with them; in a step of a few
// micro-batches it catches up while the CPU steps.
TEST(CompletionEstimates, see_that_a_long_step_waits_for_its_host) {
  Setting setting;
  setting.model = load_model("gpt2");
  setting.model.layers = 40;
  setting.machine = load_machine("gh200-96gb-480gb");
  setting.stack = load_stack("typical");
  PlanRequest request;
  request.strategy = "superoffload";
  request.knobs[KnobId::kSequenceLength] = 1024;
  setting.plan = resolve_plan(request);
  setting.plan.global_batch = 64;
  setting.plan.micro_batch = 1;
  ToldSteps told_steps;
  compare_told(setting, 1, told_steps);
  EXPECT_GE(told_steps.steps, 4);
  EXPECT_LE(told_steps.worst, 0.005);
}

}  // namespace
}  // namespace ballast::tests
