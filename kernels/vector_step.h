// The AdamW step over a vector type V (see vector_loops.h), plain or with the differences that an
// undo record is made of.
//
// What keeps a processor busy here is not the number of operations but what waits behind a root and
// a quotient, some hundred cycles. So the step takes 64 parameters at a time and computes the
// directions of the next 64 before it uses those of the last: nothing waits there.
#pragma once

#include "kernels/vector_loops.h"

namespace ballast::kernels {
namespace {

constexpr int64_t kAtOnce = 64;
static_assert(kAtOnce % kLanesMax == 0);

// Differences, old minus estimate.
struct alignas(64) Differences {
  static constexpr bool kKept = true;
  uint32_t w[kAtOnce], m[kAtOnce], v[kAtOnce];
};

// Of a step that is not recorded.
struct NoDifferences {
  static constexpr bool kKept = false;
};

template <class V>
inline typename V::F direction(const StepConstants& c, typename V::F m, typename V::F v) {
  return V::div(V::mul(V::set(c.bias_correction1), m),
                V::fma(V::sqrt(v), V::set(c.bias_correction2), V::set(c.epsilon)));
}

// The inputs of a step that both directions share: p and q are what is added to the moments.
template <class V>
struct Added {
  using F = typename V::F;
  static F to_moment1(const StepConstants& c, F g) { return V::mul(V::set(c.one_minus_beta1), g); }
  static F to_moment2(const StepConstants& c, F g) {
    return V::mul(V::mul(V::set(c.one_minus_beta2), g), g);
  }
};

// The master after the step along u.
template <class V>
inline typename V::F moved(const StepConstants& c, typename V::F w, typename V::F u) {
  return V::sub(w, V::mul(V::set(c.learning_rate), V::fma(V::set(c.weight_decay), w, u)));
}

// The estimates of reference.cpp's estimate_old.
template <class V>
struct Estimate {
  using F = typename V::F;
  static F moment1(const StepConstants& c, F m, F p) {
    return V::mul(V::sub(m, p), V::set(c.inverse_beta1));
  }
  static F moment2(const StepConstants& c, F v, F q) {
    return V::mul(V::sub(v, q), V::set(c.inverse_beta2));
  }
  static F master(const StepConstants& c, F w, F u) {
    return V::fma(V::set(c.undo_rate), V::fma(V::set(c.weight_decay), w, u), w);
  }
};

// The gradient, times its scale.
template <class V, Format G, class Lanes>
inline typename V::F scaled_gradient(Lanes lanes, const AdamArrays& a, const StepConstants& c,
                                     int64_t i) {
  return V::mul(V::set(c.gradient_scale), load_as_f32<V, G>(lanes, a.gradient, i));
}

// One vector of the step, whatever its gradients; its differences go to place `at`.
template <class V, Format G, class W, class D, class Lanes>
inline void step_vector(Lanes lanes, const AdamArrays& a, const StepConstants& c, int64_t i, D& d,
                        int64_t at) {
  using F = typename V::F;
  const F g = scaled_gradient<V, G>(lanes, a, c, i);
  const F w_old = V::load(lanes, a.master + i);
  const F m_old = V::load(lanes, a.moment1 + i);
  const F v_old = V::load(lanes, a.moment2 + i);
  const F p = Added<V>::to_moment1(c, g), q = Added<V>::to_moment2(c, g);
  const F m_new = V::fma(V::set(c.beta1), m_old, p);
  const F v_new = V::fma(V::set(c.beta2), v_old, q);
  const F u = direction<V>(c, m_new, v_new);
  const F w_new = moved<V>(c, w_old, u);
  const auto finite = V::is_finite(g);
  const F w = V::select(finite, w_new, w_old);
  V::store(lanes, a.master + i, w);
  V::store(lanes, a.moment1 + i, V::select(finite, m_new, m_old));
  V::store(lanes, a.moment2 + i, V::select(finite, v_new, v_old));
  if constexpr (W::kWritten) store_from_f32<V, W::kFormat>(lanes, a.weights, i, w);

  if constexpr (D::kKept) {
    const F w_near = Estimate<V>::master(c, w_new, u);
    const F m_near = Estimate<V>::moment1(c, m_new, p);
    const F v_near = Estimate<V>::moment2(c, v_new, q);
    // A parameter whose gradient is not finite did not change: its difference counts as zero.
    V::store_int(d.w + at, V::sub_or_zero(finite, V::bits(w_old), V::bits_or_zero_if_nan(w_near)));
    V::store_int(d.m + at, V::sub_or_zero(finite, V::bits(m_old), V::bits(m_near)));
    V::store_int(d.v + at, V::sub_or_zero(finite, V::bits(v_old), V::bits(v_near)));
  }
}

// Whether 64 scaled gradients are all finite: times zero, others give NaN.
template <class V, Format G>
inline bool gradients_are_finite(const AdamArrays& a, const StepConstants& c, int64_t i) {
  typename V::F sum = V::set(0.0f);
  for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
    sum = V::fma(V::set(0.0f), scaled_gradient<V, G>(All{}, a, c, i + j), sum);
  }
  return !V::has_nan(sum);
}

// Steps the moments of 64 parameters with finite gradients and keeps the directions.
template <class V, Format G, class D>
inline void step_moments(const AdamArrays& a, const StepConstants& c, int64_t i, D& d,
                         float* directions) {
  using F = typename V::F;
  for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
    prefetch_streams<G>(a, i + j);
    const F g = scaled_gradient<V, G>(All{}, a, c, i + j);
    const F m_old = V::load(All{}, a.moment1 + i + j);
    const F v_old = V::load(All{}, a.moment2 + i + j);
    const F p = Added<V>::to_moment1(c, g), q = Added<V>::to_moment2(c, g);
    const F m_new = V::fma(V::set(c.beta1), m_old, p);
    const F v_new = V::fma(V::set(c.beta2), v_old, q);
    V::store(All{}, directions + j, direction<V>(c, m_new, v_new));
    V::store(All{}, a.moment1 + i + j, m_new);
    V::store(All{}, a.moment2 + i + j, v_new);
    if constexpr (D::kKept) {
      const F m_near = Estimate<V>::moment1(c, m_new, p);
      const F v_near = Estimate<V>::moment2(c, v_new, q);
      V::store_int(d.m + j, V::sub(V::bits(m_old), V::bits(m_near)));
      V::store_int(d.v + j, V::sub(V::bits(v_old), V::bits(v_near)));
    }
  }
}

// Steps their master along those directions.
template <class V, class W, class D>
inline void step_master(const AdamArrays& a, const StepConstants& c, int64_t i, D& d,
                        const float* directions) {
  using F = typename V::F;
  for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
    const F u = V::load(All{}, directions + j);
    const F w_old = V::load(All{}, a.master + i + j);
    const F w_new = moved<V>(c, w_old, u);
    V::store(All{}, a.master + i + j, w_new);
    if constexpr (W::kWritten) store_from_f32<V, W::kFormat>(All{}, a.weights, i + j, w_new);
    if constexpr (D::kKept) {
      const F w_near = Estimate<V>::master(c, w_new, u);
      V::store_int(d.w + j, V::sub(V::bits(w_old), V::bits_or_zero_if_nan(w_near)));
    }
  }
}

// The first half of 64 parameters' step: returns whether the second, step_master, is left to do.
template <class V, Format G, class W, class D>
inline bool begin_step(const AdamArrays& a, const StepConstants& c, int64_t i, D& d,
                       float* directions) {
  if (__builtin_expect(gradients_are_finite<V, G>(a, c, i), 1)) {
    step_moments<V, G>(a, c, i, d, directions);
    return true;
  }
  for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
    step_vector<V, G, W>(All{}, a, c, i + j, d, j);
  }
  return false;
}

template <class V, Format G, class W>
void adam_step_loop(const AdamArrays& arrays, const StepConstants& constants) {
  const AdamArrays a = arrays;        // copies, so that no store can alias them and the
  const StepConstants c = constants;  // broadcasts stay outside the loops
  NoDifferences none;
  alignas(64) float directions[2][kAtOnce];
  const int64_t whole = a.count / kAtOnce * kAtOnce;
  bool left = whole > 0 && begin_step<V, G, W>(a, c, 0, none, directions[0]);
  for (int64_t i = 0, turn = 0; i < whole; i += kAtOnce, turn = 1 - turn) {
    const int64_t next = i + kAtOnce;
    const bool left_of_next =
        next < whole && begin_step<V, G, W>(a, c, next, none, directions[1 - turn]);
    if (left) step_master<V, W>(a, c, i, none, directions[turn]);
    left = left_of_next;
  }
  for_vectors<V>(a.count - whole, [&](auto lanes, int64_t j) {
    step_vector<V, G, W>(lanes, a, c, whole + j, none, j);
  });
}

template <class V>
void adam_step(const AdamArrays& a, const AdamConstants& constants) {
  const StepConstants c = step_constants(constants);
  with_formats(a, [&]<Format G, class W>() { adam_step_loop<V, G, W>(a, c); });
}

}  // namespace
}  // namespace ballast::kernels
