// The AdamW step: the reference against the formula, every table against the reference.

#include <gtest/gtest.h>

#include "kernels/reference/convert.h"
#include "tests/kernels/adam_inputs.h"

namespace ballast::kernels::testing {
namespace {

// w = 1, m = v = 0, g = 2, beta1 = beta2 = 0.5, corrections 1, rate 0.25, decay 0, epsilon 0:
// m = 0.5 * 2 = 1; v = 0.5 * 4 = 2; with correction 2 of the root taken as 1/sqrt(2):
// u = 1 / (sqrt(2) * 1/sqrt(2)) = 1 up to rounding; w = 1 - 0.25 = 0.75.
TEST(adam, one_step_by_hand) {
  for (const Table* table : available()) {
    float w = 1.0f, m = 0.0f, v = 0.0f;
    const float g = 2.0f;
    const AdamConstants c = {.beta1 = 0.5f,
                             .beta2 = 0.5f,
                             .epsilon = 0.0f,
                             .learning_rate = 0.25f,
                             .bias_correction2 = 1.0f / std::sqrt(2.0f)};
    uint16_t low = 0;
    table->adam_step(
        {.master = &w, .moment1 = &m, .moment2 = &v, .gradient = &g, .weights = &low, .count = 1},
        c);
    EXPECT_EQ(m, 1.0f) << table->name;
    EXPECT_EQ(v, 2.0f) << table->name;
    EXPECT_NEAR(w, 0.75f, 1e-7f) << table->name;
    EXPECT_EQ(low, 0x3f40) << table->name;  // 0.75 in bfloat16
  }
}

// Decay alone: the gradient is 0, so w = 4 - 0.5 * (0.25 * 4) = 3.5.
TEST(adam, decay_is_decoupled_from_the_gradient) {
  for (const Table* table : available()) {
    float w = 4.0f, m = 0.0f, v = 0.0f;
    const float g = 0.0f;
    table->adam_step({.master = &w, .moment1 = &m, .moment2 = &v, .gradient = &g, .count = 1},
                     {.learning_rate = 0.5f, .weight_decay = 0.25f});
    EXPECT_EQ(w, 3.5f) << table->name;
  }
}

// Algorithm 2 of arXiv 1711.05101 in double. Each f32 operation errs by at most 2^-24 of its
// result; eleven of them on the way to u, so 2^-20 of the update, and 2^-24 of w in the last.
TEST(adam, hundred_steps_follow_the_formula_in_double) {
  Source source(3);
  for (const Table* table : available()) {
    float w = 0.5f, m = 0.0f, v = 0.0f;
    double w_exact = 0.5, m_exact = 0.0, v_exact = 0.0;
    for (int t = 1; t <= 100; ++t) {
      const float g = source.next(Values::kNormal);
      const AdamConstants c = constants_of_step(t, 0.1f);
      table->adam_step({.master = &w, .moment1 = &m, .moment2 = &v, .gradient = &g, .count = 1}, c);
      const double beta1 = c.beta1, beta2 = c.beta2;
      m_exact = beta1 * m_exact + (1 - beta1) * g;
      v_exact = beta2 * v_exact + (1 - beta2) * double{g} * g;
      const double m_hat = m_exact / (1 - std::pow(beta1, t));
      const double v_hat = v_exact / (1 - std::pow(beta2, t));
      w_exact -= double{c.learning_rate} *
                 (m_hat / (std::sqrt(v_hat) + c.epsilon) + double{c.weight_decay} * w_exact);
      ASSERT_NEAR(w, w_exact, t * (0x1p-20 * c.learning_rate * 10 + 0x1p-24)) << table->name;
    }
  }
}

TEST(adam, gradient_that_is_not_finite_leaves_its_parameter_alone) {
  for (const Table* table : available()) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> w(40, 1.0f), m(40, 0.5f), v(40, 0.25f), g(40, 1.0f);
      g[17] = bad;
      std::vector<uint16_t> low(40, 0);
      table->adam_step({.master = w.data(),
                        .moment1 = m.data(),
                        .moment2 = v.data(),
                        .gradient = g.data(),
                        .weights = low.data(),
                        .count = 40},
                       {});
      for (size_t i = 0; i < 40; ++i) {
        EXPECT_EQ(w[i] == 1.0f, i == 17) << table->name << " " << i;
        EXPECT_EQ(m[i] == 0.5f, i == 17) << table->name << " " << i;
        EXPECT_EQ(v[i] == 0.25f, i == 17) << table->name << " " << i;
      }
      EXPECT_EQ(low[17], 0x3f80);
    }
  }
}

// Vector tables look at 64 gradients before they scale them: at the edge, that look must not let
// one pass that overflows once scaled. One of 192 is at the edge.
TEST(adam, every_table_agrees_with_the_reference_where_the_scale_makes_gradients_overflow) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kMost = std::numeric_limits<float>::max();
  const float scales[] = {1.0f,
                          0.5f,
                          1.0000001f,
                          3.0f,
                          -7.0f,
                          1e10f,
                          kMost,
                          1e-40f,
                          0.0f,
                          kInfinity,
                          std::numeric_limits<float>::quiet_NaN()};
  int64_t left_alone = 0, stepped = 0;
  for (const float scale : scales) {
    std::vector<float> edges = {0.0f, 1.0f, kMost, -kInfinity};
    float up = std::min(kMost, kMost / std::abs(scale)), down = up;
    for (int k = 0; k < 4 && !std::isnan(scale); ++k) {
      edges.push_back(up);
      edges.push_back(-down);
      up = std::nextafter(up, kInfinity);
      down = std::nextafter(down, 0.0f);
    }
    for (const float edge : edges) {
      AdamConstants c = constants_of_step(3, 0.1f);
      c.gradient_scale = scale;
      const auto step = [&c, edge](const Table& table) {
        AdamState state(192, {}, Values::kNormal, 23);
        for (int64_t i = 0; i < 192; ++i) {
          static_cast<float*>(const_cast<void*>(state.arrays().gradient))[i] = 0.0f;
        }
        static_cast<float*>(const_cast<void*>(state.arrays().gradient))[70] = edge;
        table.adam_step(state.arrays(), c);
        return state;
      };
      const AdamState expected = step(reference());
      (std::isfinite(scale * edge) ? stepped : left_alone) += 1;
      for (const Table* table : vector_tables()) {
        ASSERT_EQ(step(*table).first_difference(expected), "")
            << table->name << " scale " << scale << " gradient " << edge;
      }
    }
  }
  EXPECT_GT(stepped, 20);
  EXPECT_GT(left_alone, 20);
}

TEST(adam, every_table_gives_the_bits_of_the_reference) {
  for (const Table* table : vector_tables()) {
    for (const Values values : {Values::kNormal, Values::kAdversarial, Values::kAnyBits}) {
      for (const Streams& streams : all_streams()) {
        for (const int64_t count : lengths()) {
          AdamState expected(count, streams, values, 19), got(count, streams, values, 19);
          const AdamConstants c = constants_of_step(3, count % 2 == 0 ? 0.1f : 0.0f);
          reference().adam_step(expected.arrays(), c);
          table->adam_step(got.arrays(), c);
          ASSERT_EQ(got.first_difference(expected), "")
              << table->name << " " << streams.name() << " count " << count;
          ASSERT_TRUE(got.guards_are_intact()) << table->name << " " << streams.name();
        }
      }
    }
  }
}

}  // namespace
}  // namespace ballast::kernels::testing
