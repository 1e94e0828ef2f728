// AdamW steps that can be taken back exactly, in the tiles and bytes of kernels/undo.h.
//
// Bound: bytes, 30 a parameter with fp32 gradients and 16-bit weights, and 1.1 of the record. A
// block has a tile: each of its 512 threads holds 8 neighbours in registers until the block knows
// whether the tile's escapes fit, so that state is read once and written once.
//
// As on the CPU (undo_codes.h) an inverse computed from the results misses the old values by a few
// units in the last place, and what it misses by is written down. What differs is the order of an
// escape's bytes, so that threads can find theirs: first the heads of all escapes, then their
// rests.

#include "kernels/cuda/adam_step.h"
#include "kernels/cuda/values.h"
#include "kernels/undo.h"
#include "kernels/undo_codes.h"

namespace ballast::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kEach = static_cast<int>(kUndoTile) / kThreads;  // neighbours of a thread
constexpr int kQuad = 4;                                       // read at once where they lie so
constexpr uint32_t kTileIsLeft = 0xffffffffu;                  // as a length

// --- What a parameter's record is made of ------------------------------------------------------

// Codes and heads are those of undo_codes.h, whose functions are constexpr and run here too.
using Words = ThreeWords;
constexpr uint32_t kEscaped = kUndoEscaped;
constexpr uint32_t kMedium = EscapeMedium::kMarker, kFull = kEscapeFull;

__device__ __forceinline__ uint32_t code_of(const Words& d) {
  const bool fits =
      undo_fits(d.w, kUndoRangeW) && undo_fits(d.v, kUndoRangeV) && undo_fits(d.m, kUndoRangeM);
  return fits ? undo_code(d) : kEscaped;
}
// Of what follows a head, in units of 16 bits.
__device__ __forceinline__ uint32_t rest_of(uint32_t head) {
  return head == kFull ? 6 : head == kMedium ? 2 : 0;
}

// Escapes are found by how many are before them and how long the rests of those are: one sum of
// both, 16 bits each. A tile's rests of at most 6 * 4096 units fit.
constexpr uint32_t kOneRest = 1u << 16;
__device__ __forceinline__ uint32_t escapes_of(uint32_t sum) { return sum & 0xffffu; }
__device__ __forceinline__ uint32_t rests_of(uint32_t sum) { return sum >> 16; }

__device__ __forceinline__ void put(uint16_t* to, uint32_t value) {
  to[0] = static_cast<uint16_t>(value), to[1] = static_cast<uint16_t>(value >> 16);
}
__device__ __forceinline__ uint32_t take(const uint16_t* from) {
  return from[0] | static_cast<uint32_t>(from[1]) << 16;
}
__device__ __forceinline__ void put_rest(uint16_t* to, uint32_t head, const Words& d) {
  if (head == kMedium) {
    put(to, pack_medium(d));
  } else if (head == kFull) {
    put(to, d.w), put(to + 2, d.m), put(to + 4, d.v);
  }
}
__device__ __forceinline__ Words words_of_escape(uint32_t head, const uint16_t* rest) {
  if (head == kFull) return {take(rest), take(rest + 2), take(rest + 4)};
  return head == kMedium ? unpack_medium(take(rest)) : of_short_head(head);
}

// --- A tile ------------------------------------------------------------------------------------

struct Task {
  AdamArrays arrays;
  StepConstants constants;
  uint8_t* record = nullptr;
  uint32_t* left = nullptr;
  uint32_t mark = 0;
  int64_t first_tile = 0;  // of the launch
};

__host__ __device__ __forceinline__ int64_t tiles_of(int64_t count) {
  return (count + kUndoTile - 1) / kUndoTile;
}

// What a block works on, and where its thread's part of it lies.
struct Tile {
  __device__ __forceinline__ explicit Tile(const Task& task) {
    const int64_t tile = task.first_tile + blockIdx.x, tiles = tiles_of(task.arrays.count);
    first = tile * kUndoTile + threadIdx.x * kEach;
    codes = task.record + first;
    reserve =
        reinterpret_cast<uint16_t*>(task.record + tiles * kUndoTile + tile * kUndoTileReserve);
    length =
        reinterpret_cast<uint32_t*>(task.record + tiles * (kUndoTile + kUndoTileReserve)) + tile;
  }
  int64_t first = 0;            // parameter of this thread
  uint8_t* codes = nullptr;     // of this thread
  uint16_t* reserve = nullptr;  // of the tile
  uint32_t* length = nullptr;   // of the tile: its escapes, or kTileIsLeft
};

// A thread's neighbours; zeros beyond the end.
struct Held {
  float w[kEach] = {}, m[kEach] = {}, v[kEach] = {}, g[kEach] = {};
};

// use(i) for every kCount neighbours from the i-th on. By fours there is no end within a tile.
template <int kCount, class Use>
__device__ __forceinline__ void over_neighbours(int64_t first, int64_t end, Use use) {
#pragma unroll
  for (int i = 0; i < kEach; i += kCount) {
    if (kCount > 1 || first + i < end) use(i);
  }
}

template <int kCount>
__device__ __forceinline__ float (&some(float (&values)[kEach], int i))[kCount] {
  return reinterpret_cast<float(&)[kCount]>(values[i]);
}

template <int kCount>
__device__ __forceinline__ void load_tile(const AdamArrays& a, int64_t first, Held& held) {
  over_neighbours<kCount>(first, a.count, [&](int i) {
    load<Format::kF32>(a.master, first + i, some<kCount>(held.w, i));
    load<Format::kF32>(a.moment1, first + i, some<kCount>(held.m, i));
    load<Format::kF32>(a.moment2, first + i, some<kCount>(held.v, i));
    load(ConstArray(a.gradient, a.gradient_format), first + i, some<kCount>(held.g, i));
  });
}

template <int kCount>
__device__ __forceinline__ void store_state(const AdamArrays& a, int64_t first, Held& held) {
  over_neighbours<kCount>(first, a.count, [&](int i) {
    store<Format::kF32>(a.master, first + i, some<kCount>(held.w, i));
    store<Format::kF32>(a.moment1, first + i, some<kCount>(held.m, i));
    store<Format::kF32>(a.moment2, first + i, some<kCount>(held.v, i));
  });
}

template <int kCount>
__device__ __forceinline__ void store_weights(const AdamArrays& a, int64_t first, Held& held) {
  if (a.weights == nullptr) return;
  over_neighbours<kCount>(first, a.count, [&](int i) {
    store(Array{a.weights, a.weights_format}, first + i, some<kCount>(held.w, i));
  });
}

// The sum of `mine` over the threads before this one, and over all. May be called again at once.
struct Sums {
  uint32_t before = 0, all = 0;
};
__device__ __forceinline__ Sums sums_of(uint32_t mine) {
  __shared__ uint32_t sums[2][kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  int from = 0;
  __syncthreads();  // the sums of the call before have been read
  sums[from][thread] = mine;
  for (int distance = 1; distance < kThreads; distance *= 2, from = 1 - from) {
    __syncthreads();
    const uint32_t further = thread >= distance ? sums[from][thread - distance] : 0;
    sums[1 - from][thread] = sums[from][thread] + further;
  }
  __syncthreads();
  return {sums[from][thread] - mine, sums[from][kThreads - 1]};
}

// --- Kernels -----------------------------------------------------------------------------------

// NaN counts as 0: which one comes out depends on the order of operands.
__device__ __forceinline__ uint32_t bits_of_number(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0 : bits;
}

// The bits of before the step up to a few units in the last place, from those of after it.
__device__ __forceinline__ Words estimate(const StepConstants& c, const Held& held, int i) {
  const float g = __fmul_rn(c.gradient_scale, held.g[i]), w = held.w[i];
  const float m = __fsub_rn(held.m[i], __fmul_rn(c.one_minus_beta1, g));
  const float v = __fsub_rn(held.v[i], __fmul_rn(__fmul_rn(c.one_minus_beta2, g), g));
  const float fall = __fmaf_rn(c.weight_decay, w, direction(c, held.m[i], held.v[i]));
  return {bits_of_number(__fadd_rn(w, __fmul_rn(c.undo_rate, fall))),
          bits_of_number(__fmul_rn(m, c.inverse_beta1)),
          bits_of_number(__fmul_rn(v, c.inverse_beta2))};
}

// Steps the i-th neighbour; what the inverse would miss it by.
__device__ __forceinline__ Words stepped(const StepConstants& c, Held& held, int i) {
  const Words old{__float_as_uint(held.w[i]), __float_as_uint(held.m[i]),
                  __float_as_uint(held.v[i])};
  step(c, held.g[i], held.w[i], held.m[i], held.v[i]);
  if (!is_finite(__fmul_rn(c.gradient_scale, held.g[i]))) return {0, 0, 0};  // nothing changed
  const Words near = estimate(c, held, i);
  return {old.w - near.w, old.m - near.m, old.v - near.v};
}

template <int kCount>
__global__ void __launch_bounds__(kThreads) recorded_step_kernel(Task task) {
  const AdamArrays& a = task.arrays;
  const Tile tile(task);
  Held held;
  load_tile<kCount>(a, tile.first, held);
  Words differences[kEach];
  uint32_t codes[kEach], mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    differences[i] = stepped(task.constants, held, i);
    codes[i] = code_of(differences[i]);
    if (codes[i] == kEscaped) mine += 1 + kOneRest * rest_of(escape_head(differences[i]));
  }
  const Sums sums = sums_of(mine);
  const uint32_t escapes = escapes_of(sums.all);
  const bool holds = 2 * (escapes + rests_of(sums.all)) <= kUndoTileReserve;
  store_weights<kCount>(a, tile.first, held);
  if (threadIdx.x == 0) *tile.length = holds ? escapes : kTileIsLeft;
  if (!holds) {
    // Every block that leaves its tile writes the same.
    if (threadIdx.x == 0 && task.left != nullptr) *task.left = task.mark;
    return;
  }
  store_state<kCount>(a, tile.first, held);
  uint16_t* head = tile.reserve + escapes_of(sums.before);
  uint16_t* rest = tile.reserve + escapes + rests_of(sums.before);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    tile.codes[i] = static_cast<uint8_t>(codes[i]);
    if (codes[i] != kEscaped) continue;
    const uint32_t its_head = escape_head(differences[i]);
    *head++ = static_cast<uint16_t>(its_head);
    put_rest(rest, its_head, differences[i]);
    rest += rest_of(its_head);
  }
}

// A tile that was left has the state of before the step already.
template <int kCount>
__global__ void __launch_bounds__(kThreads) undo_kernel(Task task) {
  const AdamArrays& a = task.arrays;
  const Tile tile(task);
  Held held;
  load_tile<kCount>(a, tile.first, held);
  const uint32_t escapes = *tile.length;
  if (escapes == kTileIsLeft) return store_weights<kCount>(a, tile.first, held);
  uint32_t codes[kEach], mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    codes[i] = tile.codes[i];
    mine += codes[i] == kEscaped;
  }
  const uint16_t* const head = tile.reserve + sums_of(mine).before;
  uint32_t mine_of_rests = 0;
  for (uint32_t e = 0; e < mine; ++e) mine_of_rests += rest_of(head[e]);
  const uint16_t* rest = tile.reserve + escapes + sums_of(mine_of_rests).before;
  uint32_t next = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    Words d = of_digits(codes[i], kUndoRangeV, kUndoRangeM);
    if (codes[i] == kEscaped) {
      const uint32_t its_head = head[next++];
      d = words_of_escape(its_head, rest);
      rest += rest_of(its_head);
    }
    if (!is_finite(__fmul_rn(task.constants.gradient_scale, held.g[i]))) continue;
    const Words near = estimate(task.constants, held, i);
    held.w[i] = __uint_as_float(near.w + d.w);
    held.m[i] = __uint_as_float(near.m + d.m);
    held.v[i] = __uint_as_float(near.v + d.v);
  }
  store_state<kCount>(a, tile.first, held);
  store_weights<kCount>(a, tile.first, held);
}

// Steps a tile that was left.
template <int kCount>
__global__ void __launch_bounds__(kThreads) finish_kernel(Task task) {
  const AdamArrays& a = task.arrays;
  const Tile tile(task);
  if (*tile.length != kTileIsLeft) return;
  Held held;
  load_tile<kCount>(a, tile.first, held);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    step(task.constants, held.g[i], held.w[i], held.m[i], held.v[i]);
  }
  store_state<kCount>(a, tile.first, held);
  __syncthreads();  // all have seen that it was left
  if (threadIdx.x == 0) *tile.length = 0;
}

// --- Launchers ---------------------------------------------------------------------------------

// Whole tiles by fours where addresses allow it, and the rest one by one.
Status launch_tiles(const char* name, void (*by_fours)(Task), void (*one_by_one)(Task), Task task,
                    Stream stream) {
  const AdamArrays& a = task.arrays;
  const bool wide = is_wide(a.master) && is_wide(a.moment1) && is_wide(a.moment2) &&
                    is_wide(a.gradient) && is_wide(a.weights);
  const int64_t whole = wide ? a.count / kUndoTile : 0;
  BALLAST_CUDA_TRY(launch(name, by_fours, Grid{.x = whole, .threads = kThreads}, stream, task));
  task.first_tile = whole;
  const Grid rest{.x = tiles_of(a.count) - whole, .threads = kThreads};
  return launch(name, one_by_one, rest, stream, task);
}

}  // namespace

Status recorded_step(const RecordedStep& d, RecordedPart part, Stream stream) {
  const Task task{d.arrays, step_constants(d.constants), d.record, d.left, d.mark, 0};
  switch (part) {
    case RecordedPart::kStep:
      return launch_tiles("recorded_step", recorded_step_kernel<kQuad>, recorded_step_kernel<1>,
                          task, stream);
    case RecordedPart::kUndo:
      return launch_tiles("undo_step", undo_kernel<kQuad>, undo_kernel<1>, task, stream);
    case RecordedPart::kFinish:
      break;
  }
  return launch_tiles("finish_step", finish_kernel<kQuad>, finish_kernel<1>, task, stream);
}

}  // namespace ballast::kernels::cuda
