// The AdamW step over a vector type V (see vector_loops.h), plain or with the differences that an
// undo record is made of.
//
// What keeps a processor busy here is not the number of operations but what waits behind a root and
// a quotient, some hundred cycles. So the step computes the direction of a parameter while it moves
// the one 64 before it along its own: nothing waits there.
#pragma once

#include "kernels/vector_loops.h"

namespace ballast::kernels {
namespace {

// What would otherwise be called and find its constants in memory.
#define BALLAST_INLINE __attribute__((always_inline)) inline

constexpr int64_t kAtOnce = 64;
static_assert(kAtOnce % kLanesMax == 0);

// Where the differences, old minus estimate, of a run of parameters go.
struct Differences {
  static constexpr bool kKept = true;
  uint32_t* w;
  uint32_t* m;
  uint32_t* v;
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
    return V::number_or_minus_infinity(
        V::fma(V::set(c.undo_rate), V::fma(V::set(c.weight_decay), w, u), w));
  }
};

// The gradient, times its scale.
template <class V, Format G, class Lanes>
inline typename V::F scaled_gradient(Lanes lanes, const AdamArrays& a, const StepConstants& c,
                                     int64_t i) {
  return V::mul(V::set(c.gradient_scale), load_as_f32<V, G>(lanes, a.gradient, i));
}

template <class V, class W, class Lanes>
inline void store_state(Lanes lanes, const AdamArrays& a, int64_t i, typename V::F w,
                        typename V::F m, typename V::F v) {
  V::store(lanes, a.master + i, w);
  V::store(lanes, a.moment1 + i, m);
  V::store(lanes, a.moment2 + i, v);
  if constexpr (W::kWritten) store_from_f32<V, W::kFormat>(lanes, a.weights, i, w);
}

// One vector of the step, whatever its gradients; its differences go to place `at`.
template <class V, Format G, class W, class D, class Lanes>
inline void step_vector(Lanes lanes, const AdamArrays& a, const StepConstants& c, int64_t i, D d,
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
  store_state<V, W>(lanes, a, i, V::select(finite, w_new, w_old), V::select(finite, m_new, m_old),
                    V::select(finite, v_new, v_old));

  if constexpr (D::kKept) {
    const F w_near = Estimate<V>::master(c, w_new, u);
    const F m_near = Estimate<V>::moment1(c, m_new, p);
    const F v_near = Estimate<V>::moment2(c, v_new, q);
    // A parameter whose gradient is not finite did not change: its difference counts as zero.
    V::store_int(d.w + at, V::sub_or_zero(finite, V::bits(w_old), V::bits(w_near)));
    V::store_int(d.m + at, V::sub_or_zero(finite, V::bits(m_old), V::bits(m_near)));
    V::store_int(d.v + at, V::sub_or_zero(finite, V::bits(v_old), V::bits(v_near)));
  }
}

// Whether 64 gradients are all finite once scaled. It may deny it of some that are.
template <class V, Format G>
BALLAST_INLINE bool gradients_are_finite(const AdamArrays& a, const StepConstants& c, int64_t i) {
  typename V::I largest = V::set_int(0);
  for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
    const typename V::I gradient = V::bits(load_as_f32<V, G>(All{}, a.gradient, i + j));
    largest = V::max_int(largest, V::bit_and(gradient, V::set_int(0x7fffffff)));
  }
  return V::all_below(largest, c.finite_gradients);
}

// Steps the moments of one vector with finite gradients and keeps the direction. at: its place
// among 64.
template <class V, Format G, class D>
BALLAST_INLINE void step_moments(const AdamArrays& a, const StepConstants& c, int64_t i, D d,
                                 float* directions, int64_t at) {
  using F = typename V::F;
  prefetch_streams<G>(a, i);
  const F g = scaled_gradient<V, G>(All{}, a, c, i);
  const F m_old = V::load(All{}, a.moment1 + i);
  const F v_old = V::load(All{}, a.moment2 + i);
  const F p = Added<V>::to_moment1(c, g), q = Added<V>::to_moment2(c, g);
  const F m_new = V::fma(V::set(c.beta1), m_old, p);
  const F v_new = V::fma(V::set(c.beta2), v_old, q);
  V::store(All{}, directions + at, direction<V>(c, m_new, v_new));
  V::store(All{}, a.moment1 + i, m_new);
  V::store(All{}, a.moment2 + i, v_new);
  if constexpr (D::kKept) {
    const F m_near = Estimate<V>::moment1(c, m_new, p);
    const F v_near = Estimate<V>::moment2(c, v_new, q);
    V::store_int(d.m + at, V::sub(V::bits(m_old), V::bits(m_near)));
    V::store_int(d.v + at, V::sub(V::bits(v_old), V::bits(v_near)));
  }
}

// Where V rounds 64 masters at once for less, weights are written apart from the masters.
template <class V, class W>
constexpr bool weights_stand_apart() {
  return W::kWritten && W::kFormat == Format::kBf16 && V::kRoundsManyAtOnce;
}
template <class V, class W>
BALLAST_INLINE void store_weights(const AdamArrays& a, int64_t i) {
  if constexpr (weights_stand_apart<V, W>()) {
    V::store_64_bf16(static_cast<uint16_t*>(a.weights) + i, a.master + i);
  }
}

// Asks for the lines of the weights that will be written 512 parameters later than 64: a store that
// misses holds up all behind it.
template <class W>
BALLAST_INLINE void prefetch_weights(const AdamArrays& a, int64_t i) {
  constexpr int64_t kAhead = 512, kLine = 64;
  if constexpr (W::kWritten) {
    constexpr int64_t kBytes = bytes_of(W::kFormat);
    const auto* ahead = static_cast<const char*>(a.weights) + (i + kAhead) * kBytes;
    for (int64_t at = 0; at < kAtOnce * kBytes; at += kLine) __builtin_prefetch(ahead + at, 1);
  }
}

// Steps the master of one vector along its direction u.
template <class V, class W, class D>
BALLAST_INLINE void step_master(const AdamArrays& a, const StepConstants& c, int64_t i, D d,
                                typename V::F u, int64_t at) {
  using F = typename V::F;
  const F w_old = V::load(All{}, a.master + i);
  const F w_new = moved<V>(c, w_old, u);
  V::store(All{}, a.master + i, w_new);
  if constexpr (W::kWritten && !weights_stand_apart<V, W>()) {
    store_from_f32<V, W::kFormat>(All{}, a.weights, i, w_new);
  }
  if constexpr (D::kKept) {
    const F w_near = Estimate<V>::master(c, w_new, u);
    V::store_int(d.w + at, V::sub(V::bits(w_old), V::bits(w_near)));
  }
}

// Steps the masters of 64 parameters, and their weights.
template <class V, class W, class D>
void step_masters(const AdamArrays& a, const StepConstants& c, int64_t i, D d,
                  const float* directions) {
  for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
    step_master<V, W>(a, c, i + j, d, V::load(All{}, directions + j), j);
  }
  store_weights<V, W>(a, i);
}

// Steps parameters 0 .. whole - 1, a multiple of 64. differences_at(i) says where those of 64 go;
// done(i) is called once 64 are done, in order.
template <class V, Format G, class W, class DifferencesAt, class Done>
BALLAST_INLINE void step_by_64(const AdamArrays& a, const StepConstants& c, int64_t whole,
                               DifferencesAt differences_at, Done done) {
  alignas(64) float directions[kAtOnce];
  bool left = false;  // whether only the moments of the last 64 are done
  for (int64_t i = 0; i < whole; i += kAtOnce) {
    const int64_t before = i - kAtOnce;
    const auto d = differences_at(i);
    const bool finite = gradients_are_finite<V, G>(a, c, i);
    if (__builtin_expect(left && finite, 1)) {
      const auto d_before = differences_at(before);
      if constexpr (decltype(d)::kKept) prefetch_weights<W>(a, before);
      for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
        const typename V::F u = V::load(All{}, directions + j);
        step_moments<V, G>(a, c, i + j, d, directions, j);
        step_master<V, W>(a, c, before + j, d_before, u, j);
      }
      store_weights<V, W>(a, before);
    } else {
      if (left) step_masters<V, W>(a, c, before, differences_at(before), directions);
      if (finite) {
        for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
          step_moments<V, G>(a, c, i + j, d, directions, j);
        }
      } else {
        for (int64_t j = 0; j < kAtOnce; j += V::lanes()) {
          step_vector<V, G, W>(All{}, a, c, i + j, d, j);
        }
      }
      left = finite;
    }
    if (before >= 0) done(before);
  }
  if (whole == 0) return;
  const int64_t last = whole - kAtOnce;
  if (left) step_masters<V, W>(a, c, last, differences_at(last), directions);
  done(last);
}

template <class V, Format G, class W>
void adam_step_loop(const AdamArrays& arrays, const StepConstants& constants) {
  const AdamArrays a = arrays;        // copies, so that no store can alias them and the
  const StepConstants c = constants;  // broadcasts stay outside the loops
  const int64_t whole = a.count / kAtOnce * kAtOnce;
  step_by_64<V, G, W>(
      a, c, whole, [](int64_t) { return NoDifferences{}; }, [](int64_t) {});
  for_vectors<V>(a.count - whole, [&](auto lanes, int64_t j) {
    step_vector<V, G, W>(lanes, a, c, whole + j, NoDifferences{}, j);
  });
}

template <class V>
void adam_step(const AdamArrays& a, const AdamConstants& constants) {
  const StepConstants c = step_constants(constants);
  with_formats(a, [&]<Format G, class W>() { adam_step_loop<V, G, W>(a, c); });
}

}  // namespace
}  // namespace ballast::kernels
