#include "backend/host/experts/transformer_experts.h"

#include <algorithm>
#include <cmath>

#include "backend/host/linear_layout.h"
#include "backend/host/transformer_rows.h"
#include "backend/host/transformer_views.h"
#include "sim/base/error.h"

namespace ballast::transformer {
namespace {

template <class Real>
struct Activation {
  void (*forward)(const Real* h, Real* a, int64_t n);
  void (*backward)(const Real* h, const Real* da, Real* dh, int64_t n);
};

constexpr double kSwiGluLimit = 7.0;  // transformers, GptOssExperts
constexpr double kSwiGluAlpha = 1.702;

template <class Real>
Real gate_share(Real gate) {
  return Real(1) / (Real(1) + std::exp(-static_cast<Real>(kSwiGluAlpha) * gate));
}

template <class Real>
void clamped_swiglu(const Real* h, Real* a, int64_t n) {
  const auto limit = static_cast<Real>(kSwiGluLimit);
  for (int64_t i = 0; i < n; ++i) {
    const Real gate = std::min(h[2 * i], limit);
    const Real up = std::clamp(h[2 * i + 1], -limit, limit);
    a[i] = (up + Real(1)) * gate * gate_share(gate);
  }
}

template <class Real>
void clamped_swiglu_gradient(const Real* h, const Real* da, Real* dh, int64_t n) {
  const auto limit = static_cast<Real>(kSwiGluLimit);
  for (int64_t i = 0; i < n; ++i) {
    const Real gate = std::min(h[2 * i], limit);
    const Real up = std::clamp(h[2 * i + 1], -limit, limit);
    const Real share = gate_share(gate);
    const Real slope = share * (Real(1) + static_cast<Real>(kSwiGluAlpha) * gate * (1 - share));
    const bool gate_moves = h[2 * i] <= limit;
    const bool up_moves = std::abs(h[2 * i + 1]) <= limit;
    dh[2 * i] = gate_moves ? da[i] * (up + Real(1)) * slope : Real(0);
    dh[2 * i + 1] = up_moves ? da[i] * gate * share : Real(0);
  }
}

template <class Real>
Activation<Real> activation_of(const Model& model) {
  const RowLoops<Real>& rows = row_loops<Real>();
  switch (model.activation) {
    case ActivationKind::kGeluTanh:
      return {rows.gelu_tanh, rows.gelu_tanh_gradient};
    case ActivationKind::kGelu:
      return {rows.gelu, rows.gelu_gradient};
    case ActivationKind::kSwiGlu:
      return {rows.swiglu, rows.swiglu_gradient};
    case ActivationKind::kClampedSwiGlu:
      return {clamped_swiglu<Real>, clamped_swiglu_gradient<Real>};
  }
  CHECK(false && "an activation");
}

// Calls body(token, index of its choice, row) for all choices, in the order of tokens.
template <class Body>
void for_choices(const ExpertRows& rows, int64_t columns, const Body& body) {
  for_ranges(rows.tokens, by_rows(columns * rows.per_token), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * rows.per_token; i < end * rows.per_token; ++i) {
      body(i / rows.per_token, i, rows.of_token[i]);
    }
  });
}

template <class Real>
void send(const ExpertRows& rows, ConstView x, View to) {
  const int64_t n = x.columns;
  for_choices(rows, n, [&](int64_t token, int64_t, int64_t row) {
    if (x.dtype == to.dtype) {
      std::copy_n(address(x, token * n), n * size_of(x.dtype), address(to, row * n));
      return;
    }
    const Real* from = load<Real>(x, token * n, n, Slot::kInput);
    copy_out(from, to, row * n, n);
  });
}

template <class Real>
void sum(const ExpertRows& rows, ConstView from, ConstView start, View to) {
  const int64_t n = to.columns;
  for_ranges(rows.tokens, by_rows(n * rows.per_token), [&](int64_t begin, int64_t end) {
    Real* sums = scratch<Real>(Slot::kSums, n);
    for (int64_t token = begin; token < end; ++token) {
      if (start.data == nullptr) {
        std::fill_n(sums, n, Real(0));
      } else {
        copy_in(start, token * n, n, sums);
      }
      for (int64_t j = 0; j < rows.per_token; ++j) {
        const int64_t row = rows.of_token[token * rows.per_token + j];
        row_loops<Real>().add(load<Real>(from, row * n, n, Slot::kInput), sums, n);
      }
      copy_out(sums, to, token * n, n);
    }
  });
}

// By choice.
template <class Real>
const Real* weights_of(const Model& model, const Routed& routed) {
  if (routed.weights == nullptr) return choice_weights<Real>(model, routed.scores, routed.choice);
  if constexpr (sizeof(Real) == sizeof(float)) return routed.weights;
  Real* weights = scratch<Real>(Slot::kRowWeights, routed.choice.rows);
  std::copy_n(routed.weights, routed.choice.rows, weights);
  return weights;
}

// Where the gradient of a choice's weight lies.
int64_t gradient_at(const Model& model, const Routed& routed, const ExpertRows& rows, int64_t token,
                    int64_t i) {
  return routed.weights == nullptr ? token * model.experts + rows.choice[i] : i;
}

template <class Real>
void activate(const Model& model, const Routed& routed, ConstView h, View a) {
  const Activation<Real> activation = activation_of<Real>(model);
  const ExpertRows rows = expert_rows(model, routed.choice);
  const Real* weights = weights_of<Real>(model, routed);
  for_choices(rows, h.columns, [&](int64_t, int64_t i, int64_t row) {
    const Real* from = load<Real>(h, row * h.columns, h.columns, Slot::kInput);
    Real* to = target<Real>(a, row * a.columns, a.columns, Slot::kOutput);
    activation.forward(from, to, a.columns);
    row_loops<Real>().scale(weights[i], to, a.columns);
    finish(to, a, row * a.columns, a.columns);
  });
}

// The gradient of one weight, where scores' gradients are kept until they are made.
template <class Real>
void put_weight_gradient(Real value, View dscores, int64_t at, bool adds) {
  if (adds) {
    Real before = 0;
    copy_in(ConstView(dscores), at, 1, &before);
    value += before;
  }
  copy_out(&value, dscores, at, 1);
}

template <class Real>
void activate_backward(const Model& model, const Routed& routed, ConstView h, ConstView da, View dh,
                       View dscores, bool adds) {
  const Activation<Real> activation = activation_of<Real>(model);
  const ExpertRows rows = expert_rows(model, routed.choice);
  const Real* weights = weights_of<Real>(model, routed);
  const int64_t n = da.columns;
  for_choices(rows, h.columns, [&](int64_t token, int64_t i, int64_t row) {
    const Real* from = load<Real>(h, row * h.columns, h.columns, Slot::kInput);
    Real* a = scratch<Real>(Slot::kResidual, n);
    activation.forward(from, a, n);
    Real* gradient = scratch<Real>(Slot::kGradient, n);
    copy_in(da, row * n, n, gradient);
    put_weight_gradient(row_loops<Real>().dot(a, gradient, n), dscores,
                        gradient_at(model, routed, rows, token, i), adds);
    row_loops<Real>().scale(weights[i], gradient, n);
    Real* to = target<Real>(dh, row * h.columns, h.columns, Slot::kOutput);
    activation.backward(from, gradient, to, n);
    finish(to, dh, row * h.columns, h.columns);
  });
}

template <class Real>
void shared_rows(const Model& model, ConstView h, ConstView da, View to) {
  const Activation<Real> activation = activation_of<Real>(model);
  const bool forward = da.data == nullptr;
  for_ranges(h.rows, by_rows(h.columns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Real* from = load<Real>(h, i * h.columns, h.columns, Slot::kInput);
      Real* out = target<Real>(to, i * to.columns, to.columns, Slot::kOutput);
      if (forward) {
        activation.forward(from, out, to.columns);
      } else {
        activation.backward(from, load<Real>(da, i * da.columns, da.columns, Slot::kGradient), out,
                            da.columns);
      }
      finish(out, to, i * to.columns, to.columns);
    }
  });
}

const LinearPart& fc2_part(const LinearLayout& layout) {
  CHECK(layout.count == 1 && layout.has_bias);
  return layout.parts[0];
}

template <class Real>
void add_biases(const Model& model, const Routed& routed, ConstView params, View y) {
  const ExpertRows rows = expert_rows(model, routed.choice);
  const Real* weights = weights_of<Real>(model, routed);
  const int64_t n = y.columns;
  for_choices(rows, n, [&](int64_t, int64_t i, int64_t row) {
    const LinearLayout layout = expert_layout(model, ModuleKind::kFc2, rows.choice[i]);
    const Real* bias = load<Real>(params, fc2_part(layout).bias, n, Slot::kBiasSums);
    Real* to = target<Real>(y, row * n, n, Slot::kOutput);
    if (y.dtype != kStored<Real>) copy_in(ConstView(y), row * n, n, to);
    for (int64_t c = 0; c < n; ++c) to[c] += weights[i] * bias[c];
    finish(to, y, row * n, n);
  });
}

template <class Real>
void biases_backward(const Model& model, const Routed& routed, ConstView dy, View dparams,
                     bool accumulate) {
  const ExpertRows rows = expert_rows(model, routed.choice);
  const Real* weights = weights_of<Real>(model, routed);
  const int64_t n = dy.columns;
  // The weight of each row.
  Real* of_row = scratch<Real>(Slot::kScoreRow, rows.count());
  for (int64_t i = 0; i < rows.count(); ++i) of_row[rows.of_token[i]] = weights[i];
  for_parts(rows.experts, [&](int64_t expert) {
    Real* sums = scratch<Real>(Slot::kBiasSums, n);
    std::fill_n(sums, n, Real(0));
    for (int64_t row = rows.first[expert]; row < rows.first[expert + 1]; ++row) {
      const Real* from = load<Real>(dy, row * n, n, Slot::kGradient);
      for (int64_t c = 0; c < n; ++c) sums[c] += of_row[row] * from[c];
    }
    const LinearLayout layout = expert_layout(model, ModuleKind::kFc2, expert);
    write_sums(sums, dparams, fc2_part(layout).bias, n, accumulate);
  });
}

template <class Real>
void bias_weights(const Model& model, const Routed& routed, ConstView dy, ConstView params,
                  View dscores) {
  const ExpertRows rows = expert_rows(model, routed.choice);
  const int64_t n = dy.columns;
  for_choices(rows, n, [&](int64_t token, int64_t i, int64_t row) {
    const LinearLayout layout = expert_layout(model, ModuleKind::kFc2, rows.choice[i]);
    const Real* bias = load<Real>(params, fc2_part(layout).bias, n, Slot::kBiasSums);
    const Real* from = load<Real>(dy, row * n, n, Slot::kGradient);
    put_weight_gradient(row_loops<Real>().dot(from, bias, n), dscores,
                        gradient_at(model, routed, rows, token, i), false);
  });
}

}  // namespace

void put_weight_gradients(const ExpertRows& rows, std::span<const float> by_row, View dscores) {
  for (int64_t i = 0; i < rows.count(); ++i) {
    const int64_t at = i / rows.per_token * dscores.columns + rows.choice[i];
    copy_out(&by_row[static_cast<size_t>(rows.of_token[i])], dscores, at, 1);
  }
}

void send_rows(const ExpertRows& rows, ConstView x, View to) {
  CHECK(x.rows == rows.tokens && to.rows == rows.count() && x.columns == to.columns);
  in_real_of(x, [&](auto real) { send<decltype(real)>(rows, x, to); });
}

void sum_rows(const ExpertRows& rows, ConstView from, ConstView start, View to) {
  CHECK(from.rows == rows.count() && to.rows == rows.tokens && from.columns == to.columns);
  in_real_of(from, [&](auto real) { sum<decltype(real)>(rows, from, start, to); });
}

void add_weighted_biases(const Model& model, const Routed& routed, ConstView params, View y) {
  in_real_of(y, [&](auto real) { add_biases<decltype(real)>(model, routed, params, y); });
}

void weighted_biases_backward(const Model& model, const Routed& routed, ConstView dy, View dparams,
                              bool accumulate) {
  in_real_of(dy, [&](auto real) {
    biases_backward<decltype(real)>(model, routed, dy, dparams, accumulate);
  });
}

void bias_weights_backward(const Model& model, const Routed& routed, ConstView dy, ConstView params,
                           View dscores) {
  in_real_of(dy,
             [&](auto real) { bias_weights<decltype(real)>(model, routed, dy, params, dscores); });
}

void experts_activation_forward(const Model& model, const Routed& routed, ConstView h, View a) {
  CHECK(h.columns == model.gates() * model.expert_ffn && a.columns == model.expert_ffn);
  in_real_of(h, [&](auto real) { activate<decltype(real)>(model, routed, h, a); });
}

void experts_activation_backward(const Model& model, const Routed& routed, ConstView h,
                                 ConstView da, View dh, View dscores, bool adds) {
  CHECK(h.columns == model.gates() * model.expert_ffn && da.columns == model.expert_ffn);
  in_real_of(h, [&](auto real) {
    activate_backward<decltype(real)>(model, routed, h, da, dh, dscores, adds);
  });
}

void shared_activation_forward(const Model& model, ConstView h, View a) {
  CHECK(h.columns == model.gates() * model.shared_ffn() && a.columns == model.shared_ffn());
  in_real_of(h, [&](auto real) { shared_rows<decltype(real)>(model, h, {}, a); });
}

void shared_activation_backward(const Model& model, ConstView h, ConstView da, View dh) {
  CHECK(h.columns == model.gates() * model.shared_ffn() && da.columns == model.shared_ffn());
  in_real_of(h, [&](auto real) { shared_rows<decltype(real)>(model, h, da, dh); });
}

}  // namespace ballast::transformer
