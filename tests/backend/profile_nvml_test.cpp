// What NVML says, with functions of our own in its place: units, and what is said where it is not.
#include "backend/measure/cuda/profile_nvml.h"

#include <cstring>
#include <gtest/gtest.h>

namespace ballast {
namespace {

int stopped = 0;

// A GPU at 1980 MHz (memory 2619), 123456 mW, 45 C, held back by heat, at one PCI address.
NvmlCalls calls() {
  NvmlCalls calls;
  calls.start = [] { return 0; };
  calls.stop = [] { return ++stopped, 0; };
  calls.error = [](int code) { return code == 6 ? "Not Found" : "Driver Not Loaded"; };
  calls.device_by_bus = [](const char* bus, NvmlCalls::Device* device) {
    *device = &stopped;
    return std::strcmp(bus, "0000:01:00.0") == 0 ? 0 : 6;
  };
  calls.clock = [](NvmlCalls::Device device, int which, unsigned* mhz) {
    *mhz = which == 1 ? 1980 : 2619;
    return device == &stopped && (which == 1 || which == 2) ? 0 : 2;
  };
  calls.power = [](NvmlCalls::Device, unsigned* milliwatts) { return *milliwatts = 123456, 0; };
  calls.temperature = [](NvmlCalls::Device, int sensor, unsigned* celsius) {
    *celsius = 45;
    return sensor;
  };
  calls.slow_reasons = [](NvmlCalls::Device, unsigned long long* bits) { return *bits = 0x40, 0; };
  calls.driver_version = [](char* text, unsigned length) {
    std::strncpy(text, "580.65.06", length);
    return 0;
  };
  return calls;
}

TEST(Nvml, sample_has_clocks_watts_and_degrees) {
  stopped = 0;
  {
    const auto monitor = gpu_monitor_of(calls(), "0000:01:00.0");
    EXPECT_EQ(monitor->absent(), "");
    EXPECT_EQ(monitor->driver(), "580.65.06");
    const std::optional<GpuSample> sample = monitor->sample();
    ASSERT_TRUE(sample);
    EXPECT_EQ(sample->clock_mhz, 1980U);
    EXPECT_EQ(sample->memory_clock_mhz, 2619U);
    EXPECT_DOUBLE_EQ(sample->watts, 123.456);
    EXPECT_EQ(sample->celsius, 45U);
    EXPECT_EQ(sample->slowed_by & kSlowedByHeat, 0x40U);
  }
  EXPECT_EQ(stopped, 1);
}

TEST(Nvml, device_that_it_does_not_know_is_absent) {
  stopped = 0;
  const auto monitor = gpu_monitor_of(calls(), "0000:02:00.0");
  EXPECT_EQ(monitor->absent(), "NVML, device by its PCI address: Not Found");
  EXPECT_FALSE(monitor->sample());
  EXPECT_EQ(monitor->driver(), "");
  EXPECT_EQ(stopped, 1);
}

TEST(Nvml, library_that_does_not_start_is_absent) {
  NvmlCalls refused = calls();
  refused.start = [] { return 9; };
  EXPECT_EQ(gpu_monitor_of(refused, "0000:01:00.0")->absent(), "NVML, start: Driver Not Loaded");
}

TEST(Nvml, reading_that_fails_gives_no_sample) {
  NvmlCalls mute = calls();
  mute.power = [](NvmlCalls::Device, unsigned*) { return 3; };
  const auto monitor = gpu_monitor_of(mute, "0000:01:00.0");
  EXPECT_FALSE(monitor->sample());
  GpuWatch watch(*monitor);
  EXPECT_EQ(watch.conditions(), "");
}

TEST(Nvml, library_that_is_not_here_is_absent) {
  const auto monitor = open_gpu_monitor("0000:01:00.0", "libno-such-monitor.so.1");
  EXPECT_EQ(monitor->absent(), "libno-such-monitor.so.1 is not here");
  EXPECT_FALSE(monitor->sample());
}

// libc has none of the functions.
TEST(Nvml, library_without_the_functions_is_absent) {
  const auto monitor = open_gpu_monitor("0000:01:00.0", "libc.so.6");
  EXPECT_EQ(monitor->absent(), "libc.so.6 lacks a function of NVML");
}

TEST(Nvml, conditions_are_the_range_of_the_clock_and_the_most_of_the_others) {
  EXPECT_EQ(describe_conditions({}), "");
  EXPECT_EQ(describe_conditions({{1980, 2619, 300.4, 50, 0}, {1755, 2619, 699.6, 63, 0x4}}),
            "at 1755 to 1980 MHz (memory 2619), up to 700 W and 63 C, slowed by its power limit");
  EXPECT_EQ(describe_conditions({{1980, 2619, 100, 50, 0x8 | 0x20}}),
            "at 1980 MHz (memory 2619), up to 100 W and 50 C, slowed by heat, slowed by the board");
}

TEST(Nvml, watch_samples_by_itself_until_it_is_restarted) {
  const auto monitor = gpu_monitor_of(calls(), "0000:01:00.0");
  GpuWatch watch(*monitor);
  const std::string once = "at 1980 MHz (memory 2619), up to 123 W and 45 C, slowed by heat";
  EXPECT_EQ(watch.conditions(), once);
  watch.restart();
  EXPECT_EQ(watch.conditions(), once);  // sampled when asked, where the thread was not there yet
}

}  // namespace
}  // namespace ballast
