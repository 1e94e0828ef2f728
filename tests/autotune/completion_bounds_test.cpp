#include "autotune/complete/estimates/completion_bounds.h"

#include <functional>
#include <gtest/gtest.h>

#include "autotune/complete/completion_lists.h"
#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/complete/layouts/open_layouts.h"
#include "sim/base/error.h"
#include "tests/autotune/random_settings.h"
#include "tests/settings.h"

namespace ballast::tests {
namespace {

struct Compared {
  int completions = 0;
  int informed = 0;  // whose bound is more than half of what they take
  int refused = 0;   // by a bound of memory
};

// What a bound refuses does not fit, for want of the memory that it names.
void expect_overfull(const Setting& setting, const Completion& completion,
                     const CompletionBound& bound, CompletionEstimates& estimates) {
  bool is_over = false;
  for (const PlacePeak& peak : estimates.peaks(setting, completion)) {
    const bool lacks = peak.arena > usable(setting.machine, peak.place);
    is_over = is_over || lacks;
    if (peak.place == Place::kHbm && bound.overfills_gpu) EXPECT_TRUE(lacks) << name_of(setting);
  }
  EXPECT_TRUE(is_over) << name_of(setting) << ", micro-batch " << *completion.plan.micro_batch;
}

// The same where it is not said how many buckets the GPU steps.
std::vector<CompletionBound> bounds_of_any_count(
    const Setting& setting, const std::vector<const Completion*>& completions) {
  std::vector<Completion> open;
  for (const Completion* completion : completions) {
    open.push_back(*completion);
    open.back().plan.optimizer.gpu_buckets.reset();
  }
  std::vector<const Completion*> all;
  for (const Completion& completion : open) all.push_back(&completion);
  return completion_bounds(setting, all);
}

// Completions of one kind of attention in one layout.
void compare(const Setting& setting, const std::vector<const Completion*>& completions,
             Compared& compared) {
  const std::vector<CompletionBound> bounds = completion_bounds(setting, completions);
  const std::vector<CompletionBound> of_any_count = bounds_of_any_count(setting, completions);
  CompletionEstimates estimates;
  for (size_t i = 0; i < completions.size(); ++i) {
    try {
      if (bounds[i].overfills) {
        expect_overfull(setting, *completions[i], bounds[i], estimates);
        ++compared.refused;
      }
      const std::optional<Duration> time = estimates.step_time_if_fits(setting, *completions[i]);
      if (!time) {
        // A shorter step refused it: the one that shows all that a longer one needs does so too.
        const std::vector<PlacePeak> peaks = CompletionEstimates().peaks(setting, *completions[i]);
        EXPECT_FALSE(shortfalls(peaks, setting.machine).empty()) << name_of(setting);
        if (estimates.gpu_excess(setting, *completions[i]).count > 0) {
          EXPECT_GT(peaks.front().arena, usable(setting.machine, Place::kHbm)) << name_of(setting);
        }
        continue;
      }
      EXPECT_LE(bounds[i].at_least, *time)
          << name_of(setting) << ", " << plan_json(completions[i]->plan);
      EXPECT_LE(of_any_count[i].at_least, *time)
          << name_of(setting) << ", " << plan_json(completions[i]->plan);
      ++compared.completions;
      if (2 * bounds[i].at_least.ps > time->ps) ++compared.informed;
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
}

void compare_completions(const Setting& layout, Compared& compared) {
  std::vector<std::vector<Completion>> groups;
  try {
    groups = completions_of(setup_of(layout));
  } catch (const Error&) {
    return;  // none is legal
  }
  for (const AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kEager}) {
    std::vector<const Completion*> completions;
    for (const std::vector<Completion>& group : groups) {
      for (const Completion& completion : group) {
        if (completion.attention == kind) completions.push_back(&completion);
      }
    }
    compare(layout, completions, compared);
  }
}

// A share of the memory that a GPU has, so that much does not fit.
void shrink_gpu(Setting& setting, double share) {
  Bytes& memory = setting.machine.gpu.memory.value;
  memory = Bytes{static_cast<int64_t>(share * static_cast<double>(memory.count))} +
           setting.machine.gpu.reserved.value;
}

// One layout of each of so many settings.
Compared compare_settings(Numbers& numbers, int settings,
                          const std::function<void(Setting&)>& change) {
  Compared compared;
  for (int i = 0; i < settings; ++i) {
    Setting setting = random_setting(numbers);
    constexpr double kShares[] = {1, 0.3, 0.1};
    shrink_gpu(setting, kShares[numbers.below(3)]);
    change(setting);
    const std::vector<OpenLayout> layouts = open_layouts_or_none(setting);
    if (layouts.empty()) continue;
    compare_completions(layouts[static_cast<size_t>(i) % layouts.size()].setting, compared);
  }
  return compared;
}

// A bound above what a completion takes or needs would leave out the fastest. Memories are made
// smaller, so that many do not fit. BALLAST_SETTINGS asks for more.
TEST(CompletionBounds, are_never_above_what_a_completion_takes_and_needs) {
  Numbers numbers(20261123);
  const Compared compared = compare_settings(numbers, tests::settings_or(40), [](Setting&) {});
  EXPECT_GT(compared.completions, 300);
  EXPECT_GT(2 * compared.informed, compared.completions);
  EXPECT_GT(compared.refused, 20);
}

// Frameworks differ in the lanes of their exchanges, and in how often they make them.
TEST(CompletionBounds, hold_for_every_framework) {
  Numbers numbers(20261124);
  const std::vector<Shipped> stacks = shipped_stacks();
  size_t next = 0;
  const Compared compared = compare_settings(
      numbers, tests::settings_or(60),
      [&](Setting& setting) { setting.stack = load_stack(stacks[next++ % stacks.size()].name); });
  EXPECT_GT(compared.completions, 300);
}

// The typical framework gathers the weights of a layer on the compute lane, beside the gradients
// that it scatters: a bound that has both on one lane is 2.6 % above the step.
TEST(CompletionBounds, know_that_exchanges_of_shards_run_beside_each_other) {
  PlanRequest request;
  request.strategy = "superoffload-ulysses";
  request.knobs[KnobId::kDevices] = 4;
  request.knobs[KnobId::kSequence] = 4;
  request.knobs[KnobId::kZeroStage] = 3;
  request.knobs[KnobId::kGlobalBatch] = 16;
  request.knobs[KnobId::kSequenceLength] = 1024;
  Setting setting = setting_of("mixtral-8x7b", 1, "dgx-h100-80gb", request);
  shrink_gpu(setting, 0.3);
  setting.plan.optimizer.bucket_bytes = {int64_t{1} << 26};
  Compared compared;
  compare_completions(setting, compared);
  EXPECT_GT(compared.completions, 4);
  EXPECT_GT(compared.informed, 4);
}

struct FlowsCompared {
  int pairs = 0;
  double most_gain = 0;  // share of the step by which flowing weights are faster
  std::string where;
};

// Completions that differ in nothing but that weights flow, where both fit.
void compare_flows(const Setting& layout, FlowsCompared& compared) {
  CompletionEstimates estimates;
  try {
    for (const std::vector<Completion>& group : completions_of(setup_of(layout))) {
      for (const Completion& staying : group) {
        if (*staying.plan.weights.flow_share > 0 || staying.plan.accumulation() < 4) continue;
        Completion flowing = staying;
        flowing.plan.weights.flow_share = 1;
        const std::optional<Duration> stay = estimates.step_time_if_fits(layout, staying);
        if (!stay) continue;
        const std::optional<Duration> flow = estimates.step_time_if_fits(layout, flowing);
        if (!flow) continue;
        ++compared.pairs;
        const double gain = 1 - flow->seconds() / stay->seconds();
        if (gain <= compared.most_gain) continue;
        compared.most_gain = gain;
        compared.where = name_of(layout) + ", " + plan_json(flowing.plan);
      }
    }
  } catch (const Error&) {
    // None is legal.
  }
}

// complete() does not time weights that flow where the same plan, of four micro-batches or more,
// fits with weights that stay. Of fewer they gain more, so that they are timed.
TEST(CompletionBounds, leave_out_flowing_weights_only_where_they_gain_nothing) {
  Numbers numbers(20261125);
  FlowsCompared compared;
  const int settings = tests::settings_or(30);
  for (int i = 0; i < settings; ++i) {
    const Setting setting = random_setting(numbers);
    if (setting.plan.optimizer.placement != OptimizerPlacement::kCpu) continue;
    const std::vector<OpenLayout> layouts = open_layouts_or_none(setting);
    if (layouts.empty()) continue;
    const Setting& layout = layouts[static_cast<size_t>(i) % layouts.size()].setting;
    if (layout.plan.pipeline == 1) compare_flows(layout, compared);
  }
  EXPECT_GT(compared.pairs, 20) << compared.pairs;
  EXPECT_LT(compared.most_gain, 0.01) << compared.where;
}

}  // namespace
}  // namespace ballast::tests
