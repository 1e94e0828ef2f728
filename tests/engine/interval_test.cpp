// Intervals: that they hold what they promise to, and the probability to fit by hand.
#include "sim/engine/interval.h"

#include <cmath>
#include <gtest/gtest.h>
#include <numbers>
#include <random>

#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

using tests::tiny_machine;
using tests::tiny_model;
using tests::tiny_plan;

constexpr int kGemm = 0, kElementwise = 2, kSlack = 7;

void spread(Stack& stack, int constant, double deviation) {
  const auto at = static_cast<size_t>(constant * (kStackConstants + 1));
  stack.uncertainty->covariance[at] = deviation * deviation;
}

// Unsure of products, of passes and of the allocator, and of what no constant explains.
Stack unsure() {
  Stack stack;
  stack.name = "unsure";
  stack.constants.gemm = 0.7;
  stack.constants.elementwise = 0.7;
  stack.constants.memory_slack = 0.1;
  stack.uncertainty.emplace();
  stack.uncertainty->covariance.assign(static_cast<size_t>(kStackConstants * kStackConstants), 0);
  stack.uncertainty->time = 0.05;
  stack.uncertainty->memory = 0.04;
  spread(stack, kGemm, 0.15);
  spread(stack, kElementwise, 0.1);
  spread(stack, kSlack, 0.05);
  return stack;
}

Confidence confidence(const Stack& stack) {
  const Prediction prediction =
      predict(tiny_model(), tiny_plan(OptimizerPlacement::kGpu), tiny_machine(), stack, nullptr);
  return confidence_of(prediction, tiny_model(), tiny_plan(OptimizerPlacement::kGpu),
                       tiny_machine(), stack, nullptr)
      .value();
}

class Normal {
 public:
  explicit Normal(uint64_t seed) : bits_(seed) {}
  double operator()(double spread) {
    const double angle = 2 * std::numbers::pi * uniform();
    return spread * std::sqrt(-2 * std::log(1 - uniform())) * std::cos(angle);
  }

 private:
  double uniform() { return std::ldexp(static_cast<double>(bits_() >> 11), -53); }
  std::mt19937_64 bits_;
};

// Constants are drawn from the covariance and what nothing explains on top of what they predict.
TEST(Interval, holds_eight_of_ten_of_what_the_uncertainty_draws) {
  const Stack stack = unsure();
  const Confidence sure = confidence(stack);
  ASSERT_TRUE(sure.step_time && sure.gpu_peak);
  Normal normal(3);
  constexpr int kDraws = 400;
  int times = 0, peaks = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    Stack true_stack = stack;
    for (const auto& [constant, deviation] :
         {std::pair{kGemm, 0.15}, {kElementwise, 0.1}, {kSlack, 0.05}}) {
      const double at = coordinate(stack.constants, constant);
      const double moved = at + normal(deviation);
      set_coordinate(true_stack.constants, constant,
                     constant == kSlack ? std::max(0.0, moved) : moved);
    }
    const Prediction truth = predict(tiny_model(), tiny_plan(OptimizerPlacement::kGpu),
                                     tiny_machine(), true_stack, nullptr);
    const double time = truth.step_time.seconds() * std::exp(normal(0.05));
    times += sure.step_time->low.seconds() <= time && time <= sure.step_time->high.seconds();
    const double peak = static_cast<double>(truth.gpu_peak.count) * std::exp(normal(0.04));
    peaks += static_cast<double>(sure.gpu_peak->low.count) <= peak &&
             peak <= static_cast<double>(sure.gpu_peak->high.count);
  }
  // Three standard deviations of so many draws.
  EXPECT_NEAR(static_cast<double>(times) / kDraws, 0.8, 0.06);
  EXPECT_NEAR(static_cast<double>(peaks) / kDraws, 0.8, 0.06);
}

// Its middle is the prediction, in logarithms.
TEST(Interval, lies_around_the_prediction_and_is_as_wide_as_what_is_open) {
  Stack stack = unsure();
  const Prediction prediction =
      predict(tiny_model(), tiny_plan(OptimizerPlacement::kGpu), tiny_machine(), stack, nullptr);
  const Confidence wide = confidence(stack);
  const double middle = std::sqrt(wide.step_time->low.seconds() * wide.step_time->high.seconds());
  EXPECT_NEAR(middle, prediction.step_time.seconds(), 1e-6 * middle);
  stack.uncertainty->covariance.assign(stack.uncertainty->covariance.size(), 0);
  const Confidence narrow = confidence(stack);
  const double factor = std::exp(kIntervalWidth * 0.05);
  EXPECT_NEAR(narrow.step_time->high.seconds(), prediction.step_time.seconds() * factor,
              1e-6 * middle);
  EXPECT_GT(wide.step_time->high, narrow.step_time->high);
  EXPECT_GT(wide.gpu_peak->high, narrow.gpu_peak->high);
  stack.uncertainty.reset();
  EXPECT_FALSE(
      confidence_of(prediction, tiny_model(), tiny_plan(OptimizerPlacement::kGpu), tiny_machine(),
                    stack, nullptr)
          .has_value());
}

// Peaks of 900 bytes live in as many of HBM, which has a hundred percent, and of DRAM.
std::vector<PlacePeak> peaks(Bytes gpu, Bytes cpu) {
  PlacePeak of_gpu, of_cpu;
  of_gpu.place = Place::kHbm;
  of_gpu.arena = of_gpu.live = gpu;
  of_cpu.place = Place::kDram;
  of_cpu.arena = of_cpu.live = cpu;
  return {of_gpu, of_cpu};
}

StackUncertainty memory_spread(double deviation) {
  StackUncertainty uncertainty;
  uncertainty.covariance.assign(static_cast<size_t>(kStackConstants * kStackConstants), 0);
  uncertainty.memory = deviation;
  return uncertainty;
}

Bytes share_of(Bytes whole, double share) {
  return {std::llround(static_cast<double>(whole.count) * share)};
}

TEST(ProbabilityToFit, is_that_of_a_normal_by_hand) {
  const Machine machine = tiny_machine();
  const Bytes room = usable(machine, Place::kHbm);
  const Bytes cpu = {1};
  const StackUncertainty tenth = memory_spread(0.1);
  const auto at = [&](double deviations) {
    return probability_to_fit(peaks(share_of(room, std::exp(-0.1 * deviations)), cpu), machine,
                              tenth);
  };
  EXPECT_NEAR(at(0), 0.5, 1e-6);
  EXPECT_NEAR(at(1), 0.8413447, 1e-5);
  EXPECT_NEAR(at(-1), 0.1586553, 1e-5);
  EXPECT_NEAR(at(kIntervalWidth), 0.9, 1e-5);
  EXPECT_GT(at(6), 1 - 1e-6);
}

TEST(ProbabilityToFit, what_is_known_exactly_is_a_verdict) {
  const Machine machine = tiny_machine();
  const Bytes room = usable(machine, Place::kHbm);
  const Bytes more = {room.count + 1};
  EXPECT_EQ(probability_to_fit(peaks(room, {1}), machine, memory_spread(0)), 1);
  EXPECT_EQ(probability_to_fit(peaks(more, {1}), machine, memory_spread(0)), 0);
  EXPECT_EQ(probability_to_fit(peaks({0}, {1}), machine, memory_spread(0.1)), 1);
  // CPU memory is asked for by the byte: no allocator makes more of it.
  const Bytes cpu = usable(machine, Place::kDram);
  EXPECT_GT(probability_to_fit(peaks({1}, cpu), machine, memory_spread(0.1)), 0.99);
  EXPECT_EQ(probability_to_fit(peaks({1}, {cpu.count + 1}), machine, memory_spread(0.1)), 0);
}

// Slack of the allocator is a share of what is live: unsure of it by 0.1 where it is 0.25 is
// unsure of the logarithm by 0.1 / 1.25.
TEST(ProbabilityToFit, slack_that_is_open_counts_as_a_share_of_what_is_live) {
  const Machine machine = tiny_machine();
  StackUncertainty uncertainty = memory_spread(0);
  uncertainty.covariance[static_cast<size_t>(kSlack * (kStackConstants + 1))] = 0.01;
  const Bytes room = usable(machine, Place::kHbm);
  std::vector<PlacePeak> both = peaks(share_of(room, std::exp(-0.08)), {1});
  both[0].live = share_of(both[0].arena, 0.8);
  EXPECT_NEAR(probability_to_fit(both, machine, uncertainty), 0.8413447, 1e-5);
}

}  // namespace
}  // namespace ballast
