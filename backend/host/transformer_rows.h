// The element loops of the decoder over one row of n values, behind a table of plain functions that
// is compiled once per instruction set (backend/gemm/) and chosen at start-up.
//
// Rows are fp32, or fp64 in the gradient checks; storage formats are converted by the caller.
// exp is within 2 ulp of the true value in fp32 and gives 0, infinity and NaN where it must, so a
// NaN or an overflow in a row reaches its results. Sums run over the vector lanes in one fixed
// order. Arrays may be the same but may not overlap otherwise. Will not do: allocate, or read past
// n.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ballast::transformer {

template <class Real>
struct Moments {
  Real mean = 0;
  Real mean_square = 0;  // of (x - mean) for a centred norm, of x otherwise
};

// Maximum and sum of exp(x - maximum).
template <class Real>
struct SoftmaxSums {
  Real maximum = 0;
  double sum = 0;
};

// One row of a norm: x_hat = (x - mean) * inverse_deviation, out = x_hat * weight + bias.
template <class Real>
struct NormRow {
  const Real* x = nullptr;
  const Real* weight = nullptr;
  const Real* bias = nullptr;  // null for RMSNorm, whose mean is 0
  Real mean = 0;
  Real inverse_deviation = 0;
};

// dx, and what this row adds to the parameters' gradients. dbias null: RMSNorm. residual may be
// null.
template <class Real>
struct NormRowGradient {
  const Real* dout = nullptr;
  const Real* residual = nullptr;
  Real* dx = nullptr;
  Real* dweight = nullptr;
  Real* dbias = nullptr;
};

template <class Real>
struct RowLoops {
  std::string_view name;

  void (*add)(const Real* x, Real* y, int64_t n);  // y += x
  void (*scale)(Real factor, Real* y, int64_t n);  // y *= factor
  Real (*dot)(const Real* x, const Real* y, int64_t n);

  Moments<Real> (*centred_moments)(const Real* x, int64_t n);  // LayerNorm
  Moments<Real> (*plain_moments)(const Real* x, int64_t n);    // RMSNorm: mean stays 0
  void (*norm)(const NormRow<Real>& row, Real* out, int64_t n);
  // dx = inverse * (g - mean(g) - x_hat * mean(g x_hat)) + residual with g = dout * weight; without
  // the mean(g) term for RMSNorm (Ba et al., arXiv 1607.06450; Zhang & Sennrich, arXiv 1910.07467).
  void (*norm_gradient)(const NormRow<Real>& row, const NormRowGradient<Real>& gradient, int64_t n);

  // GELU: tanh form, x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3), and exact form,
  // x * Phi(x) (Hendrycks & Gimpel, arXiv 1606.08415). dh = da * derivative(h).
  void (*gelu_tanh)(const Real* h, Real* a, int64_t n);
  void (*gelu_tanh_gradient)(const Real* h, const Real* da, Real* dh, int64_t n);
  void (*gelu)(const Real* h, Real* a, int64_t n);
  void (*gelu_gradient)(const Real* h, const Real* da, Real* dh, int64_t n);
  // a = silu(gate) * up, h = [gate, up], each n wide (Shazeer, arXiv 2002.05202, eq. 6).
  void (*swiglu)(const Real* h, Real* a, int64_t n);
  void (*swiglu_gradient)(const Real* h, const Real* da, Real* dh, int64_t n);

  // x becomes exp(x - maximum); the caller divides by the sum.
  SoftmaxSums<Real> (*softmax)(Real* x, int64_t n);
  // Softmax backward from a stored log-sum-exp: scores becomes p = exp(scores - log_sum_exp), and
  // dp becomes p * (dp - delta), where delta = sum(p * dp) (Dao, arXiv 2307.08691, Alg. 2).
  void (*attention_gradient)(Real* scores, Real* dp, Real log_sum_exp, Real delta, int64_t n);

  // Rotates the pairs (x[i], x[i + half]) by angle i: Hugging Face llama's rotate-half. y may be x.
  void (*rotate)(const Real* x, const Real* cosines, const Real* sines, Real* y, int64_t half);
  void (*rotate_back)(const Real* x, const Real* cosines, const Real* sines, Real* y, int64_t half);
};

// The table for Real: the fastest that this machine can run for float.
template <class Real>
const RowLoops<Real>& row_loops();
template <>
const RowLoops<float>& row_loops<float>();
template <>
const RowLoops<double>& row_loops<double>();

// All fp32 tables that this machine can run, slowest first.
std::span<const RowLoops<float>* const> row_loop_tables();

}  // namespace ballast::transformer
