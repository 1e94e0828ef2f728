// Token and position vectors, and their gradients.
//
// Bound: bytes. The scatter turns round: it builds an index of the tokens by id and then lets every
// id gather its rows, in the order of the tokens, so that nothing is added atomically. The index is
// a counting sort whose places within an id come from integer atomics, in any order, and are put in
// order by counting, for each token, those of its id before it: n^2 comparisons for an id that
// occurs n times, which is little beside the rows themselves unless one id is nearly all.

#include "kernels/cuda/values.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 1024;

// --- Kernels -----------------------------------------------------------------------------------

// The row of the id of token `token`, from this rank's first: rows of tokens hold one more id than
// inputs.
__device__ __forceinline__ int64_t id_of(const EmbeddingShape& shape, const int32_t* tokens,
                                         int64_t token) {
  return tokens[token + token / shape.length] - shape.first_id;
}
__device__ __forceinline__ bool is_known(const EmbeddingShape& shape, int64_t id) {
  return id >= 0 && id < shape.vocab;
}
__device__ __forceinline__ bool is_elsewhere(const EmbeddingShape& shape, int64_t id) {
  const int64_t of_all = id + shape.first_id;
  return !is_known(shape, id) && of_all >= 0 && of_all < shape.all_ids;
}

template <int kCount>
__global__ void __launch_bounds__(kThreads) forward_kernel(EmbeddingForward d) {
  const int64_t width = d.shape.width;
  const int64_t token = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  if (column >= width) return;
  const int64_t id = id_of(d.shape, d.tokens, token);
  float values[kCount];
  if (is_known(d.shape, id)) {
    load(d.params, id * width + column, values);
  } else {
    const bool zero = is_elsewhere(d.shape, id);
    for (int i = 0; i < kCount; ++i) values[i] = zero ? 0.0f : __uint_as_float(0x7fc00000u);
  }
  if (d.shape.positions > 0 && d.adds_positions) {
    float position[kCount];
    load(d.params, (d.shape.vocab + token % d.shape.length) * width + column, position);
    for (int i = 0; i < kCount; ++i) values[i] += position[i];
  }
  store(d.out, token * width + column, values);
}

// The arrays of geometry.h's TokenIndex. begins holds counts until they are summed.
struct Index {
  int32_t* begins = nullptr;
  int32_t* placed = nullptr;
  int32_t* unordered = nullptr;
  int32_t* ordered = nullptr;
};

__global__ void __launch_bounds__(kThreads)
    count_kernel(EmbeddingShape shape, const int32_t* tokens, Index index) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= shape.tokens()) return;
  const int64_t id = id_of(shape, tokens, token);
  if (is_known(shape, id)) atomicAdd(&index.begins[id], 1);
}

// Counts become where each id begins; one block, each thread a stretch of ids.
__global__ void __launch_bounds__(kScanThreads) begin_kernel(int64_t vocab, Index index) {
  __shared__ int32_t sums[kScanThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t share = div_up(vocab, kScanThreads);
  const int64_t first = thread * share;
  const int64_t end = smaller(first + share, vocab);
  int32_t sum = 0;
  for (int64_t id = first; id < end; ++id) sum += index.begins[id];
  sums[thread] = sum;
  __syncthreads();
  for (int distance = 1; distance < kScanThreads; distance *= 2) {
    const int32_t before = thread >= distance ? sums[thread - distance] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
  int32_t begin = sums[thread] - sum;
  for (int64_t id = first; id < end; ++id) {
    const int32_t count = index.begins[id];
    index.begins[id] = begin;
    begin += count;
  }
  if (thread == kScanThreads - 1) index.begins[vocab] = sums[thread];
}

__global__ void __launch_bounds__(kThreads)
    place_kernel(EmbeddingShape shape, const int32_t* tokens, Index index) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= shape.tokens()) return;
  const int64_t id = id_of(shape, tokens, token);
  if (!is_known(shape, id)) return;
  const int32_t place = index.begins[id] + atomicAdd(&index.placed[id], 1);
  index.unordered[place] = static_cast<int32_t>(token);
}

__global__ void __launch_bounds__(kThreads)
    order_kernel(EmbeddingShape shape, const int32_t* tokens, Index index) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= shape.tokens()) return;
  const int64_t id = id_of(shape, tokens, token);
  if (!is_known(shape, id)) return;
  const int32_t begin = index.begins[id], end = index.begins[id + 1];
  int32_t before = 0;
  for (int32_t i = begin; i < end; ++i) before += index.unordered[i] < token;
  index.ordered[begin + before] = static_cast<int32_t>(token);
}

// Block (x, y): id x, columns of group y. Loads of four rows are under way together.
template <int kCount>
__global__ void __launch_bounds__(kThreads) token_rows_kernel(EmbeddingBackward d, Index index) {
  constexpr int kAhead = 4;
  const int64_t width = d.shape.width;
  const int64_t id = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  const int32_t begin = index.begins[id], end = index.begins[id + 1];
  if (column >= width || (begin == end && d.write == Write::kAdd)) return;
  float sums[kCount] = {};
  for (int32_t i = begin; i < end; i += kAhead) {
    float rows[kAhead][kCount] = {};
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k < end) load(d.dout, index.ordered[i + k] * width + column, rows[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k >= end) break;
      for (int j = 0; j < kCount; ++j) sums[j] += rows[k][j];
    }
  }
  write(d.dparams, id * width + column, d.write, sums);
}

// Positions that no sequence reaches are cleared with kOverwrite.
template <int kCount>
__global__ void __launch_bounds__(kThreads) position_rows_kernel(EmbeddingBackward d) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  const int64_t width = d.shape.width;
  const int64_t position = at / width;
  if (position >= d.shape.positions) return;
  const bool reached = position < d.shape.length;
  if (!reached && d.write == Write::kAdd) return;
  float sums[kCount] = {};
  for (int64_t s = 0; reached && s < d.shape.sequences; ++s) {
    float row[kCount];
    load(d.dout, s * d.shape.length * width + at, row);
    for (int j = 0; j < kCount; ++j) sums[j] += row[j];
  }
  write(d.dparams, d.shape.vocab * width + at, d.write, sums);
}

// --- Launchers ---------------------------------------------------------------------------------

Index index_in(const EmbeddingShape& shape, void* scratch) {
  const TokenIndex at = token_index(shape.vocab, shape.tokens());
  auto* base = static_cast<char*>(scratch);
  return {reinterpret_cast<int32_t*>(base + at.begins),
          reinterpret_cast<int32_t*>(base + at.placed),
          reinterpret_cast<int32_t*>(base + at.unordered),
          reinterpret_cast<int32_t*>(base + at.ordered)};
}

Status build_index(const EmbeddingBackward& d, const Index& index, Stream stream) {
  const TokenIndex at = token_index(d.shape.vocab, d.shape.tokens());
  const Grid grid{.x = div_up(d.shape.tokens(), kThreads), .threads = kThreads};
  BALLAST_CUDA_TRY(clear_async("embedding_index_clear", d.scratch, at.unordered, stream));
  BALLAST_CUDA_TRY(launch("embedding_count", count_kernel, grid, stream, d.shape, d.tokens, index));
  const Grid one{.threads = kScanThreads};
  BALLAST_CUDA_TRY(launch("embedding_begin", begin_kernel, one, stream, d.shape.vocab, index));
  BALLAST_CUDA_TRY(launch("embedding_place", place_kernel, grid, stream, d.shape, d.tokens, index));
  return launch("embedding_order", order_kernel, grid, stream, d.shape, d.tokens, index);
}

}  // namespace

Status embedding_forward(const EmbeddingForward& d, Stream stream) {
  const bool wide = d.shape.width % kWide == 0 && is_wide(d.params.data) && is_wide(d.out.data);
  const int64_t per_block = kThreads * (wide ? kWide : 1);
  const Grid grid{
      .x = d.shape.tokens(), .y = div_up(d.shape.width, per_block), .threads = kThreads};
  const auto kernel = wide ? forward_kernel<kWide> : forward_kernel<1>;
  return launch("embedding_forward", kernel, grid, stream, d);
}

int64_t embedding_backward_scratch_bytes(const EmbeddingShape& shape) {
  return token_index(shape.vocab, shape.tokens()).bytes;
}

Status embedding_backward(const EmbeddingBackward& d, Stream stream) {
  const Index index = index_in(d.shape, d.scratch);
  BALLAST_CUDA_TRY(build_index(d, index, stream));
  const bool wide = d.shape.width % kWide == 0 && is_wide(d.dparams.data) && is_wide(d.dout.data);
  const int64_t per_block = kThreads * (wide ? kWide : 1);
  const Grid tokens{.x = d.shape.vocab, .y = div_up(d.shape.width, per_block), .threads = kThreads};
  BALLAST_CUDA_TRY(launch("embedding_tokens",
                          wide ? token_rows_kernel<kWide> : token_rows_kernel<1>, tokens, stream, d,
                          index));
  const Grid positions{.x = div_up(d.shape.positions * d.shape.width, per_block),
                       .threads = kThreads};
  return launch("embedding_positions", wide ? position_rows_kernel<kWide> : position_rows_kernel<1>,
                positions, stream, d);
}

}  // namespace ballast::kernels::cuda
