// A library whose attention is four loops, in double, over a slice of a batch: from the pointers
// and strides of a pass alone, as a real one works. Its backward asks for 2 bytes a score as
// workspace.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/libraries/attention_library.h"
#include "kernels/kernels.h"

namespace ballast::tests {

struct AttentionRuns {
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t asked = 0;  // for a workspace
  bool refuses = false;
};

class PlainAttention : public AttentionLibrary {
 public:
  explicit PlainAttention(std::shared_ptr<AttentionRuns> runs) : runs_(std::move(runs)) {}

  std::string name() const override { return "plain"; }
  std::optional<Bytes> workspace(const AttentionPass& pass) override {
    ++runs_->asked;
    if (runs_->refuses) return {};
    if (pass.direction == AttentionDirection::kForward) return Bytes{};
    return Bytes{2 * pass.sequences * pass.kv_heads * pass.group() * pass.shape.length *
                 pass.shape.length};
  }
  std::string refusal(const AttentionPass&) const override { return "it has no kernel"; }
  void run(const AttentionPass& pass, const AttentionArrays& arrays, CudaStream) override {
    const bool forward = pass.direction == AttentionDirection::kForward;
    ++(forward ? runs_->forward : runs_->backward);
    for (int64_t sequence = 0; sequence < pass.sequences; ++sequence) {
      for (int64_t kv = 0; kv < pass.kv_heads; ++kv) {
        const Rows rows(pass, sequence, kv);
        forward ? forward_heads(rows, arrays) : backward_heads(rows, arrays);
      }
    }
  }

 private:
  // Where the rows of a kv head's values lie, of `token` and query head `head` of its group.
  struct Rows {
    Rows(const AttentionPass& attention, int64_t s, int64_t h)
        : pass(attention), sequence(s), kv(h) {}
    int64_t token(int64_t i) const { return sequence * pass.shape.length + i; }
    int64_t of_query(int64_t i, int64_t head) const {
      return token(i) * pass.query_stride + query_head(head) * size();
    }
    int64_t of_key(int64_t i) const { return token(i) * pass.query_stride + kv * size(); }
    int64_t of_value(int64_t i) const { return token(i) * pass.shape.width() + kv * size(); }
    int64_t of_query_gradient(int64_t i, int64_t head) const {
      return token(i) * pass.shape.width() + query_head(head) * size();
    }
    int64_t of_out(int64_t i, int64_t head) const {
      return token(i) * pass.shape.heads * size() + query_head(head) * size();
    }
    int64_t of_sum(int64_t i, int64_t head) const {
      return (sequence * pass.shape.heads + query_head(head)) * pass.shape.length + i;
    }
    int64_t query_head(int64_t head) const { return kv * pass.group() + head; }
    int64_t size() const { return pass.shape.head_size; }
    int64_t length() const { return pass.shape.length; }
    double scale() const { return 1 / std::sqrt(static_cast<double>(size())); }
    const AttentionPass& pass;
    int64_t sequence, kv;
  };

  using Row = std::vector<double>;
  static Row read(const Rows& rows, const void* base, int64_t at) {
    std::vector<float> values(static_cast<size_t>(rows.size()));
    const kernels::Format format = rows.pass.format;
    kernels::reference().cast(static_cast<const std::byte*>(base) + at * bytes_of(format), format,
                              values.data(), kernels::Format::kF32, rows.size());
    return {values.begin(), values.end()};
  }
  static void write(const Rows& rows, void* base, int64_t at, const Row& row) {
    const std::vector<float> values(row.begin(), row.end());
    const kernels::Format format = rows.pass.format;
    kernels::reference().cast(values.data(), kernels::Format::kF32,
                              static_cast<std::byte*>(base) + at * bytes_of(format), format,
                              rows.size());
  }
  static double dot(const Row& a, const Row& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }
  static void add(Row& to, double factor, const Row& row) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += factor * row[i];
  }
  Row empty(const Rows& rows) const { return Row(static_cast<size_t>(rows.size())); }

  void forward_heads(const Rows& rows, const AttentionArrays& arrays) const {
    for (int64_t head = 0; head < rows.pass.group(); ++head) {
      for (int64_t i = 0; i < rows.length(); ++i) {
        const Row q = read(rows, arrays.q, rows.of_query(i, head));
        Row scores;
        double highest = -INFINITY;
        for (int64_t j = 0; j <= i; ++j) {
          scores.push_back(dot(q, read(rows, arrays.k, rows.of_key(j))) * rows.scale());
          highest = std::max(highest, scores.back());
        }
        double sum = 0;
        Row out = empty(rows);
        for (int64_t j = 0; j <= i; ++j) {
          const double p = std::exp(scores[static_cast<size_t>(j)] - highest);
          sum += p;
          add(out, p, read(rows, arrays.v, rows.of_value(j)));
        }
        for (double& value : out) value /= sum;
        write(rows, arrays.out, rows.of_out(i, head), out);
        arrays.log_sum_exp[rows.of_sum(i, head)] = static_cast<float>(highest + std::log(sum));
      }
    }
  }

  void backward_heads(const Rows& rows, const AttentionArrays& arrays) const {
    std::vector<Row> dk, dv;
    for (int64_t j = 0; j < rows.length(); ++j) {
      dk.push_back(empty(rows));
      dv.push_back(empty(rows));
    }
    for (int64_t head = 0; head < rows.pass.group(); ++head) {
      for (int64_t i = 0; i < rows.length(); ++i) {
        const Row q = read(rows, arrays.q, rows.of_query(i, head));
        const Row dout = read(rows, arrays.dout, rows.of_out(i, head));
        const double delta = dot(dout, read(rows, arrays.out, rows.of_out(i, head)));
        const double log_sum = arrays.log_sum_exp[rows.of_sum(i, head)];
        Row dq = empty(rows);
        for (int64_t j = 0; j <= i; ++j) {
          const Row k = read(rows, arrays.k, rows.of_key(j));
          const Row v = read(rows, arrays.v, rows.of_value(j));
          const double p = std::exp(dot(q, k) * rows.scale() - log_sum);
          const double ds = p * (dot(dout, v) - delta) * rows.scale();
          add(dv[static_cast<size_t>(j)], p, dout);
          add(dk[static_cast<size_t>(j)], ds, q);
          add(dq, ds, k);
        }
        write(rows, arrays.dq, rows.of_query_gradient(i, head), dq);
      }
    }
    for (int64_t j = 0; j < rows.length(); ++j) {
      write(rows, arrays.dk, rows.of_value(j), dk[static_cast<size_t>(j)]);
      write(rows, arrays.dv, rows.of_value(j), dv[static_cast<size_t>(j)]);
    }
  }

  std::shared_ptr<AttentionRuns> runs_;
};

}  // namespace ballast::tests
