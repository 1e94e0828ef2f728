// The CPU kernels of the optimizer's path and of a training's start, behind one table of functions
// chosen once.
//
// Includes nothing of ours, owns no memory, starts no thread: callers cut the work and pin the
// threads (threads.h does it for whole buckets). Every implementation gives the same bits as
// `reference`: same operations in the same order, fused multiply-add wherever fma() is written
// there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ballast::kernels {

// Storage formats. f16 is IEEE binary16, bf16 is bfloat16; both round to nearest even.
enum class Format : uint8_t { kF32, kBf16, kF16 };

constexpr int64_t bytes_of(Format format) { return format == Format::kF32 ? 4 : 2; }

// Constants of one AdamW step (Loshchilov & Hutter, arXiv 1711.05101, Alg. 2; Kingma & Ba,
// arXiv 1412.6980, Alg. 1), computed once outside the loop.
struct AdamConstants {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float learning_rate = 1e-3f;
  float weight_decay = 0.0f;      // decoupled: w -= learning_rate * weight_decay * w
  float bias_correction1 = 1.0f;  // 1 / (1 - beta1^t)
  float bias_correction2 = 1.0f;  // 1 / sqrt(1 - beta2^t)
  float gradient_scale = 1.0f;    // folds loss scale and clipping: g = gradient_scale * gradient
};

// One contiguous run of n parameters. master, moment1, moment2: f32, read and written in place.
// gradient: n values of gradient_format, read. weights: n values of weights_format, written with
// the rounded new master, or null. No two arrays overlap. No alignment beyond that of one value.
struct AdamArrays {
  float* master = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  const void* gradient = nullptr;
  Format gradient_format = Format::kF32;
  void* weights = nullptr;
  Format weights_format = Format::kBf16;
  int64_t count = 0;
};

// The run of `count` parameters of arrays that begins at parameter `begin`.
AdamArrays slice(const AdamArrays& arrays, int64_t begin, int64_t count);

// Elements of one block of the gradient norm. Sums of squares are taken block by block in this
// fixed size, so that the norm does not depend on buckets or threads.
inline constexpr int64_t kNormBlock = 65536;

// The order within a block: lane j adds the squares of the values j, j + 128, j + 256, ... one
// after the other; then the lanes are added in halves, lane j to lane j + 64, + 32, ... + 1. So
// many, because a GPU needs that many sums under way at once: of 16 lanes the 4,096 dependent
// additions took an H100 twenty times as long as reading the values.
inline constexpr int64_t kNormLanes = 128;

// Parameters of a tile of an undo record: its 28 bytes a parameter fit the second cache.
inline constexpr int64_t kUndoTile = 4096;

// Most bytes that one parameter can take in the escapes of an undo record.
inline constexpr int64_t kUndoEscapeBytesMax = 14;

struct Table {
  std::string_view name;  // reference, avx2, avx512, sve

  // One AdamW step over the run. For each parameter, every line rounded once:
  //   g  = gradient_scale * gradient         a parameter whose g is Inf or NaN is left as it is
  //   m' = fma(beta1, m, (1 - beta1) * g)
  //   v' = fma(beta2, v, ((1 - beta2) * g) * g)
  //   u  = (bias_correction1 * m') / fma(sqrt(v'), bias_correction2, epsilon)
  //   w' = w - learning_rate * fma(weight_decay, w, u)
  void (*adam_step)(const AdamArrays&, const AdamConstants&);

  // Sum of squares of count <= kNormBlock values, in double, in a fixed order. It is not finite
  // if and only if some value is not.
  double (*sum_of_squares)(const void* values, Format format, int64_t count);

  // dst[i] = dst_format(src[i]); any pair of formats; src and dst do not overlap.
  void (*cast)(const void* src, Format src_format, void* dst, Format dst_format, int64_t count);

  // adam_step, which also writes what adam_undo needs: one byte a parameter to codes, and rare
  // escapes, of which there is room for count * kUndoEscapeBytesMax bytes. ends[k] receives where
  // those of the k-th kUndoTile parameters end, in bytes from `escapes`; the last tile may be
  // shorter. undo.h keeps such records for whole buckets.
  void (*adam_step_with_undo)(const AdamArrays&, const AdamConstants&, uint8_t* codes,
                              uint8_t* escapes, int64_t* ends);

  // Restores master and both moments of before the step bit for bit, whatever they were, from the
  // same gradient, the same constants and the record, written by the same table. weights, if not
  // null, receives the rounded restored master.
  void (*adam_undo)(const AdamArrays&, const AdamConstants&, const uint8_t* codes,
                    const uint8_t* escapes);

  // values[i] = format(factor * values[i]).
  void (*scale)(void* values, Format format, float factor, int64_t count);

  // out[i] = deviation * the normal deviate number first + i of the key's sequence, a function of
  // these numbers alone (normal_deviates.h). first >= 0 is a multiple of 4: a counter gives four.
  void (*normals)(uint64_t key, double deviation, int64_t first, float* out, int64_t count);

  // Copies bytes with stores that do not pass through the caches; no overlap.
  void (*copy_streaming)(const void* src, void* dst, int64_t bytes);
};

const Table& reference();
// The fastest table that this machine can run.
const Table& best();
// By name, or null where this machine cannot run it or the name is unknown.
const Table* find(std::string_view name);
// All tables that this machine can run, slowest (reference) first.
std::span<const Table* const> available();

}  // namespace ballast::kernels
