#include "backend/measure/cuda/profile_cuda_timing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <utility>

#include "backend/execute/operation_arguments.h"
#include "backend/train/random.h"
#include "kernels/fp8.h"
#include "sim/base/error.h"
#include "sim/base/units.h"

namespace ballast {

namespace {

// What is shorter may end before the host has enqueued the next.
constexpr double kShort = 50e-6;
constexpr int kClears = 8;

// As eight_bit.cu rounds a factor: by the power of two that brings the largest near the top.
void round_to_codes(const std::vector<float>& values, std::vector<std::byte>& codes) {
  constexpr kernels::Fp8 kFormat = kernels::Fp8::kE4m3;
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  const int exponent = kernels::fp8_exponent(kFormat, std::bit_cast<uint32_t>(largest));
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i] = std::byte{kernels::fp8_of_float(kFormat, std::ldexp(values[i], exponent))};
  }
}

}  // namespace

CudaStopwatch::CudaStopwatch(CudaRuntime& runtime, SecondsNow now, Bytes held)
    : runtime_(runtime),
      now_(std::move(now)),
      stream_(runtime, runtime.create_stream("probe", StreamPriority::kLow)),
      held_(runtime, CudaMemoryKind::kDevice, held, "what holds the stream of probes") {
  for (int i = 0; i <= kMostAhead; ++i) {
    events_.emplace_back(runtime_, runtime_.create_event(stream()));
  }
}

Duration CudaStopwatch::between(size_t from, size_t to) {
  const double milliseconds = runtime_.milliseconds(events_[from].get(), events_[to].get());
  return Duration::from_seconds(milliseconds * 1e-3);
}

double CudaStopwatch::estimate(const Enqueue& body) {
  runtime_.record(events_[0].get(), stream());
  body(-1);
  runtime_.record(events_[1].get(), stream());
  runtime_.synchronize(events_[1].get());
  return std::max(between(0, 1).seconds(), 1e-9);
}

Timing CudaStopwatch::time(const Enqueue& body, const ProbeLimits& limits) {
  body(-1);
  runtime_.synchronize(stream());
  const double once = estimate(body);
  const double fitting = std::min(limits.seconds / once, static_cast<double>(kMostAhead));
  const int batch = std::max(static_cast<int>(fitting), 1);
  const int clears = once < kShort ? kClears : 0;
  std::vector<Duration> samples;
  const double start = now_();
  while (static_cast<int>(samples.size()) < limits.most_repeats) {
    const auto done = static_cast<int>(samples.size());
    for (int i = 0; i < clears; ++i) runtime_.clear(held_.data(), held_.bytes(), stream());
    body(done - 1);
    runtime_.record(events_[0].get(), stream());
    for (int i = 0; i < batch; ++i) {
      body(done + i);
      runtime_.record(events_[static_cast<size_t>(i) + 1].get(), stream());
    }
    runtime_.synchronize(events_[static_cast<size_t>(batch)].get());
    for (size_t i = 0; i < static_cast<size_t>(batch); ++i) samples.push_back(between(i, i + 1));
    if (static_cast<int>(samples.size()) < limits.least_repeats) continue;
    if (now_() - start > limits.seconds || is_settled(samples, limits)) break;
  }
  const Timing timing = summarise(std::move(samples));
  if (timing.median.ps <= 0) {
    throw Error("timing on the GPU", "it took no time: nothing ran", "check the driver");
  }
  return timing;
}

Duration CudaStopwatch::time_of_run(const Enqueue& body, const std::function<void()>& hold) {
  body(-1);
  runtime_.synchronize(stream());
  hold();
  runtime_.record(events_[0].get(), stream());
  body(0);
  runtime_.record(events_[1].get(), stream());
  runtime_.synchronize(events_[1].get());
  return between(0, 1);
}

CudaWorkspace::CudaWorkspace(CudaRuntime& runtime, CudaStream stream, Bytes bytes)
    : runtime_(runtime),
      stream_(stream),
      memory_(runtime, CudaMemoryKind::kDevice, bytes, "the probes of ballast profile") {
  reset();
}

// Matrices that are multiplied and their product are about equal in size.
void CudaWorkspace::reset() {
  const Bytes middle{memory_.bytes().count * 3 / 5 / kAlignment * kAlignment};
  inputs_ = {{}, middle};
  outputs_ = {middle, memory_.bytes()};
}

void CudaWorkspace::fill(DType dtype) {
  constexpr int64_t kValues = 64 * 1024;
  std::vector<float> values(static_cast<size_t>(kValues));
  fill_normal(values, key_of(1, "profile"), 1.0);
  std::vector<std::byte> stored(static_cast<size_t>(kValues * size_of(dtype)));
  if (dtype == DType::kE4m3) {
    round_to_codes(values, stored);
  } else {
    kernels::best().cast(values.data(), kernels::Format::kF32, stored.data(), format_of(dtype),
                         kValues);
  }
  const int64_t size = memory_.bytes().count;
  int64_t done = std::min<int64_t>(static_cast<int64_t>(stored.size()), size);
  runtime_.copy({memory_.data(), stored.data(), {done}, CopyKind::kHostToDevice}, stream_);
  // Twice as much by each copy: the beginning again.
  while (done < size) {
    const int64_t count = std::min(done, size - done);
    runtime_.copy({memory_.data() + done, memory_.data(), {count}, CopyKind::kDeviceToDevice},
                  stream_);
    done += count;
  }
  runtime_.synchronize(stream_);
  reset();
}

std::byte* CudaWorkspace::take(Bytes bytes, Range& from) {
  const Bytes rounded{round_up(bytes.count, kAlignment)};
  const Bytes left = from.end - from.begin;
  if (rounded > left) {
    throw Error("working memory of the profile",
                fmt::format("{} are needed and {} left", bytes_text(bytes), bytes_text(left)),
                "end what else uses the GPU");
  }
  std::byte* const data = memory_.data() + from.begin.count;
  from.begin += rounded;
  return data;
}

}  // namespace ballast
