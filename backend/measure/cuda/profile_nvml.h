// A GPU's clocks, power and temperature while it is measured, by NVIDIA's management library.
//
// The library belongs to the driver, so it is loaded when asked for, and what it would have said is
// missing where it is not there. Power is the driver's own mean, over a second on Ampere and later.
// Will not do: set clocks or limits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace ballast {

// The driver's reasons for lower clocks than it would give otherwise (nvml.h,
// nvmlClocksThrottleReasons*).
inline constexpr uint64_t kSlowedByPowerLimit = 0x4;
inline constexpr uint64_t kSlowedByHardware = 0x8;
inline constexpr uint64_t kSlowedByHeat = 0x20 | 0x40;
inline constexpr uint64_t kSlowedByPowerBrake = 0x80;

struct GpuSample {
  unsigned clock_mhz = 0;  // of the multiprocessors
  unsigned memory_clock_mhz = 0;
  double watts = 0;
  unsigned celsius = 0;
  uint64_t slowed_by = 0;  // bits as above
};

class GpuMonitor {
 public:
  virtual ~GpuMonitor() = default;
  // Nothing where the library or the device does not answer. From any thread.
  virtual std::optional<GpuSample> sample() = 0;
  // Version of the driver; empty where unknown.
  virtual std::string driver() = 0;
  // Why there are no samples; empty where there are.
  virtual std::string absent() = 0;
};

// The functions of the library that we call, with its own types (nvml.h): a device is a pointer, a
// result is 0 where all is well.
struct NvmlCalls {
  using Device = void*;
  int (*start)() = nullptr;                                         // nvmlInit_v2
  int (*stop)() = nullptr;                                          // nvmlShutdown
  const char* (*error)(int) = nullptr;                              // nvmlErrorString
  int (*device_by_bus)(const char* bus, Device*) = nullptr;         // nvmlDeviceGetHandleByPciBusId
  int (*clock)(Device, int which, unsigned* mhz) = nullptr;         // nvmlDeviceGetClockInfo
  int (*power)(Device, unsigned* milliwatts) = nullptr;             // nvmlDeviceGetPowerUsage
  int (*temperature)(Device, int sensor, unsigned*) = nullptr;      // nvmlDeviceGetTemperature
  int (*slow_reasons)(Device, unsigned long long* bits) = nullptr;  // ...CurrentClocksEventReasons
  int (*driver_version)(char* text, unsigned length) = nullptr;     // nvmlSystemGetDriverVersion
};

// The monitor of the device at this PCI address. Never fails: without the library, or where it does
// not know the device, absent() says so.
std::unique_ptr<GpuMonitor> open_gpu_monitor(const std::string& bus,
                                             const std::string& library = "libnvidia-ml.so.1");
std::unique_ptr<GpuMonitor> gpu_monitor_of(const NvmlCalls& calls, const std::string& bus);

// Samples the monitor on a thread of its own while something is measured.
class GpuWatch {
 public:
  // The monitor must outlive this.
  explicit GpuWatch(GpuMonitor& monitor);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // Forgets what was sampled.
  void restart();
  // Since then, for example "at 1755 to 1980 MHz (memory 3201), up to 640 W and 61 C, slowed by its
  // power limit"; empty where nothing was sampled.
  std::string conditions();

 private:
  void watch();
  GpuMonitor& monitor_;
  std::mutex mutex_;  // guards samples_
  std::vector<GpuSample> samples_;
  std::jthread thread_;
};

// The text of GpuWatch::conditions.
std::string describe_conditions(const std::vector<GpuSample>& samples);

}  // namespace ballast
