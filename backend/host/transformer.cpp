// The modules that work row by row: norms, activations and the loss.

#include "backend/host/transformer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "backend/host/transformer_rows.h"
#include "backend/host/transformer_views.h"
#include "sim/base/error.h"

namespace ballast::transformer {
namespace {

// Weight and, for LayerNorm, bias of a norm module.
template <class Real>
NormRow<Real> norm_parameters(const Model& model, ConstView params, int64_t n) {
  const int64_t count = model.norm == NormKind::kLayerNorm ? 2 * n : n;
  NormRow<Real> row;
  row.weight = load<Real>(params, 0, count, Slot::kParameters);
  if (model.norm == NormKind::kLayerNorm) row.bias = row.weight + n;
  return row;
}

// Rows that do not depend on one another. Each range of them has a copy of the body.
template <class Body>
void for_rows(int64_t rows, int64_t columns, const Body& body) {
  for_ranges(rows, by_rows(columns), [&](int64_t begin, int64_t end) {
    Body own = body;
    for (int64_t i = begin; i < end; ++i) own(i);
  });
}

template <class Real>
void norm_forward_rows(const Model& model, ConstView x, ConstView params, View out, View statistics,
                       double epsilon) {
  const RowLoops<Real>& rows = row_loops<Real>();
  const int64_t n = out.columns;
  NormRow<Real> row = norm_parameters<Real>(model, params, n);
  auto* pairs = reinterpret_cast<Real*>(address(statistics, 0));
  for_rows(x.rows, n, [&, row](int64_t i) mutable {
    row.x = load<Real>(x, i * x.columns, n, Slot::kInput);
    const Moments<Real> moments = model.norm == NormKind::kLayerNorm
                                      ? rows.centred_moments(row.x, n)
                                      : rows.plain_moments(row.x, n);
    row.mean = moments.mean;
    row.inverse_deviation = Real(1) / std::sqrt(moments.mean_square + static_cast<Real>(epsilon));
    pairs[2 * i] = row.mean;
    pairs[2 * i + 1] = row.inverse_deviation;
    Real* to = target<Real>(out, i * n, n, Slot::kOutput);
    rows.norm(row, to, n);
    finish(to, out, i * n, n);
  });
}

template <class Real>
void norm_backward_rows(const Model& model, ConstView x, ConstView statistics, ConstView params,
                        ConstView dout, ConstView residual_gradient, View dx, View dparams,
                        bool accumulate) {
  const int64_t n = dout.columns;
  const NormRow<Real> parameters = norm_parameters<Real>(model, params, n);
  const int64_t count = parameters.bias == nullptr ? n : 2 * n;
  // Each part of the rows has sums of its own, which are added in order: as the parts follow from
  // the sizes alone, so does every bit.
  const RangeCut cut = by_rows(n);
  const int64_t parts = parts_of(x.rows, cut);
  Real* sums = scratch<Real>(Slot::kSums, parts * count);
  const auto* pairs = reinterpret_cast<const Real*>(address(statistics, 0));
  for_parts(parts, [&](int64_t part) {
    NormRow<Real> row = parameters;
    NormRowGradient<Real> gradient;
    gradient.dweight = sums + part * count;
    gradient.dbias = row.bias == nullptr ? nullptr : gradient.dweight + n;
    std::fill_n(gradient.dweight, count, Real(0));
    const Range rows = range_of(x.rows, cut.granule, parts, part);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      row.x = load<Real>(x, i * x.columns, n, Slot::kInput);
      row.mean = pairs[2 * i];
      row.inverse_deviation = pairs[2 * i + 1];
      gradient.dout = load<Real>(dout, i * n, n, Slot::kGradient);
      if (residual_gradient.data != nullptr) {
        gradient.residual = load<Real>(residual_gradient, i * n, n, Slot::kResidual);
      }
      gradient.dx = target<Real>(dx, i * dx.columns, n, Slot::kOutput);
      row_loops<Real>().norm_gradient(row, gradient, n);
      finish(gradient.dx, dx, i * dx.columns, n);
    }
  });
  for (int64_t part = 1; part < parts; ++part) {
    row_loops<Real>().add(sums + part * count, sums, count);
  }
  write_sums(sums, dparams, 0, count, accumulate);
}

template <class Real>
void activation_forward_rows(ActivationKind kind, ConstView h, View a) {
  const RowLoops<Real>& rows = row_loops<Real>();
  const auto activate = kind == ActivationKind::kSwiGlu     ? rows.swiglu
                        : kind == ActivationKind::kGeluTanh ? rows.gelu_tanh
                                                            : rows.gelu;
  for_rows(h.rows, h.columns, [&](int64_t i) {
    const Real* from = load<Real>(h, i * h.columns, h.columns, Slot::kInput);
    Real* to = target<Real>(a, i * a.columns, a.columns, Slot::kOutput);
    activate(from, to, a.columns);
    finish(to, a, i * a.columns, a.columns);
  });
}

template <class Real>
void activation_backward_rows(ActivationKind kind, ConstView h, ConstView da, View dh) {
  const RowLoops<Real>& rows = row_loops<Real>();
  const auto differentiate = kind == ActivationKind::kSwiGlu     ? rows.swiglu_gradient
                             : kind == ActivationKind::kGeluTanh ? rows.gelu_tanh_gradient
                                                                 : rows.gelu_gradient;
  for_rows(h.rows, h.columns, [&](int64_t i) {
    const Real* from = load<Real>(h, i * h.columns, h.columns, Slot::kInput);
    const Real* gradient = load<Real>(da, i * da.columns, da.columns, Slot::kGradient);
    Real* to = target<Real>(dh, i * dh.columns, dh.columns, Slot::kOutput);
    differentiate(from, gradient, to, da.columns);
    finish(to, dh, i * dh.columns, dh.columns);
  });
}

// The loss of one token, whose logits become factor * (softmax - one at the target).
template <class Real>
double loss_row(Real* logits, int64_t vocab, int64_t target_id, double factor) {
  const RowLoops<Real>& rows = row_loops<Real>();
  const double logit = static_cast<double>(logits[target_id]);
  const SoftmaxSums<Real> sums = rows.softmax(logits, vocab);
  rows.scale(static_cast<Real>(factor / sums.sum), logits, vocab);
  logits[target_id] -= static_cast<Real>(factor);
  return std::log(sums.sum) + static_cast<double>(sums.maximum) - logit;
}

int64_t target_of(Shape shape, const int32_t* tokens, int64_t token, int64_t vocab) {
  const int64_t id = tokens[shape.id_at(token) + 1];
  if (id < 0 || id >= vocab) {
    throw Error(
        "tokens",
        "target " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab),
        "tokenise the data for this model");
  }
  return id;
}

template <class Real>
double loss_rows(Shape shape, const int32_t* tokens, View logits, double factor,
                 int64_t first_token) {
  const int64_t vocab = logits.columns;
  auto* losses = static_cast<double*>(
      scratch_bytes(Slot::kSums, logits.rows * static_cast<int64_t>(sizeof(double))));
  for_rows(logits.rows, vocab, [&](int64_t token) {
    const int64_t id = target_of(shape, tokens, first_token + token, vocab);
    const int64_t first = token * vocab;
    Real* row = target<Real>(logits, first, vocab, Slot::kOutput);
    if (logits.dtype != kStored<Real>) copy_in(ConstView(logits), first, vocab, row);
    losses[token] = loss_row(row, vocab, id, factor);
    finish(row, logits, first, vocab);
  });
  const double total = std::accumulate(losses, losses + logits.rows, 0.0);
  return total / static_cast<double>(logits.rows);
}

void check_statistics(ConstView x, ConstView statistics) {
  CHECK(statistics.rows == x.rows && statistics.columns == 2);
  CHECK(statistics.dtype == (x.dtype == DType::kF64 ? DType::kF64 : DType::kF32));
}

void check_activation(const Model& model, ConstView h, ConstView a) {
  CHECK(h.columns == model.fc1_width() && a.columns == model.ffn && h.rows == a.rows);
}

}  // namespace

void norm_forward(const Model& model, ConstView x, ConstView params, View out, View statistics,
                  double epsilon) {
  check_statistics(x, statistics);
  CHECK(out.rows == x.rows && out.columns <= x.columns);
  if (epsilon == 0) epsilon = model.norm_epsilon;
  if (x.dtype == DType::kF64) {
    return norm_forward_rows<double>(model, x, params, out, statistics, epsilon);
  }
  norm_forward_rows<float>(model, x, params, out, statistics, epsilon);
}

void norm_backward(const Model& model, ConstView x, ConstView statistics, ConstView params,
                   ConstView dout, ConstView residual_gradient, View dx, View dparams,
                   bool accumulate) {
  check_statistics(x, statistics);
  CHECK(dout.rows == x.rows && dout.columns <= x.columns);
  CHECK(dx.rows == x.rows && dx.columns == x.columns);
  if (x.dtype == DType::kF64) {
    return norm_backward_rows<double>(model, x, statistics, params, dout, residual_gradient, dx,
                                      dparams, accumulate);
  }
  norm_backward_rows<float>(model, x, statistics, params, dout, residual_gradient, dx, dparams,
                            accumulate);
}

void put_gradient(std::span<float> sums, View dparams, bool adds) {
  CHECK(std::ssize(sums) == elements(ConstView(dparams)));
  write_sums(sums.data(), dparams, 0, std::ssize(sums), adds);
}

void activation_forward(const Model& model, ConstView h, View a) {
  check_activation(model, h, a);
  if (h.dtype == DType::kF64) return activation_forward_rows<double>(model.activation, h, a);
  activation_forward_rows<float>(model.activation, h, a);
}

void activation_backward(const Model& model, ConstView h, ConstView da, View dh) {
  check_activation(model, h, da);
  CHECK(dh.rows == h.rows && dh.columns == h.columns);
  if (h.dtype == DType::kF64) return activation_backward_rows<double>(model.activation, h, da, dh);
  activation_backward_rows<float>(model.activation, h, da, dh);
}

double loss_forward_backward(const Model& model, Shape shape, const int32_t* tokens, View logits,
                             double gradient_factor, int64_t first) {
  CHECK(first + logits.rows <= shape.tokens() && logits.columns == model.vocab);
  if (logits.dtype == DType::kF64) {
    return loss_rows<double>(shape, tokens, logits, gradient_factor, first);
  }
  return loss_rows<float>(shape, tokens, logits, gradient_factor, first);
}

namespace {

// Of a token what a rank tells: SoftmaxSums, and the target's logit.
struct LossSums {
  float maximum = 0;
  float sum = 0;
  float target = 0;
};

LossSums* sums_at(const View& sums) {
  CHECK(sums.dtype == DType::kF32 && sums.columns == 3);
  return static_cast<LossSums*>(sums.data);
}
const LossSums* sums_at(const ConstView& sums) {
  CHECK(sums.dtype == DType::kF32 && sums.columns == 3);
  return static_cast<const LossSums*>(sums.data);
}

bool holds(const VocabularyPart& part, int64_t id) {
  return id >= part.first && id < part.first + part.count;
}

}  // namespace

void loss_sums(const Model& model, Shape shape, const int32_t* tokens, ConstView logits,
               const VocabularyPart& part, View sums, int64_t first) {
  CHECK(first + logits.rows <= shape.tokens() && logits.columns == model.vocab);
  CHECK(part.count <= model.vocab && sums.rows == logits.rows);
  LossSums* const to = sums_at(sums);
  for_rows(logits.rows, part.count, [&](int64_t token) {
    const int64_t id = target_of(shape, tokens, first + token, part.all);
    float* const row = scratch<float>(Slot::kOutput, part.count);
    copy_in(logits, token * model.vocab, part.count, row);
    const float logit = holds(part, id) ? row[id - part.first] : 0;
    const SoftmaxSums<float> row_sums = row_loops<float>().softmax(row, part.count);
    to[token] = {row_sums.maximum, static_cast<float>(row_sums.sum), logit};
  });
}

void add_loss_sums(ConstView other, View sums) {
  const LossSums* const from = sums_at(other);
  LossSums* const to = sums_at(sums);
  for (int64_t token = 0; token < sums.rows; ++token) {
    const float maximum = std::max(from[token].maximum, to[token].maximum);
    to[token].sum = to[token].sum * std::exp(to[token].maximum - maximum) +
                    from[token].sum * std::exp(from[token].maximum - maximum);
    to[token].target += from[token].target;
    to[token].maximum = maximum;
  }
}

double shared_loss_forward_backward(const Model& model, Shape shape, const int32_t* tokens,
                                    View logits, const VocabularyPart& part, ConstView sums,
                                    double factor, int64_t first) {
  CHECK(first + logits.rows <= shape.tokens() && logits.columns == model.vocab);
  const LossSums* const of_all = sums_at(sums);
  auto* losses = static_cast<double*>(
      scratch_bytes(Slot::kSums, logits.rows * static_cast<int64_t>(sizeof(double))));
  for_rows(logits.rows, model.vocab, [&](int64_t token) {
    const LossSums& token_sums = of_all[token];
    const int64_t id = target_of(shape, tokens, first + token, part.all);
    const int64_t at = token * model.vocab;
    float* const row = target<float>(logits, at, model.vocab, Slot::kOutput);
    if (logits.dtype != DType::kF32) copy_in(ConstView(logits), at, model.vocab, row);
    const SoftmaxSums<float> own = row_loops<float>().softmax(row, part.count);
    const double share = factor / static_cast<double>(token_sums.sum) *
                         std::exp(static_cast<double>(own.maximum - token_sums.maximum));
    row_loops<float>().scale(static_cast<float>(share), row, part.count);
    if (holds(part, id)) row[id - part.first] -= static_cast<float>(factor);
    std::fill(row + part.count, row + model.vocab, 0.0f);
    finish(row, logits, at, model.vocab);
    losses[token] = std::log(static_cast<double>(token_sums.sum)) +
                    static_cast<double>(token_sums.maximum) -
                    static_cast<double>(token_sums.target);
  });
  const double total = std::accumulate(losses, losses + logits.rows, 0.0);
  return total / static_cast<double>(logits.rows);
}

}  // namespace ballast::transformer
