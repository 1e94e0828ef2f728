// Linear modules: one GEMM per matrix, per piece of it where 16-bit storage is converted around it;
// of experts one for each that was sent a token.

#include <algorithm>

#include "backend/host/experts/transformer_experts.h"
#include "backend/host/gemm.h"
#include "backend/host/linear_layout.h"
#include "backend/host/transformer.h"
#include "backend/host/transformer_rows.h"
#include "backend/host/transformer_views.h"

namespace ballast::transformer {
namespace {

using Part = LinearPart;
using Layout = LinearLayout;

// Columns of a cache line or more: what threads write of one array lies apart.
constexpr int64_t kColumns = 64;

// Output features of a part that are computed at a time.
struct Piece {
  int64_t column = 0;  // first column of y
  int64_t width = 0;
  int64_t weight = 0;  // offset of its weights
  int64_t bias = 0;    // offset of its bias
};

// Calls body(piece) for each piece. Storage of Real is used in place, whole parts at a time. What
// must be converted goes through scratch of at most kScratch elements an array (16 MiB), which
// matters for a head of 150k columns; a piece of [in, out] weights would not be contiguous.
template <class Real, class Body>
void for_pieces(const Layout& layout, int64_t tokens, bool in_place, Body body) {
  constexpr int64_t kScratch = int64_t{1} << 22;
  constexpr int64_t kGranule = 64;
  const int64_t most = std::max(kScratch / std::max(layout.in, tokens) / kGranule, int64_t{1});
  for (size_t i = 0; i < layout.count; ++i) {
    const Part& part = layout.parts[i];
    const bool whole = in_place || layout.order == WeightLayout::kInOut;
    const int64_t step = whole ? part.out : most * kGranule;
    for (int64_t first = 0; first < part.out; first += step) {
      body(Piece{part.column + first, std::min(step, part.out - first),
                 part.weight + first * layout.in, part.bias + first});
    }
  }
}

// Columns [column, column + width) of every row: in place where stored as Real, else a packed copy.
template <class Real>
struct Columns {
  const Real* data = nullptr;
  int64_t stride = 0;
};

template <class Real>
Columns<Real> load_columns(const ConstView& view, int64_t column, int64_t width, Slot slot) {
  if (view.dtype == kStored<Real>) {
    return {reinterpret_cast<const Real*>(address(view, column)), view.columns};
  }
  Real* copy = scratch<Real>(slot, view.rows * width);
  for_ranges(view.rows, by_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      copy_in(view, row * view.columns + column, width, copy + row * width);
    }
  });
  return {copy, width};
}

// Whether these factors are multiplied as they are stored. Never of Real = double.
template <class Real>
bool are_multiplied_as_bf16(const ConstView& one, const ConstView& other) {
  const bool both = one.dtype == DType::kBf16 && other.dtype == DType::kBf16;
  return kStored<Real> == DType::kF32 && both && multiplies_bf16();
}

const uint16_t* bf16_at(const ConstView& view, int64_t element) {
  return reinterpret_cast<const uint16_t*>(address(view, element));
}

// Sizes, strides and result of `g`, with these factors.
void multiply_bf16(const GemmArguments<float>& g, const uint16_t* a, const uint16_t* b) {
  CHECK(g.alpha == 1);
  gemm(Bf16Product{g.m, g.n, g.k, a, g.lda, g.transpose_a, b, g.ldb, g.transpose_b, g.c, g.ldc,
                   g.accumulate});
}
void multiply_bf16(const GemmArguments<double>&, const uint16_t*, const uint16_t*) {
  CHECK(false && "factors of fp64 are not stored in bf16");
}

// Rows of y before the product is added: the residual, the bias, or their sum.
template <class Real>
void start_output(const ConstView& residual, const Real* bias, const Piece& piece, Range rows,
                  Real* y, int64_t stride) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    Real* to = y + row * stride;
    if (residual.data == nullptr) {
      std::copy_n(bias, piece.width, to);
      continue;
    }
    const int64_t first = row * residual.columns + piece.column;
    const bool same = residual.dtype == kStored<Real> &&
                      address(residual, first) == reinterpret_cast<const std::byte*>(to);
    if (!same) copy_in(residual, first, piece.width, to);
    if (bias != nullptr) row_loops<Real>().add(bias, to, piece.width);
  }
}

template <class Real>
void forward(const Layout& layout, ConstView x, ConstView params, ConstView residual, View y) {
  const bool as_bf16 = are_multiplied_as_bf16<Real>(x, params);
  const Real* input = as_bf16 ? nullptr : load<Real>(x, 0, elements(x), Slot::kInput);
  const bool y_in_place = y.dtype == kStored<Real>;
  const bool in_place = y_in_place && params.dtype == kStored<Real>;
  for_pieces<Real>(layout, x.rows, in_place, [&](const Piece& piece) {
    const Real* weight =
        as_bf16 ? nullptr
                : load<Real>(params, piece.weight, layout.in * piece.width, Slot::kParameters);
    const Real* bias =
        layout.has_bias ? load<Real>(params, piece.bias, piece.width, Slot::kBiasSums) : nullptr;
    Real* out = y_in_place ? reinterpret_cast<Real*>(address(y, piece.column))
                           : scratch<Real>(Slot::kOutput, x.rows * piece.width);
    const int64_t stride = y_in_place ? y.columns : piece.width;
    const bool started = residual.data != nullptr || bias != nullptr;
    if (started) {
      for_ranges(x.rows, by_rows(piece.width), [&](int64_t begin, int64_t end) {
        start_output(residual, bias, piece, {begin, end}, out, stride);
      });
    }

    GemmArguments<Real> g;
    g.m = x.rows, g.n = piece.width, g.k = layout.in;
    g.a = input, g.lda = layout.in;
    g.b = weight, g.transpose_b = layout.order == WeightLayout::kOutIn;
    g.ldb = g.transpose_b ? layout.in : piece.width;
    g.c = out, g.ldc = stride;
    g.accumulate = started;
    if (as_bf16) {
      multiply_bf16(g, bf16_at(x, 0), bf16_at(params, piece.weight));
    } else {
      gemm(g);
    }
    if (y_in_place) return;
    for_ranges(x.rows, by_rows(piece.width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        copy_out(out + row * piece.width, y, row * y.columns + piece.column, piece.width);
      }
    });
  });
}

template <class Real>
void backward_input(const Layout& layout, ConstView dy, ConstView params, View dx,
                    bool accumulate = false) {
  const bool in_place = dy.dtype == kStored<Real> && params.dtype == kStored<Real>;
  const bool as_bf16 = are_multiplied_as_bf16<Real>(dy, params);
  Real* out = target<Real>(dx, 0, elements(dx), Slot::kOutput);
  if (accumulate && dx.dtype != kStored<Real>) copy_in(ConstView(dx), 0, elements(dx), out);
  bool started = accumulate;
  for_pieces<Real>(layout, dy.rows, in_place, [&](const Piece& piece) {
    GemmArguments<Real> g;
    g.m = dy.rows, g.n = layout.in, g.k = piece.width;
    g.lda = dy.columns;
    if (!as_bf16) {
      const Columns<Real> from = load_columns<Real>(dy, piece.column, piece.width, Slot::kGradient);
      g.a = from.data, g.lda = from.stride;
      g.b = load<Real>(params, piece.weight, layout.in * piece.width, Slot::kParameters);
    }
    g.transpose_b = layout.order == WeightLayout::kInOut;
    g.ldb = g.transpose_b ? piece.width : layout.in;
    g.c = out, g.ldc = layout.in;
    g.accumulate = started;
    if (as_bf16) {
      multiply_bf16(g, bf16_at(dy, piece.column), bf16_at(params, piece.weight));
    } else {
      gemm(g);
    }
    started = true;
  });
  finish(out, dx, 0, elements(dx));
}

template <class Real>
void add_bias_gradient(const Columns<Real>& dy, int64_t rows, const Piece& piece, View dparams,
                       bool accumulate) {
  Real* sums = scratch<Real>(Slot::kBiasSums, piece.width);
  // Divided by column, each of which adds up its rows in their order.
  const RangeCut cut{std::max<int64_t>(by_rows(rows).least, kColumns), kColumns};
  for_ranges(piece.width, cut, [&](int64_t begin, int64_t end) {
    std::fill(sums + begin, sums + end, Real(0));
    for (int64_t row = 0; row < rows; ++row) {
      row_loops<Real>().add(dy.data + row * dy.stride + begin, sums + begin, end - begin);
    }
  });
  write_sums(sums, dparams, piece.bias, piece.width, accumulate);
}

template <class Real>
void backward_weight(const Layout& layout, ConstView dy, ConstView x, View dparams,
                     bool accumulate) {
  const bool as_bf16 = are_multiplied_as_bf16<Real>(dy, x);
  const Real* input = as_bf16 ? nullptr : load<Real>(x, 0, elements(x), Slot::kInput);
  const bool in_place = dy.dtype == kStored<Real> && dparams.dtype == kStored<Real>;
  for_pieces<Real>(layout, dy.rows, in_place, [&](const Piece& piece) {
    const int64_t count = layout.in * piece.width;
    Columns<Real> from;
    if (!as_bf16 || layout.has_bias) {
      from = load_columns<Real>(dy, piece.column, piece.width, Slot::kGradient);
    }
    Real* out = target<Real>(dparams, piece.weight, count, Slot::kOutput);
    if (accumulate && dparams.dtype != kStored<Real>) copy_in(dparams, piece.weight, count, out);

    GemmArguments<Real> g;  // [out, in]: dy^T x; [in, out]: x^T dy
    g.transpose_a = true;
    g.k = dy.rows;
    g.c = out;
    g.accumulate = accumulate;
    if (layout.order == WeightLayout::kOutIn) {
      g.m = piece.width, g.n = layout.in;
      g.a = from.data, g.lda = from.stride;
      g.b = input, g.ldb = layout.in;
    } else {
      g.m = layout.in, g.n = piece.width;
      g.a = input, g.lda = layout.in;
      g.b = from.data, g.ldb = from.stride;
    }
    g.ldc = g.n;
    if (as_bf16) {
      const bool by_output = layout.order == WeightLayout::kOutIn;
      (by_output ? g.lda : g.ldb) = dy.columns;
      const uint16_t* const gradient = bf16_at(dy, piece.column);
      multiply_bf16(g, by_output ? gradient : bf16_at(x, 0), by_output ? bf16_at(x, 0) : gradient);
    } else {
      gemm(g);
    }
    finish(out, dparams, piece.weight, count);
    if (layout.has_bias) add_bias_gradient(from, dy.rows, piece, dparams, accumulate);
  });
}

}  // namespace

void linear_forward(const Model& model, ModuleKind kind, ConstView x, ConstView params,
                    ConstView residual, View y, bool adds_bias) {
  Layout layout = linear_layout(model, kind);
  layout.has_bias = layout.has_bias && adds_bias;
  CHECK(x.columns == layout.in && y.columns == layout.out && x.rows == y.rows);
  CHECK(elements(params) >= layout.parameters);
  CHECK(residual.data == nullptr || (residual.rows == y.rows && residual.columns == y.columns));
  if (x.dtype == DType::kF64) return forward<double>(layout, x, params, residual, y);
  forward<float>(layout, x, params, residual, y);
}

void linear_backward_input(const Model& model, ModuleKind kind, ConstView dy, ConstView params,
                           View dx, bool accumulate) {
  const Layout layout = linear_layout(model, kind);
  CHECK(dx.columns == layout.in && dy.columns == layout.out && dx.rows == dy.rows);
  CHECK(elements(params) >= layout.parameters);
  if (dy.dtype == DType::kF64) return backward_input<double>(layout, dy, params, dx, accumulate);
  backward_input<float>(layout, dy, params, dx, accumulate);
}

void linear_backward_weight(const Model& model, ModuleKind kind, ConstView dy, ConstView x,
                            View dparams, bool accumulate) {
  const Layout layout = linear_layout(model, kind);
  CHECK(x.columns == layout.in && dy.columns == layout.out && x.rows == dy.rows);
  CHECK(elements(dparams) >= layout.parameters);
  if (dy.dtype == DType::kF64) {
    backward_weight<double>(layout, dy, x, dparams, accumulate);
  } else {
    backward_weight<float>(layout, dy, x, dparams, accumulate);
  }
  // A tied head writes into the embedding module, whose positions must start from zero too.
  const int64_t rest = elements(dparams) - layout.parameters;
  if (!accumulate && rest > 0) clear(dparams, layout.parameters, rest);
}

namespace {

// Calls body(layout, first row, rows) for every expert; those of different experts touch nothing in
// common, so each is the work of one thread.
template <class Body>
void for_experts(const Model& model, ModuleKind kind, const ExpertRows& rows, const Body& body) {
  for_parts(rows.experts, [&](int64_t expert) {
    const int64_t first = rows.first[expert];
    Layout layout = expert_layout(model, kind, expert);
    if (kind == ModuleKind::kFc2) layout.has_bias = false;  // weighted: add_weighted_biases()
    body(layout, first, rows.first[expert + 1] - first);
  });
}

void clear_parameters(const Layout& layout, View dparams) {
  for (size_t i = 0; i < layout.count; ++i) {
    const Part& part = layout.parts[i];
    clear(dparams, part.weight, layout.in * part.out);
    if (layout.has_bias) clear(dparams, part.bias, part.out);
  }
}

}  // namespace

void experts_forward(const Model& model, ModuleKind kind, ConstView x, const ExpertRows& rows,
                     ConstView params, View y) {
  CHECK(x.rows == rows.count() && y.rows == x.rows);
  for_experts(model, kind, rows, [&](const Layout& layout, int64_t first, int64_t count) {
    if (count == 0) return;
    const ConstView in = rows_of(x, first, count);
    const View out = rows_of(y, first, count);
    in_real_of(x, [&](auto real) { forward<decltype(real)>(layout, in, params, {}, out); });
  });
}

void experts_backward_input(const Model& model, ModuleKind kind, ConstView dy,
                            const ExpertRows& rows, ConstView params, View dx) {
  CHECK(dy.rows == rows.count() && dx.rows == dy.rows);
  for_experts(model, kind, rows, [&](const Layout& layout, int64_t first, int64_t count) {
    if (count == 0) return;
    const ConstView from = rows_of(dy, first, count);
    const View to = rows_of(dx, first, count);
    in_real_of(dy, [&](auto real) { backward_input<decltype(real)>(layout, from, params, to); });
  });
}

void experts_backward_weight(const Model& model, ModuleKind kind, ConstView dy, ConstView x,
                             const ExpertRows& rows, View dparams, bool accumulate) {
  CHECK(dy.rows == rows.count() && x.rows == dy.rows);
  for_experts(model, kind, rows, [&](const Layout& layout, int64_t first, int64_t count) {
    if (count == 0) {
      if (!accumulate) clear_parameters(layout, dparams);
      return;
    }
    const ConstView from = rows_of(dy, first, count);
    const ConstView in = rows_of(x, first, count);
    in_real_of(dy, [&](auto real) {
      backward_weight<decltype(real)>(layout, from, in, dparams, accumulate);
    });
  });
}

void shared_forward(const Model& model, ModuleKind kind, ConstView x, ConstView params,
                    ConstView residual, View y) {
  const Layout layout = expert_layout(model, kind, kSharedExperts);
  in_real_of(x, [&](auto real) { forward<decltype(real)>(layout, x, params, residual, y); });
}

void shared_backward_input(const Model& model, ModuleKind kind, ConstView dy, ConstView params,
                           View dx) {
  const Layout layout = expert_layout(model, kind, kSharedExperts);
  in_real_of(dy, [&](auto real) { backward_input<decltype(real)>(layout, dy, params, dx); });
}

void shared_backward_weight(const Model& model, ModuleKind kind, ConstView dy, ConstView x,
                            View dparams, bool accumulate) {
  const Layout layout = expert_layout(model, kind, kSharedExperts);
  in_real_of(
      dy, [&](auto real) { backward_weight<decltype(real)>(layout, dy, x, dparams, accumulate); });
}

namespace {

const Layout& layout_of(const LatentLayout& all, LatentProduct product) {
  switch (product) {
    case LatentProduct::kQueryDown:
      return all.query_down;
    case LatentProduct::kQueryUp:
      return all.query_up;
    case LatentProduct::kKeyDown:
      return all.key_down;
    case LatentProduct::kKeyUp:
      return all.key_up;
  }
  CHECK(false && "a product of latent attention");
}

// Where a head's columns without a position and its values lie in a row of qkv, and in key_up's.
struct KeyColumns {
  int64_t key = 0, value = 0, made = 0;
};
KeyColumns key_columns(const Model& model, int64_t head) {
  const int64_t first_key = model.heads * model.head_size;
  const int64_t first_value = first_key + model.kv_heads * model.head_size;
  const int64_t still = model.head_size - model.rope_size;
  return {first_key + head * model.head_size, first_value + head * model.value_size,
          head * (still + model.value_size)};
}

// Keys and values of qkv from key_up's rows and the rotary columns.
template <class Real>
void spread_keys(const Model& model, const Real* made, ConstView rotary, View qkv) {
  const int64_t still = model.head_size - model.rope_size;
  const int64_t width = model.heads * (still + model.value_size);
  for_ranges(qkv.rows, by_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t at = t * rotary.columns + model.kv_rank;
      const Real* turning = load<Real>(rotary, at, model.rope_size, Slot::kResidual);
      for (int64_t head = 0; head < model.heads; ++head) {
        const KeyColumns columns = key_columns(model, head);
        const Real* from = made + t * width + columns.made;
        const int64_t row = t * qkv.columns;
        copy_out(from, qkv, row + columns.key, still);
        copy_out(turning, qkv, row + columns.key + still, model.rope_size);
        copy_out(from + still, qkv, row + columns.value, model.value_size);
      }
    }
  });
}

// The gradient of key_up's rows out of that of qkv.
template <class Real>
View gather_keys(const Model& model, ConstView dqkv) {
  const int64_t still = model.head_size - model.rope_size;
  const int64_t width = model.heads * (still + model.value_size);
  Real* made = scratch<Real>(Slot::kPacked, dqkv.rows * width);
  for_ranges(dqkv.rows, by_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t head = 0; head < model.heads; ++head) {
        const KeyColumns columns = key_columns(model, head);
        Real* to = made + t * width + columns.made;
        copy_in(dqkv, t * dqkv.columns + columns.key, still, to);
        copy_in(dqkv, t * dqkv.columns + columns.value, model.value_size, to + still);
      }
    }
  });
  return {made, kStored<Real>, dqkv.rows, width};
}

template <class Real>
void latent_product(const Model& model, LatentProduct product, ConstView x, ConstView params,
                    ConstView rotary, View y) {
  const LatentLayout all = latent_layout(model);
  const Layout& layout = layout_of(all, product);
  if (product != LatentProduct::kKeyUp) return forward<Real>(layout, x, params, {}, y);
  const View made{scratch<Real>(Slot::kPacked, x.rows * layout.out), kStored<Real>, x.rows,
                  layout.out};
  forward<Real>(layout, x, params, {}, made);
  spread_keys(model, static_cast<const Real*>(made.data), rotary, y);
}

// The gradient of what a product made, from that of what was made of it.
template <class Real>
ConstView made_gradient(const Model& model, LatentProduct product, ConstView dy) {
  return product == LatentProduct::kKeyUp ? ConstView(gather_keys<Real>(model, dy)) : dy;
}

template <class Real>
void latent_input(const Model& model, LatentProduct product, ConstView dy, ConstView params,
                  View dx, bool accumulate) {
  backward_input<Real>(layout_of(latent_layout(model), product),
                       made_gradient<Real>(model, product, dy), params, dx, accumulate);
}

template <class Real>
void latent_weight(const Model& model, LatentProduct product, ConstView dy, ConstView x,
                   View dparams, bool accumulate) {
  backward_weight<Real>(layout_of(latent_layout(model), product),
                        made_gradient<Real>(model, product, dy), x, dparams, accumulate);
}

template <class Real>
void sum_rotary(const Model& model, ConstView dqkv, View dlatent) {
  const int64_t still = model.head_size - model.rope_size;
  for_ranges(dqkv.rows, by_rows(model.heads * model.rope_size), [&](int64_t begin, int64_t end) {
    Real* sums = scratch<Real>(Slot::kSums, model.rope_size);
    for (int64_t t = begin; t < end; ++t) {
      std::fill_n(sums, model.rope_size, Real(0));
      for (int64_t head = 0; head < model.heads; ++head) {
        const int64_t at = t * dqkv.columns + key_columns(model, head).key + still;
        row_loops<Real>().add(load<Real>(dqkv, at, model.rope_size, Slot::kInput), sums,
                              model.rope_size);
      }
      copy_out(sums, dlatent, t * dlatent.columns + model.kv_rank, model.rope_size);
    }
  });
}

}  // namespace

void latent_forward(const Model& model, LatentProduct product, ConstView x, ConstView params,
                    ConstView rotary, View y) {
  in_real_of(
      x, [&](auto real) { latent_product<decltype(real)>(model, product, x, params, rotary, y); });
}

void latent_backward_input(const Model& model, LatentProduct product, ConstView dy,
                           ConstView params, View dx, bool accumulate) {
  in_real_of(dy, [&](auto real) {
    latent_input<decltype(real)>(model, product, dy, params, dx, accumulate);
  });
}

void latent_backward_weight(const Model& model, LatentProduct product, ConstView dy, ConstView x,
                            View dparams, bool accumulate) {
  in_real_of(dy, [&](auto real) {
    latent_weight<decltype(real)>(model, product, dy, x, dparams, accumulate);
  });
}

void latent_rotary_backward(const Model& model, ConstView dqkv, View dlatent) {
  in_real_of(dqkv, [&](auto real) { sum_rotary<decltype(real)>(model, dqkv, dlatent); });
}

}  // namespace ballast::transformer
