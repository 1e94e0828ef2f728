#include "backend/measure/cuda/profile_nvml.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <fmt/format.h>

#include "backend/cuda/libraries/shared_library.h"

namespace ballast {

namespace {

// Of nvml.h: nvmlClockType_t and nvmlTemperatureSensors_t.
constexpr int kClockOfMultiprocessors = 1;
constexpr int kClockOfMemory = 2;
constexpr int kSensorOfGpu = 0;
constexpr auto kWattPeriod = std::chrono::milliseconds(20);

class NoMonitor : public GpuMonitor {
 public:
  explicit NoMonitor(std::string reason) : reason_(std::move(reason)) {}
  std::optional<GpuSample> sample() override { return std::nullopt; }
  std::string driver() override { return ""; }
  std::string absent() override { return reason_; }

 private:
  std::string reason_;
};

class NvmlMonitor : public GpuMonitor {
 public:
  NvmlMonitor(const NvmlCalls& calls, NvmlCalls::Device device) : calls_(calls), device_(device) {}
  ~NvmlMonitor() override { calls_.stop(); }

  std::optional<GpuSample> sample() override {
    GpuSample found;
    unsigned milliwatts = 0;
    const bool fine = calls_.clock(device_, kClockOfMultiprocessors, &found.clock_mhz) == 0 &&
                      calls_.clock(device_, kClockOfMemory, &found.memory_clock_mhz) == 0 &&
                      calls_.power(device_, &milliwatts) == 0 &&
                      calls_.temperature(device_, kSensorOfGpu, &found.celsius) == 0;
    if (!fine) return std::nullopt;
    found.watts = milliwatts / 1000.0;
    unsigned long long bits = 0;
    if (calls_.slow_reasons(device_, &bits) == 0) found.slowed_by = bits;
    return found;
  }
  std::string driver() override {
    std::array<char, 96> text{};
    if (calls_.driver_version(text.data(), static_cast<unsigned>(text.size())) != 0) return "";
    return text.data();
  }
  std::string absent() override { return ""; }

 private:
  NvmlCalls calls_;
  NvmlCalls::Device device_;
};

bool find_all(void* library, NvmlCalls& calls) {
  return find_function(library, "nvmlInit_v2", calls.start) &&
         find_function(library, "nvmlShutdown", calls.stop) &&
         find_function(library, "nvmlErrorString", calls.error) &&
         find_function(library, "nvmlDeviceGetHandleByPciBusId_v2", calls.device_by_bus) &&
         find_function(library, "nvmlDeviceGetClockInfo", calls.clock) &&
         find_function(library, "nvmlDeviceGetPowerUsage", calls.power) &&
         find_function(library, "nvmlDeviceGetTemperature", calls.temperature) &&
         // The first is its name from driver 535 on.
         (find_function(library, "nvmlDeviceGetCurrentClocksEventReasons", calls.slow_reasons) ||
          find_function(library, "nvmlDeviceGetCurrentClocksThrottleReasons",
                        calls.slow_reasons)) &&
         find_function(library, "nvmlSystemGetDriverVersion", calls.driver_version);
}

}  // namespace

std::unique_ptr<GpuMonitor> gpu_monitor_of(const NvmlCalls& calls, const std::string& bus) {
  const auto absent = [&](const char* what, int code) {
    return std::make_unique<NoMonitor>(fmt::format("NVML, {}: {}", what, calls.error(code)));
  };
  if (const int code = calls.start(); code != 0) return absent("start", code);
  NvmlCalls::Device device = nullptr;
  if (const int code = calls.device_by_bus(bus.c_str(), &device); code != 0) {
    calls.stop();
    return absent("device by its PCI address", code);
  }
  return std::make_unique<NvmlMonitor>(calls, device);
}

// The library stays loaded until the process ends: unloading it gains nothing.
std::unique_ptr<GpuMonitor> open_gpu_monitor(const std::string& bus, const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return std::make_unique<NoMonitor>(fmt::format("{} is not here", library));
  }
  NvmlCalls calls;
  if (!find_all(handle, calls)) {
    return std::make_unique<NoMonitor>(fmt::format("{} lacks a function of NVML", library));
  }
  return gpu_monitor_of(calls, bus);
}

GpuWatch::GpuWatch(GpuMonitor& monitor) : monitor_(monitor) {
  if (!monitor_.absent().empty()) return;
  thread_ = std::jthread([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any slept;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      watch();
      slept.wait_for(lock, stop, kWattPeriod, [] { return false; });
    }
  });
}

GpuWatch::~GpuWatch() = default;

void GpuWatch::watch() {
  const std::optional<GpuSample> sample = monitor_.sample();
  if (!sample) return;
  const std::scoped_lock lock(mutex_);
  samples_.push_back(*sample);
}

void GpuWatch::restart() {
  const std::scoped_lock lock(mutex_);
  samples_.clear();
}

// A group that was over before the thread came to it is sampled now.
std::string GpuWatch::conditions() {
  {
    const std::scoped_lock lock(mutex_);
    if (!samples_.empty()) return describe_conditions(samples_);
  }
  watch();
  const std::scoped_lock lock(mutex_);
  return describe_conditions(samples_);
}

std::string describe_conditions(const std::vector<GpuSample>& samples) {
  if (samples.empty()) return "";
  GpuSample least = samples.front();
  GpuSample most = samples.front();
  uint64_t reasons = 0;
  for (const GpuSample& sample : samples) {
    least.clock_mhz = std::min(least.clock_mhz, sample.clock_mhz);
    most.clock_mhz = std::max(most.clock_mhz, sample.clock_mhz);
    most.memory_clock_mhz = std::max(most.memory_clock_mhz, sample.memory_clock_mhz);
    most.watts = std::max(most.watts, sample.watts);
    most.celsius = std::max(most.celsius, sample.celsius);
    reasons |= sample.slowed_by;
  }
  const std::string clocks = least.clock_mhz == most.clock_mhz
                                 ? fmt::format("{}", most.clock_mhz)
                                 : fmt::format("{} to {}", least.clock_mhz, most.clock_mhz);
  std::string text = fmt::format("at {} MHz (memory {}), up to {:.0f} W and {} C", clocks,
                                 most.memory_clock_mhz, most.watts, most.celsius);
  if ((reasons & kSlowedByPowerLimit) != 0) text += ", slowed by its power limit";
  if ((reasons & kSlowedByHeat) != 0) text += ", slowed by heat";
  if ((reasons & (kSlowedByHardware | kSlowedByPowerBrake)) != 0) text += ", slowed by the board";
  return text;
}

}  // namespace ballast
