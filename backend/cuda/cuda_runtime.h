// The calls of the CUDA runtime that we make, as an interface: one real (cuda_runtime.cpp, the only
// source that includes the runtime), one in the tests that notes what it is asked to do.
//
// Every call is checked. A failure throws Error that names the operation, its bytes and its stream,
// and says what to do; kernels fail later than they are launched, so it may be that of an earlier
// operation of the stream. Calls may come from any thread that has called bind_thread.
// Will not do: decide anything, or own what it hands out (whoever creates destroys).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "sim/base/units.h"

namespace ballast {

struct CudaProperties {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  Bytes memory;  // of the device
  int multiprocessors = 0;
  Bytes l2;                // cache between the multiprocessors and the memory
  std::string bus;         // PCI address, as the driver's other interfaces name the device
  int driver_version = 0;  // the newest CUDA that the driver knows: 13000 is 13.0
  int runtime_version = 0;
  // The device addresses the CPU's memory through the CPU's own page tables, as on a superchip
  // (cudaDevAttrPageableMemoryAccessUsesHostPageTables).
  bool shares_page_tables = false;
  // Kernels read and write pinned memory at the addresses that the CPU has for it
  // (cudaDevAttrCanUseHostPointerForRegisteredMem).
  bool addresses_pinned_memory = true;
  // Tensor cores multiply 8-bit floats from Ada on.
  bool has_fp8() const { return major > 8 || (major == 8 && minor >= 9); }
};

// Which of the kernels that wait get free multiprocessors first.
enum class StreamPriority : uint8_t { kLow, kHigh };

// A queue of the device. `name` is that of its lane, for messages.
struct CudaStream {
  void* native = nullptr;  // a cudaStream_t
  const char* name = "";
};
struct CudaEvent {
  void* native = nullptr;
  const char* stream = "";  // whose place it marks, for messages
};
struct CudaGraph {
  void* native = nullptr;  // a cudaGraphExec_t
};

enum class CopyKind : uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice, kHostToHost };

struct CudaCopy {
  void* to = nullptr;
  const void* from = nullptr;
  Bytes bytes;
  CopyKind kind{};
};

class CudaRuntime {
 public:
  virtual ~CudaRuntime() = default;

  virtual CudaProperties properties() = 0;
  virtual Bytes free_memory() = 0;

  // On every thread before its first call; cheap when repeated.
  virtual void bind_thread() = 0;

  // Device memory, 256-byte aligned; `what` it is for, for messages.
  virtual void* allocate(Bytes bytes, const std::string& what) = 0;
  virtual void free(void* memory) = 0;
  // Host memory that the device copies to and from at full speed, and that kernels may write.
  virtual void* allocate_pinned(Bytes bytes, const std::string& what) = 0;
  virtual void free_pinned(void* memory) = 0;
  // The same for memory that is there already, whole pages; backs what was never touched.
  virtual void pin(void* memory, Bytes bytes, const std::string& what) = 0;
  virtual void unpin(void* memory) = 0;

  // `name` must live as long as the stream.
  virtual CudaStream create_stream(const char* name, StreamPriority priority) = 0;
  virtual void destroy(CudaStream stream) = 0;
  // For this stream. Events tell the time to half a microsecond.
  virtual CudaEvent create_event(CudaStream stream) = 0;
  virtual void destroy(CudaEvent event) = 0;

  virtual void record(CudaEvent event, CudaStream stream) = 0;
  virtual void wait(CudaStream stream, CudaEvent event) = 0;
  virtual bool done(CudaEvent event) = 0;
  // These two return when what was enqueued before is done.
  virtual void synchronize(CudaEvent event) = 0;
  virtual void synchronize(CudaStream stream) = 0;
  // From one event that is done to another.
  virtual double milliseconds(CudaEvent from, CudaEvent to) = 0;

  virtual void copy(const CudaCopy& copy, CudaStream stream) = 0;
  // Bytes of the value 0.
  virtual void clear(void* memory, Bytes bytes, CudaStream stream) = 0;

  // What is enqueued on the stream in between, by this thread, is noted instead of run; launching
  // the graph runs it. So are records of events and waits for them: whoever waits for such an event
  // once the graph is launched waits for that place in it, and the graph waits for what was
  // recorded before its launch.
  virtual void begin_capture(CudaStream stream) = 0;
  virtual CudaGraph end_capture(CudaStream stream) = 0;
  virtual void launch(CudaGraph graph, CudaStream stream) = 0;
  virtual void destroy(CudaGraph graph) = 0;

  // Ranges of this thread that profilers draw (NVTX), and messages name. Not nested; `name` must
  // live as long as the range.
  virtual void push_range(const char* name) = 0;
  virtual void pop_range() = 0;
};

// Device `index` of this machine. Throws Error "no CUDA device: ..." where there is none, where the
// driver is missing or too old, or where Ballast was built without the CUDA toolkit.
std::unique_ptr<CudaRuntime> open_cuda_runtime(int index);

// Whether Ballast was built with it.
bool cuda_is_built();

}  // namespace ballast
