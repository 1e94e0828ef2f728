#include "tests/cuda/emulated/emulation.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <ucontext.h>
#include <utility>
#include <vector>

#include "kernels/reference/convert.h"

// The thread sanitizer's, null where it does not run. This file itself is not instrumented
// (CMakeLists.txt): how fibers take turns is no business of the kernels.
extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* place);
[[gnu::weak]] void __tsan_release(void* place);
[[gnu::weak]] void __tsan_read_range(void* memory, unsigned long bytes);
[[gnu::weak]] void __tsan_write_range(void* memory, unsigned long bytes);
}

namespace emulation {

Dimensions thread_index, block_index, block_dimensions, grid_dimensions;

namespace {

constexpr size_t kLanes = 32;
constexpr size_t kStackBytes = 128 * 1024;

// What happened before each release() of a place is seen after each acquire() of it that follows.
void release(char& place) {
  if (__tsan_release != nullptr) __tsan_release(&place);
}
void acquire(char& place) {
  if (__tsan_acquire != nullptr) __tsan_acquire(&place);
}
void note_read(const void* memory, size_t bytes) {
  if (__tsan_read_range != nullptr) __tsan_read_range(const_cast<void*>(memory), bytes);
}
void note_write(void* memory, size_t bytes) {
  if (__tsan_write_range != nullptr) __tsan_write_range(memory, bytes);
}
void become(void* thread) {
  constexpr unsigned kOrdersNothing = 1;
  if (thread != nullptr) __tsan_switch_to_fiber(thread, kOrdersNothing);
}

// A copy that was started and not yet waited for.
struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  uint32_t bytes = 0;
};

// One thread of the block. Switches are longjmp, which needs no system call; the first entry into
// a fiber is a context of its own.
struct Fiber {
  jmp_buf state;
  ucontext_t context;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  bool started = false;
  bool finished = false;
  bool waiting_for_block = false;
  bool waiting_for_warp = false;
  uint64_t block_phase = 0;
  uint64_t warp_phase = 0;
  std::vector<std::vector<Copy>> groups;  // closed, oldest first
  std::vector<Copy> open;
  void* watched = nullptr;  // the sanitizer's thread
};

// What the lanes of a warp pass each other; two sets, because a lane may be one exchange ahead.
struct Warp {
  uint64_t values[2][kLanes] = {};
  size_t arrived = 0;
  char ordered[2] = {};  // places for the sanitizer, by phase
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<uint4> shared;
  size_t current = 0;
  size_t in_barrier = 0;
  bool progress = false;
  const std::function<void()>* body = nullptr;
  jmp_buf scheduler;
  void* watched = nullptr;                     // the sanitizer's thread of the scheduler
  char begun = 0, ended = 0, ordered[2] = {};  // places for the sanitizer
};

Block block;
Order order = Order::kRising;
Queue queue = nullptr;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated block (%u, %u, %u), thread %u: %s\n", block_index.x, block_index.y,
               block_index.z, thread_index.x, what);
  std::abort();
}

Fiber& current() { return block.fibers[block.current]; }

[[noreturn]] void return_to_scheduler() {
  become(block.watched);
  _longjmp(block.scheduler, 1);
}

void yield() {
  if (_setjmp(current().state) == 0) return_to_scheduler();
}

void enter() {
  acquire(block.begun);
  (*block.body)();
  release(block.ended);
  current().finished = true;
  return_to_scheduler();
}

void resume(size_t index) {
  block.current = index;
  thread_index.x = static_cast<unsigned>(index);
  Fiber& fiber = block.fibers[index];
  block.progress = true;
  if (_setjmp(block.scheduler) != 0) return;
  become(fiber.watched);
  if (fiber.started) _longjmp(fiber.state, 1);
  fiber.started = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, enter, 0);
  setcontext(&fiber.context);
}

void reset_fiber(Fiber& fiber) {
  fiber.started = fiber.finished = false;
  fiber.waiting_for_block = fiber.waiting_for_warp = false;
  fiber.block_phase = fiber.warp_phase = 0;
  fiber.groups.clear();
  fiber.open.clear();
}

std::vector<size_t> turns(size_t count, std::mt19937& generator) {
  std::vector<size_t> result(count);
  for (size_t i = 0; i < count; ++i) result[i] = order == Order::kFalling ? count - 1 - i : i;
  if (order == Order::kShuffled) std::shuffle(result.begin(), result.end(), generator);
  return result;
}

// Gives every fiber of [first, end) that need not wait one turn, again and again while `rounds`
// allow and any can go on; returns how many ended.
size_t give_turns(size_t first, size_t end, int rounds, std::mt19937& generator) {
  size_t ended = 0;
  for (bool going = true; going && rounds > 0; --rounds) {
    going = false;
    for (const size_t turn : turns(end - first, generator)) {
      Fiber& fiber = block.fibers[first + turn];
      if (fiber.finished || fiber.waiting_for_block || fiber.waiting_for_warp) continue;
      going = true;
      resume(first + turn);
      if (fiber.finished) ++ended;
    }
  }
  return ended;
}

void set_up_block(const Launch& launch) {
  const auto count = static_cast<size_t>(launch.threads);
  while (block.fibers.size() < count) {
    block.fibers.emplace_back();
    if (__tsan_create_fiber != nullptr) block.fibers.back().watched = __tsan_create_fiber(0);
  }
  for (size_t i = 0; i < count; ++i) reset_fiber(block.fibers[i]);
  block.warps.assign((count + kLanes - 1) / kLanes, {});
  const uint32_t poison = 0xffffffffu;  // NaN in every format
  block.shared.assign(static_cast<size_t>(launch.shared_bytes + 15) / 16,
                      {poison, poison, poison, poison});
  block.in_barrier = 0;
}

void run_block(const Launch& launch, std::mt19937& generator) {
  const auto count = static_cast<size_t>(launch.threads);
  set_up_block(launch);
  release(block.begun);
  for (size_t left = count; left > 0;) {
    block.progress = false;
    if (order == Order::kRising) {
      left -= give_turns(0, count, 1, generator);
    } else {
      for (const size_t warp : turns(block.warps.size(), generator)) {
        const size_t end = std::min((warp + 1) * kLanes, count);
        left -= give_turns(warp * kLanes, end, std::numeric_limits<int>::max(), generator);
      }
    }
    if (left > 0 && !block.progress) fail("waits for threads that never come");
    // A thread that ended counts as arrived, as on the GPU.
    if (block.in_barrier > 0 && block.in_barrier == left) {
      block.in_barrier = 0;
      for (size_t i = 0; i < count; ++i) block.fibers[i].waiting_for_block = false;
    }
  }
  acquire(block.ended);
  for (size_t i = 0; i < count; ++i) {
    if (!block.fibers[i].open.empty()) fail("ends with copies that were never closed");
  }
}

// Until here the copy may have been done at any time since it was started.
void finish(const Copy& copy) {
  note_read(copy.from, copy.bytes);
  note_write(copy.to, 16);
  std::memset(copy.to, 0, 16);
  if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
}

float float_of(uint32_t bits, bool bf16) {
  const auto value = static_cast<uint16_t>(bits & 0xffffu);
  return bf16 ? ballast::kernels::bf16_to_f32(value) : ballast::kernels::f16_to_f32(value);
}

// The 8 x 8 matrices that the warp's lanes point at.
void gather(const void* row, uint16_t (&matrices)[4][8][8]) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fail("a row of ldmatrix is not aligned to 16");
  note_read(row, 16);
  const uint64_t* rows = exchange(reinterpret_cast<uint64_t>(row));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    std::memcpy(matrices[lane / 8][lane % 8], reinterpret_cast<const void*>(rows[lane]), 16);
  }
}

}  // namespace

void set_order(Order chosen) { order = chosen; }

void run(const Launch& launch, const std::function<void()>& body) {
  if (launch.threads > 1024 || launch.shared_bytes > 227 * 1024 || launch.y > 65535 ||
      launch.z > 65535) {
    fail("a launch that no GPU would accept");
  }
  std::mt19937 generator(12345);
  block.body = &body;
  if (__tsan_get_current_fiber != nullptr) block.watched = __tsan_get_current_fiber();
  block_dimensions = {static_cast<unsigned>(launch.threads), 1, 1};
  grid_dimensions = {static_cast<unsigned>(launch.x), static_cast<unsigned>(launch.y),
                     static_cast<unsigned>(launch.z)};
  for (unsigned z = 0; z < grid_dimensions.z; ++z) {
    for (unsigned y = 0; y < grid_dimensions.y; ++y) {
      for (unsigned x = 0; x < grid_dimensions.x; ++x) {
        block_index = {x, y, z};
        run_block(launch, generator);
      }
    }
  }
}

void barrier() {
  ++block.in_barrier;
  Fiber& fiber = current();
  char& place = block.ordered[fiber.block_phase++ % 2];
  release(place);
  fiber.waiting_for_block = true;
  yield();
  acquire(place);
}

void barrier_of_warp() {
  char& place = block.warps[block.current / kLanes].ordered[current().warp_phase % 2];
  release(place);
  exchange(0);
  acquire(place);
}

const uint64_t* exchange(uint64_t value) {
  Fiber& fiber = current();
  const size_t index = block.current / kLanes;
  Warp& warp = block.warps[index];
  const uint64_t phase = fiber.warp_phase++;
  uint64_t* values = warp.values[phase % 2];
  values[block.current % kLanes] = value;
  if (++warp.arrived == kLanes) {
    warp.arrived = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      block.fibers[index * kLanes + lane].waiting_for_warp = false;
    }
  } else {
    fiber.waiting_for_warp = true;
    yield();
  }
  return values;
}

void set_queue(Queue chosen) { queue = chosen; }

void launch(const Handed& handed, const Launch& grid, std::function<void()> body) {
  if (queue == nullptr) return run(grid, body);
  queue(handed, [grid, body = std::move(body)] { run(grid, body); });
}

void clear(const Handed& handed, void* memory, int64_t bytes) {
  const auto work = [memory, bytes] { std::memset(memory, 0, static_cast<size_t>(bytes)); };
  if (queue == nullptr) return work();
  queue(handed, work);
}

unsigned char* dynamic_shared() { return reinterpret_cast<unsigned char*>(block.shared.data()); }

uint16_t half_from_float(float value) { return ballast::kernels::f32_to_f16(value); }
float float_from_half(uint16_t half) { return ballast::kernels::f16_to_f32(half); }

uint32_t pack_pair(float low, float high, bool bf16) {
  using namespace ballast::kernels;
  // "If the input is NaN the result is the canonical NaN, 0x7fff" (PTX ISA, cvt).
  const auto rounded = [bf16](float value) -> uint32_t {
    if (std::isnan(value)) return 0x7fff;
    return bf16 ? f32_to_bf16(value) : f32_to_f16(value);
  };
  return rounded(low) | (rounded(high) << 16);
}

// "Matrix fragments for mma.m16n8k16 with floating point type" of the PTX ISA: with g = lane / 4
// and t = lane % 4, A holds rows g (registers 0, 2) and g + 8 (1, 3), columns 2t, 2t + 1, from
// register 2 on 8 further; B rows 2t, 2t + 1 (+ 8 in register 1) of column g; C rows g and g + 8,
// columns 2t and 2t + 1.
void multiply_tile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bf16) {
  float left[16][16], right[16][8];
  uint64_t words[3][kLanes];
  const uint64_t pairs[3] = {a[0] | uint64_t{a[1]} << 32, a[2] | uint64_t{a[3]} << 32,
                             b0 | uint64_t{b1} << 32};
  for (size_t i = 0; i < 3; ++i) std::memcpy(words[i], exchange(pairs[i]), sizeof(words[i]));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const size_t g = lane / 4, t = lane % 4;
    for (size_t half = 0; half < 2; ++half) {
      for (size_t e = 0; e < 2; ++e) {
        const auto bits = [&](size_t word) {
          return static_cast<uint32_t>(words[word][lane] >> (32 * half + 16 * e));
        };
        left[g + 8 * half][2 * t + e] = float_of(bits(0), bf16);
        left[g + 8 * half][2 * t + 8 + e] = float_of(bits(1), bf16);
        right[2 * t + e + 8 * half][g] = float_of(bits(2), bf16);
      }
    }
  }
  const size_t g = thread_index.x % kLanes / 4, t = thread_index.x % 4;
  for (size_t i = 0; i < 4; ++i) {
    const size_t row = g + 8 * (i / 2), column = 2 * t + i % 2;
    for (size_t k = 0; k < 16; ++k) c[i] += left[row][k] * right[k][column];
  }
}

void load_matrices(uint32_t (&r)[4], const void* row) {
  uint16_t matrices[4][8][8];
  gather(row, matrices);
  const size_t lane = thread_index.x % kLanes;
  for (size_t i = 0; i < 4; ++i) {
    const uint16_t* pair = &matrices[i][lane / 4][2 * (lane % 4)];
    r[i] = pair[0] | (uint32_t{pair[1]} << 16);
  }
}

void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  uint16_t matrices[4][8][8];
  gather(row, matrices);
  const size_t lane = thread_index.x % kLanes;
  for (size_t i = 0; i < 4; ++i) {
    const uint32_t first = matrices[i][2 * (lane % 4)][lane / 4];
    const uint32_t second = matrices[i][2 * (lane % 4) + 1][lane / 4];
    r[i] = first | (second << 16);
  }
}

void start_copy(void* shared, const void* from, uint32_t bytes) {
  const uintptr_t to = reinterpret_cast<uintptr_t>(shared);
  const auto base = reinterpret_cast<uintptr_t>(block.shared.data());
  if (to % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) fail("a copy is not aligned");
  if (to < base || to + 16 > base + 16 * block.shared.size()) fail("a copy misses shared memory");
  note_write(shared, 16);
  std::memset(shared, 0xff, 16);  // NaN in every format, until the copy is waited for
  current().open.push_back({shared, from, bytes});
}

void close_copies() {
  current().groups.push_back(std::move(current().open));
  current().open.clear();
}

void wait_for_copies(int pending) {
  std::vector<std::vector<Copy>>& groups = current().groups;
  while (groups.size() > static_cast<size_t>(pending)) {
    for (const Copy& copy : groups.front()) finish(copy);
    groups.erase(groups.begin());
  }
}

}  // namespace emulation
