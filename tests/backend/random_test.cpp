// Random numbers are a function of their position, and parameters of their name.
#include "backend/train/random.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "tests/tiny.h"

namespace ballast {
namespace {

// V=64, C=32, two layers: large enough for statistics, small enough for a test.
Model small_gpt2() {
  return tiny::gpt2({.hidden = 32,
                     .heads = 4,
                     .kv_heads = 4,
                     .head_size = 8,
                     .ffn = 128,
                     .vocab = 64,
                     .positions = 16});
}

double deviation_of(std::span<const float> values) {
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / n - (sum / n) * (sum / n));
}

TEST(random, bits_differ_with_key_row_and_column) {
  const uint64_t bits = random_bits(1, {2, 3});
  EXPECT_EQ(bits, random_bits(1, {2, 3}));
  EXPECT_NE(bits, random_bits(2, {2, 3}));
  EXPECT_NE(bits, random_bits(1, {3, 2}));
  EXPECT_NE(bits, random_bits(1, {2, 3 + (uint64_t{1} << 32)}));
  EXPECT_NE(bits, random_bits(1 + (uint64_t{1} << 32), {2, 3}));
  EXPECT_NE(key_of(1, "a"), key_of(2, "a"));
  EXPECT_NE(key_of(1, "a"), key_of(1, "b"));
}

TEST(random, a_sequence_does_not_depend_on_the_length_asked_for) {
  std::vector<float> longer(23);
  std::vector<float> shorter(10);
  fill_normal(longer, 7, 1.0);
  fill_normal(shorter, 7, 1.0);
  for (size_t i = 0; i < shorter.size(); ++i) EXPECT_EQ(shorter[i], longer[i]) << i;
  EXPECT_NE(longer[0], longer[4]);
}

TEST(random, a_part_of_a_sequence_is_that_part_wherever_it_begins) {
  std::vector<float> whole(5000), parts(5000);
  fill_normal(whole, 7, 0.02);
  for (const auto& [begin, end] : {std::pair(2000, 5000), std::pair(4, 2000), std::pair(0, 4)}) {
    fill_normal(
        std::span(parts).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), 7,
        0.02, begin);
  }
  EXPECT_EQ(whole, parts);
}

// 100,000 values: the mean lies within 5 / sqrt(n) = 0.016, the variance within 5 sqrt(2/n) =
// 0.022, and 4.55 % lie beyond two deviations, +- 5 sqrt(0.0455 * 0.9545 / n) = 0.33 %.
TEST(random, a_long_sequence_is_standard_normal) {
  std::vector<float> values(100'000);
  fill_normal(values, 42, 1.0);
  double sum = 0;
  int beyond = 0;
  for (const float value : values) {
    sum += value;
    beyond += std::abs(value) > 2.0f ? 1 : 0;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 0.016);
  EXPECT_NEAR(deviation_of(values), 1.0, 0.011);
  EXPECT_NEAR(beyond / 1e5, 0.0455, 0.0033);
}

// 1/sqrt(2 L) = 1/2 with two layers: residual projections have deviation 0.01. The smallest matrix
// has 512 values: its deviation is known to 5 / sqrt(2 * 512) = 16 %.
TEST(random, parameters_start_as_gpt2s) {
  const Model model = small_gpt2();
  bool saw_residual = false;
  for (const Module& module : modules_of(model)) {
    std::vector<float> values(static_cast<size_t>(module.count), NAN);
    initialise(module, model, 1, values);
    const bool residual =
        module.kind == ModuleKind::kAttentionOut || module.kind == ModuleKind::kFc2;
    saw_residual |= residual;
    for (const Parameter& parameter : module.parameters) {
      const auto part = std::span<const float>(values).subspan(
          static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.count()));
      if (parameter.is_matrix) {
        const double expected = residual ? 0.01 : 0.02;
        EXPECT_NEAR(deviation_of(part), expected, 0.16 * expected) << parameter.name;
        continue;
      }
      const float expected = parameter.name.ends_with("weight") ? 1.0f : 0.0f;
      for (const float value : part) EXPECT_EQ(value, expected) << parameter.name;
    }
  }
  EXPECT_TRUE(saw_residual);
}

TEST(random, a_parameter_depends_on_its_name_and_the_seed_only) {
  const Model model = small_gpt2();
  Module one;
  one.kind = ModuleKind::kFc1;
  one.count = 24;
  one.parameters = {{"a.weight", 2, 4, 0, true}, {"b.weight", 4, 4, 8, true}};
  Module other = one;
  other.parameters = {{"b.weight", 4, 4, 0, true}, {"a.weight", 2, 4, 16, true}};
  std::vector<float> first(24);
  std::vector<float> second(24);
  initialise(one, model, 5, first);
  initialise(other, model, 5, second);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(first[i], second[16 + i]);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(first[8 + i], second[i]);
  EXPECT_NE(first[0], first[8]);
  initialise(one, model, 6, second);
  EXPECT_NE(first[0], second[0]);
}

}  // namespace
}  // namespace ballast
