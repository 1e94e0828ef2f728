#include "backend/measure/profile_probes.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>

#include "sim/base/median.h"

namespace ballast {

namespace {

using Clock = std::chrono::steady_clock;

Duration since(Clock::time_point begin) {
  return Duration::from_ns(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

double seconds_since(Clock::time_point begin) { return since(begin).seconds(); }

// A multiple of the vector length of every kernel, and of the bytes that verify() looks at.
constexpr int64_t kChunkAlignment = 64;

}  // namespace

Timing summarise(std::vector<Duration> samples) {
  Timing timing;
  timing.repeats = static_cast<int>(samples.size());
  timing.median = median(samples);
  for (Duration& sample : samples) sample = {std::abs(sample.ps - timing.median.ps)};
  timing.deviation = median(samples);
  return timing;
}

bool is_settled(const std::vector<Duration>& samples, const ProbeLimits& limits) {
  const Timing timing = summarise(samples);
  return static_cast<double>(timing.deviation.ps) <=
         limits.small_deviation * static_cast<double>(timing.median.ps);
}

Timing time_alone(const Body& body, const ProbeLimits& limits) {
  body(-1);
  std::vector<Duration> samples;
  const auto start = Clock::now();
  for (int repeat = 0; repeat < limits.most_repeats; ++repeat) {
    const auto begin = Clock::now();
    body(repeat);
    samples.push_back(since(begin));
    if (repeat + 1 < limits.least_repeats) continue;
    if (seconds_since(start) > limits.seconds || is_settled(samples, limits)) break;
  }
  return summarise(std::move(samples));
}

namespace {

struct Repeat {
  Clock::time_point begin, end;
};

// The repeats of `own` that lie where `other` was at work too.
Timing overlapping(const std::vector<Repeat>& own, const std::vector<Repeat>& other) {
  std::vector<Duration> samples;
  for (const Repeat& repeat : own) {
    if (repeat.begin < other.front().begin || repeat.end > other.back().end) continue;
    samples.push_back(Duration::from_ns((repeat.end - repeat.begin).count()));
  }
  // Where one repeat outlasts everything the other did, it is all there is to go by.
  if (samples.empty()) {
    samples.push_back(Duration::from_ns((own.front().end - own.front().begin).count()));
  }
  return summarise(std::move(samples));
}

}  // namespace

std::array<Timing, 2> time_together(const Body& first, const Body& second, double seconds) {
  const std::array<const Body*, 2> bodies = {&first, &second};
  std::array<std::vector<Repeat>, 2> repeats;
  std::array<std::exception_ptr, 2> failures;
  std::barrier held(2);
  std::atomic<bool> failed{false};
  const auto guarded = [&](size_t index, int repeat) {
    try {
      (*bodies[index])(repeat);
    } catch (...) {
      failures[index] = std::current_exception();
      failed = true;
    }
  };
  const auto work = [&](size_t index) {
    guarded(index, -1);
    held.arrive_and_wait();
    const auto start = Clock::now();
    for (int repeat = 0; !failed; ++repeat) {
      const auto begin = Clock::now();
      guarded(index, repeat);
      repeats[index].push_back({begin, Clock::now()});
      if (seconds_since(start) > seconds) return;
    }
  };
  {
    const std::jthread other([&] { work(1); });
    work(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return {overlapping(repeats[0], repeats[1]), overlapping(repeats[1], repeats[0])};
}

double shared_capacity(const std::vector<Beside>& pairs, double least) {
  double most = least;
  for (const Beside& pair : pairs) most = std::max(most, pair.demand[0] + pair.demand[1]);
  double best = most;
  double least_error = std::numeric_limits<double>::infinity();
  constexpr int kSteps = 400;
  for (int i = kSteps; i >= 0; --i) {  // from above: of equal errors the larger capacity
    const double capacity = least + (most - least) * i / kSteps;
    double error = 0;
    for (const Beside& pair : pairs) {
      const double predicted = std::min(1.0, capacity / (pair.demand[0] + pair.demand[1]));
      for (const double rate : pair.rate) error += std::pow(std::log(rate / predicted), 2);
    }
    if (error < least_error) {
      least_error = error;
      best = capacity;
    }
  }
  return best;
}

// --- Copies ------------------------------------------------------------------------------------

namespace {

// Byte `i` of the pattern; its period is prime, so that no copy from elsewhere looks right.
constexpr int64_t kPatternPeriod = 251;
std::byte pattern(int64_t i) { return static_cast<std::byte>(i % kPatternPeriod + 1); }

}  // namespace

void fill_pattern(std::byte* data, int64_t bytes) {
  for (int64_t i = 0; i < std::min(bytes, kPatternPeriod); ++i) data[i] = pattern(i);
  for (int64_t done = kPatternPeriod; done < bytes;) {
    const int64_t count = std::min(done, bytes - done);
    // `done` is a multiple of the period, so the beginning continues the pattern.
    std::memcpy(data + done, data, static_cast<size_t>(count));
    done += count;
  }
}

void CopyProbe::fill() {
  fill_pattern(source_.at(0), source_.size().count);
  std::memset(destination_.at(0), 0, static_cast<size_t>(destination_.size().count));
}

int64_t CopyProbe::offset(int64_t bytes, int repeat) const {
  const int64_t places = (std::min(source_.size(), destination_.size()).count) / bytes;
  CHECK(places >= 1);
  return (repeat + 1) % places * bytes;
}

void CopyProbe::copy(int64_t bytes, int repeat) {
  const int64_t at = offset(bytes, repeat);
  std::memcpy(destination_.at(at), source_.at(at), static_cast<size_t>(bytes));
}

bool CopyProbe::verify(int64_t bytes, int repeat) const {
  const int64_t at = offset(bytes, repeat);
  return std::memcmp(destination_.at(at), source_.at(at), static_cast<size_t>(bytes)) == 0 &&
         *destination_.at(at) == pattern(at) &&
         *destination_.at(at + bytes - 1) == pattern(at + bytes - 1);
}

// --- The optimizer -----------------------------------------------------------------------------

namespace {

constexpr int64_t kArrays = 4;  // master, both moments, gradient
constexpr int64_t kFloat = 4;

kernels::AdamConstants probe_constants() {
  kernels::AdamConstants constants;
  constants.learning_rate = 1e-3f;
  constants.weight_decay = 0.1f;
  constants.bias_correction1 = 1.0f / (1.0f - 0.9f);
  constants.bias_correction2 = 1.0f / std::sqrt(1.0f - 0.999f);
  return constants;
}

}  // namespace

OptimizerProbe::OptimizerProbe(int64_t capacity)
    : capacity_(capacity), arena_("profile", Bytes{kArrays * kFloat * capacity}) {
  CHECK(capacity % kChunkAlignment == 0);
  reset(capacity);
}

float* OptimizerProbe::values(int64_t array) {
  return reinterpret_cast<float*>(arena_.at(array * kFloat * capacity_));
}

// Values as in training: weights of 0.02, gradients of 1e-3, both signs.
void OptimizerProbe::reset(int64_t parameters) {
  constexpr std::array<float, kArrays> kScale = {0.02f, 1e-3f, 1e-6f, 1e-3f};
  for (int64_t array = 0; array < kArrays; ++array) {
    float* out = values(array);
    const float scale = kScale[static_cast<size_t>(array)];
    const bool is_square = array == 2;
    for (int64_t i = 0; i < parameters; ++i) {
      const auto step = static_cast<float>(i % kPatternPeriod + 1) / kPatternPeriod;
      out[i] = scale * (is_square || i % 2 == 0 ? step : -step);
    }
  }
}

kernels::AdamArrays OptimizerProbe::arrays(int64_t parameters) {
  kernels::AdamArrays result;
  result.master = values(0);
  result.moment1 = values(1);
  result.moment2 = values(2);
  result.gradient = values(3);
  result.count = parameters;
  return result;
}

void OptimizerProbe::adam(kernels::Workers& workers, const kernels::Table& table,
                          int64_t parameters) {
  const int64_t begin = next_begin(parameters);
  kernels::adam_step(workers, table, kernels::slice(arrays(capacity_), begin, parameters),
                     probe_constants());
}

void OptimizerProbe::cast(kernels::Workers& workers, const kernels::Table& table,
                          int64_t elements) {
  const int64_t begin = next_begin(elements);
  kernels::cast(workers, table, values(3) + begin, kernels::Format::kF32, values(1) + begin,
                kernels::Format::kBf16, elements);
}

void OptimizerProbe::snapshot(int64_t parameters) {
  const int64_t begin = next_begin(parameters);
  // Into the gradient's array, one after another: what counts is that as many bytes move.
  for (int64_t array = 0; array < 3; ++array) {
    std::memcpy(values(3) + begin, values(array) + begin, static_cast<size_t>(parameters * kFloat));
  }
}

int64_t OptimizerProbe::next_begin(int64_t count) {
  CHECK(count <= capacity_);
  if (at_ + count > capacity_) at_ = 0;
  const int64_t begin = at_;
  at_ += round_up(count, kChunkAlignment);
  return begin;
}

bool OptimizerProbe::verify(const kernels::Table& table, int64_t parameters) {
  const kernels::AdamArrays all = arrays(parameters);
  reset(parameters);
  kernels::reference().adam_step(all, probe_constants());
  const std::vector<float> expected(all.master, all.master + parameters);
  reset(parameters);
  table.adam_step(all, probe_constants());
  return std::memcmp(expected.data(), all.master, static_cast<size_t>(parameters * kFloat)) == 0;
}

// --- Threads -----------------------------------------------------------------------------------

Timing time_handover(const ProbeLimits& limits) {
  constexpr auto kAsleep = std::chrono::milliseconds(1);
  constexpr int kWarmUp = 3;
  // Each round is one word, so that the waiter is never late for the next one.
  std::vector<std::atomic<int>> rounds(static_cast<size_t>(limits.most_repeats + kWarmUp));
  std::vector<Clock::time_point> released(rounds.size());
  std::vector<Clock::time_point> woken(rounds.size());
  std::atomic<size_t> ready{0};
  std::atomic<bool> stop{false};
  std::jthread waiter([&] {
    for (size_t i = 0; i < rounds.size() && !stop; ++i) {
      ready = i + 1;
      while (rounds[i].load(std::memory_order_acquire) == 0) {
        rounds[i].wait(0, std::memory_order_acquire);
      }
      woken[i] = Clock::now();
    }
  });
  const auto start = Clock::now();
  size_t done = 0;
  for (; done < rounds.size(); ++done) {
    if (static_cast<int>(done) >= limits.least_repeats + kWarmUp &&
        seconds_since(start) > limits.seconds) {
      break;
    }
    // At work, as the lane is that will hand over.
    for (const auto begin = Clock::now(); Clock::now() - begin < kAsleep || ready <= done;) {
      if (ready <= done) std::this_thread::yield();
    }
    released[done] = Clock::now();
    rounds[done].store(1, std::memory_order_release);
    rounds[done].notify_all();
  }
  stop = true;
  for (auto& round : rounds) {
    round = 1;
    round.notify_all();
  }
  waiter.join();
  std::vector<Duration> samples;
  for (size_t i = kWarmUp; i < done; ++i) {
    samples.push_back(Duration::from_ns((woken[i] - released[i]).count()));
  }
  return summarise(std::move(samples));
}

Timing time_least_operation(const ProbeLimits& limits) {
  constexpr int kOperations = 1000;
  std::atomic<int> completed{0};
  std::vector<std::array<Clock::time_point, 2>> spans;
  const Body operation = [&](int repeat) {
    spans.clear();
    for (int i = 0; i < kOperations; ++i) {
      const auto begin = Clock::now();
      completed.store(repeat, std::memory_order_release);
      spans.push_back({begin, Clock::now()});
      completed.notify_all();
    }
  };
  Timing timing = time_alone(operation, limits);
  timing.median.ps /= kOperations;
  timing.deviation.ps /= kOperations;
  return timing;
}

}  // namespace ballast
