// Token and position vectors, and their gradients.

#include <algorithm>
#include <string>

#include "backend/host/transformer.h"
#include "backend/host/transformer_rows.h"
#include "backend/host/transformer_views.h"
#include "sim/base/error.h"

namespace ballast::transformer {
namespace {

void check_arguments(const Model& model, Shape shape, const int32_t* tokens, ConstView x,
                     ConstView params) {
  const bool learned = model.position == PositionKind::kLearned;
  CHECK(x.rows == shape.tokens() && x.columns == model.hidden);
  CHECK(elements(params) == (model.vocab + (learned ? model.max_positions : 0)) * model.hidden);
  if (learned && shape.begin + shape.length > model.max_positions) {
    throw Error("model " + model.name,
                "sequences of " + std::to_string(shape.begin + shape.length) +
                    " tokens exceed its " + std::to_string(model.max_positions) + " positions",
                "shorten the sequences");
  }
  for (int64_t token = 0; token < shape.tokens(); ++token) {
    const int64_t id = tokens[shape.id_at(token)];
    if (id < 0 || id >= model.vocab) {
      throw Error("tokens",
                  "id " + std::to_string(id) + " is outside the vocabulary of " +
                      std::to_string(model.vocab),
                  "tokenise the data for this model");
    }
  }
}

template <class Real>
void forward(const Model& model, Shape shape, const int32_t* tokens, ConstView params, View out) {
  const int64_t width = model.hidden;
  const auto forward_token = [&](int64_t token) {
    const int64_t position = shape.position(token);
    const int64_t id = tokens[shape.id_at(token)];
    Real* row = target<Real>(out, token * width, width, Slot::kOutput);
    copy_in(params, id * width, width, row);
    if (model.position == PositionKind::kLearned) {
      const int64_t first = (model.vocab + position) * width;
      row_loops<Real>().add(load<Real>(params, first, width, Slot::kParameters), row, width);
    }
    finish(row, out, token * width, width);
  };
  for_ranges(shape.tokens(), by_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) forward_token(token);
  });
}

// Sums the rows of each id in Real before they touch storage, ids in rising order and rows in the
// order of the tokens: one rounding per id, and the same bits whatever the format.
template <class Real>
void token_gradients(Shape shape, const int32_t* tokens, ConstView dout, View dparams) {
  const int64_t width = dout.columns;
  auto* order = scratch<int64_t>(Slot::kTokenOrder, shape.tokens());
  for (int64_t token = 0; token < shape.tokens(); ++token) {
    const int64_t id = tokens[shape.id_at(token)];
    order[token] = id * shape.tokens() + token;
  }
  std::sort(order, order + shape.tokens());
  Real* sums = scratch<Real>(Slot::kSums, width);
  for (int64_t i = 0; i < shape.tokens();) {
    const int64_t id = order[i] / shape.tokens();
    std::fill_n(sums, width, Real(0));
    for (; i < shape.tokens() && order[i] / shape.tokens() == id; ++i) {
      const int64_t token = order[i] % shape.tokens();
      row_loops<Real>().add(load<Real>(dout, token * width, width, Slot::kGradient), sums, width);
    }
    write_sums(sums, dparams, id * width, width, true);
  }
}

template <class Real>
void position_gradients(const Model& model, Shape shape, ConstView dout, View dparams) {
  const int64_t width = dout.columns;
  Real* sums = scratch<Real>(Slot::kSums, width);
  for (int64_t position = 0; position < shape.length; ++position) {
    std::fill_n(sums, width, Real(0));
    for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
      const int64_t first = (sequence * shape.length + position) * width;
      row_loops<Real>().add(load<Real>(dout, first, width, Slot::kGradient), sums, width);
    }
    write_sums(sums, dparams, (model.vocab + shape.begin + position) * width, width, true);
  }
}

template <class Real>
void backward(const Model& model, Shape shape, const int32_t* tokens, ConstView dout,
              View dparams) {
  token_gradients<Real>(shape, tokens, dout, dparams);
  if (model.position == PositionKind::kLearned) {
    position_gradients<Real>(model, shape, dout, dparams);
  }
}

}  // namespace

void embedding_forward(const Model& model, Shape shape, const int32_t* tokens, ConstView params,
                       View out) {
  check_arguments(model, shape, tokens, out, params);
  if (out.dtype == DType::kF64) return forward<double>(model, shape, tokens, params, out);
  forward<float>(model, shape, tokens, params, out);
}

void embedding_backward(const Model& model, Shape shape, const int32_t* tokens, ConstView dout,
                        View dparams, bool accumulate) {
  check_arguments(model, shape, tokens, dout, dparams);
  if (!accumulate) clear(dparams, 0, elements(dparams));
  if (dout.dtype == DType::kF64) return backward<double>(model, shape, tokens, dout, dparams);
  backward<float>(model, shape, tokens, dout, dparams);
}

}  // namespace ballast::transformer
