// Verdicts and least changes, held against every completion of every layout, one by one.
#include "autotune/complete/least_changes.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <mutex>
#include <set>

#include "autotune/complete/complete.h"
#include "autotune/complete/completion_lists.h"
#include "autotune/space/layout.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "tests/autotune/random_settings.h"

namespace ballast::tests {
namespace {

// Bytes that one completion asks of the memories of a device.
struct Need {
  Bytes gpu;
  Bytes cpu;
};

// The completions of a list, and those with every number of buckets on the GPU that lies between.
std::vector<Completion> with_all_buckets(const std::vector<std::vector<Completion>>& groups) {
  std::set<int64_t> listed;
  for (const std::vector<Completion>& group : groups) {
    for (const Completion& completion : group)
      listed.insert(*completion.plan.optimizer.gpu_buckets);
  }
  std::vector<Completion> completions;
  for (const std::vector<Completion>& group : groups) {
    for (Completion completion : group) {
      const auto next = std::next(listed.find(*completion.plan.optimizer.gpu_buckets));
      const int64_t end = next == listed.end() ? *completion.plan.optimizer.gpu_buckets + 1 : *next;
      while (*completion.plan.optimizer.gpu_buckets < end) {
        completions.push_back(completion);
        ++*completion.plan.optimizer.gpu_buckets;
      }
    }
  }
  return completions;
}

void add_needs(const Setting& setting, const std::vector<std::vector<Completion>>& groups,
               std::vector<Need>& needs) {
  for (const Completion& completion : with_all_buckets(groups)) {
    StackFacts facts = setting.stack.facts;
    facts.attention = {completion.attention};
    try {
      const Prediction memory = predict_memory(build_placed(setting.model, completion.plan, facts),
                                               completion.plan, setting.machine, setting.stack);
      needs.push_back({memory.peaks[0].arena, memory.peaks[1].arena});
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
}

bool stack_allows(const Setting& setting, const Plan& plan) {
  if (!setting.open.has(KnobId::kZeroStage) || plan.replicas() == 1) return true;
  const auto [least, most] = zero_stages_of(setting.stack.facts, plan);
  return plan.zero_stage >= least && plan.zero_stage <= most;
}

// Of every completion that open knobs and degrees leave.
std::vector<Need> needs_of_all(const Setting& setting) {
  std::vector<Need> needs;
  for (const Plan& layout : layouts_of(setting.model, setting.plan, setting.open)) {
    if (!stack_allows(setting, layout)) continue;
    Setting one = setting;
    one.plan = layout;
    CaseSetup setup = setup_of(one);
    std::vector<ActivationPlan> activations = offloads();
    try {
      check(layout, setting.model);
      add_needs(one, completions_of(setup), needs);
      for (const ActivationPlan& offload : activations) {
        setup.published.plan.activations = offload;
        add_needs(one, completions_of(setup), needs);
      }
    } catch (const Error&) {
      // Not legal.
    }
  }
  return needs;
}

bool any_fits(const std::vector<Need>& needs, const Machine& machine) {
  const Bytes gpu = usable(machine, Place::kHbm);
  const Bytes cpu = usable(machine, Place::kDram);
  return std::any_of(needs.begin(), needs.end(),
                     [&](const Need& need) { return need.gpu <= gpu && need.cpu <= cpu; });
}

// The least of the GPU's memory with which a completion fits; the largest number where none does.
Bytes least_gpu(const std::vector<Need>& needs, const Machine& machine) {
  Bytes least{std::numeric_limits<int64_t>::max()};
  for (const Need& need : needs) {
    if (need.cpu <= usable(machine, Place::kDram)) least = std::min(least, need.gpu);
  }
  return least;
}
Bytes least_cpu(const std::vector<Need>& needs, const Machine& machine) {
  Bytes least{std::numeric_limits<int64_t>::max()};
  for (const Need& need : needs) {
    if (need.gpu <= usable(machine, Place::kHbm)) least = std::min(least, need.cpu);
  }
  return least;
}

// A GPU whose memory is near the least that is needed, from both sides.
void set_memory_near(Numbers& numbers, const std::vector<Need>& needs, Machine& machine) {
  constexpr double kFactors[] = {0.7, 0.95, 1.002, 1.2};
  const Bytes least = least_gpu(needs, machine);
  if (least.count == std::numeric_limits<int64_t>::max()) return;
  const double factor = kFactors[numbers.below(4)];
  machine.gpu.memory.value = machine.gpu.reserved.value +
                             Bytes{static_cast<int64_t>(static_cast<double>(least.count) * factor)};
}

std::optional<double> gb_for(Bytes least, Bytes reserved) {
  if (least.count == std::numeric_limits<int64_t>::max()) return std::nullopt;
  return std::ceil(static_cast<double>((least + reserved).count) * 1e-9);
}

const LeastChange* change_of(const std::vector<LeastChange>& changes, Limit limit) {
  for (const LeastChange& change : changes) {
    if (change.limit == limit) return &change;
  }
  return nullptr;
}

// Every change of a setting that does not fit is what all completions say.
void expect_least(const Setting& setting, const std::vector<Need>& needs) {
  const std::vector<LeastChange> changes = least_changes({setting, {}, {}});
  const Machine& machine = setting.machine;
  EXPECT_EQ(change_of(changes, Limit::kGpuMemory)->fits,
            gb_for(least_gpu(needs, machine), machine.gpu.reserved.value));
  EXPECT_EQ(change_of(changes, Limit::kCpuMemory)->fits,
            gb_for(least_cpu(needs, machine), machine.cpu.reserved.value));
  const auto fits_with = [&](Limit limit, double value) {
    Setting other = setting;
    const auto whole = static_cast<int64_t>(value);
    (limit == Limit::kSequence ? other.plan.sequence_length : other.plan.global_batch) = whole;
    return any_fits(needs_of_all(other), machine);
  };
  for (const Limit limit : {Limit::kSequence, Limit::kBatch}) {
    const LeastChange* change = change_of(changes, limit);
    if (change == nullptr) continue;
    if (change->fits) EXPECT_TRUE(fits_with(limit, *change->fits)) << to_string(limit);
    if (change->does_not_fit < change->now) {
      EXPECT_FALSE(fits_with(limit, change->does_not_fit)) << to_string(limit);
    }
  }
}

TEST(LeastChanges, verdicts_are_those_of_every_completion_one_by_one) {
  constexpr size_t kSettings = 200;
  constexpr size_t kWithLeast = 5;  // of so many one is asked what would have to give
  std::vector<Setting> settings;
  Numbers numbers;
  while (settings.size() < kSettings) settings.push_back(random_setting(numbers));
  std::vector<uint8_t> fitting(kSettings);
  std::vector<uint8_t> asked(kSettings);
  parallel_for(kSettings, hardware_threads(), [&](size_t i) {
    Setting& setting = settings[i];
    SCOPED_TRACE(i);
    const std::vector<Need> needs = needs_of_all(setting);
    if (needs.empty()) return;  // no completion is legal
    Numbers own(i + 1);
    set_memory_near(own, needs, setting.machine);
    fitting[i] = any_fits(needs, setting.machine);
    EXPECT_EQ(feasibility(setting).fits, fitting[i]) << name_of(setting);
    EXPECT_EQ(complete(setting, nullptr).prediction.fits, fitting[i]) << name_of(setting);
    asked[i] = !fitting[i] && i % kWithLeast == 0;
    if (asked[i]) expect_least(setting, needs);
  });
  const auto yes = std::count(fitting.begin(), fitting.end(), 1);
  EXPECT_GT(yes, kSettings / 4);
  EXPECT_LT(yes, kSettings * 3 / 4);
  EXPECT_GT(std::count(asked.begin(), asked.end(), 1), kSettings / kWithLeast / 4);
}

// What has no way out of one kind says so, and what is no limit is not told.
TEST(LeastChanges, of_a_limit_that_nothing_can_change_says_so) {
  Setting setting;
  setting.model = load_model("llama-3-70b");
  setting.machine = load_machine("gh200-96gb-480gb");
  setting.stack = load_stack("typical");
  PlanRequest request;
  request.strategy = "zero-offload";
  setting.plan = resolve_plan(request);
  setting.plan.global_batch = 4;
  setting.plan.micro_batch = 4;
  setting.plan.sequence_length = 1024;
  std::mutex mutex;
  std::set<Limit> heard;
  const std::vector<LeastChange> changes =
      least_changes({setting, {}, {}, [&](Limit limit, double value) {
                       const std::lock_guard lock(mutex);
                       EXPECT_GT(value, 0);
                       heard.insert(limit);
                     }});
  std::set<Limit> told;
  for (const LeastChange& change : changes) told.insert(change.limit);
  EXPECT_EQ(heard, told);
  EXPECT_EQ(change_of(changes, Limit::kDevices), nullptr);   // the machine has one
  EXPECT_EQ(change_of(changes, Limit::kSequence), nullptr);  // as short as they are asked about
  ASSERT_NE(change_of(changes, Limit::kBatch), nullptr);
  EXPECT_FALSE(change_of(changes, Limit::kBatch)->fits);
  EXPECT_EQ(change_of(changes, Limit::kBatch)->does_not_fit, 1);
  EXPECT_FALSE(change_of(changes, Limit::kMicroBatch)->fits);
  // Weights, optimizer state and gradients lie in both memories, and each alone is too small.
  EXPECT_FALSE(change_of(changes, Limit::kGpuMemory)->fits);
  EXPECT_FALSE(change_of(changes, Limit::kCpuMemory)->fits);
}

}  // namespace
}  // namespace ballast::tests
