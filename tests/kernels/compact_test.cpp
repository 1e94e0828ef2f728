// Compact moments: their stated error, no drift, and the same bits from every table.

#include <gtest/gtest.h>

#include "kernels/threads.h"
#include "tests/kernels/adam_inputs.h"

namespace ballast::kernels::testing {
namespace {

constexpr MomentFormat kMomentFormats[] = {MomentFormat::kBf16, MomentFormat::kBlock8};

struct CompactState {
  CompactState(int64_t count_given, MomentFormat format_given, Format gradient_format_given)
      : count(count_given),
        format(format_given),
        gradient_format(gradient_format_given),
        master(static_cast<size_t>(count), 0.5f),
        gradient(static_cast<size_t>(count)),
        moment1(static_cast<size_t>(count)),
        moment2(static_cast<size_t>(count)),
        weights(static_cast<size_t>(count)),
        exponents1(static_cast<size_t>(count / kMomentBlock + 1)),
        exponents2(exponents1) {}

  void set_gradient(int64_t i, float value) {
    reference().cast(&value, Format::kF32,
                     reinterpret_cast<char*>(gradient.data()) + i * bytes_of(gradient_format),
                     gradient_format, 1);
  }
  CompactArrays arrays(uint32_t seed) {
    return {.master = master.data(),
            .moment1 = moment1.data(),
            .moment2 = moment2.data(),
            .exponents1 = exponents1.data(),
            .exponents2 = exponents2.data(),
            .moment_format = format,
            .gradient = gradient.data(),
            .gradient_format = gradient_format,
            .weights = weights.data(),
            .count = count,
            .seed = seed};
  }

  int64_t count;
  MomentFormat format;
  Format gradient_format;
  std::vector<float> master, gradient;
  std::vector<uint16_t> moment1, moment2, weights;  // room for either format
  std::vector<uint8_t> exponents1, exponents2;
};

TEST(compact, every_table_gives_the_bits_of_the_reference) {
  for (const Table* table : vector_tables()) {
    for (const MomentFormat format : kMomentFormats) {
      for (const Format gradient_format : kFormats) {
        for (int64_t count : lengths()) {
          Source source(61);
          CompactState expected(count, format, gradient_format);
          CompactState got = expected;
          for (int t = 1; t <= 4; ++t) {
            for (int64_t i = 0; i < count; ++i) {
              const float g = source.next(Values::kNormal) *
                              std::exp(4.0f * source.next(Values::kNormal)) * (i % 9 == 0 ? 0 : 1);
              expected.set_gradient(i, g);
              got.set_gradient(i, g);
            }
            const auto seed = static_cast<uint32_t>(source.bits());
            const AdamConstants c = constants_of_step(t, 0.1f);
            reference().adam_step_compact(expected.arrays(seed), c);
            table->adam_step_compact(got.arrays(seed), c);
            ASSERT_EQ(got.master, expected.master) << table->name << " count " << count;
            ASSERT_EQ(got.moment1, expected.moment1) << table->name << " count " << count;
            ASSERT_EQ(got.moment2, expected.moment2) << table->name << " count " << count;
            ASSERT_EQ(got.exponents1, expected.exponents1) << table->name << " count " << count;
            ASSERT_EQ(got.exponents2, expected.exponents2) << table->name << " count " << count;
            ASSERT_EQ(got.weights, expected.weights) << table->name << " count " << count;
          }
        }
      }
    }
  }
}

TEST(compact, cutting_a_bucket_among_threads_changes_no_bit) {
  constexpr int64_t kCount = 100'001;
  for (const MomentFormat format : kMomentFormats) {
    Source source(71);
    CompactState whole(kCount, format, Format::kBf16);
    for (int64_t i = 0; i < kCount; ++i) whole.set_gradient(i, source.next(Values::kNormal));
    CompactState cut = whole;
    Workers workers(3, Pinning::kNone);
    for (uint32_t t = 1; t <= 3; ++t) {
      best().adam_step_compact(whole.arrays(t), constants_of_step(static_cast<int>(t), 0.1f));
      adam_step_compact(workers, best(), cut.arrays(t),
                        constants_of_step(static_cast<int>(t), 0.1f));
    }
    EXPECT_EQ(cut.master, whole.master);
    EXPECT_EQ(cut.moment1, whole.moment1);
    EXPECT_EQ(cut.moment2, whole.moment2);
    EXPECT_EQ(cut.exponents2, whole.exponents2);
  }
}

// beta1 = beta2 = 0.5: the first step makes m = g / 2 and v = g^2 / 2. A second step with g = 0,
// rate 1, decay and epsilon 0 moves w by (m / 2) / sqrt(v / 2) = m / sqrt(2 v), which with exact
// moments is g / 2 / |g| = 1/2. An error below 1/8 of m and of v, v under the root, bounds the
// ratio by (1 - 1/8) / sqrt(1 + 1/8) = 0.825 and (1 + 1/8) / sqrt(1 - 1/8) = 1.203 times that.
// For bf16 the bound is 2^-7 instead of 1/8.
TEST(compact, one_value_keeps_the_stated_relative_error) {
  for (const Table* table : available()) {
    for (const MomentFormat format : kMomentFormats) {
      constexpr int64_t kCount = 4 * kMomentBlock;
      CompactState state(kCount, format, Format::kF32);
      for (int64_t i = 0; i < kCount; ++i) {
        state.set_gradient(i, 1e-3f * (1.0f + static_cast<float>(i) / 300.0f));
      }
      AdamConstants c = {.beta1 = 0.5f, .beta2 = 0.5f, .epsilon = 0.0f, .learning_rate = 0.0f};
      table->adam_step_compact(state.arrays(5), c);
      state.gradient.assign(static_cast<size_t>(kCount), 0.0f);
      c.learning_rate = 1.0f;
      table->adam_step_compact(state.arrays(6), c);
      const float error = format == MomentFormat::kBf16 ? 0x1p-7f : 0.125f;
      for (const float w : state.master) {
        const float moved = 2.0f * (0.5f - w);
        ASSERT_GE(moved, (1 - error) / std::sqrt(1 + error) - 1e-6f) << table->name;
        ASSERT_LE(moved, (1 + error) / std::sqrt(1 - error) + 1e-6f) << table->name;
      }
    }
  }
}

// Gradient 1 once, then 0, beta2 = 0.999: rounding to nearest would keep v for ever; at random, the
// mean over 8192 values after 700 steps is 0.999^700 = 0.496 of the start. One value's deviation is
// at most a binade's 1/8 each time it moves; the mean of so many lies within a few percent.
TEST(compact, second_moment_decays_although_one_step_is_less_than_a_unit) {
  for (const MomentFormat format : kMomentFormats) {
    constexpr int64_t kCount = 8192;
    CompactState state(kCount, format, Format::kF32);
    state.gradient.assign(static_cast<size_t>(kCount), 1.0f);
    AdamConstants c = {.learning_rate = 0.0f};
    best().adam_step_compact(state.arrays(1), c);
    state.gradient.assign(static_cast<size_t>(kCount), 0.0f);
    for (uint32_t t = 2; t <= 701; ++t) best().adam_step_compact(state.arrays(t * 77777u), c);
    // One more step shows v: beta1 = 0 makes m = g = 1, so w moves by 1 / sqrt(0.999 v + 0.001).
    state.gradient.assign(static_cast<size_t>(kCount), 1.0f);
    c.beta1 = 0.0f;
    c.learning_rate = 1.0f;
    best().adam_step_compact(state.arrays(99), c);
    double mean = 0;
    for (const float w : state.master) {
      const double moved = 0.5 - w;
      mean += (1.0 / (moved * moved) - 0.001) / 0.999 / kCount;
    }
    EXPECT_NEAR(mean, 0.001 * std::pow(0.999, 700), 0.001 * 0.03);
  }
}

// A valley w^2 / 2 in 4096 directions, gradient w plus noise: after 300 steps the runs with compact
// moments are off that with f32 moments by the share of the way that kernels.h states.
TEST(compact, training_goes_the_way_of_f32_moments) {
  constexpr int64_t kCount = 4096;
  std::vector<float> w(kCount, 0.5f), m(kCount), v(kCount), g(kCount);
  CompactState bf16(kCount, MomentFormat::kBf16, Format::kF32);
  CompactState block8(kCount, MomentFormat::kBlock8, Format::kF32);
  Source source(67);
  for (int t = 1; t <= 300; ++t) {
    const AdamConstants c = constants_of_step(t, 0.0f);
    for (int64_t i = 0; i < kCount; ++i) {
      const auto at = static_cast<size_t>(i);
      const float noise = 0.1f * source.next(Values::kNormal);
      g[at] = w[at] + noise;
      bf16.gradient[at] = bf16.master[at] + noise;
      block8.gradient[at] = block8.master[at] + noise;
    }
    best().adam_step({.master = w.data(),
                      .moment1 = m.data(),
                      .moment2 = v.data(),
                      .gradient = g.data(),
                      .count = kCount},
                     c);
    best().adam_step_compact(bf16.arrays(static_cast<uint32_t>(t) * 12345u), c);
    best().adam_step_compact(block8.arrays(static_cast<uint32_t>(t) * 12345u), c);
  }
  double full = 0, off_bf16 = 0, off_block8 = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    full += 0.5 - w[i];
    off_bf16 += std::abs(bf16.master[i] - w[i]);
    off_block8 += std::abs(block8.master[i] - w[i]);
  }
  RecordProperty("share_off_bf16", std::to_string(off_bf16 / full));
  RecordProperty("share_off_block8", std::to_string(off_block8 / full));
  EXPECT_GT(full / kCount, 0.1);
  EXPECT_LT(off_bf16, 0.01 * full);
  EXPECT_LT(off_block8, 0.25 * full);
}

}  // namespace
}  // namespace ballast::kernels::testing
