// The step with moments in bf16: its own arithmetic, the same bits from every table and every cut.

#include <bit>
#include <gtest/gtest.h>

#include "kernels/threads.h"
#include "tests/kernels/adam_inputs.h"

namespace ballast::kernels::testing {
namespace {

struct State {
  State(int64_t count_given, Format gradient_format_given)
      : count(count_given),
        gradient_format(gradient_format_given),
        master(static_cast<size_t>(count), 0.5f),
        gradient(static_cast<size_t>(count)),
        moment1(static_cast<size_t>(count)),
        moment2(static_cast<size_t>(count)),
        weights(static_cast<size_t>(count)) {}

  void draw(Source& source) {
    for (int64_t i = 0; i < count; ++i) {
      const float value = i % 9 == 0 ? 0.0f : source.next(Values::kNormal);
      reference().cast(&value, Format::kF32,
                       reinterpret_cast<char*>(gradient.data()) + i * bytes_of(gradient_format),
                       gradient_format, 1);
    }
  }
  AdamArrays arrays() {
    return {.master = master.data(),
            .gradient = gradient.data(),
            .gradient_format = gradient_format,
            .weights = weights.data(),
            .count = count};
  }
  Bf16Moments moments() { return {moment1.data(), moment2.data()}; }
  bool operator==(const State&) const = default;

  int64_t count;
  Format gradient_format;
  std::vector<float> master, gradient;
  std::vector<uint16_t> moment1, moment2, weights;
};

TEST(bf16_moments, every_table_gives_the_bits_of_the_reference) {
  for (const Table* table : available()) {
    for (const Format format : kFormats) {
      for (const int64_t count : {1, 63, 1024, 1025, 5000}) {
        Source source(61);
        State expected(count, format);
        State got(count, format);
        for (int t = 1; t <= 4; ++t) {
          expected.draw(source);
          got.gradient = expected.gradient;
          const AdamConstants c = constants_of_step(t, 0.1f);
          adam_step_bf16_moments(reference(), expected.arrays(), expected.moments(), c);
          adam_step_bf16_moments(*table, got.arrays(), got.moments(), c);
          ASSERT_EQ(got, expected) << table->name << " count " << count;
        }
      }
    }
  }
}

TEST(bf16_moments, cutting_a_bucket_among_threads_changes_no_bit) {
  constexpr int64_t kCount = 100'000;
  for (const int threads : {2, 3}) {
    Workers workers(threads, Pinning::kNone);
    Source source(62);
    State whole(kCount, Format::kF32);
    whole.draw(source);
    State cut = whole;
    for (int t = 1; t <= 3; ++t) {
      const AdamConstants c = constants_of_step(t, 0.1f);
      adam_step_bf16_moments(best(), whole.arrays(), whole.moments(), c);
      adam_step_bf16_moments(workers, best(), cut.arrays(), cut.moments(), c);
    }
    EXPECT_EQ(cut, whole);
  }
}

// Written out once more, in plain floats, with the rounding of the definition: the nearest of the
// two neighbours, the one with an even last bit where they are equally near.
uint16_t nearest_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto below = static_cast<uint16_t>(bits >> 16);
  const uint32_t dropped = bits & 0xffffu;
  const bool up = dropped > 0x8000u || (dropped == 0x8000u && (below & 1u) != 0);
  return static_cast<uint16_t>(below + (up ? 1 : 0));
}
float widened(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

TEST(bf16_moments, a_step_is_that_of_fp32_moments_rounded_to_nearest_even) {
  constexpr int64_t kCount = 2000;
  Source source(63);
  State state(kCount, Format::kF32);
  for (int t = 1; t <= 20; ++t) {
    state.draw(source);
    const State before = state;
    const AdamConstants c = constants_of_step(t, 0.1f);
    adam_step_bf16_moments(best(), state.arrays(), state.moments(), c);
    for (size_t i = 0; i < kCount; ++i) {
      const float g = before.gradient[i];
      const float m = std::fma(c.beta1, widened(before.moment1[i]), (1.0f - c.beta1) * g);
      const float v = std::fma(c.beta2, widened(before.moment2[i]), (1.0f - c.beta2) * g * g);
      ASSERT_EQ(state.moment1[i], nearest_bf16(m)) << "step " << t << " parameter " << i;
      ASSERT_EQ(state.moment2[i], nearest_bf16(v)) << "step " << t << " parameter " << i;
      const float u =
          c.bias_correction1 * m / std::fma(std::sqrt(v), c.bias_correction2, c.epsilon);
      const float w = before.master[i];
      ASSERT_EQ(state.master[i], w - c.learning_rate * std::fma(c.weight_decay, w, u));
    }
  }
}

}  // namespace
}  // namespace ballast::kernels::testing
