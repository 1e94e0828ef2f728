// The real runtime.
#include "backend/cuda/cuda_runtime.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include "backend/cuda/cuda_error.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

// The operation that this thread is handing over, or null.
thread_local const char* open_range = nullptr;

// Whether a stream notes what this thread enqueues. Events are then nodes of the graph that others
// may wait for or record: without the flag they would order the noted work alone.
thread_local bool captures = false;

CudaFault fault_of(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return CudaFault::kMemory;
    case cudaErrorNotSupported:
    case cudaErrorInsufficientDriver:
      return CudaFault::kDriver;
    case cudaErrorECCUncorrectable:
    case cudaErrorDevicesUnavailable:
      return CudaFault::kDevice;
    default:
      return CudaFault::kOther;
  }
}

void check(cudaError_t code, CudaAttempt attempt) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // else the next call would report it again
  attempt.in_range = open_range;
  throw_cuda_error(attempt,
                   fmt::format("{} ({})", cudaGetErrorString(code), cudaGetErrorName(code)),
                   fault_of(code));
}

cudaStream_t native(CudaStream stream) { return static_cast<cudaStream_t>(stream.native); }
cudaEvent_t native(CudaEvent event) { return static_cast<cudaEvent_t>(event.native); }
std::string on(CudaStream stream) { return fmt::format("on stream {}", stream.name); }
std::string on(CudaEvent event) { return fmt::format("of stream {}", event.stream); }

cudaMemcpyKind native(CopyKind kind) {
  switch (kind) {
    case CopyKind::kHostToDevice:
      return cudaMemcpyHostToDevice;
    case CopyKind::kDeviceToHost:
      return cudaMemcpyDeviceToHost;
    case CopyKind::kDeviceToDevice:
      return cudaMemcpyDeviceToDevice;
    case CopyKind::kHostToHost:
      break;
  }
  return cudaMemcpyHostToHost;
}

class RealRuntime : public CudaRuntime {
 public:
  explicit RealRuntime(int index) : index_(index) { bind_thread(); }

  CudaProperties properties() override {
    CudaProperties found;
    cudaDeviceProp all{};
    check(cudaGetDeviceProperties(&all, index_), {"query of the device's properties"});
    found.name = all.name;
    found.major = all.major;
    found.minor = all.minor;
    found.memory = {static_cast<int64_t>(all.totalGlobalMem)};
    found.multiprocessors = all.multiProcessorCount;
    found.l2 = {all.l2CacheSize};
    char bus[32] = {};
    check(cudaDeviceGetPCIBusId(bus, sizeof(bus), index_), {"query of the PCI address"});
    found.bus = bus;
    check(cudaDriverGetVersion(&found.driver_version), {"query of the driver's version"});
    check(cudaRuntimeGetVersion(&found.runtime_version), {"query of the runtime's version"});
    found.shares_page_tables = attribute(cudaDevAttrPageableMemoryAccessUsesHostPageTables) != 0;
    found.addresses_pinned_memory = attribute(cudaDevAttrCanUseHostPointerForRegisteredMem) != 0;
    return found;
  }
  Bytes free_memory() override {
    size_t available = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&available, &total), {"query of free memory"});
    return {static_cast<int64_t>(available)};
  }
  void bind_thread() override {
    thread_local int bound = -1;
    if (bound == index_) return;
    check(cudaSetDevice(index_), {"choice of the device"});
    bound = index_;
  }

  void* allocate(Bytes bytes, const std::string& what) override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, static_cast<size_t>(bytes.count)),
          {"allocation", bytes, "for " + what});
    return memory;
  }
  void free(void* memory) override { check(cudaFree(memory), {"release of device memory"}); }
  void* allocate_pinned(Bytes bytes, const std::string& what) override {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, static_cast<size_t>(bytes.count), cudaHostAllocPortable),
          {"allocation of pinned memory", bytes, "for " + what});
    return memory;
  }
  void free_pinned(void* memory) override {
    check(cudaFreeHost(memory), {"release of pinned memory"});
  }
  void pin(void* memory, Bytes bytes, const std::string& what) override {
    check(cudaHostRegister(memory, static_cast<size_t>(bytes.count), cudaHostRegisterPortable),
          {"pinning", bytes, "for " + what});
  }
  void unpin(void* memory) override { check(cudaHostUnregister(memory), {"unpinning"}); }

  CudaStream create_stream(const char* name, StreamPriority priority) override {
    int low = 0;
    int high = 0;
    check(cudaDeviceGetStreamPriorityRange(&low, &high), {"query of the streams' priorities"});
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                       priority == StreamPriority::kHigh ? high : low),
          {"creation", {-1}, fmt::format("of stream {}", name)});
    return {stream, name};
  }
  void destroy(CudaStream stream) override {
    check(cudaStreamDestroy(native(stream)), {"destruction", {-1}, on(stream)});
  }
  CudaEvent create_event(CudaStream stream) override {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync),
          {"creation of an event", {-1}, on(stream)});
    return {event, stream.name};
  }
  void destroy(CudaEvent event) override {
    check(cudaEventDestroy(native(event)), {"destruction of an event"});
  }

  void record(CudaEvent event, CudaStream stream) override {
    check(cudaEventRecordWithFlags(native(event), native(stream),
                                   captures ? cudaEventRecordExternal : cudaEventRecordDefault),
          {"record of an event", {-1}, on(stream)});
  }
  void wait(CudaStream stream, CudaEvent event) override {
    check(cudaStreamWaitEvent(native(stream), native(event),
                              captures ? cudaEventWaitExternal : cudaEventWaitDefault),
          {"wait for an event", {-1}, on(stream)});
  }
  bool done(CudaEvent event) override {
    const cudaError_t code = cudaEventQuery(native(event));
    if (code == cudaErrorNotReady) {
      cudaGetLastError();  // else, in some versions, the next launch would report it
      return false;
    }
    check(code, {"query of an event", {-1}, on(event)});
    return true;
  }
  void synchronize(CudaEvent event) override {
    check(cudaEventSynchronize(native(event)), {"wait of the host for an event", {-1}, on(event)});
  }
  void synchronize(CudaStream stream) override {
    check(cudaStreamSynchronize(native(stream)), {"wait of the host", {-1}, on(stream)});
  }
  double milliseconds(CudaEvent from, CudaEvent to) override {
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, native(from), native(to)),
          {"time between two events", {-1}, on(to)});
    return elapsed;
  }

  void copy(const CudaCopy& copy, CudaStream stream) override {
    check(cudaMemcpyAsync(copy.to, copy.from, static_cast<size_t>(copy.bytes.count),
                          native(copy.kind), native(stream)),
          {"copy", copy.bytes, on(stream)});
  }
  void clear(void* memory, Bytes bytes, CudaStream stream) override {
    check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes.count), native(stream)),
          {"clearing", bytes, on(stream)});
  }

  void begin_capture(CudaStream stream) override {
    // Of this thread only: others go on calling.
    check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
          {"begin of a capture", {-1}, on(stream)});
    captures = true;
  }
  CudaGraph end_capture(CudaStream stream) override {
    captures = false;
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(native(stream), &graph), {"end of a capture", {-1}, on(stream)});
    cudaGraphExec_t ready = nullptr;
    const cudaError_t code = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    check(code, {"instantiation of a graph", {-1}, on(stream)});
    return {ready};
  }
  void launch(CudaGraph graph, CudaStream stream) override {
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.native), native(stream)),
          {"launch of a graph", {-1}, on(stream)});
  }
  void destroy(CudaGraph graph) override {
    check(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.native)),
          {"destruction of a graph"});
  }

  void push_range(const char* name) override {
    open_range = name;
    nvtxRangePushA(name);
  }
  void pop_range() override {
    nvtxRangePop();
    open_range = nullptr;
  }

 private:
  int attribute(cudaDeviceAttr which) const {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, index_), {"query of an attribute"});
    return value;
  }

  int index_;
};

}  // namespace

bool cuda_is_built() { return true; }

std::unique_ptr<CudaRuntime> open_cuda_runtime(int index) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    cudaGetLastError();
    throw Error("no CUDA device", cudaGetErrorString(code),
                "install the GPU's driver, or use --device host");
  }
  if (count == 0) {
    throw Error("no CUDA device", "the driver lists none", "use --device host");
  }
  if (index >= count) {
    throw Error("no CUDA device", fmt::format("cuda:{} of {} devices", index, count),
                fmt::format("name one of cuda:0 to cuda:{}, or use --device host", count - 1));
  }
  return std::make_unique<RealRuntime>(index);
}

}  // namespace ballast
