// The row loops, written once and compiled by each instruction set's unit: see transformer_rows.h.
//
// Everything has internal linkage and nothing of std is instantiated, so that no unit's code can be
// chosen for another. The loops carry `omp simd` (compiled with -fopenmp-simd): it permits the
// lanes of a sum, and nothing else of the arithmetic is reordered.
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/host/transformer_rows.h"

namespace ballast::transformer {
namespace {

// Fused where the instruction set has it, for calls to a software fma would dominate.
inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
inline double multiply_add(double a, double b, double c) { return a * b + c; }

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2, with the minimax polynomial of Cephes'
// expf (Moshier); ln 2 in two parts keeps r exact. 2^n is applied as two factors, so that results
// down to the subnormals and up to the largest float come out right and beyond them 0 and infinity.
// NaN passes every comparison unchanged and stays NaN.
inline float exponential(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = multiply_add(x, kLog2E, kRound);
  const float n = shifted - kRound;
  const float r = multiply_add(n, -kLn2Low, multiply_add(n, -kLn2High, x));
  float p = 1.9875691500e-4f;
  p = multiply_add(p, r, 1.3981999507e-3f);
  p = multiply_add(p, r, 8.3334519073e-3f);
  p = multiply_add(p, r, 4.1665795894e-2f);
  p = multiply_add(p, r, 1.6666665459e-1f);
  p = multiply_add(p, r, 5.0000001201e-1f);
  p = multiply_add(p, r * r, r) + 1.0f;
  const int32_t exponent =
      __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kRound);
  const int32_t half = exponent >> 1;
  const float first = __builtin_bit_cast(float, (half + 127) << 23);
  const float second = __builtin_bit_cast(float, (exponent - half + 127) << 23);
  return p * first * second;
}
inline double exponential(double x) { return __builtin_exp(x); }

inline float absolute(float x) { return __builtin_fabsf(x); }

// erf within 2 ulp: a polynomial in x^2 below 475/512, 1 - exp(polynomial) above (minimax
// coefficients by N. Juffa; tests/backend/transformer_test.cpp sweeps both against std::erf).
inline float error_function(float x) {
  const float t = absolute(x);
  const float s = x * x;
  float tail = multiply_add(-1.72853470e-5f, t, 3.83197126e-4f);
  tail = multiply_add(tail, s, multiply_add(-3.88396438e-3f, t, 2.42546219e-2f));
  tail = multiply_add(tail, t, -1.06777877e-1f);
  tail = multiply_add(tail, t, -6.34846687e-1f);
  tail = multiply_add(tail, t, -1.28717512e-1f);
  tail = multiply_add(tail, t, -t);
  tail = __builtin_copysignf(1.0f - exponential(tail), x);
  float near = -5.96761703e-4f;
  near = multiply_add(near, s, 4.99119423e-3f);
  near = multiply_add(near, s, -2.67681349e-2f);
  near = multiply_add(near, s, 1.12819925e-1f);
  near = multiply_add(near, s, -3.76125336e-1f);
  near = multiply_add(near, s, 1.28379166e-1f);
  near = multiply_add(near, x, x);
  return t > 0.927734375f ? tail : near;
}
inline double error_function(double x) { return __builtin_erf(x); }

template <class Real>
inline Real sigmoid(Real x) {
  return Real(1) / (Real(1) + exponential(-x));
}

template <class Real>
void add(const Real* x, Real* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

template <class Real>
void scale(Real factor, Real* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] *= factor;
}

template <class Real>
Real dot(const Real* x, const Real* y, int64_t n) {
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// Two passes: the one-pass E[x^2] - E[x]^2 cancels where the mean is large.
template <class Real>
Moments<Real> centred_moments(const Real* x, int64_t n) {
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  const Real mean = sum / Real(n);
  Real squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, squares / Real(n)};
}

template <class Real>
Moments<Real> plain_moments(const Real* x, int64_t n) {
  return {Real(0), dot(x, x, n) / Real(n)};
}

template <class Real>
void norm(const NormRow<Real>& row, Real* out, int64_t n) {
  const NormRow<Real> v = row;
  if (v.bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = v.x[i] * v.inverse_deviation * v.weight[i];
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = multiply_add((v.x[i] - v.mean) * v.inverse_deviation, v.weight[i], v.bias[i]);
  }
}

template <class Real>
void norm_gradient(const NormRow<Real>& row, const NormRowGradient<Real>& gradient, int64_t n) {
  const NormRow<Real> v = row;
  const NormRowGradient<Real> d = gradient;
  Real sum_g = 0;
  Real sum_gx = 0;
#pragma omp simd reduction(+ : sum_g, sum_gx)
  for (int64_t i = 0; i < n; ++i) {
    const Real x_hat = (v.x[i] - v.mean) * v.inverse_deviation;
    const Real g = d.dout[i] * v.weight[i];
    sum_g += g;
    sum_gx += g * x_hat;
  }
  const Real mean_g = d.dbias == nullptr ? Real(0) : sum_g / Real(n);
  const Real mean_gx = sum_gx / Real(n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    d.dweight[i] += d.dout[i] * ((v.x[i] - v.mean) * v.inverse_deviation);
  }
  if (d.dbias != nullptr) add(d.dout, d.dbias, n);
  if (d.residual == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const Real x_hat = (v.x[i] - v.mean) * v.inverse_deviation;
      d.dx[i] = v.inverse_deviation * (d.dout[i] * v.weight[i] - mean_g - x_hat * mean_gx);
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Real x_hat = (v.x[i] - v.mean) * v.inverse_deviation;
    d.dx[i] = multiply_add(v.inverse_deviation, d.dout[i] * v.weight[i] - mean_g - x_hat * mean_gx,
                           d.residual[i]);
  }
}

constexpr double kGeluCubic = 0.044715;
constexpr double kTwiceSqrt2OverPi = 1.5957691216057307;
constexpr double kSqrtHalf = 0.7071067811865476;
constexpr double kInverseSqrt2Pi = 0.3989422804014327;

// 2u of the tanh form: 1/2 (1 + tanh(u)) = sigmoid(2u), without cancellation for negative x.
template <class Real>
inline Real gelu_argument(Real x) {
  return Real(kTwiceSqrt2OverPi) * x * multiply_add(Real(kGeluCubic), x * x, Real(1));
}

template <class Real>
void gelu_tanh(const Real* h, Real* a, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) a[i] = h[i] * sigmoid(gelu_argument(h[i]));
}

template <class Real>
void gelu_tanh_gradient(const Real* h, const Real* da, Real* dh, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Real x = h[i];
    const Real s = sigmoid(gelu_argument(x));
    const Real slope = Real(kTwiceSqrt2OverPi) * multiply_add(Real(3 * kGeluCubic), x * x, Real(1));
    dh[i] = da[i] * multiply_add(x * s * (Real(1) - s), slope, s);
  }
}

template <class Real>
inline Real normal_cdf(Real x) {
  return Real(0.5) * (Real(1) + error_function(x * Real(kSqrtHalf)));
}

template <class Real>
void gelu(const Real* h, Real* a, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) a[i] = h[i] * normal_cdf(h[i]);
}

template <class Real>
void gelu_gradient(const Real* h, const Real* da, Real* dh, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Real x = h[i];
    const Real density = Real(kInverseSqrt2Pi) * exponential(Real(-0.5) * x * x);
    dh[i] = da[i] * multiply_add(x, density, normal_cdf(x));
  }
}

template <class Real>
void swiglu(const Real* h, Real* a, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) a[i] = h[i] * sigmoid(h[i]) * h[i + n];
}

template <class Real>
void swiglu_gradient(const Real* h, const Real* da, Real* dh, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Real gate = h[i];
    const Real up = h[i + n];
    const Real s = sigmoid(gate);
    const Real silu = gate * s;
    dh[i] = da[i] * up * multiply_add(silu, Real(1) - s, s);
    dh[i + n] = da[i] * silu;
  }
}

// Sums block by block in Real and over the blocks in double: a vocabulary is long enough for one
// fp32 sum to lose digits.
template <class Real>
SoftmaxSums<Real> softmax(Real* x, int64_t n) {
  constexpr int64_t kBlock = 1024;
  Real maximum = x[0];
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  double total = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t end = start + kBlock < n ? start + kBlock : n;
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = start; i < end; ++i) {
      x[i] = exponential(x[i] - maximum);
      sum += x[i];
    }
    total += double(sum);
  }
  return {maximum, total};
}

template <class Real>
void attention_gradient(Real* scores, Real* dp, Real log_sum_exp, Real delta, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Real p = exponential(scores[i] - log_sum_exp);
    scores[i] = p;
    dp[i] = p * (dp[i] - delta);
  }
}

template <class Real>
void rotate(const Real* x, const Real* cosines, const Real* sines, Real* y, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const Real first = x[i];
    const Real second = x[i + half];
    y[i] = first * cosines[i] - second * sines[i];
    y[i + half] = second * cosines[i] + first * sines[i];
  }
}

template <class Real>
void rotate_back(const Real* x, const Real* cosines, const Real* sines, Real* y, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const Real first = x[i];
    const Real second = x[i + half];
    y[i] = first * cosines[i] + second * sines[i];
    y[i + half] = second * cosines[i] - first * sines[i];
  }
}

template <class Real>
constexpr RowLoops<Real> make_row_loops(std::string_view name) {
  RowLoops<Real> table{};
  table.name = name;
  table.add = add<Real>;
  table.scale = scale<Real>;
  table.dot = dot<Real>;
  table.centred_moments = centred_moments<Real>;
  table.plain_moments = plain_moments<Real>;
  table.norm = norm<Real>;
  table.norm_gradient = norm_gradient<Real>;
  table.gelu_tanh = gelu_tanh<Real>;
  table.gelu_tanh_gradient = gelu_tanh_gradient<Real>;
  table.gelu = gelu<Real>;
  table.gelu_gradient = gelu_gradient<Real>;
  table.swiglu = swiglu<Real>;
  table.swiglu_gradient = swiglu_gradient<Real>;
  table.softmax = softmax<Real>;
  table.attention_gradient = attention_gradient<Real>;
  table.rotate = rotate<Real>;
  table.rotate_back = rotate_back<Real>;
  return table;
}

}  // namespace
}  // namespace ballast::transformer
