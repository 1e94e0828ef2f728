// Gradients of parameters that add up over micro-batches in 32 bits (Plan::gradients): the bits of
// a loop by hand, the same wherever they are stepped, and closer to the sum than in 16 bits.
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "backend/host/linear_layout.h"
#include "backend/host/transformer.h"
#include "tests/backend/decoder.h"
#include "tests/backend/disturbed_training.h"
#include "tests/backend/plain_loop.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

using transformer::Array;

constexpr int kSummed = 8;
constexpr int64_t kStepsOfSums = 8;

float rounded(float value, DType dtype) {
  const double wide = value;
  return static_cast<float>(
      transformer::values_of(transformer::array_of({&wide, 1}, dtype, 1, 1)).front());
}

// fc1 of one token a micro-batch: what it adds to a weight is one product of two bf16 values, which
// a float holds, so that the order of a GEMM's sums cannot matter.
struct LinearSums {
  LinearSums(const Model& of, DType type) : model(of), dtype(type) {
    array = transformer::zeros(dtype, 1, layout.parameters);
    by_hand.resize(static_cast<size_t>(layout.parameters));
  }

  void add(const Array& x, const Array& dy, bool adds) {
    transformer::linear_backward_weight(model, ModuleKind::kFc1, dy.view(), x.view(), array.view(),
                                        adds);
    const std::vector<double> inputs = transformer::values_of(x);
    const std::vector<double> gradients = transformer::values_of(dy);
    const transformer::LinearPart& part = layout.parts[0];
    for (int64_t out = 0; out < part.out; ++out) {
      const auto gradient = static_cast<float>(gradients[static_cast<size_t>(out)]);
      for (int64_t in = 0; in < layout.in; ++in) {
        const auto input = static_cast<float>(inputs[static_cast<size_t>(in)]);
        put(part.weight + in * part.out + out, input * gradient);
      }
      put(part.bias + out, gradient);
    }
  }
  void put(int64_t at, float gradient) {
    float& sum = by_hand[static_cast<size_t>(at)];
    sum = rounded(sum + gradient, dtype);
  }
  void expect_by_hand() const {
    const std::vector<double> values = transformer::values_of(array);
    ASSERT_EQ(values.size(), by_hand.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(static_cast<float>(values[i]), by_hand[i]) << to_string(dtype) << " element " << i;
    }
  }

  Model model;
  DType dtype;
  transformer::LinearLayout layout = transformer::linear_layout(model, ModuleKind::kFc1);
  Array array;
  std::vector<float> by_hand;
};

TEST(gradient_sums, eight_micro_batches_have_the_bits_of_a_loop_in_either_format) {
  const Model model = transformer::gpt2_like();
  ASSERT_EQ(transformer::linear_layout(model, ModuleKind::kFc1).order, WeightLayout::kInOut);
  LinearSums wide(model, DType::kF32);
  LinearSums narrow(model, DType::kBf16);
  std::vector<double> exact(wide.by_hand.size());
  for (uint32_t m = 0; m < kSummed; ++m) {
    const Array x = transformer::random_array({0, 1, 2 * m + 1}, DType::kBf16, 1, model.hidden);
    const Array dy = transformer::random_array({0, 1, 2 * m + 2}, DType::kBf16, 1, model.ffn);
    for (LinearSums* sums : {&wide, &narrow}) sums->add(x, dy, m > 0);
    LinearSums alone(model, DType::kF32);
    alone.add(x, dy, false);
    for (size_t i = 0; i < exact.size(); ++i) exact[i] += static_cast<double>(alone.by_hand[i]);
  }
  wide.expect_by_hand();
  narrow.expect_by_hand();
  // Each of eight sums is rounded to 2^-24 or 2^-9 of itself; none is above 8.
  double off_wide = 0;
  double off_narrow = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    off_wide = std::max(off_wide, std::abs(static_cast<double>(wide.by_hand[i]) - exact[i]));
    off_narrow = std::max(off_narrow, std::abs(static_cast<double>(narrow.by_hand[i]) - exact[i]));
  }
  EXPECT_LT(off_wide, 8 * 8 * 0x1p-24);
  EXPECT_LT(off_narrow, 8 * 8 * 0x1p-9);
  EXPECT_GT(off_narrow, 100 * off_wide);
  std::printf("8 micro-batches: sums off by %.1e in bf16, by %.1e in fp32\n", off_narrow, off_wide);
}

// Beside 256 the next value of bf16 is 258: seven times a half is lost one by one.
TEST(gradient_sums, what_is_small_beside_the_sum_is_lost_in_16_bits_and_kept_in_32) {
  const Model model = transformer::gpt2_like();
  LinearSums wide(model, DType::kF32);
  LinearSums narrow(model, DType::kBf16);
  for (int m = 0; m < kSummed; ++m) {
    const std::vector<double> ones(static_cast<size_t>(model.hidden), 1.0);
    const std::vector<double> gradients(static_cast<size_t>(model.ffn), m == 0 ? 256.0 : 0.5);
    const Array x = transformer::array_of(ones, DType::kBf16, 1, model.hidden);
    const Array dy = transformer::array_of(gradients, DType::kBf16, 1, model.ffn);
    for (LinearSums* sums : {&wide, &narrow}) sums->add(x, dy, m > 0);
  }
  wide.expect_by_hand();
  narrow.expect_by_hand();
  for (const float sum : wide.by_hand) EXPECT_EQ(sum, 259.5f);
  for (const float sum : narrow.by_hand) EXPECT_EQ(sum, 256.0f);
}

Plan eight_micro_batches(DType dtype = DType::kBf16) {
  Plan plan =
      tiny::waiting_plan({.sequences = kSummed, .micro_batch = 1, .tokens = 12}, 2 * kSegment * 4);
  plan.dtype = dtype;
  plan.gradients = GradientFormat::kF32;
  return plan;
}

std::string named(const Plan& plan) {
  return std::string(to_string(plan.optimizer.placement)) + ", cast " +
         std::string(to_string(plan.optimizer.cast)) + ", " +
         std::string(to_string(plan.optimizer.sync)) + ", ZeRO " + std::to_string(plan.zero_stage) +
         ", " + std::to_string(plan.data) + " ranks, " + std::to_string(plan.pipeline) +
         " stages, " + std::string(to_string(plan.dtype));
}

// The CPU's cast would round to 16 bits what goes there: what is in 32 bits is sent so.
TEST(gradient_sums, trained_wherever_they_are_stepped_they_have_the_bits_of_the_plain_loop) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::options_for(kStepsOfSums);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const SyncMode sync : tiny::kSyncs) {
      std::vector<float> expected;
      for (const tiny::Homes homes : tiny::kHomes) {
        Plan plan = eight_micro_batches(dtype);
        plan.optimizer.sync = sync;
        tiny::set_homes(plan, homes);
        if (expected.empty()) expected = tiny::plain_loop(model, plan, options, kStepsOfSums);
        const tiny::Outcome outcome = tiny::train(model, plan, options, kStepsOfSums, false);
        EXPECT_TRUE(tiny::same_bits(outcome.parameters, expected)) << named(plan);
        plan.gradients = GradientFormat::kAsWeights;
        EXPECT_FALSE(tiny::same_bits(
            tiny::train(model, plan, options, kStepsOfSums, true).parameters, expected))
            << named(plan);
      }
    }
  }
}

TEST(gradient_sums, of_stages_and_of_ranks_have_the_bits_of_the_plain_loop) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::options_for(kStepsOfSums);
  const auto expect_plain = [&](const Plan& plan) {
    EXPECT_TRUE(tiny::same_bits(tiny::train(model, plan, options, kStepsOfSums, false).parameters,
                                tiny::plain_loop(model, plan, options, kStepsOfSums)))
        << named(plan);
  };
  for (const tiny::Homes homes : tiny::kHomes) {
    Plan stages = eight_micro_batches();
    tiny::set_homes(stages, homes);
    stages.pipeline = stages.devices = 2;
    expect_plain(stages);
    for (const int64_t zero_stage : {0, 1, 2, 3}) {
      if (zero_stage == 0 && homes != tiny::Homes::kGpu) continue;
      Plan ranks = eight_micro_batches();
      tiny::set_homes(ranks, homes);
      ranks.data = ranks.devices = 2;
      ranks.zero_stage = zero_stage;
      ranks.optimizer.sync = SyncMode::kSpeculate;
      expect_plain(ranks);
    }
  }
}

// Ranks that split products, sequences or experts round activations elsewhere, to 2^-9 each: norms
// of gradients and losses stay within a hundredth of those of one rank.
TEST(gradient_sums, of_ranks_that_split_products_sequences_or_experts_have_one_ranks_norms) {
  const TrainerOptions options = tiny::options_for(kStepsOfSums);
  const auto expect_near = [&](const Model& model, const Plan& split, const std::string& what) {
    Plan one = split;
    one.tensor = one.sequence = one.context = one.data = one.expert = one.devices = 1;
    one.tensor_sequence = false;
    const tiny::Outcome alone = tiny::train(model, one, options, kStepsOfSums, true);
    const tiny::Outcome ranks = tiny::train(model, split, options, kStepsOfSums, false);
    ASSERT_EQ(ranks.records.size(), alone.records.size()) << what;
    for (size_t i = 0; i < ranks.records.size(); ++i) {
      const StepRecord& expected = alone.records[i];
      EXPECT_NEAR(ranks.records[i].loss, expected.loss, 0.01 * expected.loss) << what;
      EXPECT_NEAR(ranks.records[i].gradient_norm, expected.gradient_norm,
                  0.01 * expected.gradient_norm)
          << what << ", step " << i;
    }
  };
  for (int64_t Plan::* degree : {&Plan::tensor, &Plan::sequence, &Plan::context}) {
    for (const bool by_token : {false, true}) {
      if (by_token && degree != &Plan::tensor) continue;
      Plan split = eight_micro_batches();
      split.*degree = split.devices = 2;
      split.tensor_sequence = by_token;
      expect_near(tiny::gpt2_model(), split,
                  "tensor " + std::to_string(split.tensor) + ", sequence " +
                      std::to_string(split.sequence) + (by_token ? ", by token" : ""));
    }
  }
  Plan experts = eight_micro_batches();
  experts.data = experts.expert = experts.devices = 2;
  expect_near(tiny::newer_models()[1], experts, "two expert ranks");
}

}  // namespace
}  // namespace ballast
