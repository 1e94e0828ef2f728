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
                     ConstView params, const VocabularyPart& part) {
  const bool learned = model.position == PositionKind::kLearned;
  CHECK(x.rows == shape.tokens() && x.columns == model.hidden);
  CHECK(elements(params) == (model.vocab + (learned ? model.max_positions : 0)) * model.hidden);
  const int64_t end = std::max(shape.first, shape.second) + shape.begin + shape.length;
  if (learned && end > model.max_positions) {
    throw Error("model " + model.name,
                "sequences of " + std::to_string(end) + " tokens exceed its " +
                    std::to_string(model.max_positions) + " positions",
                "shorten the sequences");
  }
  const int64_t vocab = part.is_shared() ? part.all : model.vocab;
  for (int64_t token = 0; token < shape.tokens(); ++token) {
    const int64_t id = tokens[shape.id_at(token)];
    if (id < 0 || id >= vocab) {
      throw Error(
          "tokens",
          "id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab),
          "tokenise the data for this model");
    }
  }
}

// The row of an id in this rank's part of the vocabulary, or -1.
int64_t row_of(int64_t id, const VocabularyPart& part) {
  if (!part.is_shared()) return id;
  return id >= part.first && id < part.first + part.count ? id - part.first : -1;
}

template <class Real>
void forward(const Model& model, Shape shape, const int32_t* tokens, ConstView params, View out,
             const VocabularyPart& part) {
  const int64_t width = model.hidden;
  const auto forward_token = [&](int64_t token) {
    const int64_t position = shape.position(token);
    const int64_t id = row_of(tokens[shape.id_at(token)], part);
    Real* row = target<Real>(out, token * width, width, Slot::kOutput);
    if (id >= 0) {
      copy_in(params, id * width, width, row);
    } else {
      std::fill_n(row, width, Real(0));
    }
    if (model.position == PositionKind::kLearned && part.adds_positions) {
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
void token_gradients(Shape shape, const int32_t* tokens, ConstView dout, View dparams,
                     const VocabularyPart& part) {
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
    const int64_t row = row_of(id, part);
    if (row >= 0) write_sums(sums, dparams, row * width, width, true);
  }
}

template <class Real>
void position_gradients(const Model& model, Shape shape, ConstView dout, View dparams) {
  const int64_t width = dout.columns;
  Real* sums = scratch<Real>(Slot::kSums, width);
  for (int64_t of_piece = 0; of_piece < shape.pieces() * shape.length; ++of_piece) {
    std::fill_n(sums, width, Real(0));
    for (int64_t sequence = 0; sequence < shape.sequences; sequence += shape.pieces()) {
      const int64_t first = (sequence * shape.length + of_piece) * width;
      row_loops<Real>().add(load<Real>(dout, first, width, Slot::kGradient), sums, width);
    }
    const int64_t row = model.vocab + shape.position(of_piece);
    write_sums(sums, dparams, row * width, width, true);
  }
}

template <class Real>
void backward(const Model& model, Shape shape, const int32_t* tokens, ConstView dout, View dparams,
              const VocabularyPart& part) {
  token_gradients<Real>(shape, tokens, dout, dparams, part);
  if (model.position == PositionKind::kLearned) {
    position_gradients<Real>(model, shape, dout, dparams);
  }
}

}  // namespace

void embedding_forward(const Model& model, Shape shape, const int32_t* tokens, ConstView params,
                       View out, const VocabularyPart& part) {
  check_arguments(model, shape, tokens, out, params, part);
  if (out.dtype == DType::kF64) return forward<double>(model, shape, tokens, params, out, part);
  forward<float>(model, shape, tokens, params, out, part);
}

void embedding_backward(const Model& model, Shape shape, const int32_t* tokens, ConstView dout,
                        View dparams, bool accumulate, const VocabularyPart& part) {
  check_arguments(model, shape, tokens, dout, dparams, part);
  if (!accumulate) clear(dparams, 0, elements(dparams));
  if (dout.dtype == DType::kF64) {
    return backward<double>(model, shape, tokens, dout, dparams, part);
  }
  backward<float>(model, shape, tokens, dout, dparams, part);
}

}  // namespace ballast::transformer
