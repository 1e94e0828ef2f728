// A CUDA runtime and kernels on a clock of their own: everything takes what it must by nominal
// rates and not a nanosecond of noise, so a profile's numbers can be worked out by hand. Copies are
// really done. What is asked for is noted in order.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "backend/measure/cuda/profile_cuda.h"
#include "sim/base/error.h"

namespace ballast::tests {

// Of the device that is played; rates in units per second, times in seconds.
struct PricedDevice {
  CudaProperties properties{};
  Bytes context{500'000'000};   // taken before anything else
  Bytes libraries{40'000'000};  // taken by the first product
  double copy_latency = 2e-6;
  double in = 50e9;  // pinned
  double out = 40e9;
  double by_kernel = 20e9;  // of kernels that read or write pinned memory
  double pageable = 0.25;   // share of the pinned rate
  double memory = 4e12;     // read plus written
  double launch = 2e-6;     // of any kernel
  double handover = 3e-6;   // of a wait for another stream
  double arithmetic = 50e12;
  double attention = 200e12;
  std::map<DType, double> products{
      {DType::kBf16, 600e12}, {DType::kF16, 500e12}, {DType::kF32, 40e12}, {DType::kE4m3, 1100e12}};
  // Every call of this kernel, or of a "copy" of the runtime, throws; empty: none.
  std::string failing;
  // Copies to the device that the runtime reports done without doing them.
  bool loses_copies = false;
};

class PricedCuda : public CudaRuntime {
 public:
  explicit PricedCuda(PricedDevice device) : device_(std::move(device)) {}
  ~PricedCuda() override { CHECK(allocated_.empty() && streams_ == 0 && events_ == 0); }

  const PricedDevice& device() const { return device_; }
  const std::vector<std::string>& calls() const { return calls_; }
  // The host's clock: as late as the latest stream that it waited for.
  double now() const { return host_; }

  CudaProperties properties() override { return device_.properties; }
  Bytes free_memory() override {
    Bytes free = device_.properties.memory - device_.context;
    for (const auto& [memory, bytes] : allocated_) free -= bytes;
    return free;
  }
  void bind_thread() override {}
  void* allocate(Bytes bytes, const std::string&) override { return take(bytes, bytes); }
  void free(void* memory) override {
    CHECK(allocated_.erase(memory) == 1);
    ::operator delete(memory, kAlignment);
  }
  void* allocate_pinned(Bytes bytes, const std::string&) override {
    void* memory = take(bytes, {});
    pinned_[static_cast<const std::byte*>(memory)] = bytes.count;
    return memory;
  }
  void free_pinned(void* memory) override {
    pinned_.erase(static_cast<const std::byte*>(memory));
    free(memory);
  }
  void pin(void*, Bytes, const std::string&) override {}
  void unpin(void*) override {}

  CudaStream create_stream(const char* name, StreamPriority) override {
    ++streams_;
    return {new double(host_), name};
  }
  void destroy(CudaStream stream) override {
    --streams_;
    delete &time_of(stream);
  }
  CudaEvent create_event(CudaStream stream) override {
    ++events_;
    return {new Event, stream.name};
  }
  void destroy(CudaEvent event) override {
    --events_;
    delete &of(event);
  }
  // An idle stream comes to it at once, which is when the host asks.
  void record(CudaEvent event, CudaStream stream) override {
    time_of(stream) = std::max(time_of(stream), host_);
    of(event) = {time_of(stream), stream.native};
  }
  void wait(CudaStream stream, CudaEvent event) override {
    double& time = time_of(stream);
    const bool other = of(event).stream != stream.native;
    time = std::max(time, of(event).time + (other ? device_.handover : 0));
  }
  bool done(CudaEvent) override { return true; }
  void synchronize(CudaEvent event) override { host_ = std::max(host_, of(event).time); }
  void synchronize(CudaStream stream) override { host_ = std::max(host_, time_of(stream)); }
  double milliseconds(CudaEvent from, CudaEvent to) override {
    return (of(to).time - of(from).time) * 1e3;
  }

  void copy(const CudaCopy& copy, CudaStream stream) override {
    if (device_.failing == "copy") {
      throw_cuda_error({"copy", copy.bytes, std::string("on stream ") + stream.name},
                       "invalid argument (cudaErrorInvalidValue)", CudaFault::kOther);
    }
    const bool to_device = copy.kind == CopyKind::kHostToDevice;
    const bool lost = device_.loses_copies && to_device && copy.bytes.count < 100'000;
    if (!lost) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes.count));
    const auto bytes = static_cast<double>(copy.bytes.count);
    if (copy.kind == CopyKind::kDeviceToDevice) return spend(stream, 2 * bytes / device_.memory);
    const double rate = (to_device ? device_.in : device_.out) *
                        (is_pinned(to_device ? copy.from : copy.to) ? 1 : device_.pageable);
    spend(stream, device_.copy_latency + bytes / rate);
  }
  void clear(void* memory, Bytes bytes, CudaStream stream) override {
    std::memset(memory, 0, static_cast<size_t>(bytes.count));
    spend(stream, static_cast<double>(bytes.count) / device_.memory);
  }
  void begin_capture(CudaStream) override {}
  CudaGraph end_capture(CudaStream) override { return {}; }
  void launch(CudaGraph, CudaStream) override {}
  void destroy(CudaGraph) override {}
  void push_range(const char*) override {}
  void pop_range() override {}

  // A kernel that takes so long beyond its launch.
  void kernel(const std::string& name, double seconds, CudaStream stream) {
    if (calls_.empty() || calls_.back() != name) calls_.push_back(name);
    if (name == device_.failing) throw Error("cuda kernel " + name, "it fails", "none");
    spend(stream, device_.launch + seconds);
  }

 private:
  static constexpr std::align_val_t kAlignment{256};
  struct Event {
    double time = 0;
    void* stream = nullptr;
  };
  static double& time_of(CudaStream stream) { return *static_cast<double*>(stream.native); }
  static Event& of(CudaEvent event) { return *static_cast<Event*>(event.native); }

  void* take(Bytes bytes, Bytes of_device) {
    void* memory = ::operator new(static_cast<size_t>(bytes.count), kAlignment);
    std::memset(memory, 0xff, static_cast<size_t>(bytes.count));
    allocated_[memory] = of_device;
    return memory;
  }
  bool is_pinned(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    auto above = pinned_.upper_bound(at);
    if (above == pinned_.begin()) return false;
    --above;
    return at < above->first + above->second;
  }
  // Begins when the stream is free and the host has asked.
  void spend(CudaStream stream, double seconds) {
    double& time = time_of(stream);
    time = std::max(time, host_) + seconds;
  }

  PricedDevice device_;
  std::map<void*, Bytes> allocated_;
  std::map<const std::byte*, int64_t> pinned_;
  std::vector<std::string> calls_;
  int streams_ = 0;
  int events_ = 0;
  double host_ = 0;
};

// Kernels of nominal times; products and attention do not compute.
class PricedKernels : public CudaProbeKernels, public CudaProducts {
 public:
  explicit PricedKernels(PricedCuda& runtime)
      : runtime_(runtime),
        workspace_(runtime, CudaMemoryKind::kDevice, runtime.device().libraries, "libraries") {}

  void empty(CudaStream stream) override { runtime_.kernel("empty", 0, stream); }
  void copy(const kernels::cuda::CopyProbe& copy, CudaStream stream) override {
    runtime_.kernel("copy kernel", 2 * static_cast<double>(copy.bytes) / device().memory, stream);
  }
  void triad(const kernels::cuda::TriadProbe& triad, CudaStream stream) override {
    runtime_.kernel("triad", 12 * static_cast<double>(triad.count) / device().memory, stream);
  }
  // Across the link, in fp32.
  void cast_across_link(const kernels::cuda::Cast& cast, CudaStream stream) override {
    const auto bytes = 4.0 * static_cast<double>(cast.count);
    runtime_.kernel("cast", bytes / device().by_kernel, stream);
    std::memcpy(cast.to.data, cast.from.data, static_cast<size_t>(4 * cast.count));
  }
  void arithmetic(const kernels::cuda::ArithmeticProbe& probe, CudaStream stream) override {
    const double flops = 2.0 * static_cast<double>(probe.count) * probe.rounds;
    runtime_.kernel("arithmetic", flops / device().arithmetic, stream);
  }
  Bytes scratch_of(const kernels::cuda::AttentionForward&) override { return {}; }
  Bytes scratch_of(const kernels::cuda::AttentionBackward&) override { return {1000}; }
  void attention(const kernels::cuda::AttentionForward& forward, CudaStream stream) override {
    runtime_.kernel("attention forward", flops_of(forward.shape) / device().attention, stream);
  }
  void attention(const kernels::cuda::AttentionBackward& backward, CudaStream stream) override {
    runtime_.kernel("attention backward", 2.5 * flops_of(backward.shape) / device().attention,
                    stream);
  }
  CudaProducts& products() override { return *this; }

  void multiply(const CudaGemm& gemm, CudaStream stream) override {
    const double flops = 2.0 * static_cast<double>(gemm.m) * static_cast<double>(gemm.n) *
                         static_cast<double>(gemm.k);
    runtime_.kernel(std::string("product ") + std::string(to_string(gemm.a.dtype)),
                    flops / device().products.at(gemm.a.dtype), stream);
  }

 private:
  const PricedDevice& device() const { return runtime_.device(); }
  // Of the causal half: two products of half of [S, S] with D in every head.
  static double flops_of(const kernels::cuda::AttentionShape& shape) {
    return 2.0 * static_cast<double>(shape.sequences * shape.heads * shape.head_size) *
           static_cast<double>(shape.length * shape.length);
  }

  PricedCuda& runtime_;
  CudaMemory workspace_;
};

// A monitor that always says the same.
class SteadyMonitor : public GpuMonitor {
 public:
  explicit SteadyMonitor(std::string absent = "") : absent_(std::move(absent)) {}
  std::optional<GpuSample> sample() override {
    if (!absent_.empty()) return std::nullopt;
    return GpuSample{1755, 3201, 512.4, 61, kSlowedByPowerLimit};
  }
  std::string driver() override { return absent_.empty() ? "580.65.06" : ""; }
  std::string absent() override { return absent_; }

 private:
  std::string absent_;
};

}  // namespace ballast::tests
