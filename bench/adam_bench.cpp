// How near the AdamW kernels come to the memory limit of this machine.
//
//   adam_bench                      two small sizes, seconds: so that it never rots
//   adam_bench --real               1M to 256M parameters, all tables, one thread and all
//   adam_bench --parameters=64000000 --threads=2 --tables=avx512
// and every flag of Google Benchmark (--benchmark_filter=..., --benchmark_format=json).
//
// The limit is a loop of the same streams, four read and three written back in place and the
// 16-bit weights, that does nothing else. Each iteration times one pass of it and one pass of the
// kernel, so that both see the same machine; share_of_limit and over_plain_step are the median of
// the iterations' ratios: a machine that others slow for a while slows both sides of one. Bytes are
// those a step must move: 28 a parameter with f32 gradients, 30 with 16-bit weights beside.

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/threads.h"
#include "kernels/undo.h"

namespace ballast::kernels {
namespace {

using Clock = std::chrono::steady_clock;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// Zeroed memory, its pages first touched by the workers that will use them.
Memory allocate(Workers& workers, int64_t value_bytes, int64_t count) {
  constexpr size_t kPage = 4096;
  const size_t bytes = static_cast<size_t>(value_bytes * count);
  Memory memory(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage));
  if (!memory) {
    std::fprintf(stderr, "adam_bench: no memory for %zu bytes; use fewer --parameters\n", bytes);
    std::exit(2);
  }
  first_touch(workers, memory.get(), value_bytes, count);
  return memory;
}

#if defined(__x86_64__)
#define FASTEST_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FASTEST_VECTORS
#endif

// Adds 0 * g to the three arrays, and writes the upper halves of the first where low is given: the
// values stay, but the bytes move. (A tiny rate would not do: a moment of 0 would become one that
// no training has, and its record 14 bytes long.) kAhead asks for the lines that many values later,
// as the kernels do; 0 leaves it to the processor. The faster is the limit.
template <int kAhead, bool kLow, class G>
inline __attribute__((always_inline)) void limit_loop(float* w, float* m, float* v, const G* g,
                                                      uint16_t* low, int64_t count) {
  constexpr float kRate = 0.0f;
  constexpr int64_t kLine = 16;
  for (int64_t line = 0; line < count; line += kLine) {
    if constexpr (kAhead > 0) {
      __builtin_prefetch(w + line + kAhead, 1);
      __builtin_prefetch(m + line + kAhead, 1);
      __builtin_prefetch(v + line + kAhead, 1);
      __builtin_prefetch(g + line + kAhead, 0);
    }
#pragma GCC ivdep
    for (int64_t i = line; i < line + kLine; ++i) {
      const float add = kRate * static_cast<float>(g[i]);
      const float sum = w[i] + add;
      w[i] = sum;
      m[i] += add;
      v[i] += add;
      if constexpr (kLow) low[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, sum) >> 16);
    }
  }
}

#define LIMIT(name, ahead, low_written, gradient)                                           \
  FASTEST_VECTORS void name(float* w, float* m, float* v, const gradient* g, uint16_t* low, \
                            int64_t count) {                                                \
    limit_loop<ahead, low_written>(w, m, v, g, low, count);                                 \
  }
LIMIT(limit_28, 0, false, float)
LIMIT(limit_28_ahead, 512, false, float)
LIMIT(limit_30, 0, true, float)
LIMIT(limit_30_ahead, 512, true, float)
LIMIT(limit_28_bf16, 0, true, uint16_t)
LIMIT(limit_28_bf16_ahead, 512, true, uint16_t)
#undef LIMIT

// The streams of one case: 28, 30, or 28 with bf16 gradient and weights.
struct Streams {
  const char* name;
  Format gradient;
  bool weights;

  int64_t bytes() const { return 24 + bytes_of(gradient) + (weights ? 2 : 0); }
};
constexpr Streams kStreams[] = {{"f32", Format::kF32, false},
                                {"f32_to_bf16", Format::kF32, true},
                                {"bf16_to_bf16", Format::kBf16, true}};

class Bucket {
 public:
  Bucket(Workers& workers, const Streams& streams, int64_t count)
      : workers_(workers),
        streams_(streams),
        count_(count),
        master_(allocate(workers, 4, count)),
        moment1_(allocate(workers, 4, count)),
        moment2_(allocate(workers, 4, count)),
        gradient_(allocate(workers, bytes_of(streams.gradient), count)) {
    if (streams.weights) weights_ = allocate(workers, 2, count);
    fill();
  }

  AdamArrays arrays() const {
    return {.master = f32(master_),
            .moment1 = f32(moment1_),
            .moment2 = f32(moment2_),
            .gradient = gradient_.get(),
            .gradient_format = streams_.gradient,
            .weights = weights_.get(),
            .weights_format = Format::kBf16,
            .count = count_};
  }

  // Seconds of one pass of the limit, the faster of its two forms.
  double time_limit() const {
    if (streams_.gradient == Format::kBf16) {
      return std::min(time_of(limit_28_bf16), time_of(limit_28_bf16_ahead));
    }
    if (streams_.weights) return std::min(time_of(limit_30), time_of(limit_30_ahead));
    return std::min(time_of(limit_28), time_of(limit_28_ahead));
  }

  // Gradients roughly normal, from the sum of four bytes of a hash; moments those of a long run.
  void fill() {
    workers_.for_tiles(count_, kUndoTile, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        f32(master_)[i] = 0.02f * noise(4 * i);
        f32(moment1_)[i] = 0.23e-3f * noise(4 * i + 1);
        f32(moment2_)[i] = 1e-6f * (1.0f + 0.2f * noise(4 * i + 2));
        const float g = 1e-3f * noise(4 * i + 3);
        if (streams_.gradient == Format::kF32) f32(gradient_)[i] = g;
        if (streams_.gradient == Format::kBf16) {
          uint32_t bits = 0;
          std::memcpy(&bits, &g, sizeof(bits));
          static_cast<uint16_t*>(gradient_.get())[i] = static_cast<uint16_t>(bits >> 16);
        }
      }
    });
  }

  // Of the master's bits, so that the work cannot be dropped and runs can be compared.
  uint32_t checksum() const {
    uint32_t sum = 0;
    for (int64_t i = 0; i < count_; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, f32(master_) + i, sizeof(bits));
      sum = sum * 31 + bits;
    }
    return sum;
  }

 private:
  // Whole lines only: what is left over is less than a line.
  template <class G>
  double time_of(void (*limit)(float*, float*, float*, const G*, uint16_t*, int64_t)) const {
    const AdamArrays a = arrays();
    const auto start = Clock::now();
    workers_.for_tiles(count_ / 16 * 16, 4 * kUndoTile, [&](int64_t begin, int64_t end) {
      const AdamArrays p = slice(a, begin, end - begin);
      limit(p.master, p.moment1, p.moment2, static_cast<const G*>(p.gradient),
            static_cast<uint16_t*>(p.weights), p.count);
    });
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  static float* f32(const Memory& memory) { return static_cast<float*>(memory.get()); }
  static float noise(int64_t i) {
    uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    const auto byte = [x](int k) { return static_cast<float>((x >> (8 * k)) & 255u); };
    return (byte(0) + byte(2) + byte(4) + byte(6) - 510.0f) / 147.8f;  // mean 0, deviation 1
  }

  Workers& workers_;
  Streams streams_;
  int64_t count_;
  Memory master_, moment1_, moment2_, gradient_, weights_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_ratio(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (size_t i = 0; i < above.size(); ++i) ratios.push_back(above[i] / below[i]);
  return median(ratios);
}

enum class Pass { kLimit, kStep, kStepWithUndo, kUndo, kStepWithSnapshot, kStepBf16Moments };

struct Case {
  Pass pass;
  const Table* table;
  Streams streams;
  int64_t count;
  int threads;
};

AdamConstants constants() { return {.learning_rate = 1e-5f, .weight_decay = 0.01f}; }

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One pass of everything that the case compares. A recorded step is taken back, so that every
// iteration steps from the same state: a gradient repeated would not round like fresh ones.
struct Sample {
  double limit = 0, step = 0, step_with_undo = 0, undo = 0;
};
Sample sample(const Case& c, Workers& workers, const Bucket& bucket, UndoRecord& record) {
  const AdamArrays a = bucket.arrays();
  const AdamConstants k = constants();
  Sample s;
  s.limit = bucket.time_limit();
  if (c.pass == Pass::kLimit) return s;
  if (c.pass == Pass::kStep) {
    s.step = seconds_of([&] { adam_step(workers, *c.table, a, k); });
    return s;
  }
  s.step_with_undo = seconds_of([&] { adam_step_with_undo(workers, *c.table, a, k, record); });
  s.undo = seconds_of([&] { adam_undo(workers, *c.table, a, k, record); });
  s.step = seconds_of([&] { adam_step(workers, *c.table, a, k); });
  adam_undo(workers, *c.table, a, k, record);
  return s;
}

// Steps with moments in bf16 against plain ones of the same bucket.
void run_bf16_moments(benchmark::State& state, const Case& c) {
  Workers workers(c.threads, Pinning::kCores);
  const Bucket bucket(workers, c.streams, c.count);
  const Memory moment1 = allocate(workers, 2, c.count);
  const Memory moment2 = allocate(workers, 2, c.count);
  const Bf16Moments moments = {static_cast<uint16_t*>(moment1.get()),
                               static_cast<uint16_t*>(moment2.get())};
  const AdamArrays arrays = bucket.arrays();
  const auto step = [&] {
    adam_step_bf16_moments(workers, *c.table, arrays, moments, constants());
  };
  std::vector<double> passes, steps;
  step();  // warms up
  for (auto _ : state) {
    steps.push_back(seconds_of([&] { adam_step(workers, *c.table, arrays, constants()); }));
    passes.push_back(seconds_of(step));
    state.SetIterationTime(passes.back());
  }
  const double count = static_cast<double>(c.count);
  const double seconds = median(passes);
  constexpr int64_t kFp32Moments = 16, kBf16 = 8;  // bytes a parameter, read and written
  const auto bytes = static_cast<double>(c.streams.bytes() - kFp32Moments + kBf16);
  state.counters["ns_per_parameter"] = 1e9 * seconds / count;
  state.counters["gb_per_s"] = bytes * count / seconds / 1e9;
  state.counters["over_plain_step"] = median_ratio(passes, steps);
}

void run(benchmark::State& state, const Case& c) {
  Workers workers(c.threads, Pinning::kCores);
  Bucket bucket(workers, c.streams, c.count);
  const UndoForm form = c.pass == Pass::kStepWithSnapshot ? UndoForm::kSnapshot : UndoForm::kRecord;
  const bool records = c.pass != Pass::kStep && c.pass != Pass::kLimit;
  const int64_t fixed_bytes = records ? UndoRecord::fixed_bytes(c.count, form) : 0;
  const Memory fixed = allocate(workers, 1, fixed_bytes + 1);
  UndoRecord record({static_cast<uint8_t*>(fixed.get()), static_cast<size_t>(fixed_bytes)},
                    records ? c.count : 0, form);
  std::vector<double> limits, passes, steps;
  sample(c, workers, bucket, record);  // warms up
  for (auto _ : state) {
    const Sample s = sample(c, workers, bucket, record);
    limits.push_back(s.limit);
    steps.push_back(s.step);
    passes.push_back(c.pass == Pass::kLimit  ? bucket.time_limit()
                     : c.pass == Pass::kStep ? s.step
                     : c.pass == Pass::kUndo ? s.undo
                                             : s.step_with_undo);
    state.SetIterationTime(passes.back());
  }
  const double count = static_cast<double>(c.count);
  const double seconds = median(passes);
  state.counters["ns_per_parameter"] = 1e9 * seconds / count;
  state.counters["gb_per_s"] = static_cast<double>(c.streams.bytes()) * count / seconds / 1e9;
  state.counters["share_of_limit"] = median_ratio(limits, passes);
  if (records) {
    state.counters["over_plain_step"] = median_ratio(passes, steps);
    state.counters["undo_bytes_per_parameter"] = static_cast<double>(record.used_bytes()) / count;
  }
  char hash[16];
  std::snprintf(hash, sizeof(hash), "%08x", bucket.checksum());
  state.SetLabel(hash);
}

std::string name_of(const Case& c) {
  static constexpr const char* kPasses[] = {
      "limit", "step", "step_with_undo", "undo", "step_with_snapshot", "step_bf16_moments"};
  const std::string table = c.pass == Pass::kLimit ? "loop" : std::string(c.table->name);
  return std::string(kPasses[static_cast<int>(c.pass)]) + "/" + table + "/" + c.streams.name +
         "/parameters:" + std::to_string(c.count) + "/threads:" + std::to_string(c.threads);
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',') parts.emplace_back();
    if (c != ',') parts.back() += c;
  }
  return parts;
}

struct Options {
  std::vector<int64_t> counts = {20'000, 200'000};
  std::vector<int> threads = {1, 2};
  std::vector<const Table*> tables{available().begin(), available().end()};
};

// Takes our own flags out of argv and leaves the rest for Google Benchmark.
Options take_options(int& argc, char** argv) {
  Options options;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const std::string value = flag.substr(std::min(flag.find('=') + 1, flag.size()));
    if (flag == "--real") {
      options.counts = {1'000'000, 4'000'000, 16'000'000, 64'000'000, 256'000'000};
      options.threads = {1, static_cast<int>(std::thread::hardware_concurrency())};
    } else if (flag.starts_with("--parameters=")) {
      options.counts.clear();
      for (const std::string& part : split(value)) options.counts.push_back(std::stoll(part));
    } else if (flag.starts_with("--threads=")) {
      options.threads.clear();
      for (const std::string& part : split(value)) options.threads.push_back(std::stoi(part));
    } else if (flag.starts_with("--tables=")) {
      options.tables.clear();
      for (const std::string& part : split(value)) {
        const Table* table = find(part);
        if (table != nullptr) options.tables.push_back(table);
        if (table == nullptr) {
          std::fprintf(stderr, "adam_bench: this machine has no table %s\n", part.c_str());
          std::exit(2);
        }
      }
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return options;
}

void add_case(const Case& c) {
  benchmark::RegisterBenchmark(name_of(c).c_str(),
                               [c](benchmark::State& state) {
                                 if (c.pass == Pass::kStepBf16Moments) {
                                   run_bf16_moments(state, c);
                                 } else {
                                   run(state, c);
                                 }
                               })
      ->UseManualTime()
      ->Iterations(std::clamp<int64_t>(1'000'000'000 / c.count, 5, 30))
      ->Unit(benchmark::kMillisecond);
}

void add_cases(const Options& options) {
  for (const int64_t count : options.counts) {
    for (const int threads : options.threads) {
      for (const Streams& streams : kStreams) {
        add_case({Pass::kLimit, nullptr, streams, count, threads});
        for (const Table* table : options.tables) {
          add_case({Pass::kStep, table, streams, count, threads});
        }
      }
      for (const Table* table : options.tables) {
        for (const Pass pass :
             {Pass::kStepWithUndo, Pass::kUndo, Pass::kStepWithSnapshot, Pass::kStepBf16Moments}) {
          add_case({pass, table, kStreams[1], count, threads});
        }
      }
    }
  }
}

}  // namespace
}  // namespace ballast::kernels

int main(int argc, char** argv) {
  ballast::kernels::add_cases(ballast::kernels::take_options(argc, argv));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
