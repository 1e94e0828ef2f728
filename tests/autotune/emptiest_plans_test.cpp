// Whether a plan of one layout fits whose memory is planned, held against every plan.
#include "autotune/complete/estimates/emptiest_plans.h"

#include <gtest/gtest.h>
#include <limits>

#include "autotune/complete/feasibility.h"
#include "autotune/search/search.h"
#include "autotune/space/layout.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/predict.h"
#include "tests/autotune/random_settings.h"
#include "tests/settings.h"

namespace ballast::tests {
namespace {

// One layout of Ballast's own plans, all knobs of which are open.
std::optional<Setting> random_layout(Numbers& numbers) {
  Setting setting = random_setting(numbers);
  setting.model.layers = 1 + numbers.below(2);
  setting.stack = {};
  setting.plan.global_batch = setting.plan.devices << numbers.below(2);
  setting.open = {};
  const std::vector<Plan> legal = all_legal_layouts(setting);
  if (legal.empty()) return std::nullopt;
  setting.plan = legal[static_cast<size_t>(numbers.below(std::ssize(legal)))];
  return setting;
}

SearchResult searched(const Setting& setting, const SearchOptions& options) {
  Plan plan = setting.plan;
  if (plan.pipeline > 1) {
    plan.weights.flow_share = 0;
    plan.optimizer.gpu_buckets = plan.optimizer.gpu_buckets.value_or(0);
  }
  OpenKnobs open;
  open.add(KnobId::kMemoryReuse);
  return search(setting.model, plan, space_of(setting.model, plan, open), setting.machine, nullptr,
                options);
}

// Memory of a GPU that lies near the least that any plan needs, from both sides.
bool set_memory_near(const Setting& setting, Numbers& numbers, Machine& machine) {
  SearchOptions all;
  all.threads = 1;
  all.exhaustive = true;
  all.ranked = 1'000'000;
  Bytes least{std::numeric_limits<int64_t>::max()};
  for (const Candidate& one : searched(setting, all).ranked) {
    least = std::min(least, one.memory[0]);
  }
  if (least.count == std::numeric_limits<int64_t>::max()) return false;
  constexpr double kFactors[] = {0.7, 0.8, 0.9, 0.95, 1.002};
  const double needed = static_cast<double>(least.count) * kFactors[numbers.below(5)];
  machine.gpu.memory.value = machine.gpu.reserved.value + Bytes{static_cast<int64_t>(needed)};
  return true;
}

// BALLAST_SETTINGS asks for more of them: 1500 take two minutes of a core.
TEST(EmptiestPlans, decide_as_every_plan_does) {
  const auto count = static_cast<size_t>(settings_or(100));
  Numbers numbers;
  std::vector<Setting> settings;
  while (settings.size() < count) {
    if (std::optional<Setting> one = random_layout(numbers)) settings.push_back(*std::move(one));
  }
  std::vector<uint8_t> fitting(count), missed(count);
  parallel_for(count, hardware_threads(), [&](size_t i) {
    Setting& setting = settings[i];
    SCOPED_TRACE(name_of(setting));
    Numbers own(i + 1);
    if (!set_memory_near(setting, own, setting.machine)) return;
    SearchOptions any;
    any.threads = 1;
    any.tolerance = 1;
    const bool truth = searched(setting, any).best.has_value();
    const Verdict verdict = feasibility(setting);
    if (verdict.fits) {
      EXPECT_TRUE(predict(setting.model, verdict.plan, setting.machine, nullptr).fits);
    }
    fitting[i] = truth;
    missed[i] = truth && !verdict.fits;
    const std::vector<Plan> emptiest = emptiest_plans(setting, CompletionEstimates(), 3);
    EXPECT_GE(emptiest.size(), 1);
    EXPECT_LE(emptiest.size(), 3);
  });
  const auto yes = std::count(fitting.begin(), fitting.end(), 1);
  const auto no = std::count(missed.begin(), missed.end(), 1);
  std::printf("%zu settings, %ld fit, %ld of these are said not to\n", count, yes, no);
  EXPECT_GT(yes, std::ssize(fitting) / 5);
  EXPECT_LE(no, std::ssize(fitting) / 100);
}

}  // namespace
}  // namespace ballast::tests
