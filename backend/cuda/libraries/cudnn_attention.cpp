#include "backend/cuda/libraries/cudnn_attention.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <span>
#include <utility>

#include "sim/base/error.h"

namespace ballast {

namespace {

using Point = CudnnGraph::PointOperation;

constexpr int64_t kRowDimension = 2;
constexpr int64_t kColumnDimension = 3;
constexpr int64_t kWorkspaceAlignment = 256;  // of what lies in a workspace

// Sizes of a run: batch, query heads, kv heads, length, head size.
struct Sizes {
  explicit Sizes(const AttentionPass& pass)
      : batch(pass.sequences),
        heads(pass.kv_heads * pass.group()),
        kv_heads(pass.kv_heads),
        length(pass.shape.length),
        head(pass.shape.head_size) {}
  int64_t batch, heads, kv_heads, length, head;
};

// Rows of heads side by side: of `count` heads, `stride` values from token to token.
CudnnExtent rows(const Sizes& s, int64_t count, int64_t stride) {
  return {{s.batch, count, s.length, s.head}, {s.length * stride, s.head, stride, 1}};
}

CudnnExtent transposed(CudnnExtent extent) {
  std::swap(extent.size[2], extent.size[3]);
  std::swap(extent.stride[2], extent.stride[3]);
  return extent;
}

// Scores of every query and key, and one value a query.
CudnnExtent scores(const Sizes& s) {
  const int64_t square = s.length * s.length;
  return {{s.batch, s.heads, s.length, s.length}, {s.heads * square, square, s.length, 1}};
}
CudnnExtent sums(const Sizes& s, int64_t heads_of_array) {
  return {{s.batch, s.heads, s.length, 1}, {heads_of_array * s.length, s.length, 1, 1}};
}
// Gradients of every query head, dense.
CudnnExtent all_heads(const Sizes& s) {
  const int64_t square = s.length * s.head;
  return {{s.batch, s.heads, s.length, s.head}, {s.heads * square, square, s.head, 1}};
}

cudnn::Type type_of(kernels::Format format) {
  return format == kernels::Format::kBf16 ? cudnn::kBfloat16 : cudnn::kHalf;
}

}  // namespace

// Which tensor of a graph is which array; -1: none.
struct CudnnPlaces {
  int64_t q = -1, k = -1, v = -1, out = -1, log_sum_exp = -1, dout = -1;
  int64_t dq = -1, dk = -1, dv = -1;
  int64_t row_sums = -1;  // of dout * out, in the workspace
  int64_t scale = -1, lowest = -1, one = -1;
};

namespace {

struct Built {
  CudnnGraph graph;
  CudnnPlaces places;
};

// What both directions begin with.
class Attention {
 public:
  Attention(const CudnnFunctions& functions, const AttentionPass& pass)
      : pass_(pass), s_(pass), type_(type_of(pass.format)), built_{CudnnGraph(functions), {}} {
    CudnnGraph& graph = built_.graph;
    CudnnPlaces& at = built_.places;
    const int64_t width = pass.shape.width();
    const int64_t out_width = pass.shape.heads * pass.shape.head_size;
    at.q = graph.memory(type_, rows(s_, s_.heads, pass.query_stride));
    at.k = graph.memory(type_, transposed(rows(s_, s_.kv_heads, pass.query_stride)));
    const bool forward = pass.direction == AttentionDirection::kForward;
    const CudnnExtent v = rows(s_, s_.kv_heads, width);
    at.v = graph.memory(type_, forward ? v : transposed(v));
    at.out = graph.memory(type_, rows(s_, s_.heads, out_width));
    at.log_sum_exp = graph.memory(cudnn::kFloat, sums(s_, pass.shape.heads));
    at.scale = graph.scalar();
    at.lowest = graph.scalar();
    if (forward) return;
    at.dout = graph.memory(type_, rows(s_, s_.heads, out_width));
    at.dq = graph.memory(type_, rows(s_, s_.heads, width));
    at.dk = graph.memory(type_, rows(s_, s_.kv_heads, width));
    at.dv = graph.memory(type_, rows(s_, s_.kv_heads, width));
    at.one = graph.scalar();
    at.row_sums = graph.memory(cudnn::kFloat, sums(s_, s_.heads));
  }

  Built forward() && {
    const CudnnPlaces& at = built_.places;
    const int64_t seen = masked(scaled(product(at.q, at.k)));
    const int64_t highest = between(sums(s_, s_.heads));
    built_.graph.reduce({cudnn::kMaximum, seen, highest});
    const int64_t p = point(cudnn::kExp, point(cudnn::kSubtract, seen, highest));
    const int64_t sum = between(sums(s_, s_.heads));
    built_.graph.reduce({cudnn::kSum, p, sum});
    const int64_t log = between(sums(s_, s_.heads));
    built_.graph.point(Point{.mode = cudnn::kLog, .out = log, .x = sum});
    built_.graph.point(Point{.mode = cudnn::kAdd, .out = at.log_sum_exp, .x = highest, .b = log});
    const int64_t normed = built_.graph.between(type_, scores(s_));
    built_.graph.point(Point{.mode = cudnn::kDivide, .out = normed, .x = p, .b = sum});
    built_.graph.multiply({normed, at.v, at.out});
    return std::move(built_);
  }

  Built backward() && {
    const CudnnPlaces& at = built_.places;
    fold_out();
    const int64_t s = scaled(product(at.q, at.k));
    const int64_t p = point(cudnn::kExp, masked(point(cudnn::kSubtract, s, at.log_sum_exp)));
    multiply_for_keys(p, at.dout, at.dv);
    const int64_t dp = point(cudnn::kSubtract, product(at.dout, at.v), at.row_sums);
    const int64_t ds = scaled(point(cudnn::kMultiply, dp, p));
    multiply_for_keys(ds, at.q, at.dk);
    const int64_t k_again =
        built_.graph.between(cudnn::kFloat, rows(s_, s_.kv_heads, pass_.query_stride));
    built_.graph.reshape({at.k, k_again});
    built_.graph.multiply({ds, k_again, at.dq});
    return std::move(built_);
  }

 private:
  int64_t between(const CudnnExtent& extent) { return built_.graph.between(cudnn::kFloat, extent); }
  int64_t product(int64_t a, int64_t b) {
    const int64_t out = between(scores(s_));
    built_.graph.multiply({a, b, out});
    return out;
  }
  int64_t point(cudnn::Pointwise mode, int64_t x, std::optional<int64_t> b = {}) {
    const int64_t out = between(scores(s_));
    built_.graph.point(Point{.mode = mode, .out = out, .x = x, .b = b});
    return out;
  }
  int64_t scaled(int64_t x) { return point(cudnn::kMultiply, x, built_.places.scale); }

  // Where the key is not later than the query.
  int64_t masked(int64_t x) {
    const auto index = [&](int64_t dimension) {
      const int64_t out = built_.graph.between(cudnn::kInt32, scores(s_));
      built_.graph.point(Point{.mode = cudnn::kIndex, .out = out, .x = x, .axis = dimension});
      return out;
    };
    const int64_t query = index(kRowDimension);
    const int64_t key = index(kColumnDimension);
    const int64_t seen = built_.graph.between(cudnn::kBoolean, scores(s_));
    built_.graph.point(Point{
        .mode = cudnn::kAtLeast, .out = seen, .x = query, .b = key, .precision = cudnn::kBoolean});
    const int64_t out = between(scores(s_));
    built_.graph.point(
        Point{.mode = cudnn::kSelect, .out = out, .x = x, .b = built_.places.lowest, .t = seen});
    return out;
  }

  // row_sums = rowsum(dout out). The library wants a product by a scalar at its end, which a
  // dropout would need.
  void fold_out() {
    const CudnnPlaces& at = built_.places;
    const int64_t square = s_.length * s_.head;
    const int64_t products = between({{s_.batch, s_.heads, s_.length, s_.head},
                                      {s_.heads * square, square, s_.heads * s_.head, 1}});
    built_.graph.point(Point{.mode = cudnn::kMultiply, .out = products, .x = at.dout, .b = at.out});
    const int64_t folded = between(sums(s_, s_.heads));
    built_.graph.reduce({cudnn::kSum, products, folded});
    built_.graph.point(
        Point{.mode = cudnn::kMultiply, .out = at.row_sums, .x = folded, .b = at.one});
  }

  // out = of_scores^T by, summed over the query heads that share a head.
  void multiply_for_keys(int64_t of_scores, int64_t by, int64_t out) {
    const int64_t turned = built_.graph.between(type_, transposed_scores());
    built_.graph.reshape({of_scores, turned});
    if (s_.heads == s_.kv_heads) return built_.graph.multiply({turned, by, out});
    const int64_t all = built_.graph.between(type_, all_heads(s_));
    built_.graph.multiply({turned, by, all});
    built_.graph.reduce({cudnn::kSum, all, out});
  }
  CudnnExtent transposed_scores() const { return transposed(scores(s_)); }

  AttentionPass pass_;
  Sizes s_;
  cudnn::Type type_;
  Built built_;
};

Bytes row_sums_of(const AttentionPass& pass) {
  if (pass.direction == AttentionDirection::kForward) return {};
  const Sizes s(pass);
  const int64_t bytes = s.batch * s.heads * s.length * static_cast<int64_t>(sizeof(float));
  return {div_ceil(bytes, kWorkspaceAlignment) * kWorkspaceAlignment};
}

std::string text_of(const AttentionPass& pass) {
  return fmt::format("attention {} of {} sequences of {}, {} of {} heads ({} kv) of {}",
                     pass.direction == AttentionDirection::kForward ? "forward" : "backward",
                     pass.sequences, pass.shape.length, pass.kv_heads * pass.group(),
                     pass.shape.heads, pass.shape.kv_heads, pass.shape.head_size);
}

}  // namespace

struct CudnnAttention::Prepared {
  AttentionPass pass;
  CudnnPlaces places;
  std::optional<CudnnPlan> plan;
  std::string refusal;
};

CudnnAttention::CudnnAttention(const CudnnFunctions& functions) : functions_(functions) {
  check_cudnn(functions_, functions_.create(&handle_), "start");
}

CudnnAttention::CudnnAttention(const CudnnFunctions& functions, const std::string& device)
    : functions_(functions),
      device_(std::make_unique<CudnnDescriptor>(functions_, cudnn::kDeviceProperties)) {
  device_->set(cudnn::kDeviceText, cudnn::kCharElement, std::span<const char>(device));
  device_->finalize();
}

CudnnAttention::~CudnnAttention() {
  prepared_.clear();
  if (handle_ != nullptr) functions_.destroy(handle_);
}

std::string CudnnAttention::name() const {
  const size_t version = functions_.version();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

const CudnnAttention::Prepared& CudnnAttention::prepared(const AttentionPass& pass) {
  const auto at = std::find_if(prepared_.begin(), prepared_.end(),
                               [&](const auto& each) { return each->pass == pass; });
  if (at != prepared_.end()) return **at;
  Prepared& made = *prepared_.emplace_back(std::make_unique<Prepared>());
  made.pass = pass;
  try {
    const bool forward = pass.direction == AttentionDirection::kForward;
    Attention attention(functions_, pass);
    Built built = forward ? std::move(attention).forward() : std::move(attention).backward();
    made.places = built.places;
    made.plan.emplace(built.graph.plan({handle_, device_.get()}));
  } catch (const Error& error) {
    made.refusal = error.what();
  }
  return made;
}

std::optional<Bytes> CudnnAttention::workspace(const AttentionPass& pass) {
  const Prepared& found = prepared(pass);
  if (!found.plan) return {};
  return row_sums_of(pass) + found.plan->workspace();
}

std::string CudnnAttention::refusal(const AttentionPass& pass) const {
  const auto at = std::find_if(prepared_.begin(), prepared_.end(),
                               [&](const auto& each) { return each->pass == pass; });
  CHECK(at != prepared_.end());
  return (*at)->refusal;
}

void CudnnAttention::run(const AttentionPass& pass, const AttentionArrays& arrays,
                         CudaStream stream) {
  const Prepared& found = prepared(pass);
  CHECK(found.plan && handle_ != nullptr);
  float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(pass.shape.head_size)));
  float lowest = -std::numeric_limits<float>::infinity();
  float one = 1;
  const auto bound = [](const void* address) { return const_cast<void*>(address); };
  const CudnnPlaces& at = found.places;
  const std::array all{CudnnBinding{at.q, bound(arrays.q)},
                       CudnnBinding{at.k, bound(arrays.k)},
                       CudnnBinding{at.v, bound(arrays.v)},
                       CudnnBinding{at.out, arrays.out},
                       CudnnBinding{at.log_sum_exp, arrays.log_sum_exp},
                       CudnnBinding{at.scale, &scale},
                       CudnnBinding{at.lowest, &lowest},
                       CudnnBinding{at.dout, bound(arrays.dout)},
                       CudnnBinding{at.dq, arrays.dq},
                       CudnnBinding{at.dk, arrays.dk},
                       CudnnBinding{at.dv, arrays.dv},
                       CudnnBinding{at.row_sums, arrays.workspace},
                       CudnnBinding{at.one, &one}};
  // The forward knows only the first seven.
  const size_t count = at.dout < 0 ? 7 : all.size();
  const std::string attempt = fmt::format("{} on stream {}", text_of(pass), stream.name);
  check_cudnn(functions_, functions_.set_stream(handle_, stream.native), attempt);
  found.plan->run({handle_, arrays.workspace + row_sums_of(pass).count, attempt},
                  std::span(all).first(count));
}

OpenedAttention open_cudnn_attention() {
  const std::string name = cudnn_library_name();
  if (name == "none") return {};
  const std::optional<CudnnFunctions> functions = load_cudnn(name);
  if (!functions) {
    const std::string why = why_no_cudnn(name);
    return {nullptr, why.empty() ? name + " lacks functions of cuDNN 9" : why};
  }
  try {
    return {std::make_unique<CudnnAttention>(*functions), ""};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

}  // namespace ballast
