// Attention: what is to be done before and beside the products, and by which path.
//
// Bound of rotation and delta: bytes, each read and written once.

#include <cmath>

#include "kernels/cuda/attention_task.h"
#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// --- Kernels -----------------------------------------------------------------------------------

// q and k of packed rows of `from_width` values to rows of `to_width`, which may be the same.
struct Turn {
  AttentionShape shape;
  const void* from = nullptr;
  int64_t from_width = 0;
  const float* rope = nullptr;
  int64_t rope_positions = 0;
  void* to = nullptr;
  int64_t to_width = 0;
  float direction = 1.0f;  // -1: back
};

// Block x: token x, whose threads turn kCount pairs (x[i], x[i + D/2]) of a head at a time.
template <Format kFormat, int kCount>
__global__ void __launch_bounds__(kThreads) rotate_kernel(Turn d) {
  const int half = static_cast<int>(d.shape.head_size) / 2;
  const int heads = static_cast<int>(d.shape.heads + d.shape.kv_heads);
  const int64_t token = blockIdx.x;
  const float* of_token = d.rope + token % d.shape.length * half;
  for (int pair = static_cast<int>(threadIdx.x) * kCount; pair < heads * half;
       pair += kThreads * kCount) {
    const int i = pair % half, at = pair / half * 2 * half + i;
    const int64_t from = token * d.from_width + at;
    const int64_t to = token * d.to_width + at;
    const float* cosines = of_token + i;
    const float* sines = cosines + d.rope_positions * half;
    float x[kCount], y[kCount];
    load<kFormat>(d.from, from, x);
    load<kFormat>(d.from, from + half, y);
    for (int k = 0; k < kCount; ++k) {
      const float sine = d.direction * sines[k];
      const float turned = fmaf(-y[k], sine, x[k] * cosines[k]);
      y[k] = fmaf(x[k], sine, y[k] * cosines[k]);
      x[k] = turned;
    }
    store<kFormat>(d.to, to, x);
    store<kFormat>(d.to, to + half, y);
  }
}

// delta [sequences * heads, length]: the sum of out * dout of each row of each head, one warp each.
template <Format kFormat>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(AttentionShape shape, const void* out, const void* dout, float* delta) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= shape.tokens() * shape.heads) return;
  const int64_t token = row / shape.heads, head = row % shape.heads;
  float sum = 0;
  for (int64_t i = lane; i < shape.head_size; i += kWarp) {
    float a[1], b[1];
    load<kFormat>(out, row * shape.head_size + i, a);
    load<kFormat>(dout, row * shape.head_size + i, b);
    sum = fmaf(a[0], b[0], sum);
  }
  sum = sum_of_warp(sum);
  const int64_t sequence = token / shape.length, position = token % shape.length;
  if (lane == 0) delta[(sequence * shape.heads + head) * shape.length + position] = sum;
}

// --- Launchers ---------------------------------------------------------------------------------

Status turn(const Turn& d, Format format, Stream stream) {
  const int64_t half = d.shape.head_size / 2;
  const bool wide = half % kWide == 0 && is_wide(d.from) && is_wide(d.to);
  const Grid grid{.x = d.shape.tokens(), .threads = kThreads};
  return with_format(format, [&](auto tag) {
    constexpr Format kFormat = decltype(tag)::kValue;
    const auto kernel = wide ? rotate_kernel<kFormat, kWide> : rotate_kernel<kFormat, 1>;
    return launch("rope", kernel, grid, stream, d);
  });
}

bool can_turn(const AttentionShape& shape, const float* rope) {
  return rope != nullptr && shape.head_size % 2 == 0;
}

int64_t rotated_bytes(const AttentionShape& shape, Format format) {
  const int64_t values = shape.tokens() * (shape.heads + shape.kv_heads) * shape.head_size;
  return scratch_bytes_of(values * bytes_of(format));
}

// q, k and v of packed rows; q and k from `rotated`, if not null.
AttentionTask task_of(const AttentionShape& shape, const ConstArray& qkv, const void* rotated) {
  AttentionTask task;
  task.shape = shape;
  task.format = qkv.format;
  task.score_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_size)));
  const auto at = [&](const void* base, int64_t head) -> const void* {
    return static_cast<const char*>(base) + head * shape.head_size * bytes_of(qkv.format);
  };
  const void* base = rotated == nullptr ? qkv.data : rotated;
  const int64_t stride =
      rotated == nullptr ? shape.width() : (shape.heads + shape.kv_heads) * shape.head_size;
  task.q = {at(base, 0), stride};
  task.k = {at(base, shape.heads), stride};
  task.v = {at(qkv.data, shape.heads + shape.kv_heads), shape.width()};
  return task;
}

bool has_tensor_core_shape(const AttentionShape& shape, Format format) {
  const int64_t size = shape.head_size;
  return format != Format::kF32 && (size == 64 || size == 80 || size == 96 || size == 128);
}

AttentionPath chosen(AttentionPath wanted, const AttentionShape& shape, Format format,
                     bool aligned) {
  if (wanted != AttentionPath::kFastest) return wanted;
  return aligned && has_tensor_core_shape(shape, format) ? AttentionPath::kTensorCores
                                                         : AttentionPath::kPlain;
}

// What no path can do: a programming error of the caller, said as a failed launch.
bool is_valid(const AttentionShape& shape, Format format, AttentionPath path, const float* rope) {
  return shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_size > 0 &&
         shape.head_size <= kHeadSizeMax && (rope == nullptr || shape.head_size % 2 == 0) &&
         (path == AttentionPath::kPlain || has_tensor_core_shape(shape, format));
}

}  // namespace

AttentionPath fastest_path(const AttentionShape& shape, Format format) {
  return chosen(AttentionPath::kFastest, shape, format, true);
}

void fill_rope_table(const RopeTable& d, float* table) {
  const int64_t half = d.head_size / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(2 * half);
    const double rate = std::pow(d.theta, exponent);
    for (int64_t position = 0; position < d.positions; ++position) {
      const double angle = static_cast<double>(position) * rate;
      table[position * half + i] = static_cast<float>(std::cos(angle));
      table[(d.positions + position) * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

Status rotate(const Rotation& d, Stream stream) {
  if (d.shape.tokens() == 0) return {};
  if (!can_turn(d.shape, d.rope)) return invalid("rotate");
  Turn there;
  there.shape = d.shape;
  there.from = d.qkv.data;
  there.from_width = d.shape.width();
  there.rope = d.rope;
  there.rope_positions = d.rope_positions;
  there.to = d.to;
  there.to_width = (d.shape.heads + d.shape.kv_heads) * d.shape.head_size;
  return turn(there, d.qkv.format, stream);
}

Status rotate_back(const RotationBack& d, Stream stream) {
  if (d.shape.tokens() == 0) return {};
  if (!can_turn(d.shape, d.rope)) return invalid("rotate_back");
  Turn back;
  back.shape = d.shape;
  back.from = back.to = d.dqkv.data;
  back.from_width = back.to_width = d.shape.width();
  back.rope = d.rope;
  back.rope_positions = d.rope_positions;
  back.direction = -1.0f;
  return turn(back, d.dqkv.format, stream);
}

int64_t attention_forward_scratch_bytes(const AttentionForward& d) {
  return d.rope == nullptr ? 0 : rotated_bytes(d.shape, d.qkv.format);
}

Status attention_forward(const AttentionForward& d, Stream stream) {
  const bool aligned =
      is_wide(d.qkv.data) && is_wide(d.out.data) && (d.rope == nullptr || is_wide(d.scratch));
  const AttentionPath path = chosen(d.path, d.shape, d.qkv.format, aligned);
  if (d.shape.tokens() == 0) return {};
  if (!is_valid(d.shape, d.qkv.format, path, d.rope)) return invalid("attention_forward");
  if (d.rope != nullptr) {
    BALLAST_CUDA_TRY(rotate({d.shape, d.qkv, d.rope, d.rope_positions, d.scratch}, stream));
  }
  AttentionTask task = task_of(d.shape, d.qkv, d.rope == nullptr ? nullptr : d.scratch);
  task.out = {d.out.data, d.shape.heads * d.shape.head_size};
  task.log_sum_exp = d.log_sum_exp;
  return path == AttentionPath::kPlain ? plain_forward(task, stream) : flash_forward(task, stream);
}

int64_t attention_backward_scratch_bytes(const AttentionBackward& d) {
  return scratch_bytes_of(d.shape.tokens() * d.shape.heads * 4) +
         (d.rope == nullptr ? 0 : rotated_bytes(d.shape, d.qkv.format));
}

Status attention_backward(const AttentionBackward& d, Stream stream) {
  const AttentionShape& shape = d.shape;
  const Format format = d.qkv.format;
  const bool aligned = is_wide(d.qkv.data) && is_wide(d.dout.data) && is_wide(d.dqkv.data) &&
                       (d.rope == nullptr || is_wide(d.scratch));
  const AttentionPath path = chosen(d.path, shape, format, aligned);
  if (shape.tokens() == 0) return {};
  if (!is_valid(shape, format, path, d.rope)) return invalid("attention_backward");
  auto* delta = static_cast<float*>(d.scratch);
  void* rotated =
      static_cast<char*>(d.scratch) + scratch_bytes_of(shape.tokens() * shape.heads * 4);
  if (d.rope != nullptr) {
    BALLAST_CUDA_TRY(rotate({shape, d.qkv, d.rope, d.rope_positions, rotated}, stream));
  }
  const Grid grid{.x = div_up(shape.tokens() * shape.heads, kThreads / kWarp), .threads = kThreads};
  BALLAST_CUDA_TRY(with_format(format, [&](auto tag) {
    return launch("attention_delta", delta_kernel<decltype(tag)::kValue>, grid, stream, shape,
                  d.out.data, d.dout.data, delta);
  }));
  AttentionTask task = task_of(shape, d.qkv, d.rope == nullptr ? nullptr : rotated);
  task.log_sum_exp = const_cast<float*>(d.log_sum_exp);  // backward only reads it
  task.dout = {d.dout.data, shape.heads * shape.head_size};
  task.delta = delta;
  task.rope = d.rope;
  task.rope_positions = d.rope_positions;
  const auto at = [&](int64_t head) -> HeadRowsOut {
    return {static_cast<char*>(d.dqkv.data) + head * shape.head_size * bytes_of(format),
            shape.width()};
  };
  task.dq = at(0), task.dk = at(shape.heads), task.dv = at(shape.heads + shape.kv_heads);
  return path == AttentionPath::kPlain ? plain_backward(task, stream)
                                       : flash_backward(task, stream);
}

}  // namespace ballast::kernels::cuda
