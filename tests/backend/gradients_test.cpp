// Every module's backward against finite differences of its forward, in fp64.
//
// A module is turned into one number by a fixed random cotangent, f = sum(cotangent * out), so
// backward(cotangent) must be df/dx for each element x of each input. The fourth-order central
// difference with h = 1e-3 has a truncation error near h^4 = 1e-12 and a rounding error near
// 1e-16 / h = 1e-13 on values around 1; 1e-8 of the largest gradient leaves room for both.

#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <limits>

#include "backend/host/transformer.h"
#include "tests/backend/decoder.h"

namespace ballast::transformer {
namespace {

constexpr double kTolerance = 1e-8;
constexpr Shape kShape{2, 5};

double* doubles(Array& array) { return reinterpret_cast<double*>(array.bytes.data()); }

Array random_doubles(uint32_t seed, int64_t rows, int64_t columns) {
  return random_array({0.0, 1.0, seed}, DType::kF64, rows, columns);
}

double inner_product(const Array& a, const Array& b) {
  const std::vector<double> x = values_of(a);
  const std::vector<double> y = values_of(b);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// Expects `gradient` to be the derivative of f by every element of `variable`, which f reads.
void expect_derivative(const std::function<double()>& f, Array& variable, const Array& gradient,
                       const std::string& what, double step = 1e-3) {
  const std::vector<double> expected = values_of(gradient);
  ASSERT_EQ(variable.count(), gradient.count()) << what;
  const double scale = largest_magnitude(expected);
  EXPECT_GT(scale, 0) << what << " has no gradient, which checks nothing";
  for (int64_t i = 0; i < variable.count(); ++i) {
    double& x = doubles(variable)[i];
    const double before = x;
    const auto at = [&](double offset) {
      x = before + offset * step;
      return f();
    };
    const double difference = (at(-2) - 8 * at(-1) + 8 * at(1) - at(2)) / (12 * step);
    x = before;
    EXPECT_NEAR(difference, expected[static_cast<size_t>(i)], kTolerance * scale)
        << what << " element " << i;
  }
}

int64_t parameters_in(const Model& model, ModuleKind kind) {
  if (kind == ModuleKind::kHead && model.tied_embeddings) kind = ModuleKind::kEmbedding;
  for (const Module& module : modules_of(model)) {
    if (module.kind == kind) return module.count;
  }
  return 0;
}

void check_linear(const Model& model, ModuleKind kind, int64_t in, int64_t out) {
  SCOPED_TRACE(model.name + " " + std::string(to_string(kind)));
  const int64_t rows = kShape.tokens();
  Array x = random_doubles(1, rows, in);
  Array params = random_doubles(2, 1, parameters_in(model, kind));
  Array residual = random_doubles(3, rows, out);
  const Array cotangent = random_doubles(4, rows, out);
  const auto f = [&] {
    Array y = zeros(DType::kF64, rows, out);
    linear_forward(model, kind, x.view(), params.view(), residual.view(), y.view());
    return inner_product(cotangent, y);
  };
  Array dx = zeros(DType::kF64, rows, in);
  linear_backward_input(model, kind, cotangent.view(), params.view(), dx.view());
  Array dparams = random_doubles(5, 1, params.count());  // must be overwritten, not added to
  linear_backward_weight(model, kind, cotangent.view(), x.view(), dparams.view(), false);
  expect_derivative(f, x, dx, "input");
  expect_derivative(f, params, dparams, "parameters");
  expect_derivative(f, residual, cotangent, "residual");

  // Accumulating the same gradient once more gives exactly twice of it.
  const Array once = dparams;
  linear_backward_weight(model, kind, cotangent.view(), x.view(), dparams.view(), true);
  const std::vector<double> twice = values_of(dparams);
  for (size_t i = 0; i < twice.size(); ++i) {
    EXPECT_NEAR(twice[i], 2 * values_of(once)[i], 1e-13 * largest_magnitude(twice));
  }
}

TEST(Gradients, linear_modules_match_finite_differences) {
  for (const Model& m : {gpt2_like(), llama_like(), qwen2_like()}) {
    check_linear(m, ModuleKind::kQkv, m.hidden, m.qkv_width());
    check_linear(m, ModuleKind::kAttentionOut, m.attention_width(), m.hidden);
    check_linear(m, ModuleKind::kFc1, m.hidden, m.fc1_width());
    check_linear(m, ModuleKind::kFc2, m.ffn, m.hidden);
    check_linear(m, ModuleKind::kHead, m.hidden, m.vocab);
  }
}

TEST(Gradients, norms_match_finite_differences_with_and_without_residual) {
  for (Model model : {gpt2_like(), llama_like()}) {
    model.norm_epsilon = 0.1;  // large enough that leaving it out of the backward pass shows
    SCOPED_TRACE(model.name);
    const int64_t rows = kShape.tokens();
    Array x = random_doubles(1, rows, model.hidden);
    Array params = random_doubles(2, 1, parameters_in(model, ModuleKind::kNorm1));
    const Array cotangent = random_doubles(3, rows, model.hidden);
    const Array residual = random_doubles(4, rows, model.hidden);
    Array out = zeros(DType::kF64, rows, model.hidden);
    Array statistics = zeros(DType::kF64, rows, 2);
    const auto f = [&] {
      norm_forward(model, x.view(), params.view(), out.view(), statistics.view());
      return inner_product(cotangent, out);
    };
    f();
    Array dx = zeros(DType::kF64, rows, model.hidden);
    Array dparams = random_doubles(5, 1, params.count());
    const Array statistics_at_x = statistics;
    norm_backward(model, x.view(), statistics_at_x.view(), params.view(), cotangent.view(), {},
                  dx.view(), dparams.view(), false);
    expect_derivative(f, x, dx, "input");
    expect_derivative(f, params, dparams, "parameters");

    Array with_residual = residual;
    norm_backward(model, x.view(), statistics_at_x.view(), params.view(), cotangent.view(),
                  with_residual.view(), with_residual.view(), dparams.view(), true);
    for (size_t i = 0; i < static_cast<size_t>(dx.count()); ++i) {
      EXPECT_NEAR(values_of(with_residual)[i], values_of(dx)[i] + values_of(residual)[i], 1e-14);
    }
  }
}

TEST(Gradients, activations_match_finite_differences) {
  for (const ActivationKind kind :
       {ActivationKind::kGeluTanh, ActivationKind::kGelu, ActivationKind::kSwiGlu}) {
    Model model = llama_like();
    model.activation = kind;
    const int64_t rows = kShape.tokens();
    Array h = random_array({0.0, 4.0, 1}, DType::kF64, rows, model.fc1_width());
    const Array cotangent = random_doubles(2, rows, model.ffn);
    const auto f = [&] {
      Array a = zeros(DType::kF64, rows, model.ffn);
      activation_forward(model, h.view(), a.view());
      return inner_product(cotangent, a);
    };
    Array dh = zeros(DType::kF64, rows, h.columns);
    activation_backward(model, h.view(), cotangent.view(), dh.view());
    expect_derivative(f, h, dh, "activation " + std::to_string(static_cast<int>(kind)));
  }
}

TEST(Gradients, attention_matches_finite_differences) {
  Model odd_heads = llama_like();  // 6 heads on 3, and a head size that fills no vector
  odd_heads.heads = 6, odd_heads.kv_heads = 3, odd_heads.head_size = 2;
  for (const Model& model : {gpt2_like(), llama_like(), odd_heads}) {
    SCOPED_TRACE(model.name);
    const int64_t rows = kShape.tokens();
    Array qkv = random_doubles(1, rows, model.qkv_width());
    const Array cotangent = random_doubles(2, rows, model.attention_width());
    Array out = zeros(DType::kF64, rows, model.attention_width());
    Array sums = zeros(DType::kF64, kShape.sequences * model.heads, kShape.length);
    const auto f = [&] {
      attention_forward(model, kShape, qkv.view(), out.view(), sums.view());
      return inner_product(cotangent, out);
    };
    f();
    Array dqkv = random_doubles(3, rows, model.qkv_width());
    attention_backward(model, kShape, qkv.view(), out.view(), sums.view(), cotangent.view(),
                       dqkv.view());
    expect_derivative(f, qkv, dqkv, "qkv");
  }
}

TEST(Gradients, embedding_matches_finite_differences) {
  for (const Model& model : {gpt2_like(), llama_like()}) {
    SCOPED_TRACE(model.name);
    const std::vector<int32_t> tokens = some_tokens(model, kShape);
    Array params = random_doubles(1, 1, parameters_in(model, ModuleKind::kEmbedding));
    const Array cotangent = random_doubles(2, kShape.tokens(), model.hidden);
    const auto f = [&] {
      Array out = zeros(DType::kF64, kShape.tokens(), model.hidden);
      embedding_forward(model, kShape, tokens.data(), params.view(), out.view());
      return inner_product(cotangent, out);
    };
    Array dparams = random_doubles(3, 1, params.count());
    embedding_backward(model, kShape, tokens.data(), cotangent.view(), dparams.view(), false);
    expect_derivative(f, params, dparams, "parameters");
  }
}

TEST(Gradients, loss_matches_finite_differences) {
  const Model model = llama_like();
  const std::vector<int32_t> tokens = some_tokens(model, kShape);
  Array logits = random_array({0.0, 3.0, 1}, DType::kF64, kShape.tokens(), model.vocab);
  const auto f = [&] {
    Array copy = logits;
    return loss_forward_backward(model, kShape, tokens.data(), copy.view(), 1.0);
  };
  Array gradient = logits;  // the mean over 10 tokens folds 1/10
  loss_forward_backward(model, kShape, tokens.data(), gradient.view(), 0.1);
  expect_derivative(f, logits, gradient, "logits");
}

TEST(Gradients, whole_decoders_match_finite_differences_for_every_parameter) {
  Model free_gpt2 = gpt2_like();
  free_gpt2.tied_embeddings = false;
  free_gpt2.activation = ActivationKind::kGelu;
  for (const Model& model : {gpt2_like(), free_gpt2, llama_like(), qwen2_like()}) {
    SCOPED_TRACE(model.name);
    const std::vector<int32_t> tokens = some_tokens(model, kShape);
    Array parameters = some_parameters(model, DType::kF64);
    const StepResult step = run_step(model, kShape, tokens, parameters);
    const auto f = [&] { return run_step(model, kShape, tokens, parameters).loss; };
    expect_derivative(f, parameters, step.gradients, "parameters");
  }
}

// Also through the weights of choices to the router, its balance, norms of heads, and sinks. Norms
// of heads and of latents of a few columns curve more: with a fifth of the step as above the
// truncation error falls to a 600th.
TEST(Gradients, decoders_of_newer_families_match_finite_differences_for_every_parameter) {
  for (const Model& model : newer_models()) {
    SCOPED_TRACE(model.name);
    const std::vector<int32_t> tokens = some_tokens(model, kShape);
    Array parameters = some_parameters(model, DType::kF64);
    const StepResult step = run_step(model, kShape, tokens, parameters);
    const auto f = [&] { return run_step(model, kShape, tokens, parameters).loss; };
    expect_derivative(f, parameters, step.gradients, "parameters", 2e-4);
  }
}

}  // namespace
}  // namespace ballast::transformer
