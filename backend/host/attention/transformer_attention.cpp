// Attention over whole sequences, and of a part of sequences over the keys and values up to its
// end, which lie in pieces.
#include "backend/host/attention/transformer_attention.h"

#include "sim/base/error.h"

namespace ballast::transformer {
namespace {

// The packed rows of one sequence, normalised and rotated where the model does it.
template <class Real>
const Real* load_sequence(const Model& model, int64_t length, int64_t sequence, ConstView qkv,
                          const HeadParameters<Real>& parameters) {
  const int64_t count = length * model.qkv_width();
  if (model.position != PositionKind::kRope && !model.qk_norm) {
    return load<Real>(qkv, sequence * count, count, Slot::kPacked);
  }
  Real* packed = scratch<Real>(Slot::kPacked, count);
  copy_in(qkv, sequence * count, count, packed);
  if (model.qk_norm) norm_heads(model, all_heads(model, {0, length}), parameters, packed);
  if (model.position == PositionKind::kRope) {
    rotate_heads(model, all_heads(model, {0, length}), Direction::kForward, packed);
  }
  return packed;
}

template <class Real>
void forward(const Model& model, Shape shape, const AttentionOf& attention, ConstView qkv, View out,
             View log_sum_exp) {
  const HeadParameters<Real> parameters = head_parameters<Real>(model, attention);
  const int64_t length = shape.length;
  const int64_t width = model.attention_width();
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const Real* packed = load_sequence<Real>(model, length, sequence, qkv, parameters);
    const int64_t first = sequence * length * width;
    Real* to = target<Real>(out, first, length * width, Slot::kOutput);
    Real* sums = reinterpret_cast<Real*>(address(log_sum_exp, sequence * model.heads * length));
    forward_heads(model, attention.layer, {0, length}, packed, parameters, to, sums);
    finish(to, out, first, length * width);
  }
}

template <class Real>
void backward(const Model& model, Shape shape, const AttentionOf& attention, ConstView qkv,
              ConstView out, ConstView log_sum_exp, ConstView dout, View dqkv, View dparams,
              bool accumulate) {
  const HeadParameters<Real> parameters = head_parameters<Real>(model, attention);
  const HeadSums<Real> sums = start_sums<Real>(model, elements(attention.params));
  const int64_t length = shape.length;
  const int64_t width = model.attention_width();
  const int64_t count = length * model.qkv_width();
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const Real* packed = load_sequence<Real>(model, length, sequence, qkv, parameters);
    const int64_t first = sequence * length * width;
    HeadGradients<Real> d;
    d.out = load<Real>(out, first, length * width, Slot::kHeadOutput);
    d.dout = load<Real>(dout, first, length * width, Slot::kGradient);
    d.out_stride = width;
    d.log_sum_exp =
        reinterpret_cast<const Real*>(address(log_sum_exp, sequence * model.heads * length));
    Real* gradient = target<Real>(dqkv, sequence * count, count, Slot::kPackedGradient);
    std::fill_n(gradient, count, Real(0));
    const Range rows{0, length};
    backward_heads(model, attention.layer, rows, packed, parameters, d, gradient, sums.sinks);
    if (model.position == PositionKind::kRope) {
      rotate_heads(model, all_heads(model, rows), Direction::kBack, gradient);
    }
    if (model.qk_norm) {
      const auto packed_row = [&](int64_t row) {
        return load<Real>(qkv, sequence * count + row * model.qkv_width(), model.qkv_width(),
                          Slot::kInput);
      };
      norm_heads_backward(model, rows, packed_row, parameters, gradient, sums.norms);
    }
    finish(gradient, dqkv, sequence * count, count);
  }
  if (sums.sinks != nullptr) {
    write_sums(sums.sinks, dparams, 0, elements(attention.params), accumulate);
  }
}

void check_arguments(const Model& model, Shape shape, const AttentionOf& attention, ConstView qkv,
                     ConstView out, ConstView log_sum_exp) {
  CHECK(qkv.rows == shape.tokens() && qkv.columns == model.qkv_width());
  CHECK(out.rows == shape.tokens() && out.columns == model.attention_width());
  CHECK(elements(log_sum_exp) == shape.tokens() * model.heads);
  CHECK(log_sum_exp.dtype == (qkv.dtype == DType::kF64 ? DType::kF64 : DType::kF32));
  CHECK(elements(attention.params) ==
        (model.attention_sinks ? model.heads : 0) + (model.qk_norm ? 2 * model.head_size : 0));
}

// --- parts ------------------------------------------------------------------------------------
// Rows of the sequence are packed as for a whole one, those from the first that any query sees;
// queries and their gradients are of the part alone. Gradients of the keys before leave as sums:
// with respect to keys as attention takes them, so that the part that they belong to rotates (and
// normalises) them back once.

// Where a part and what it sees lie in the rows of one packed sequence.
struct Rows {
  Range part;
  std::vector<Range> keys;  // of each piece
  int64_t queries = 0;      // columns of a packed row
  int64_t pair = 0;         // and behind them of a key and value
  int64_t width() const { return queries + pair; }
  Range seen() const { return {keys.front().begin, part.end}; }
};

Rows rows_of_part(const Model& model, Shape shape, const std::vector<ConstView>& keys_values) {
  CHECK(!keys_values.empty());
  Rows rows;
  rows.part = {shape.begin, shape.begin + shape.length};
  rows.queries = model.heads * model.head_size;
  rows.pair = model.qkv_width() - rows.queries;
  int64_t end = rows.part.end;
  for (size_t i = keys_values.size(); i-- > 0;) {
    CHECK(keys_values[i].columns == rows.pair && keys_values[i].rows % shape.sequences == 0);
    const int64_t begin = end - keys_values[i].rows / shape.sequences;
    rows.keys.insert(rows.keys.begin(), {begin, end});
    end = begin;
  }
  CHECK(rows.keys.back().begin == rows.part.begin && rows.keys.front().begin >= 0);
  return rows;
}

// Calls body(row of the piece, row of the packed sequence) for each row of a piece.
template <class Body>
void for_piece(const Range& piece, int64_t columns, const Body& body) {
  for_ranges(piece.size(), by_rows(columns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i, piece.begin + i);
  });
}

template <class Real>
const Real* load_rows(const Model& model, const Rows& rows, int64_t sequence, ConstView q,
                      const std::vector<ConstView>& keys_values,
                      const HeadParameters<Real>& parameters) {
  Real* packed = scratch<Real>(Slot::kPacked, rows.part.end * rows.width());
  const int64_t length = rows.part.size();
  for_piece(rows.part, rows.queries, [&](int64_t i, int64_t row) {
    copy_in(q, (sequence * length + i) * rows.queries, rows.queries, packed + row * rows.width());
  });
  for (size_t k = 0; k < rows.keys.size(); ++k) {
    for_piece(rows.keys[k], rows.pair, [&](int64_t i, int64_t row) {
      copy_in(keys_values[k], (sequence * rows.keys[k].size() + i) * rows.pair, rows.pair,
              packed + row * rows.width() + rows.queries);
    });
  }
  const HeadRows of_queries{rows.part, {0, model.heads}};
  const HeadRows of_keys{rows.seen(), {model.heads, model.heads + model.kv_heads}};
  for (const HeadRows& which : {of_queries, of_keys}) {
    if (model.qk_norm) norm_heads(model, which, parameters, packed);
    if (model.position == PositionKind::kRope) {
      rotate_heads(model, which, Direction::kForward, packed);
    }
  }
  return packed;
}

template <class Real>
void part_forward(const Model& model, Shape shape, ConstView q,
                  const std::vector<ConstView>& keys_values, View out, View log_sum_exp,
                  const AttentionOf& attention) {
  const Rows rows = rows_of_part(model, shape, keys_values);
  const HeadParameters<Real> parameters = head_parameters<Real>(model, attention);
  const int64_t count = shape.length * model.attention_width();
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const Real* packed = load_rows<Real>(model, rows, sequence, q, keys_values, parameters);
    Real* to = target<Real>(out, sequence * count, count, Slot::kOutput);
    Real* sums =
        reinterpret_cast<Real*>(address(log_sum_exp, sequence * model.heads * shape.length));
    forward_heads(model, attention.layer, rows.part, packed, parameters, to, sums);
    finish(to, out, sequence * count, count);
  }
}

// The gradients of one piece's keys and values go to its sums.
template <class Real>
void leave(const Rows& rows, const Range& piece, int64_t sequence, const Real* gradient,
           const KeyGradient& sum) {
  Real* sums = reinterpret_cast<Real*>(address(sum.sums, sequence * piece.size() * rows.pair));
  for_piece(piece, rows.pair, [&](int64_t i, int64_t row) {
    const Real* from = gradient + row * rows.width() + rows.queries;
    Real* to = sums + i * rows.pair;
    if (sum.adds) {
      row_loops<Real>().add(from, to, rows.pair);
    } else {
      std::copy_n(from, rows.pair, to);
    }
  });
}

// What later parts have left of a part's own keys and values is added to its own share.
template <class Real>
void collect(const Rows& rows, int64_t sequence, ConstView sums, Real* gradient) {
  const Real* all =
      reinterpret_cast<const Real*>(address(sums, sequence * rows.part.size() * rows.pair));
  for_piece(rows.part, rows.pair, [&](int64_t i, int64_t row) {
    row_loops<Real>().add(all + i * rows.pair, gradient + row * rows.width() + rows.queries,
                          rows.pair);
  });
}

// The rows of one sequence, from the gradients of rotated and normalised heads back to those of
// what was packed.
template <class Real>
void undo_heads(const Model& model, const Rows& rows, int64_t sequence, const PartOfAttention& part,
                const HeadParameters<Real>& parameters, Real* gradient, Real* norm_sums) {
  if (model.position == PositionKind::kRope) {
    rotate_heads(model, all_heads(model, rows.part), Direction::kBack, gradient);
  }
  if (!model.qk_norm) return;
  const ConstView own = part.keys_values.back();
  const int64_t first = sequence * rows.part.size();
  const auto packed_row = [&](int64_t i) {
    Real* row = scratch<Real>(Slot::kInput, rows.width());
    copy_in(part.q, (first + i) * rows.queries, rows.queries, row);
    copy_in(own, (first + i) * rows.pair, rows.pair, row + rows.queries);
    return row;
  };
  norm_heads_backward(model, rows.part, packed_row, parameters, gradient, norm_sums);
}

// Of a part of one sequence, gradients of its own queries, keys and values as attention has them,
// in packed rows; those of keys and values before it are left where the part says.
template <class Real>
Real* sequence_heads_backward(const Model& model, Shape shape, const Rows& rows, int64_t sequence,
                              const PartOfAttention& part, const PartResult& result,
                              const AttentionOf& attention, const HeadParameters<Real>& parameters,
                              Real* dsinks) {
  const int64_t width = model.attention_width();
  const int64_t count = shape.length * width;
  const Range seen = rows.seen();
  const Real* packed = load_rows<Real>(model, rows, sequence, part.q, part.keys_values, parameters);
  HeadGradients<Real> d;
  d.out = load<Real>(result.out, sequence * count, count, Slot::kHeadOutput);
  d.dout = load<Real>(result.dout, sequence * count, count, Slot::kGradient);
  d.out_stride = width;
  d.log_sum_exp = reinterpret_cast<const Real*>(
      address(result.log_sum_exp, sequence * model.heads * shape.length));
  Real* gradient = scratch<Real>(Slot::kPackedGradient, rows.part.end * rows.width());
  std::fill(gradient + seen.begin * rows.width(), gradient + seen.end * rows.width(), Real(0));
  backward_heads(model, attention.layer, rows.part, packed, parameters, d, gradient, dsinks);
  for (size_t k = 0; k < part.before.size(); ++k) {
    leave(rows, rows.keys[k], sequence, gradient, part.before[k]);
  }
  return gradient;
}

// From there to what was packed, with what later parts left.
template <class Real>
void sequence_rows_backward(const Model& model, const Rows& rows, int64_t sequence,
                            const PartOfAttention& part, const HeadParameters<Real>& parameters,
                            Real* gradient, Real* norm_sums, View dqkv) {
  const int64_t count = rows.part.size() * rows.width();
  if (part.after.data != nullptr) collect(rows, sequence, part.after, gradient);
  undo_heads(model, rows, sequence, part, parameters, gradient, norm_sums);
  copy_out(gradient + rows.part.begin * rows.width(), dqkv, sequence * count, count);
}

enum class Half : uint8_t { kHeads, kRows, kBoth };

// `heads`: between the halves, where only one is asked for.
template <class Real>
void part_backward(const Model& model, Shape shape, const PartOfAttention& part, Half half,
                   const PartResult& result, View heads, View dqkv, const AttentionOf& attention,
                   View dparams, bool accumulate) {
  const Rows rows = rows_of_part(model, shape, part.keys_values);
  const HeadParameters<Real> parameters = head_parameters<Real>(model, attention);
  const HeadSums<Real> sums = start_sums<Real>(model, elements(attention.params));
  const int64_t count = shape.length * rows.width();
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    Real* gradient = nullptr;
    if (half == Half::kRows) {
      gradient = scratch<Real>(Slot::kPackedGradient, rows.part.end * rows.width());
      copy_in(heads, sequence * count, count, gradient + rows.part.begin * rows.width());
    } else {
      gradient = sequence_heads_backward(model, shape, rows, sequence, part, result, attention,
                                         parameters, sums.sinks);
    }
    if (half == Half::kHeads) {
      copy_out(gradient + rows.part.begin * rows.width(), heads, sequence * count, count);
    } else {
      sequence_rows_backward(model, rows, sequence, part, parameters, gradient, sums.norms, dqkv);
    }
  }
  if (sums.sinks != nullptr)
    write_sums(sums.sinks, dparams, 0, elements(attention.params), accumulate);
}

void check_part(const Model& model, Shape shape, ConstView q, ConstView out, ConstView log_sum_exp,
                const AttentionOf& attention) {
  CHECK(q.rows == shape.tokens() && q.columns == model.heads * model.head_size);
  CHECK(out.rows == shape.tokens() && out.columns == model.attention_width());
  CHECK(elements(log_sum_exp) == shape.tokens() * model.heads);
  CHECK(elements(attention.params) ==
        (model.attention_sinks ? model.heads : 0) + (model.qk_norm ? 2 * model.head_size : 0));
}

}  // namespace

void attention_forward(const Model& model, Shape shape, ConstView qkv, View out, View log_sum_exp,
                       const AttentionOf& attention) {
  check_arguments(model, shape, attention, qkv, out, log_sum_exp);
  if (qkv.dtype == DType::kF64)
    return forward<double>(model, shape, attention, qkv, out, log_sum_exp);
  forward<float>(model, shape, attention, qkv, out, log_sum_exp);
}

void attention_backward(const Model& model, Shape shape, ConstView qkv, ConstView out,
                        ConstView log_sum_exp, ConstView dout, View dqkv,
                        const AttentionOf& attention, View dparams, bool accumulate) {
  check_arguments(model, shape, attention, qkv, out, log_sum_exp);
  CHECK(dout.rows == out.rows && dout.columns == out.columns);
  CHECK(dqkv.rows == qkv.rows && dqkv.columns == qkv.columns);
  CHECK(elements(dparams) == elements(attention.params));
  if (qkv.dtype == DType::kF64) {
    return backward<double>(model, shape, attention, qkv, out, log_sum_exp, dout, dqkv, dparams,
                            accumulate);
  }
  backward<float>(model, shape, attention, qkv, out, log_sum_exp, dout, dqkv, dparams, accumulate);
}

void part_attention_forward(const Model& model, Shape shape, ConstView q,
                            const std::vector<ConstView>& keys_values, View out, View log_sum_exp,
                            const AttentionOf& attention) {
  check_part(model, shape, q, out, log_sum_exp, attention);
  in_real_of(q, [&](auto real) {
    part_forward<decltype(real)>(model, shape, q, keys_values, out, log_sum_exp, attention);
  });
}

namespace {

void check_part_result(const Model& model, Shape shape, const PartOfAttention& part,
                       const PartResult& result, const AttentionOf& attention) {
  check_part(model, shape, part.q, result.out, result.log_sum_exp, attention);
  CHECK(part.before.size() + 1 == part.keys_values.size());
  CHECK(result.dout.rows == result.out.rows && result.dout.columns == result.out.columns);
}

void backward_of_part(const Model& model, Shape shape, const PartOfAttention& part, Half half,
                      const PartResult& result, View heads, View dqkv, const AttentionOf& attention,
                      View dparams, bool accumulate) {
  const auto is_of_queries = [&](const View& view) {
    return view.rows == part.q.rows && view.columns == model.qkv_width();
  };
  if (half != Half::kRows) check_part_result(model, shape, part, result, attention);
  CHECK(half == Half::kBoth || is_of_queries(heads));
  CHECK(half == Half::kHeads || is_of_queries(dqkv));
  CHECK(elements(dparams) == elements(attention.params));
  in_real_of(part.q, [&](auto real) {
    part_backward<decltype(real)>(model, shape, part, half, result, heads, dqkv, attention, dparams,
                                  accumulate);
  });
}

}  // namespace

void part_attention_backward(const Model& model, Shape shape, const PartOfAttention& part,
                             const PartResult& result, View dqkv, const AttentionOf& attention,
                             View dparams, bool accumulate) {
  backward_of_part(model, shape, part, Half::kBoth, result, {}, dqkv, attention, dparams,
                   accumulate);
}

void part_heads_backward(const Model& model, Shape shape, const PartOfAttention& part,
                         const PartResult& result, View heads, const AttentionOf& attention,
                         View dparams, bool accumulate) {
  backward_of_part(model, shape, part, Half::kHeads, result, heads, {}, attention, dparams,
                   accumulate);
}

void part_rows_backward(const Model& model, Shape shape, const PartOfAttention& part, View heads,
                        View dqkv, const AttentionOf& attention, View dparams) {
  backward_of_part(model, shape, part, Half::kRows, {}, heads, dqkv, attention, dparams, true);
}

void part_qkv_forward(const Model& model, ConstView x, ConstView params, View q, View keys_values) {
  CHECK(q.rows == x.rows && keys_values.rows == x.rows && q.dtype == keys_values.dtype);
  const int64_t width = q.columns + keys_values.columns;
  const View packed{scratch_bytes(Slot::kPacked, x.rows * width * size_of(q.dtype)), q.dtype,
                    x.rows, width};
  linear_forward(model, ModuleKind::kQkv, x, params, {}, packed);
  const auto row_bytes = [](const View& view) {
    return static_cast<size_t>(view.columns * size_of(view.dtype));
  };
  for_ranges(x.rows, by_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const std::byte* from = address(packed, row * width);
      std::memcpy(address(q, row * q.columns), from, row_bytes(q));
      std::memcpy(address(keys_values, row * keys_values.columns), from + row_bytes(q),
                  row_bytes(keys_values));
    }
  });
}

}  // namespace ballast::transformer
