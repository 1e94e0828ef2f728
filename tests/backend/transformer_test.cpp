// The decoder's modules where gradients and references do not reach: storage formats, odd sizes,
// repetition, tiles and pieces, and bad input.

#include "backend/host/transformer.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <thread>

#include "sim/base/error.h"
#include "tests/backend/decoder.h"

namespace ballast::transformer {
namespace {

// Unit roundoff of a storage format, and half of its smallest spacing (fp16 has subnormals from
// 2^-24 on that gradients reach).
double roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    case DType::kF32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}
double smallest_error(DType dtype) { return dtype == DType::kF16 ? 0x1p-25 : 0x1p-140; }

// One rounding of a value computed in fp32, whose own error is a few roundings of the largest.
void expect_rounded_once(const Array& stored, const Array& exact, const std::string& what) {
  const std::vector<double> actual = values_of(stored);
  const std::vector<double> expected = values_of(exact);
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const double noise = 32 * roundoff(DType::kF32) * largest_magnitude(expected);
  for (size_t i = 0; i < actual.size(); ++i) {
    const double bound =
        roundoff(stored.dtype) * std::abs(expected[i]) + noise + smallest_error(stored.dtype);
    ASSERT_NEAR(actual[i], expected[i], bound) << what << " element " << i;
  }
}

void expect_close(const Array& actual, const Array& expected, double tolerance) {
  const std::vector<double> a = values_of(actual);
  const std::vector<double> e = values_of(expected);
  ASSERT_EQ(a.size(), e.size());
  const double scale = largest_magnitude(e);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], e[i], tolerance * scale) << i;
}

// Sizes that fill no vector.
Model odd_model(Model model) {
  model.hidden = 33, model.heads = 6, model.kv_heads = 6, model.head_size = 6;
  if (model.position == PositionKind::kRope) model.kv_heads = 2;
  model.ffn = 51, model.vocab = 37, model.max_positions = 300;
  return model;
}

// --- Storage formats ------------------------------------------------------------------------

// The same inputs, already rounded to the format, stored in it and in fp32.
struct Twice {
  Array narrow;
  Array wide;
};
Twice both(DType dtype, uint32_t seed, int64_t rows, int64_t columns) {
  Twice pair;
  pair.narrow = random_array({0.0, 1.0, seed}, dtype, rows, columns);
  pair.wide = converted(pair.narrow, DType::kF32);
  return pair;
}
Twice empty(DType dtype, int64_t rows, int64_t columns) {
  return {zeros(dtype, rows, columns), zeros(DType::kF32, rows, columns)};
}

class SixteenBit : public testing::TestWithParam<DType> {};

TEST_P(SixteenBit, linear_modules_round_once) {
  for (const Model& model : {odd_model(gpt2_like()), odd_model(qwen2_like())}) {
    const Twice x = both(GetParam(), 1, 10, model.hidden);
    const Twice dy = both(GetParam(), 2, 10, model.qkv_width());
    const Module module = modules_of(model)[2];
    ASSERT_EQ(module.kind, ModuleKind::kQkv);
    const Twice params = both(GetParam(), 3, 1, module.count);
    Twice y = both(GetParam(), 4, 10, model.qkv_width());  // also the residual
    linear_forward(model, ModuleKind::kQkv, x.narrow.view(), params.narrow.view(), y.narrow.view(),
                   y.narrow.view());
    linear_forward(model, ModuleKind::kQkv, x.wide.view(), params.wide.view(), y.wide.view(),
                   y.wide.view());
    expect_rounded_once(y.narrow, y.wide, "y");
    Twice dx = empty(GetParam(), 10, model.hidden);
    linear_backward_input(model, ModuleKind::kQkv, dy.narrow.view(), params.narrow.view(),
                          dx.narrow.view());
    linear_backward_input(model, ModuleKind::kQkv, dy.wide.view(), params.wide.view(),
                          dx.wide.view());
    expect_rounded_once(dx.narrow, dx.wide, "dx");
    Twice dparams = both(GetParam(), 5, 1, module.count);
    linear_backward_weight(model, ModuleKind::kQkv, dy.narrow.view(), x.narrow.view(),
                           dparams.narrow.view(), true);
    linear_backward_weight(model, ModuleKind::kQkv, dy.wide.view(), x.wide.view(),
                           dparams.wide.view(), true);
    expect_rounded_once(dparams.narrow, dparams.wide, "dparams");
  }
}

TEST_P(SixteenBit, norms_and_activations_round_once) {
  for (const Model& model : {odd_model(gpt2_like()), odd_model(llama_like())}) {
    const Twice x = both(GetParam(), 1, 10, model.hidden);
    const Twice dout = both(GetParam(), 2, 10, model.hidden);
    const Twice params = both(GetParam(), 3, 1, modules_of(model)[1].count);
    Twice out = empty(GetParam(), 10, model.hidden);
    Array statistics = zeros(DType::kF32, 10, 2);
    norm_forward(model, x.wide.view(), params.wide.view(), out.wide.view(), statistics.view());
    norm_forward(model, x.narrow.view(), params.narrow.view(), out.narrow.view(),
                 statistics.view());
    expect_rounded_once(out.narrow, out.wide, "norm");
    Twice dx = both(GetParam(), 4, 10, model.hidden);  // also the residual's gradient
    Twice dparams = both(GetParam(), 5, 1, params.narrow.columns);
    norm_backward(model, x.wide.view(), statistics.view(), params.wide.view(), dout.wide.view(),
                  dx.wide.view(), dx.wide.view(), dparams.wide.view(), true);
    norm_backward(model, x.narrow.view(), statistics.view(), params.narrow.view(),
                  dout.narrow.view(), dx.narrow.view(), dx.narrow.view(), dparams.narrow.view(),
                  true);
    expect_rounded_once(dx.narrow, dx.wide, "norm dx");
    expect_rounded_once(dparams.narrow, dparams.wide, "norm dparams");

    const Twice h = both(GetParam(), 6, 10, model.fc1_width());
    const Twice da = both(GetParam(), 7, 10, model.ffn);
    Twice a = empty(GetParam(), 10, model.ffn);
    Twice dh = empty(GetParam(), 10, model.fc1_width());
    activation_forward(model, h.narrow.view(), a.narrow.view());
    activation_forward(model, h.wide.view(), a.wide.view());
    activation_backward(model, h.narrow.view(), da.narrow.view(), dh.narrow.view());
    activation_backward(model, h.wide.view(), da.wide.view(), dh.wide.view());
    expect_rounded_once(a.narrow, a.wide, "activation");
    expect_rounded_once(dh.narrow, dh.wide, "activation gradient");
  }
}

TEST_P(SixteenBit, attention_rounds_once) {
  for (const Model& model : {odd_model(gpt2_like()), odd_model(llama_like())}) {
    const Shape shape{2, 9};
    const Twice qkv = both(GetParam(), 1, shape.tokens(), model.qkv_width());
    Twice out = empty(GetParam(), shape.tokens(), model.attention_width());
    Array sums = zeros(DType::kF32, shape.sequences * model.heads, shape.length);
    attention_forward(model, shape, qkv.narrow.view(), out.narrow.view(), sums.view());
    attention_forward(model, shape, qkv.wide.view(), out.wide.view(), sums.view());
    expect_rounded_once(out.narrow, out.wide, "out");
    // From the same stored output, for backward reads it.
    out.wide = converted(out.narrow, DType::kF32);
    const Twice dout = both(GetParam(), 2, shape.tokens(), model.attention_width());
    Twice dqkv = empty(GetParam(), shape.tokens(), model.qkv_width());
    attention_backward(model, shape, qkv.narrow.view(), out.narrow.view(), sums.view(),
                       dout.narrow.view(), dqkv.narrow.view());
    attention_backward(model, shape, qkv.wide.view(), out.wide.view(), sums.view(),
                       dout.wide.view(), dqkv.wide.view());
    expect_rounded_once(dqkv.narrow, dqkv.wide, "dqkv");
  }
}

// 300 rows of 1 for one id sum to 300, which bf16 and fp16 hold; adding them one by one in bf16
// would stop at 256.
TEST_P(SixteenBit, embedding_gradients_are_summed_before_rounding) {
  Model model = llama_like();
  const Shape shape{1, 300};
  const std::vector<int32_t> tokens(301, 5);
  const Array dout = random_array({1.0, 0.0, 1}, GetParam(), shape.tokens(), model.hidden);
  Array dparams = zeros(GetParam(), 1, model.vocab * model.hidden);
  embedding_backward(model, shape, tokens.data(), dout.view(), dparams.view(), false);
  const std::vector<double> sums = values_of(dparams);
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], i / static_cast<size_t>(model.hidden) == 5 ? 300.0 : 0.0);
  }
}

// Two layers are some 20 modules, each rounding its output once: the errors of a gradient add up
// to a few times sqrt(20) roundings of the largest, 40 u with room for their growth on the way.
TEST_P(SixteenBit, whole_decoders_stay_near_fp32) {
  for (const Model& model : {odd_model(gpt2_like()), odd_model(llama_like())}) {
    const Shape shape{2, 7};
    const std::vector<int32_t> tokens = some_tokens(model, shape);
    const Array parameters = some_parameters(model, GetParam());
    const StepResult narrow = run_step(model, shape, tokens, parameters);
    const StepResult wide = run_step(model, shape, tokens, converted(parameters, DType::kF32));
    const double tolerance = 40 * roundoff(GetParam());
    EXPECT_NEAR(narrow.loss, wide.loss, tolerance * wide.loss);
    expect_close(narrow.logits, wide.logits, tolerance);
    expect_close(narrow.gradients, wide.gradients, tolerance);
  }
}

// 70,000 columns of 64 features exceed the scratch of one piece (2^22 elements).
TEST_P(SixteenBit, head_larger_than_one_piece_gives_the_same_values) {
  Model model = llama_like();
  model.hidden = 64, model.vocab = 70000;
  const Twice x = both(GetParam(), 1, 3, model.hidden);
  const Twice params = both(GetParam(), 2, 1, model.vocab * model.hidden);
  Twice y = empty(GetParam(), 3, model.vocab);
  linear_forward(model, ModuleKind::kHead, x.narrow.view(), params.narrow.view(), {},
                 y.narrow.view());
  linear_forward(model, ModuleKind::kHead, x.wide.view(), params.wide.view(), {}, y.wide.view());
  expect_rounded_once(y.narrow, y.wide, "y");
  const Twice dy = both(GetParam(), 3, 3, model.vocab);
  Twice dx = empty(GetParam(), 3, model.hidden);
  linear_backward_input(model, ModuleKind::kHead, dy.narrow.view(), params.narrow.view(),
                        dx.narrow.view());
  linear_backward_input(model, ModuleKind::kHead, dy.wide.view(), params.wide.view(),
                        dx.wide.view());
  expect_rounded_once(dx.narrow, dx.wide, "dx");
  Twice dparams = empty(GetParam(), 1, model.vocab * model.hidden);
  linear_backward_weight(model, ModuleKind::kHead, dy.narrow.view(), x.narrow.view(),
                         dparams.narrow.view(), false);
  linear_backward_weight(model, ModuleKind::kHead, dy.wide.view(), x.wide.view(),
                         dparams.wide.view(), false);
  expect_rounded_once(dparams.narrow, dparams.wide, "dparams");
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBit, testing::Values(DType::kBf16, DType::kF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

// --- Sizes and tiles ------------------------------------------------------------------------

// fp32 against fp64 for the same fp32 parameters: one token, odd widths, and more tokens than one
// tile of attention (128) holds.
TEST(Transformer, odd_sizes_and_single_tokens_agree_with_fp64) {
  for (const Model& model :
       {odd_model(gpt2_like()), odd_model(llama_like()), odd_model(qwen2_like())}) {
    for (const Shape shape : {Shape{1, 1}, Shape{3, 1}, Shape{2, 13}, Shape{1, 200}}) {
      SCOPED_TRACE(model.name + " S=" + std::to_string(shape.length));
      const std::vector<int32_t> tokens = some_tokens(model, shape);
      const Array parameters = some_parameters(model, DType::kF32);
      const StepResult narrow = run_step(model, shape, tokens, parameters);
      const StepResult wide = run_step(model, shape, tokens, converted(parameters, DType::kF64));
      EXPECT_NEAR(narrow.loss, wide.loss, 1e-6 * wide.loss);
      expect_close(narrow.logits, wide.logits, 1e-5);
      expect_close(narrow.gradients, wide.gradients, 1e-5);
    }
  }
}

// The definition, one pair at a time: RoPE as a rotation of (x[i], x[i + D/2]) by the angle
// position * theta^(-2i/D), then softmax(q k / sqrt(D)) over the past.
std::vector<double> rotated(const std::vector<double>& x, size_t first, int64_t position,
                            const Model& model) {
  const auto size = static_cast<size_t>(model.head_size);
  std::vector<double> y(size);
  for (size_t i = 0; i < size / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(size);
    const double angle = static_cast<double>(position) * std::pow(model.rope_theta, exponent);
    const double a = x[first + i];
    const double b = x[first + i + size / 2];
    y[i] = a * std::cos(angle) - b * std::sin(angle);
    y[i + size / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
  return y;
}

TEST(Transformer, attention_follows_its_definition_across_tiles) {
  const Model model = odd_model(llama_like());  // 6 heads on 2, D = 6
  const Shape shape{2, 150};
  const Array qkv = random_array({0.0, 2.0, 1}, DType::kF64, shape.tokens(), model.qkv_width());
  Array out = zeros(DType::kF64, shape.tokens(), model.attention_width());
  Array sums = zeros(DType::kF64, shape.sequences * model.heads, shape.length);
  attention_forward(model, shape, qkv.view(), out.view(), sums.view());
  const std::vector<double> x = values_of(qkv);
  const std::vector<double> actual = values_of(out);
  for (const int64_t head : {0, 2, 3, 5}) {
    const int64_t kv_head = head / 3;
    for (const int64_t query : {0, 1, 127, 128, 149}) {
      const int64_t sequence = 1;
      const auto column = [&](int64_t position, int64_t head_in_row) {
        return static_cast<size_t>((sequence * shape.length + position) * model.qkv_width() +
                                   head_in_row * model.head_size);
      };
      const std::vector<double> q = rotated(x, column(query, head), query, model);
      std::vector<double> expected(static_cast<size_t>(model.head_size));
      double total = 0;
      for (int64_t key = 0; key <= query; ++key) {
        const std::vector<double> k = rotated(x, column(key, 6 + kv_head), key, model);
        double score = 0;
        for (size_t d = 0; d < q.size(); ++d) score += q[d] * k[d];
        const double weight = std::exp(score / std::sqrt(6.0));
        total += weight;
        for (size_t d = 0; d < q.size(); ++d) {
          expected[d] += weight * x[column(key, 8 + kv_head) + d];
        }
      }
      const auto row = static_cast<size_t>((sequence * shape.length + query) * 36 + head * 6);
      for (size_t d = 0; d < q.size(); ++d) {
        ASSERT_NEAR(actual[row + d], expected[d] / total, 1e-12) << head << " " << query;
      }
      const double sum = values_of(sums)[static_cast<size_t>((6 + head) * 150 + query)];
      ASSERT_NEAR(sum, std::log(total), 1e-12);
    }
  }
}

TEST(Transformer, later_tokens_do_not_change_earlier_logits) {
  const Model model = odd_model(gpt2_like());
  const Shape shape{1, 140};
  std::vector<int32_t> tokens = some_tokens(model, shape);
  const Array parameters = some_parameters(model, DType::kF32);
  const std::vector<double> before = values_of(run_step(model, shape, tokens, parameters).logits);
  tokens[130] = (tokens[130] + 1) % static_cast<int32_t>(model.vocab);
  const std::vector<double> after = values_of(run_step(model, shape, tokens, parameters).logits);
  const auto changed = static_cast<size_t>(130 * model.vocab);
  for (size_t i = 0; i < changed; ++i) ASSERT_EQ(before[i], after[i]);
  EXPECT_NE(before[changed], after[changed]);
}

// --- Repetition -----------------------------------------------------------------------------

TEST(Transformer, a_repeated_step_gives_the_same_bits_in_any_thread) {
  const Shape shape{2, 13};
  for (const Model& model : {odd_model(gpt2_like()), odd_model(llama_like())}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      const std::vector<int32_t> tokens = some_tokens(model, shape);
      const Array parameters = some_parameters(model, dtype);
      const StepResult first = run_step(model, shape, tokens, parameters);
      run_step(llama_like(), {1, 3}, some_tokens(llama_like(), {1, 3}),
               some_parameters(llama_like(), dtype));  // leaves other numbers in the scratch
      StepResult again = run_step(model, shape, tokens, parameters);
      StepResult elsewhere;
      std::thread([&] { elsewhere = run_step(model, shape, tokens, parameters); }).join();
      for (StepResult* other : {&again, &elsewhere}) {
        EXPECT_EQ(first.loss, other->loss);
        EXPECT_EQ(first.logits, other->logits);
        EXPECT_EQ(first.gradients, other->gradients);
      }
    }
  }
}

TEST(Transformer, accumulated_gradients_are_the_sum) {
  const Model model = odd_model(llama_like());
  const Array dy = random_array({0.0, 1.0, 1}, DType::kF32, 10, model.hidden);
  const Array x = random_array({0.0, 1.0, 2}, DType::kF32, 10, model.ffn);
  Array once = zeros(DType::kF32, 1, model.hidden * model.ffn);
  linear_backward_weight(model, ModuleKind::kFc2, dy.view(), x.view(), once.view(), false);
  Array sum = random_array({0.0, 1.0, 3}, DType::kF32, 1, model.hidden * model.ffn);
  const std::vector<double> before = values_of(sum);
  linear_backward_weight(model, ModuleKind::kFc2, dy.view(), x.view(), sum.view(), true);
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_NEAR(values_of(sum)[i], before[i] + values_of(once)[i], 1e-6);
    if (i > 100) break;  // values_of copies the array; a hundred elements show it
  }
}

TEST(Transformer, tied_head_clears_the_positions_of_the_embedding) {
  const Model model = gpt2_like();
  const Array dy = random_array({0.0, 1.0, 1}, DType::kF32, 4, model.vocab);
  const Array x = random_array({0.0, 1.0, 2}, DType::kF32, 4, model.hidden);
  const int64_t count = modules_of(model)[0].count;
  Array dparams = random_array({5.0, 1.0, 3}, DType::kF32, 1, count);
  linear_backward_weight(model, ModuleKind::kHead, dy.view(), x.view(), dparams.view(), false);
  const std::vector<double> values = values_of(dparams);
  for (size_t i = static_cast<size_t>(model.vocab * model.hidden); i < values.size(); ++i) {
    EXPECT_EQ(values[i], 0.0);
  }
  EXPECT_LT(largest_magnitude(values), 4.0);  // four products of numbers below 1
}

// --- Loss -----------------------------------------------------------------------------------

// Four equal logits: the loss is ln 4, the gradient 8 * (1/4 - one at the target) = 2 or -6.
TEST(Transformer, loss_of_equal_logits_is_the_logarithm_of_the_vocabulary) {
  Model model = llama_like();
  model.vocab = 4;
  const Shape shape{2, 1};
  const std::vector<int32_t> tokens = {0, 3, 0, 1};  // targets 3 and 1
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBf16, DType::kF16}) {
    Array logits = random_array({2.0, 0.0, 1}, dtype, 2, 4);
    const double loss = loss_forward_backward(model, shape, tokens.data(), logits.view(), 8.0);
    EXPECT_NEAR(loss, std::log(4.0), 1e-15);
    EXPECT_EQ(values_of(logits), (std::vector<double>{2, 2, 2, -6, 2, -6, 2, 2}));
  }
}

TEST(Transformer, loss_of_invalid_logits_is_not_finite) {
  Model model = llama_like();
  model.vocab = 40;
  const std::vector<int32_t> tokens = {0, 1};
  Array logits = zeros(DType::kF16, 1, 40);
  logits = array_of(std::vector<double>(40, 1e6), DType::kF16, 1, 40);  // infinite in fp16
  EXPECT_FALSE(
      std::isfinite(loss_forward_backward(model, {1, 1}, tokens.data(), logits.view(), 1.0)));
  EXPECT_FALSE(std::isfinite(values_of(logits)[0]));
}

// --- Bad input ------------------------------------------------------------------------------

TEST(Transformer, impossible_tokens_are_refused) {
  const Model model = gpt2_like();  // vocabulary 11, 7 positions
  Array x = zeros(DType::kF32, 2, model.hidden);
  const Array params = some_parameters(model, DType::kF32);
  const ConstView embedding(params.bytes.data(), DType::kF32, 1, modules_of(model)[0].count);
  for (const int32_t id : {-1, 11}) {
    const std::vector<int32_t> tokens = {0, id, 0};
    EXPECT_THROW(embedding_forward(model, {1, 2}, tokens.data(), embedding, x.view()), Error);
    Array logits = zeros(DType::kF32, 1, model.vocab);
    EXPECT_THROW(loss_forward_backward(model, {1, 1}, tokens.data(), logits.view(), 1.0), Error);
  }
  const std::vector<int32_t> tokens(9, 0);
  Array long_x = zeros(DType::kF32, 8, model.hidden);
  EXPECT_THROW(embedding_forward(model, {1, 8}, tokens.data(), embedding, long_x.view()), Error);
}

}  // namespace
}  // namespace ballast::transformer
