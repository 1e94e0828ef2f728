// Causal attention in fp32 without tensor cores: for fp32 storage, for heads of other sizes, and as
// the reference of the flash kernels.
//
// Bound: arithmetic from shared memory, two loads a multiplication; no attempt at more. A block is
// 8 warps with a row each (queries; keys for dk and dv) of one head. Chunks of 32 rows of the other
// side pass through shared memory as fp32, where each lane works out the score of one of them and
// then every lane sums its own values of the head over the chunk.

#include "kernels/cuda/attention_task.h"
#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kThreads / kWarp;                        // of a block
constexpr int kChunk = kWarp;                                  // rows that pass by at a time
constexpr int kMost = static_cast<int>(kHeadSizeMax) / kWarp;  // values of a head in one lane

// A chunk in shared memory: kChunk rows of head_size + 1 values, so that the lanes, which read one
// row each, meet different banks.
struct ChunkRows {
  float* values = nullptr;
  int stride = 0;
  __device__ __forceinline__ float at(int row, int i) const { return values[row * stride + i]; }
};

constexpr int64_t chunk_values(int64_t head_size) { return kChunk * (head_size + 1); }

// Loads rows [first, first + kChunk) of a head, zeros from `length` on.
template <Format kFormat>
__device__ __forceinline__ void load_chunk(const ChunkRows& to, const HeadRows& rows,
                                           const AttentionShape& shape, int64_t sequence,
                                           int64_t head, int64_t first) {
  const int size = static_cast<int>(shape.head_size);
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * size; i += kThreads) {
    const int row = i / size, column = i % size;
    float value[1] = {0};
    if (first + row < shape.length) {
      const int64_t token = sequence * shape.length + first + row;
      load<kFormat>(rows.data, token * rows.stride + head * size + column, value);
    }
    to.values[row * to.stride + column] = value[0];
  }
}

// One row of a head, zeros if it is beyond the end, in the warp's own shared memory.
template <Format kFormat>
__device__ __forceinline__ void load_row(float* to, const HeadRows& rows,
                                         const AttentionShape& shape, int64_t sequence,
                                         int64_t head, int64_t row) {
  const int size = static_cast<int>(shape.head_size);
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < size; i += kWarp) {
    float value[1] = {0};
    if (row < shape.length) {
      load<kFormat>(rows.data, (sequence * shape.length + row) * rows.stride + head * size + i,
                    value);
    }
    to[i] = value[0];
  }
}

__device__ __forceinline__ float dot(const float* row, const ChunkRows& chunk, int of, int size) {
  float sum = 0;
  for (int i = 0; i < size; ++i) sum = fmaf(row[i], chunk.at(of, i), sum);
  return sum;
}

// sums[k] += the sum over the chunk of weight of row j times its value lane + 32 k.
__device__ __forceinline__ void add_chunk(float (&sums)[kMost], float weight,
                                          const ChunkRows& chunk, int size) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int j = 0; j < kChunk; ++j) {
    const float w = __shfl_sync(kAllLanes, weight, j);
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (lane + k * kWarp < size) sums[k] = fmaf(w, chunk.at(j, lane + k * kWarp), sums[k]);
    }
  }
}

// Stores a row of a head from the lanes' sums times `factor`, turned back where rope is not null;
// `staging` is the warp's.
template <Format kFormat>
__device__ __forceinline__ void store_row(const float (&sums)[kMost], float factor, float* staging,
                                          const HeadRowsOut& rows, const AttentionTask& d,
                                          int64_t sequence, int64_t head, int64_t row,
                                          const float* rope) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int size = static_cast<int>(d.shape.head_size), half = size / 2;
  __syncwarp();  // every lane has read what the row held
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (lane + k * kWarp < size) staging[lane + k * kWarp] = sums[k] * factor;
  }
  __syncwarp();
  if (row >= d.shape.length) return;
  const int64_t first = (sequence * d.shape.length + row) * rows.stride + head * size;
  for (int i = lane; i < size; i += kWarp) {
    float value[1] = {staging[i]};
    if (rope != nullptr) {
      const float* cosine = rope + row * half + i % half;
      const float sine = cosine[d.rope_positions * half];
      const float other = staging[(i + half) % size];
      value[0] = fmaf(other, i < half ? sine : -sine, staging[i] * *cosine);
    }
    store<kFormat>(rows.data, first + i, value);
  }
}

// The block's shared memory: two chunks, then two rows for each warp.
struct Memory {
  ChunkRows first, second;
  float* row = nullptr;
  float* other_row = nullptr;
};
__device__ __forceinline__ Memory memory_of(const AttentionShape& shape) {
  const int size = static_cast<int>(shape.head_size);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  auto* base = reinterpret_cast<float*>(dynamic_shared());
  float* rows = base + 2 * chunk_values(size);
  return {{base, size + 1},
          {base + chunk_values(size), size + 1},
          rows + 2 * warp * size,
          rows + (2 * warp + 1) * size};
}
int64_t memory_bytes(const AttentionShape& shape) {
  return 4 * (2 * chunk_values(shape.head_size) + 2 * kRows * shape.head_size);
}

__device__ __forceinline__ float negative_infinity() { return -__uint_as_float(0x7f800000u); }

__device__ __forceinline__ float largest_of_warp(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// --- Kernels -----------------------------------------------------------------------------------

template <Format kFormat>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionTask d) {
  const Memory memory = memory_of(d.shape);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int size = static_cast<int>(d.shape.head_size);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t row = first + threadIdx.x / kWarp;
  const int64_t head = blockIdx.y, sequence = blockIdx.z;
  const int64_t kv_head = head / (d.shape.heads / d.shape.kv_heads);
  load_row<kFormat>(memory.row, d.q, d.shape, sequence, head, row);
  float sums[kMost] = {};
  float maximum = negative_infinity(), sum = 0;
  const TileRange chunks = keys_seen(first, kRows, d.shape.length, kChunk);
  for (int64_t j = 0; j < chunks.last; ++j) {
    __syncthreads();  // the chunk before has been used
    load_chunk<kFormat>(memory.first, d.k, d.shape, sequence, kv_head, j * kChunk);
    load_chunk<kFormat>(memory.second, d.v, d.shape, sequence, kv_head, j * kChunk);
    __syncthreads();
    const float score = j * kChunk + lane > row
                            ? negative_infinity()
                            : dot(memory.row, memory.first, lane, size) * d.score_scale;
    const float largest = fmaxf(maximum, largest_of_warp(score));
    const float shrink = expf(maximum - largest);
    const float p = expf(score - largest);
    sum = sum * shrink + sum_of_warp(p);
    for (int k = 0; k < kMost; ++k) sums[k] *= shrink;
    add_chunk(sums, p, memory.second, size);
    maximum = largest;
  }
  if (lane == 0 && row < d.shape.length) {
    d.log_sum_exp[(sequence * d.shape.heads + head) * d.shape.length + row] = maximum + logf(sum);
  }
  store_row<kFormat>(sums, 1.0f / sum, memory.row, d.out, d, sequence, head, row, nullptr);
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads) query_kernel(AttentionTask d) {
  const Memory memory = memory_of(d.shape);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int size = static_cast<int>(d.shape.head_size);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t row = first + threadIdx.x / kWarp;
  const int64_t head = blockIdx.y, sequence = blockIdx.z;
  const int64_t kv_head = head / (d.shape.heads / d.shape.kv_heads);
  load_row<kFormat>(memory.row, d.q, d.shape, sequence, head, row);
  load_row<kFormat>(memory.other_row, d.dout, d.shape, sequence, head, row);
  const int64_t at = (sequence * d.shape.heads + head) * d.shape.length + row;
  const bool exists = row < d.shape.length;
  const float log_sum_exp = exists ? d.log_sum_exp[at] : -negative_infinity();
  const float delta = exists ? d.delta[at] : 0.0f;
  float sums[kMost] = {};
  const TileRange chunks = keys_seen(first, kRows, d.shape.length, kChunk);
  for (int64_t j = 0; j < chunks.last; ++j) {
    __syncthreads();  // the chunk before has been used
    load_chunk<kFormat>(memory.first, d.k, d.shape, sequence, kv_head, j * kChunk);
    load_chunk<kFormat>(memory.second, d.v, d.shape, sequence, kv_head, j * kChunk);
    __syncthreads();
    const float score = dot(memory.row, memory.first, lane, size) * d.score_scale;
    const float dp = dot(memory.other_row, memory.second, lane, size);
    const bool hidden = j * kChunk + lane > row;
    const float ds = hidden ? 0.0f : expf(score - log_sum_exp) * (dp - delta);
    add_chunk(sums, ds, memory.first, size);
  }
  store_row<kFormat>(sums, d.score_scale, memory.row, d.dq, d, sequence, head, row, d.rope);
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads) key_kernel(AttentionTask d) {
  const Memory memory = memory_of(d.shape);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int size = static_cast<int>(d.shape.head_size);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t row = first + threadIdx.x / kWarp;
  const int64_t kv_head = blockIdx.y, sequence = blockIdx.z;
  const int64_t group = d.shape.heads / d.shape.kv_heads;
  load_row<kFormat>(memory.row, d.k, d.shape, sequence, kv_head, row);
  load_row<kFormat>(memory.other_row, d.v, d.shape, sequence, kv_head, row);
  float dk[kMost] = {}, dv[kMost] = {};
  const TileRange chunks = queries_seeing(first, d.shape.length, kChunk);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t j = chunks.first; j < chunks.last; ++j) {
      __syncthreads();  // the chunk before has been used
      load_chunk<kFormat>(memory.first, d.q, d.shape, sequence, head, j * kChunk);
      load_chunk<kFormat>(memory.second, d.dout, d.shape, sequence, head, j * kChunk);
      __syncthreads();
      const int64_t query = j * kChunk + lane;
      const int64_t at = (sequence * d.shape.heads + head) * d.shape.length + query;
      const bool seen = query < d.shape.length && query >= row;
      const float score = dot(memory.row, memory.first, lane, size) * d.score_scale;
      const float dp = dot(memory.other_row, memory.second, lane, size);
      const float p = seen ? expf(score - d.log_sum_exp[at]) : 0.0f;
      add_chunk(dv, p, memory.second, size);
      add_chunk(dk, seen ? p * (dp - d.delta[at]) : 0.0f, memory.first, size);
    }
  }
  store_row<kFormat>(dk, d.score_scale, memory.row, d.dk, d, sequence, kv_head, row, d.rope);
  store_row<kFormat>(dv, 1.0f, memory.other_row, d.dv, d, sequence, kv_head, row, nullptr);
}

Grid grid_of(const AttentionShape& shape, int64_t heads) {
  return {.x = div_up(shape.length, kRows),
          .y = heads,
          .z = shape.sequences,
          .threads = kThreads,
          .shared_bytes = memory_bytes(shape)};
}

}  // namespace

// --- Launchers ---------------------------------------------------------------------------------

Status plain_forward(const AttentionTask& d, Stream stream) {
  return with_format(d.format, [&](auto tag) {
    return launch("plain_attention", forward_kernel<decltype(tag)::kValue>,
                  grid_of(d.shape, d.shape.heads), stream, d);
  });
}

Status plain_backward(const AttentionTask& d, Stream stream) {
  return with_format(d.format, [&](auto tag) {
    constexpr Format kFormat = decltype(tag)::kValue;
    BALLAST_CUDA_TRY(launch("plain_attention_dq", query_kernel<kFormat>,
                            grid_of(d.shape, d.shape.heads), stream, d));
    return launch("plain_attention_dk_dv", key_kernel<kFormat>, grid_of(d.shape, d.shape.kv_heads),
                  stream, d);
  });
}

}  // namespace ballast::kernels::cuda
