// Sensitivities against exhaustive searches on machines that were changed by hand.
#include "autotune/studies/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "sim/engine/predict.h"
#include "tests/autotune/asking.h"

namespace ballast::tests {
namespace {

SensitivityQuestion question_on(const Machine& machine) {
  SearchQuestion search = small_question(fixed_plan(), machine);
  search.space.open.remove(KnobId::kMicroBatch);
  return {search, *searching()(search)->best};
}

const Sensitivity& of(const std::vector<Sensitivity>& all, const std::string& key) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Sensitivity& one) { return one.figure.key == key; });
  EXPECT_NE(found, all.end()) << key;
  return *found;
}

// The machine of the tests: 1 TFLOP/s, 100 GB/s, 1 GiB; 10 GB/s each way; 20 GB/s; 0.5e9 a second.
TEST(MachineFigures, have_the_values_of_the_machine_and_those_that_it_lacks_are_left_out) {
  const std::vector<MachineFigure> figures = machine_figures(gpu_machine(), DType::kBf16);
  const auto value = [&](const std::string& key) {
    for (const MachineFigure& figure : figures) {
      if (figure.key == key) return figure.value;
    }
    return -1.0;
  };
  EXPECT_NEAR(value("machine.gpu.matmul_tflops.bf16"), 1, 1e-12);
  EXPECT_NEAR(value("machine.gpu.memory_bandwidth_gb_per_s"), 100, 1e-12);
  EXPECT_NEAR(value("machine.gpu.memory_gb"), 1.073741824, 1e-12);
  EXPECT_NEAR(value("machine.link.host_to_device_gb_per_s"), 10, 1e-12);
  EXPECT_NEAR(value("machine.cpu.memory_bandwidth_gb_per_s"), 20, 1e-12);
  EXPECT_NEAR(value("machine.cpu.adam"), 0.5, 1e-12);
  EXPECT_NEAR(value("machine.node.bandwidth_gb_per_s"), 5, 1e-12);
  EXPECT_EQ(value("machine.nvme.read_gb_per_s"), -1);
  EXPECT_EQ(value("machine.network.bandwidth_gb_per_s"), -1);
}

TEST(MachineFigures, multiplied_by_two_are_twice_as_large_and_leave_the_others_alone) {
  Machine machine = gpu_machine();
  machine.devices = 4;
  machine.network = machine.node;
  machine.nvme = Nvme{given(Bytes{1 << 30}), flat(2e9), flat(1e9), given(Duration::from_us(9))};
  const std::vector<MachineFigure> figures = machine_figures(machine, DType::kBf16);
  EXPECT_EQ(figures.size(), 12u);
  for (const MachineFigure& changed : figures) {
    const auto after = machine_figures(with_figure(machine, changed, 2), DType::kBf16);
    for (size_t i = 0; i < figures.size(); ++i) {
      // "Both ways" is read from the way to the GPU.
      const bool both = changed.key == "machine.link.gb_per_s";
      const bool link = figures[i].key.starts_with("machine.link");
      const bool to_gpu = figures[i].key == "machine.link.gb_per_s" &&
                          changed.key == "machine.link.host_to_device_gb_per_s";
      const bool twice = figures[i].key == changed.key || (both && link) || to_gpu;
      EXPECT_NEAR(after[i].value, (twice ? 2 : 1) * figures[i].value, 1e-9)
          << changed.key << " changes " << figures[i].key;
    }
  }
}

TEST(Sensitivities, have_the_best_plan_of_each_changed_machine) {
  const SensitivityQuestion question = question_on(gpu_machine());
  SensitivityOptions options;
  options.factors = {0.5, 2};
  options.lead = 1e9;  // no bisection
  for (const Sensitivity& one : sensitivities(question, nullptr, options, searching())) {
    ASSERT_EQ(one.points.size(), 2u);
    for (const SensitivityPoint& point : one.points) {
      SearchQuestion changed = question.search;
      changed.machine = with_figure(changed.machine, one.figure, point.factor);
      const SearchResult whole = *searching(How::kExhaustively)(changed);
      ASSERT_TRUE(whole.best && point.step_time);
      EXPECT_EQ(*point.step_time, whole.best->step_time) << one.figure.key << point.factor;
      if (!point.same_plan) continue;
      EXPECT_EQ(*point.same_plan,
                predict(changed.model, question.best.plan, changed.machine, nullptr).step_time);
      EXPECT_GE(*point.same_plan, *point.step_time);
      EXPECT_EQ(point.differs.empty(), *point.same_plan == *point.step_time);
    }
  }
}

TEST(Sensitivities, come_in_order_and_are_the_slope_between_the_nearest_factors) {
  const SensitivityQuestion question = question_on(gpu_machine());
  const std::vector<Sensitivity> all = sensitivities(question, nullptr, {}, searching());
  ASSERT_EQ(all.size(), machine_figures(gpu_machine(), DType::kBf16).size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) EXPECT_GE(std::abs(all[i - 1].elasticity), std::abs(all[i].elasticity));
    const double slow = all[i].points[1].step_time->seconds();
    const double fast = all[i].points[2].step_time->seconds();
    EXPECT_NEAR(all[i].elasticity, std::log(fast / slow) / std::log(1.4 * 1.4), 1e-9);
    // No figure makes a step longer, and none is worth more than itself.
    EXPECT_LE(all[i].elasticity, 1e-3) << all[i].figure.key;
    EXPECT_GE(all[i].elasticity, -1.05) << all[i].figure.key;
  }
}

// On this side of the switch the plan is within 1 % of the best, on the other it is not.
TEST(Sensitivities, say_where_another_plan_begins_to_win) {
  Machine machine = gpu_machine();
  machine.gpu.memory = given(Bytes{12 << 20});
  const SensitivityQuestion question = question_on(machine);
  SensitivityOptions options;
  options.factors = {0.25, 0.5, 2, 4};
  const auto lead = [&](const MachineFigure& figure, double factor) {
    SearchQuestion changed = question.search;
    changed.machine = with_figure(changed.machine, figure, factor);
    const Prediction same = predict(changed.model, question.best.plan, changed.machine, nullptr);
    const SearchResult whole = *searching(How::kExhaustively)(changed);
    if (!same.fits) return whole.best ? 1.0 : 0.0;
    return same.step_time.seconds() / whole.best->step_time.seconds() - 1;
  };
  int switches = 0;
  for (const Sensitivity& one : sensitivities(question, nullptr, options, searching())) {
    if (!one.switches_at) continue;
    ++switches;
    const double factor = one.switches_at->factor;
    EXPECT_FALSE(one.switches_at->differs.empty());
    EXPECT_NEAR(one.switches_at->value, factor * one.figure.value, 1e-9 * one.figure.value);
    EXPECT_GT(lead(one.figure, factor), options.lead) << one.figure.key;
    const double nearer = factor < 1 ? factor * options.resolution : factor / options.resolution;
    EXPECT_LE(lead(one.figure, nearer), options.lead) << one.figure.key;
  }
  EXPECT_GT(switches, 0);
}

TEST(Sensitivities, interrupted_keep_the_figures_that_are_done) {
  const SensitivityQuestion question = question_on(gpu_machine());
  SensitivityOptions options;
  options.lead = 1e9;  // no bisection, so four searches each
  int asked = 0;
  const Ask ask = [&](const SearchQuestion& each) -> std::optional<SearchResult> {
    if (++asked > 10) return std::nullopt;
    return searching()(each);
  };
  EXPECT_EQ(sensitivities(question, nullptr, options, ask).size(), 2u);
}

TEST(Sensitivities, of_memory_that_is_plentiful_are_nothing) {
  const SensitivityQuestion question = question_on(gpu_machine());
  const auto all = sensitivities(question, nullptr, {}, searching());
  EXPECT_EQ(of(all, "machine.cpu.memory_gb").elasticity, 0);
  EXPECT_FALSE(of(all, "machine.cpu.memory_gb").switches_at);
}

}  // namespace
}  // namespace ballast::tests
