// Causal attention, a head and a tile of query rows at a time: the scores of a tile are a GEMM
// against the keys up to its last row, so about half of the square is never computed.

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/host/gemm.h"
#include "backend/host/transformer.h"
#include "backend/host/transformer_rows.h"
#include "backend/host/transformer_views.h"
#include "sim/base/error.h"

namespace ballast::transformer {
namespace {

// Rows of a tile: enough for the GEMM to run near its peak, few enough for scores of 1,024 keys
// (512 KiB) to stay in a second-level cache.
constexpr int64_t kTile = 128;

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
  const int64_t half = model.head_size / 2;
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

// Rotates the q and k heads of one sequence in place.
template <class Real>
void rotate_heads(const Model& model, int64_t length, Direction direction, Real* qkv) {
  const Rotations<Real>& table = rotations<Real>(model, length);
  const auto rotate =
      direction == Direction::kForward ? row_loops<Real>().rotate : row_loops<Real>().rotate_back;
  for_ranges(length, by_rows(model.qkv_width()), [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      const Real* cosines = table.cosines.data() + position * table.half;
      const Real* sines = table.sines.data() + position * table.half;
      for (int64_t head = 0; head < model.heads + model.kv_heads; ++head) {
        Real* x = qkv + position * model.qkv_width() + head * model.head_size;
        rotate(x, cosines, sines, x, table.half);
      }
    }
  });
}

// The packed rows [S, (H+2K)*D] of one sequence, rotated where the model rotates.
template <class Real>
const Real* load_sequence(const Model& model, int64_t length, int64_t sequence, ConstView qkv) {
  const int64_t count = length * model.qkv_width();
  if (model.position != PositionKind::kRope) {
    return load<Real>(qkv, sequence * count, count, Slot::kPacked);
  }
  Real* packed = scratch<Real>(Slot::kPacked, count);
  copy_in(qkv, sequence * count, count, packed);
  rotate_heads(model, length, Direction::kForward, packed);
  return packed;
}

// Offsets of a query head and of the key and value head it shares, in a packed row.
struct HeadOffsets {
  int64_t q = 0;
  int64_t k = 0;
  int64_t v = 0;
};

HeadOffsets offsets_of(const Model& model, int64_t head) {
  const int64_t kv_head = head / (model.heads / model.kv_heads);
  return {head * model.head_size, (model.heads + kv_head) * model.head_size,
          (model.heads + model.kv_heads + kv_head) * model.head_size};
}

template <class Real>
Real score_scale(const Model& model) {
  return static_cast<Real>(1.0 / std::sqrt(static_cast<double>(model.head_size)));
}

// Heads that are worth a hand-over to another thread: a quarter of a million multiplications.
RangeCut by_heads(const Model& model, int64_t length) {
  constexpr int64_t kLeast = int64_t{1} << 18;
  return {std::max<int64_t>(kLeast / (length * length * model.head_size), 1), 1};
}

// A tile of query rows [first, end) of one head, and the matrices of its head.
template <class Real>
struct Tile {
  int64_t first = 0;
  int64_t end = 0;    // also the number of keys that any of its rows sees
  int64_t width = 0;  // of a packed row
  int64_t head_size = 0;
  const Real* q = nullptr;  // row 0 of the head
  const Real* k = nullptr;
  const Real* v = nullptr;
  Real scale = 1;
  int64_t rows() const { return end - first; }
};

// to[rows, keys] = factor * left[rows, D] right[keys, D]^T; `left_stride` between rows of left.
template <class Real>
void pair_products(const Tile<Real>& t, const Real* left, int64_t left_stride, const Real* right,
                   Real factor, Real* to) {
  GemmArguments<Real> g;
  g.m = t.rows(), g.n = t.end, g.k = t.head_size;
  g.a = left, g.lda = left_stride;
  g.b = right, g.ldb = t.width, g.transpose_b = true;
  g.c = to, g.ldc = t.end;
  g.alpha = factor;
  gemm(g);
}

template <class Real>
void forward_tile(const Tile<Real>& t, Real* out, int64_t out_stride, Real* log_sum_exp) {
  Real* scores = scratch<Real>(Slot::kScores, t.rows() * t.end);
  pair_products(t, t.q + t.first * t.width, t.width, t.k, t.scale, scores);
  Real* inverse_sums = scratch<Real>(Slot::kSums, t.rows());
  for (int64_t i = 0; i < t.rows(); ++i) {
    Real* row = scores + i * t.end;
    const int64_t seen = t.first + i + 1;
    const SoftmaxSums<Real> sums = row_loops<Real>().softmax(row, seen);
    std::fill(row + seen, row + t.end, Real(0));
    inverse_sums[i] = static_cast<Real>(1.0 / sums.sum);
    log_sum_exp[t.first + i] = static_cast<Real>(sums.maximum + std::log(sums.sum));
  }
  GemmArguments<Real> g;
  g.m = t.rows(), g.n = t.head_size, g.k = t.end;
  g.a = scores, g.lda = t.end;
  g.b = t.v, g.ldb = t.width;
  g.c = out + t.first * out_stride, g.ldc = out_stride;
  gemm(g);
  for (int64_t i = 0; i < t.rows(); ++i) {
    row_loops<Real>().scale(inverse_sums[i], g.c + i * out_stride, t.head_size);
  }
}

template <class Real>
Tile<Real> tile_of(const Model& model, int64_t head, const Real* packed) {
  const HeadOffsets at = offsets_of(model, head);
  Tile<Real> tile;
  tile.width = model.qkv_width();
  tile.head_size = model.head_size;
  tile.q = packed + at.q;
  tile.k = packed + at.k;
  tile.v = packed + at.v;
  tile.scale = score_scale<Real>(model);
  return tile;
}

template <class Real>
void forward(const Model& model, Shape shape, ConstView qkv, View out, View log_sum_exp) {
  const int64_t length = shape.length;
  const int64_t width = model.attention_width();
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const Real* packed = load_sequence<Real>(model, length, sequence, qkv);
    const int64_t first = sequence * length * width;
    Real* to = target<Real>(out, first, length * width, Slot::kOutput);
    const auto forward_head = [&](int64_t head) {
      Tile<Real> tile = tile_of(model, head, packed);
      Real* sums =
          reinterpret_cast<Real*>(address(log_sum_exp, (sequence * model.heads + head) * length));
      for (tile.first = 0; tile.first < length; tile.first += kTile) {
        tile.end = std::min(tile.first + kTile, length);
        forward_tile(tile, to + head * model.head_size, width, sums);
      }
    };
    for_ranges(model.heads, by_heads(model, length), [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) forward_head(head);
    });
    finish(to, out, first, length * width);
  }
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
};

// to[keys, D] += factor * weights[rows, keys]^T from[rows, D].
template <class Real>
void add_to_keys(const Tile<Real>& t, const Real* weights, const Real* from, int64_t from_stride,
                 Real factor, Real* to) {
  GemmArguments<Real> g;
  g.m = t.end, g.n = t.head_size, g.k = t.rows();
  g.a = weights, g.lda = t.end, g.transpose_a = true;
  g.b = from, g.ldb = from_stride;
  g.c = to, g.ldc = t.width;
  g.alpha = factor;
  g.accumulate = true;
  gemm(g);
}

// With p the probabilities and ds = p * (dp - delta): dv += p^T dout, dq = scale ds k,
// dk += scale ds^T q (Dao, arXiv 2307.08691, Alg. 2).
template <class Real>
void backward_tile(const Tile<Real>& t, const HeadGradients<Real>& d) {
  const RowLoops<Real>& rows = row_loops<Real>();
  Real* scores = scratch<Real>(Slot::kScores, t.rows() * t.end);
  Real* dp = scratch<Real>(Slot::kScoreGradients, t.rows() * t.end);
  const Real* q = t.q + t.first * t.width;
  const Real* dout = d.dout + t.first * d.out_stride;
  pair_products(t, q, t.width, t.k, t.scale, scores);
  pair_products(t, dout, d.out_stride, t.v, Real(1), dp);
  for (int64_t i = 0; i < t.rows(); ++i) {
    const int64_t row = t.first + i;
    const Real delta =
        rows.dot(d.out + row * d.out_stride, d.dout + row * d.out_stride, t.head_size);
    rows.attention_gradient(scores + i * t.end, dp + i * t.end, d.log_sum_exp[row], delta, row + 1);
    std::fill(scores + i * t.end + row + 1, scores + (i + 1) * t.end, Real(0));
    std::fill(dp + i * t.end + row + 1, dp + (i + 1) * t.end, Real(0));
  }
  add_to_keys(t, scores, dout, d.out_stride, Real(1), d.dv);
  add_to_keys(t, dp, q, t.width, t.scale, d.dk);
  GemmArguments<Real> g;
  g.m = t.rows(), g.n = t.head_size, g.k = t.end;
  g.a = dp, g.lda = t.end;
  g.b = t.k, g.ldb = t.width;
  g.c = d.dq + t.first * t.width, g.ldc = t.width;
  g.alpha = t.scale;
  gemm(g);
}

template <class Real>
void backward(const Model& model, Shape shape, ConstView qkv, ConstView out, ConstView log_sum_exp,
              ConstView dout, View dqkv) {
  const int64_t length = shape.length;
  const int64_t width = model.attention_width();
  const int64_t count = length * model.qkv_width();
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const Real* packed = load_sequence<Real>(model, length, sequence, qkv);
    const int64_t first = sequence * length * width;
    const Real* o = load<Real>(out, first, length * width, Slot::kHeadOutput);
    const Real* from = load<Real>(dout, first, length * width, Slot::kGradient);
    Real* gradient = target<Real>(dqkv, sequence * count, count, Slot::kPackedGradient);
    std::fill_n(gradient, count, Real(0));
    // The heads of a group add to the gradients of the same keys, one after another.
    const int64_t group = model.heads / model.kv_heads;
    const auto backward_head = [&](int64_t head) {
      const HeadOffsets at = offsets_of(model, head);
      Tile<Real> tile = tile_of(model, head, packed);
      HeadGradients<Real> d;
      d.out = o + head * model.head_size;
      d.dout = from + head * model.head_size;
      d.out_stride = width;
      d.log_sum_exp = reinterpret_cast<const Real*>(
          address(log_sum_exp, (sequence * model.heads + head) * length));
      d.dq = gradient + at.q;
      d.dk = gradient + at.k;
      d.dv = gradient + at.v;
      for (tile.first = 0; tile.first < length; tile.first += kTile) {
        tile.end = std::min(tile.first + kTile, length);
        backward_tile(tile, d);
      }
    };
    for_ranges(model.kv_heads, by_heads(model, length), [&](int64_t begin, int64_t end) {
      for (int64_t head = begin * group; head < end * group; ++head) backward_head(head);
    });
    if (model.position == PositionKind::kRope) {
      rotate_heads(model, length, Direction::kBack, gradient);
    }
    finish(gradient, dqkv, sequence * count, count);
  }
}

void check_arguments(const Model& model, Shape shape, ConstView qkv, ConstView out,
                     ConstView log_sum_exp) {
  if (model.qk_norm) {
    throw Error("model " + model.name, "the host device has no norm of the heads' q and k",
                "use a model without qk_norm (gpt2, llama, mistral, qwen2)");
  }
  CHECK(qkv.rows == shape.tokens() && qkv.columns == model.qkv_width());
  CHECK(out.rows == shape.tokens() && out.columns == model.attention_width());
  CHECK(elements(log_sum_exp) == shape.tokens() * model.heads);
  CHECK(log_sum_exp.dtype == (qkv.dtype == DType::kF64 ? DType::kF64 : DType::kF32));
}

}  // namespace

void attention_forward(const Model& model, Shape shape, ConstView qkv, View out, View log_sum_exp) {
  check_arguments(model, shape, qkv, out, log_sum_exp);
  if (qkv.dtype == DType::kF64) return forward<double>(model, shape, qkv, out, log_sum_exp);
  forward<float>(model, shape, qkv, out, log_sum_exp);
}

void attention_backward(const Model& model, Shape shape, ConstView qkv, ConstView out,
                        ConstView log_sum_exp, ConstView dout, View dqkv) {
  check_arguments(model, shape, qkv, out, log_sum_exp);
  CHECK(dout.rows == out.rows && dout.columns == out.columns);
  CHECK(dqkv.rows == qkv.rows && dqkv.columns == qkv.columns);
  if (qkv.dtype == DType::kF64) {
    return backward<double>(model, shape, qkv, out, log_sum_exp, dout, dqkv);
  }
  backward<float>(model, shape, qkv, out, log_sum_exp, dout, dqkv);
}

}  // namespace ballast::transformer
