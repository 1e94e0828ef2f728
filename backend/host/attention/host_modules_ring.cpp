// Attention of a ring of two ranks, each with one or two pieces of every sequence
// (Plan::context_balance): its queries see keys and values of all pieces before theirs, of either
// rank.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/host/host_modules.h"
#include "backend/host/module_views.h"

namespace ballast {

namespace {

using transformer::View;

// Queries, or keys and values, of all tokens of a micro-batch: columns of the rows of qkv.
std::vector<std::byte> columns_of(const Argument& qkv, int64_t width, int64_t first,
                                  int64_t columns) {
  const int64_t bytes = columns * size_of(qkv.tensor->dtype);
  const int64_t tokens = qkv.tensor->elements / width;
  std::vector<std::byte> result(static_cast<size_t>(tokens * bytes));
  for (int64_t token = 0; token < tokens; ++token) {
    std::memcpy(result.data() + token * bytes, element(qkv, token * width + first),
                static_cast<size_t>(bytes));
  }
  return result;
}

// Some rows of a view.
View rows_of(const View& all, int64_t first, int64_t rows) {
  auto* const data = static_cast<std::byte*>(all.data);
  return {data + first * all.columns * size_of(all.dtype), all.dtype, rows, all.columns};
}

}  // namespace

class HostModules::Ring {
 public:
  Ring(const HostModules& modules, const Call& call)
      : modules_(modules),
        model_(modules.model_),
        call_(call),
        qkv_(call.find(Role::kInput)),
        sequences_(*modules.plan_.micro_batch),
        tokens_(modules.plan_.tokens_per_micro_batch()),
        pair_(model_.qkv_width() - model_.heads * model_.head_size),
        queries_(columns_of(qkv_, model_.qkv_width(), 0, model_.qkv_width() - pair_)),
        pairs_(columns_of(qkv_, model_.qkv_width(), model_.qkv_width() - pair_, pair_)),
        others_(const_cast<std::byte*>(modules.exchanges_->arrived(call.op))) {
    const int64_t own = modules.place_.context;
    const Subsequence whole{0, modules.plan_.sequence_length};
    for (const int64_t rank : {int64_t{0}, int64_t{1}}) {
      for (const Subsequence& tokens : ring_pieces(modules.plan_, whole, rank)) {
        const bool follows = !pieces_.empty() && pieces_.back().is_own == (rank == own);
        pieces_.push_back({tokens, rank == own, follows ? pieces_.back().index + 1 : 0});
      }
    }
    std::sort(pieces_.begin(), pieces_.end(),
              [](const Piece& a, const Piece& b) { return a.tokens.begin < b.tokens.begin; });
  }

  void forward() const {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (!pieces_[i].is_own) continue;
      for (int64_t sequence = 0; sequence < sequences_; ++sequence) {
        const transformer::PartOfAttention part = part_of(i, sequence);
        transformer::part_attention_forward(model_, shape_of(i), part.q, part.keys_values,
                                            output(i, sequence), statistics(i, sequence),
                                            attention());
      }
    }
  }

  // Both ranks find what their queries have for all keys and values, side by side; then each gives
  // the other's to it, and what is its own is complete. Only of a zigzag do both see the other's.
  void backward(View gradient) {
    own_.assign(static_cast<size_t>(tokens_ * pair_), 0.0F);
    given_ = own_;
    heads_.assign(static_cast<size_t>(tokens_ * model_.qkv_width()), 0.0F);
    for_own([&](size_t i) { heads_backward(i, gradient); });
    for (const int64_t from : {int64_t{0}, int64_t{1}}) {
      const bool is_zigzag = modules_.plan_.context_balance == ContextBalance::kZigzag;
      if (from == 1 || is_zigzag) hand_over(from);
    }
    for_own([&](size_t i) { rows_backward(i, gradient); });
  }

 private:
  // A piece of the sequences that some rank has as its `index`-th.
  struct Piece {
    Subsequence tokens;
    bool is_own = false;
    int64_t index = 0;
  };

  // The first row of a piece among those of its rank.
  int64_t row_of(const Piece& piece, int64_t sequence) const {
    return sequence * tokens_ / sequences_ + piece.index * piece.tokens.length;
  }
  View rows(View all, size_t i, int64_t sequence) const {
    return rows_of(all, row_of(pieces_[i], sequence), pieces_[i].tokens.length);
  }
  View output(size_t i, int64_t sequence) const {
    return rows(view(call_.find(Role::kOutput), tokens_, model_.attention_width()), i, sequence);
  }
  // [heads, length] of one piece after another.
  View statistics(size_t i, int64_t sequence) const {
    return part(call_.find(Role::kStatistics), row_of(pieces_[i], sequence) * model_.heads,
                model_.heads, pieces_[i].tokens.length);
  }
  transformer::AttentionOf attention() const {
    return {call_.op.label.layer, flat(call_.find(Role::kWeight))};
  }
  transformer::Shape shape_of(size_t i) const {
    const Subsequence& tokens = pieces_[i].tokens;
    return {1, tokens.length, tokens.begin, modules_.plan_.sequence_length};
  }
  View floats(std::vector<float>& sums) const { return {sums.data(), DType::kF32, tokens_, pair_}; }

  // Queries of a piece of this rank, keys and values of all pieces up to it.
  transformer::PartOfAttention part_of(size_t i, int64_t sequence) const {
    const DType dtype = qkv_.tensor->dtype;
    transformer::PartOfAttention part;
    const View queries{const_cast<std::byte*>(queries_.data()), dtype, tokens_,
                       model_.qkv_width() - pair_};
    part.q = rows(queries, i, sequence);
    for (size_t k = 0; k <= i; ++k) {
      auto* const pairs = pieces_[k].is_own ? const_cast<std::byte*>(pairs_.data()) : others_;
      part.keys_values.emplace_back(rows({pairs, dtype, tokens_, pair_}, k, sequence));
    }
    return part;
  }

  void hand_over(int64_t from) {
    if (modules_.place_.context == from) {
      modules_.exchanges_->pass_back(call_.op.lane, from, given_);
      return;
    }
    std::vector<float> taken(own_.size());
    modules_.exchanges_->pass_back(call_.op.lane, from, taken);
    for (size_t i = 0; i < taken.size(); ++i) own_[i] += taken[i];
  }

  // Pieces of this rank, latest first: they leave gradients for those before them.
  template <class Body>
  void for_own(const Body& body) const {
    for (size_t i = pieces_.size(); i-- > 0;) {
      if (pieces_[i].is_own) body(i);
    }
  }

  View heads(size_t i, int64_t sequence) {
    return rows({heads_.data(), DType::kF32, tokens_, model_.qkv_width()}, i, sequence);
  }

  // What its queries have for all keys and values that they see.
  void heads_backward(size_t i, View gradient) {
    const View dout = view(call_.find(Role::kOutputGradient), tokens_, model_.attention_width());
    for (int64_t sequence = 0; sequence < sequences_; ++sequence) {
      transformer::PartOfAttention part = part_of(i, sequence);
      for (size_t k = 0; k < i; ++k) {
        std::vector<float>& sums = pieces_[k].is_own ? own_ : given_;
        part.before.push_back({rows(floats(sums), k, sequence), true});
      }
      const transformer::PartResult result{output(i, sequence), statistics(i, sequence),
                                           rows(dout, i, sequence)};
      transformer::part_heads_backward(model_, shape_of(i), part, result, heads(i, sequence),
                                       attention(), gradient, std::exchange(wrote_, true));
    }
  }

  // What all queries of either rank have for its keys and values, to what they were made from.
  void rows_backward(size_t i, View gradient) {
    const View dqkv = view(call_.find(Role::kInputGradient), tokens_, model_.qkv_width());
    for (int64_t sequence = 0; sequence < sequences_; ++sequence) {
      transformer::PartOfAttention part = part_of(i, sequence);
      part.after = rows(floats(own_), i, sequence);
      transformer::part_rows_backward(model_, shape_of(i), part, heads(i, sequence),
                                      rows(dqkv, i, sequence), attention(), gradient);
    }
  }

  const HostModules& modules_;
  const Model& model_;
  const Call& call_;
  Argument qkv_;
  int64_t sequences_;
  int64_t tokens_;  // of this rank, of all sequences
  int64_t pair_;    // columns of a key and value
  std::vector<std::byte> queries_;
  std::vector<std::byte> pairs_;
  std::byte* others_;
  std::vector<Piece> pieces_;  // of both ranks, in the order of the sequence
  // Gradients of keys and values: of this rank's, as far as other pieces have left them, and of the
  // other rank's; [tokens_, pair_].
  std::vector<float> own_;
  std::vector<float> given_;
  std::vector<float> heads_;  // of this rank's rows as attention has them; [tokens_, qkv width]
  bool wrote_ = false;        // the gradient of the parameters
};

void HostModules::ring_attention(const Call& call) const {
  Ring ring(*this, call);
  if (forward(call.op)) return ring.forward();
  const Argument gradient = call.find(Role::kParameterGradient);
  if (sums_over_ranks() && model_.qk_norm) {
    return sum_gradient(call, gradient, [&](View to) { ring.backward(to); });
  }
  if (gradient.data == nullptr) return ring.backward({});
  std::vector<float> sums(static_cast<size_t>(gradient.tensor->elements));
  ring.backward({sums.data(), DType::kF32, 1, std::ssize(sums)});
  transformer::put_gradient(sums, flat(gradient), gradient.adds);
}

}  // namespace ballast
