#include "backend/measure/profile_cpu.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "sim/base/error.h"

namespace ballast {

namespace {

constexpr int64_t kSmallestBucket = 64 * kKi;  // parameters
constexpr int64_t kUsualCpuBucket = 4 * kMi;

}  // namespace

std::vector<Probe> CpuProfiler::probes() {
  std::vector<Probe> all;
  for (const kernels::Table* table : kernels::available()) {
    all.push_back({fmt::format("Adam {}", table->name), [this, table] { return adam(*table); }});
  }
  all.push_back({"Adam by threads", [this] { return adam_by_threads(); }});
  all.push_back({"cast fp32 to bf16", [this] { return casts(); }});
  all.push_back({"snapshot of optimizer state", [this] { return snapshots(); }});
  return all;
}

OptimizerProbe& CpuProfiler::optimizer() {
  if (!optimizer_) optimizer_ = std::make_unique<OptimizerProbe>(settings_.largest_bucket);
  return *optimizer_;
}

kernels::Workers& CpuProfiler::workers() {
  if (!workers_) {
    workers_ = std::make_unique<kernels::Workers>(settings_.threads, kernels::Pinning::kNone);
  }
  return *workers_;
}

void CpuProfiler::release() {
  optimizer_.reset();
  workers_.reset();
}

Curve CpuProfiler::curve(const std::function<void(int64_t elements)>& body) const {
  Curve result;
  result.measured = true;
  for (const int64_t elements : sizes_from(kSmallestBucket, settings_.largest_bucket)) {
    const Timing timing = time_alone([&](int) { body(elements); }, settings_.limits);
    const auto count = static_cast<double>(elements);
    result.points.push_back({count, rate_of(count, timing)});
  }
  result.source = settings_.source();
  return result;
}

std::string CpuProfiler::adam(const kernels::Table& table) {
  OptimizerProbe& probe = optimizer();
  if (!probe.verify(table, std::min(probe.capacity(), kSmallestBucket))) {
    throw Error(fmt::format("Adam {}", table.name), "its step differs from the reference's",
                "use another implementation (optimizer.adam), and report this processor");
  }
  Curve rates = curve([&](int64_t count) { probe.adam(workers(), table, count); });
  std::string text = fmt::format("{:.0f} M parameters/s at {} Ki, {:.0f} M at {} Ki, on {} threads",
                                 rates.points.front().rate / 1e6, kSmallestBucket / kKi,
                                 rates.points.back().rate / 1e6, settings_.largest_bucket / kKi,
                                 settings_.threads);
  cpu_.adam[std::string(table.name)] = std::move(rates);
  return text;
}

// What other numbers of threads would do; the machine's curves are for the one that it uses.
std::string CpuProfiler::adam_by_threads() {
  OptimizerProbe& probe = optimizer();
  const int64_t parameters = std::min(settings_.largest_bucket, kUsualCpuBucket);
  std::string text;
  for (int threads = 1; threads <= settings_.cores; threads *= 2) {
    kernels::Workers some(threads, kernels::Pinning::kNone);
    const Timing timing =
        time_alone([&](int) { probe.adam(some, kernels::best(), parameters); }, settings_.limits);
    text += fmt::format("{}{} thread{}: {:.0f} M parameters/s", text.empty() ? "" : ", ", threads,
                        threads == 1 ? "" : "s",
                        rate_of(static_cast<double>(parameters), timing) / 1e6);
  }
  return text;
}

std::string CpuProfiler::casts() {
  OptimizerProbe& probe = optimizer();
  cpu_.cast = curve([&](int64_t count) { probe.cast(workers(), kernels::best(), count); });
  return fmt::format("{:.0f} M values/s", cpu_.cast.points.back().rate / 1e6);
}

std::string CpuProfiler::snapshots() {
  OptimizerProbe& probe = optimizer();
  const int64_t parameters = std::min(settings_.largest_bucket, kUsualCpuBucket);
  const Timing timing = time_alone([&](int) { probe.snapshot(parameters); }, settings_.limits);
  return fmt::format("{:.0f} M parameters/s {}",
                     rate_of(static_cast<double>(parameters), timing) / 1e6, percent(timing));
}

Bandwidth CpuProfiler::copied_by(int threads, Arena& from, Arena& to) const {
  kernels::Workers some(threads, kernels::Pinning::kNone);
  const int64_t bytes = from.size().count;
  // Touched by who will copy it, so that it lies near.
  kernels::first_touch(some, from.at(0), 1, bytes);
  kernels::first_touch(some, to.at(0), 1, bytes);
  const Timing timing = time_alone(
      [&](int) { kernels::copy_streaming(some, kernels::best(), from.at(0), to.at(0), bytes); },
      settings_.limits);
  return {rate_of(static_cast<double>(2 * bytes), timing)};
}

std::string CpuProfiler::MemoryRates::text() const {
  return fmt::format("{:.1f} GB/s by {} threads, {:.1f} GB/s by one", all.gb_per_s(), threads,
                     one.gb_per_s());
}

CpuProfiler::MemoryRates CpuProfiler::memory() {
  // As much as the largest bucket's state, which no cache holds.
  const Bytes bytes{settings_.largest_bucket * 4 * 2};
  Arena from("profile copy source", bytes);
  Arena to("profile copy destination", bytes);
  MemoryRates rates;
  rates.threads = settings_.threads;
  rates.all = copied_by(settings_.threads, from, to);
  rates.one = settings_.threads > 1 ? copied_by(1, from, to) : rates.all;
  cpu_.core_bandwidth = Sourced<Bandwidth>{rates.one, true, settings_.source()};
  return rates;
}

}  // namespace ballast
