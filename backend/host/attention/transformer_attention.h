// Causal attention of some rows of one sequence, a head and a tile of query rows at a time: the
// scores of a tile are a GEMM against the keys up to its last row, so about half of the square is
// never computed.
//
// A sequence is packed: rows of q heads, k heads and v heads side by side, each as Real, normalised
// and rotated. Will not do: know where the rows come from (transformer_attention.cpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/host/gemm.h"
#include "backend/host/transformer.h"
#include "backend/host/transformer_rows.h"
#include "backend/host/transformer_views.h"

namespace ballast::transformer {

// Rows of a tile: enough for the GEMM to run near its peak, few enough for scores of 1,024 keys
// (512 KiB) to stay in a second-level cache.
inline constexpr int64_t kTile = 128;

// Of a head of queries or keys: with latent attention the last of them alone.
inline int64_t rotated_columns(const Model& model) {
  return model.is_latent() ? model.rope_size : model.head_size;
}

// cos and sin of position * theta^(-2i/D) (Su et al., arXiv 2104.09864, eq. 15), [positions, D/2].
template <class Real>
struct Rotations {
  double theta = 0;
  int64_t half = 0;
  int64_t positions = 0;
  std::vector<Real> cosines;
  std::vector<Real> sines;
};

// This thread's table for the model, with at least `positions` rows.
template <class Real>
const Rotations<Real>& rotations(const Model& model, int64_t positions) {
  thread_local Rotations<Real> table;
  const int64_t half = rotated_columns(model) / 2;
  if (table.theta == model.rope_theta && table.half == half && table.positions >= positions) {
    return table;
  }
  table.theta = model.rope_theta;
  table.half = half;
  table.positions = positions;
  table.cosines.resize(static_cast<size_t>(positions * half));
  table.sines.resize(static_cast<size_t>(positions * half));
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(2 * half);
      const double angle = static_cast<double>(position) * std::pow(model.rope_theta, exponent);
      const auto at = static_cast<size_t>(position * half + i);
      table.cosines[at] = static_cast<Real>(std::cos(angle));
      table.sines[at] = static_cast<Real>(std::sin(angle));
    }
  }
  return table;
}

enum class Direction : uint8_t { kForward, kBack };

// Pairs of neighbours to pairs half the size apart, in which order they are rotated and stay.
template <class Real>
void part_pairs(Real* x, int64_t half, Real* scratch) {
  std::copy_n(x, 2 * half, scratch);
  for (int64_t i = 0; i < half; ++i) {
    x[i] = scratch[2 * i];
    x[half + i] = scratch[2 * i + 1];
  }
}
template <class Real>
void join_pairs(Real* x, int64_t half, Real* scratch) {
  std::copy_n(x, 2 * half, scratch);
  for (int64_t i = 0; i < half; ++i) {
    x[2 * i] = scratch[i];
    x[2 * i + 1] = scratch[half + i];
  }
}

// Some heads of q and k, those of q first, of some rows of a packed sequence.
struct HeadRows {
  Range rows;
  Range heads;
};
inline HeadRows all_heads(const Model& model, Range rows) {
  return {rows, {0, model.heads + model.kv_heads}};
}

// Rotates heads of one sequence in place.
template <class Real>
void rotate_heads(const Model& model, const HeadRows& which, Direction direction, Real* qkv) {
  const Rotations<Real>& table = rotations<Real>(model, which.rows.end);
  const auto rotate =
      direction == Direction::kForward ? row_loops<Real>().rotate : row_loops<Real>().rotate_back;
  const bool forward = direction == Direction::kForward;
  const int64_t still = model.head_size - 2 * table.half;
  for_ranges(which.rows.size(), by_rows(model.qkv_width()), [&](int64_t begin, int64_t end) {
    Real* pairs = model.interleaved_rope ? scratch<Real>(Slot::kHeadSums, 2 * table.half) : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = which.rows.begin + row;
      const Real* cosines = table.cosines.data() + position * table.half;
      const Real* sines = table.sines.data() + position * table.half;
      for (int64_t head = which.heads.begin; head < which.heads.end; ++head) {
        Real* x = qkv + position * model.qkv_width() + head * model.head_size + still;
        if (pairs != nullptr && forward) part_pairs(x, table.half, pairs);
        rotate(x, cosines, sines, x, table.half);
        if (pairs != nullptr && !forward) join_pairs(x, table.half, pairs);
      }
    }
  });
}

// The parameters of core attention, as Real; null where the model has none of the sort.
template <class Real>
struct HeadParameters {
  const Real* sinks = nullptr;   // [H]
  const Real* q_norm = nullptr;  // [D]
  const Real* k_norm = nullptr;
};

template <class Real>
HeadParameters<Real> head_parameters(const Model& model, const AttentionOf& attention) {
  HeadParameters<Real> parameters;
  if (!model.attention_sinks && !model.qk_norm) return parameters;
  const Real* all = load<Real>(attention.params, 0, elements(attention.params), Slot::kParameters);
  if (model.attention_sinks) parameters.sinks = all;
  if (!model.qk_norm) return parameters;
  parameters.q_norm = all + (model.attention_sinks ? model.heads : 0);
  parameters.k_norm = parameters.q_norm + model.head_size;
  return parameters;
}

// The norm of one head's q or k before RoPE.
template <class Real>
NormRow<Real> head_norm(const Model& model, const HeadParameters<Real>& parameters, int64_t head,
                        const Real* x) {
  NormRow<Real> row;
  row.x = x;
  row.weight = head < model.heads ? parameters.q_norm : parameters.k_norm;
  const Real mean_square = row_loops<Real>().plain_moments(x, model.head_size).mean_square;
  row.inverse_deviation = Real(1) / std::sqrt(mean_square + static_cast<Real>(model.norm_epsilon));
  return row;
}

template <class Real>
void norm_heads(const Model& model, const HeadRows& which, const HeadParameters<Real>& parameters,
                Real* qkv) {
  for_ranges(which.rows.size(), by_rows(model.qkv_width()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = which.rows.begin + row;
      for (int64_t head = which.heads.begin; head < which.heads.end; ++head) {
        Real* x = qkv + position * model.qkv_width() + head * model.head_size;
        row_loops<Real>().norm(head_norm(model, parameters, head, x), x, model.head_size);
      }
    }
  });
}

// Gradients by the normalised q and k of some rows of one sequence, replaced by those of what was
// normalised: the q and k heads at packed(row), rows counted from the first. sums: [2, D] of the
// weights of the norms, to which each part of the positions adds in order.
template <class Real, class Packed>
void norm_heads_backward(const Model& model, Range rows, const Packed& packed,
                         const HeadParameters<Real>& parameters, Real* gradient, Real* sums) {
  const int64_t size = model.head_size;
  const int64_t width = model.qkv_width();
  const int64_t length = rows.size();
  const RangeCut cut = by_rows(width);
  const int64_t parts = parts_of(length, cut);
  Real* of_parts = scratch<Real>(Slot::kHeadParts, parts * 2 * size);
  std::fill_n(of_parts, parts * 2 * size, Real(0));
  for_parts(parts, [&](int64_t part) {
    const Range range = range_of(length, cut.granule, parts, part);
    for (int64_t i = range.begin; i < range.end; ++i) {
      const Real* x = packed(i);
      for (int64_t head = 0; head < model.heads + model.kv_heads; ++head) {
        NormRowGradient<Real> of_row;
        of_row.dx = gradient + (rows.begin + i) * width + head * size;
        of_row.dout = of_row.dx;
        of_row.dweight = of_parts + part * 2 * size + (head < model.heads ? 0 : size);
        const NormRow<Real> row = head_norm(model, parameters, head, x + head * size);
        row_loops<Real>().norm_gradient(row, of_row, size);
      }
    }
  });
  for (int64_t part = 0; part < parts; ++part) {
    row_loops<Real>().add(of_parts + part * 2 * size, sums, 2 * size);
  }
}

// Offsets of a query head and of the key and value head it shares, in a packed row.
struct HeadOffsets {
  int64_t q = 0;
  int64_t k = 0;
  int64_t v = 0;
};

inline HeadOffsets offsets_of(const Model& model, int64_t head) {
  const int64_t kv_head = head / (model.heads / model.kv_heads);
  return {head * model.head_size, (model.heads + kv_head) * model.head_size,
          (model.heads + model.kv_heads) * model.head_size + kv_head * model.value_head_size()};
}

template <class Real>
Real score_scale(const Model& model) {
  return static_cast<Real>(1.0 / std::sqrt(static_cast<double>(model.head_size)));
}

// Heads that are worth a hand-over to another thread: a quarter of a million multiplications.
inline RangeCut by_heads(const Model& model, int64_t length) {
  constexpr int64_t kLeast = int64_t{1} << 18;
  return {std::max<int64_t>(kLeast / (length * length * model.head_size), 1), 1};
}

// A tile of query rows [first, end) of one head, and the matrices of its head.
template <class Real>
struct Tile {
  int64_t first = 0;
  int64_t end = 0;        // also the end of the keys that any of its rows sees
  int64_t key_begin = 0;  // the first key that any of its rows sees
  int64_t origin = 0;     // the row that outputs, their gradients and log-sum-exp begin with
  int64_t window = 0;     // keys that a row sees, itself included; 0: all before it
  int64_t width = 0;      // of a packed row
  int64_t head_size = 0;
  int64_t value_size = 0;
  const Real* q = nullptr;  // row 0 of the head
  const Real* k = nullptr;
  const Real* v = nullptr;
  Real scale = 1;
  const Real* sink = nullptr;  // one more logit of every row
  int64_t rows() const { return end - first; }
  int64_t keys() const { return end - key_begin; }
  // Of row i the columns that it sees among the tile's keys.
  Range seen_by(int64_t i) const {
    const int64_t row = first + i;
    const int64_t from = window > 0 ? std::max<int64_t>(row - window + 1, 0) : 0;
    return {from - key_begin, row + 1 - key_begin};
  }
  // To row `begin` and the rows after it, as far as the tile goes.
  void place(int64_t begin, int64_t length) {
    first = begin;
    end = std::min(begin + kTile, length);
    key_begin = window > 0 ? std::max<int64_t>(begin - window + 1, 0) : 0;
  }
};

// What a row does not see has no share.
template <class Real>
void clear_unseen(Real* row, const Range& seen, int64_t keys) {
  std::fill(row, row + seen.begin, Real(0));
  std::fill(row + seen.end, row + keys, Real(0));
}

// to[rows, keys] = factor * left[rows, size] right[keys, size]^T; `left_stride` between rows of
// left.
template <class Real>
void pair_products(const Tile<Real>& t, const Real* left, int64_t left_stride, const Real* right,
                   int64_t size, Real factor, Real* to) {
  GemmArguments<Real> g;
  g.m = t.rows(), g.n = t.keys(), g.k = size;
  g.a = left, g.lda = left_stride;
  g.b = right + t.key_begin * t.width, g.ldb = t.width, g.transpose_b = true;
  g.c = to, g.ldc = t.keys();
  g.alpha = factor;
  gemm(g);
}

// What the values of a row are multiplied with so that its shares, exp(score - maximum), sum to 1,
// and the logarithm of what they sum to; a sink takes its part.
template <class Real>
struct RowSum {
  Real inverse = 0;
  Real log = 0;
};
template <class Real>
RowSum<Real> row_sum(const SoftmaxSums<Real>& sums, const Real* sink) {
  if (sink == nullptr) {
    return {static_cast<Real>(1.0 / sums.sum),
            static_cast<Real>(sums.maximum + std::log(sums.sum))};
  }
  const double maximum = std::max(static_cast<double>(sums.maximum), static_cast<double>(*sink));
  const double shrunk = std::exp(static_cast<double>(sums.maximum) - maximum);
  const double sum = sums.sum * shrunk + std::exp(static_cast<double>(*sink) - maximum);
  return {static_cast<Real>(shrunk / sum), static_cast<Real>(maximum + std::log(sum))};
}

template <class Real>
void forward_tile(const Tile<Real>& t, Real* out, int64_t out_stride, Real* log_sum_exp) {
  Real* scores = scratch<Real>(Slot::kScores, t.rows() * t.keys());
  pair_products(t, t.q + t.first * t.width, t.width, t.k, t.head_size, t.scale, scores);
  Real* inverse_sums = scratch<Real>(Slot::kSums, t.rows());
  for (int64_t i = 0; i < t.rows(); ++i) {
    Real* row = scores + i * t.keys();
    const Range seen = t.seen_by(i);
    const RowSum<Real> sum =
        row_sum(row_loops<Real>().softmax(row + seen.begin, seen.size()), t.sink);
    clear_unseen(row, seen, t.keys());
    inverse_sums[i] = sum.inverse;
    log_sum_exp[t.first - t.origin + i] = sum.log;
  }
  GemmArguments<Real> g;
  g.m = t.rows(), g.n = t.value_size, g.k = t.keys();
  g.a = scores, g.lda = t.keys();
  g.b = t.v + t.key_begin * t.width, g.ldb = t.width;
  g.c = out + (t.first - t.origin) * out_stride, g.ldc = out_stride;
  gemm(g);
  for (int64_t i = 0; i < t.rows(); ++i) {
    row_loops<Real>().scale(inverse_sums[i], g.c + i * out_stride, t.value_size);
  }
}

template <class Real>
Tile<Real> tile_of(const Model& model, int64_t layer, int64_t head, const Real* packed,
                   const HeadParameters<Real>& parameters) {
  const HeadOffsets at = offsets_of(model, head);
  Tile<Real> tile;
  tile.width = model.qkv_width();
  tile.head_size = model.head_size;
  tile.value_size = model.value_head_size();
  tile.window = model.window_of(layer);
  if (parameters.sinks != nullptr) tile.sink = parameters.sinks + head;
  tile.q = packed + at.q;
  tile.k = packed + at.k;
  tile.v = packed + at.v;
  tile.scale = score_scale<Real>(model);
  return tile;
}

// Rows of all heads of one sequence. out: of the first of the rows, head 0, `stride` between rows;
// log_sum_exp: [H, rows].
template <class Real>
void forward_heads(const Model& model, int64_t layer, Range rows, const Real* packed,
                   const HeadParameters<Real>& parameters, Real* out, Real* log_sum_exp) {
  const auto forward_head = [&](int64_t head) {
    Tile<Real> tile = tile_of(model, layer, head, packed, parameters);
    tile.origin = rows.begin;
    for (int64_t begin = rows.begin; begin < rows.end; begin += kTile) {
      tile.place(begin, rows.end);
      forward_tile(tile, out + head * tile.value_size, model.attention_width(),
                   log_sum_exp + head * rows.size());
    }
  };
  for_ranges(model.heads, by_heads(model, rows.end), [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) forward_head(head);
  });
}

// The arrays of one head in the backward pass; gradients are packed like qkv.
template <class Real>
struct HeadGradients {
  const Real* out = nullptr;
  const Real* dout = nullptr;
  int64_t out_stride = 0;
  const Real* log_sum_exp = nullptr;
  Real* dq = nullptr;
  Real* dk = nullptr;
  Real* dv = nullptr;
  Real* dsink = nullptr;
};

// to[keys, size] += factor * weights[rows, keys]^T from[rows, size].
template <class Real>
void add_to_keys(const Tile<Real>& t, const Real* weights, const Real* from, int64_t from_stride,
                 int64_t size, Real factor, Real* to) {
  GemmArguments<Real> g;
  g.m = t.keys(), g.n = size, g.k = t.rows();
  g.a = weights, g.lda = t.keys(), g.transpose_a = true;
  g.b = from, g.ldb = from_stride;
  g.c = to + t.key_begin * t.width, g.ldc = t.width;
  g.alpha = factor;
  g.accumulate = true;
  gemm(g);
}

// With p the probabilities and ds = p * (dp - delta): dv += p^T dout, dq = scale ds k,
// dk += scale ds^T q (Dao, arXiv 2307.08691, Alg. 2). A sink has no value, so that its ds is
// -p * delta.
template <class Real>
void backward_tile(const Tile<Real>& t, const HeadGradients<Real>& d) {
  const RowLoops<Real>& rows = row_loops<Real>();
  Real* scores = scratch<Real>(Slot::kScores, t.rows() * t.keys());
  Real* dp = scratch<Real>(Slot::kScoreGradients, t.rows() * t.keys());
  const Real* q = t.q + t.first * t.width;
  const Real* dout = d.dout + (t.first - t.origin) * d.out_stride;
  pair_products(t, q, t.width, t.k, t.head_size, t.scale, scores);
  pair_products(t, dout, d.out_stride, t.v, t.value_size, Real(1), dp);
  for (int64_t i = 0; i < t.rows(); ++i) {
    const int64_t row = t.first - t.origin + i;
    const Range seen = t.seen_by(i);
    const Real delta =
        rows.dot(d.out + row * d.out_stride, d.dout + row * d.out_stride, t.value_size);
    rows.attention_gradient(scores + i * t.keys() + seen.begin, dp + i * t.keys() + seen.begin,
                            d.log_sum_exp[row], delta, seen.size());
    clear_unseen(scores + i * t.keys(), seen, t.keys());
    clear_unseen(dp + i * t.keys(), seen, t.keys());
    if (t.sink != nullptr) *d.dsink -= std::exp(*t.sink - d.log_sum_exp[row]) * delta;
  }
  add_to_keys(t, scores, dout, d.out_stride, t.value_size, Real(1), d.dv);
  add_to_keys(t, dp, q, t.width, t.head_size, t.scale, d.dk);
  GemmArguments<Real> g;
  g.m = t.rows(), g.n = t.head_size, g.k = t.keys();
  g.a = dp, g.lda = t.keys();
  g.b = t.k + t.key_begin * t.width, g.ldb = t.width;
  g.c = d.dq + t.first * t.width, g.ldc = t.width;
  g.alpha = t.scale;
  gemm(g);
}

// Sums of the gradients of core attention's parameters over the sequences.
template <class Real>
struct HeadSums {
  Real* sinks = nullptr;  // [H]
  Real* norms = nullptr;  // [2, D]
};

template <class Real>
HeadSums<Real> start_sums(const Model& model, int64_t count) {
  HeadSums<Real> sums;
  if (count == 0) return sums;
  Real* all = scratch<Real>(Slot::kBiasSums, count);
  std::fill_n(all, count, Real(0));
  sums.sinks = all;
  sums.norms = all + (model.attention_sinks ? model.heads : 0);
  return sums;
}

// The same backward; `gradient` is packed like the sequence, and zero.
template <class Real>
void backward_heads(const Model& model, int64_t layer, Range rows, const Real* packed,
                    const HeadParameters<Real>& parameters, const HeadGradients<Real>& of_sequence,
                    Real* gradient, Real* dsinks) {
  // The heads of a group add to the gradients of the same keys, one after another.
  const int64_t group = model.heads / model.kv_heads;
  const auto backward_head = [&](int64_t head) {
    const HeadOffsets at = offsets_of(model, head);
    Tile<Real> tile = tile_of(model, layer, head, packed, parameters);
    HeadGradients<Real> d = of_sequence;
    d.out += head * tile.value_size;
    d.dout += head * tile.value_size;
    d.log_sum_exp += head * rows.size();
    d.dq = gradient + at.q;
    d.dk = gradient + at.k;
    d.dv = gradient + at.v;
    if (tile.sink != nullptr) d.dsink = dsinks + head;
    tile.origin = rows.begin;
    for (int64_t begin = rows.begin; begin < rows.end; begin += kTile) {
      tile.place(begin, rows.end);
      backward_tile(tile, d);
    }
  };
  for_ranges(model.kv_heads, by_heads(model, rows.end), [&](int64_t begin, int64_t end) {
    for (int64_t head = begin * group; head < end * group; ++head) backward_head(head);
  });
}

}  // namespace ballast::transformer
