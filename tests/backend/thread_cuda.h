// A CUDA runtime without a GPU: streams are threads that run what is enqueued one after another,
// events join them, device memory is memory. What the real one may do in parallel, this one does,
// so that a wait that is missing shows as a race or as wrong numbers. Every call is noted.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_math.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/host/host_modules.h"
#include "sim/base/error.h"
#include "sim/graph/build.h"
#include "tests/backend/kernel_queue.h"

namespace ballast::tests {

enum class CudaCall : uint8_t {
  kAllocate,
  kAllocatePinned,
  kPin,
  kCreateStream,  // its priority is `what`
  kCreateEvent,
  kRecord,
  kWait,  // of a stream for an event
  kSynchronizeEvent,
  kSynchronizeStream,
  kCopy,
  kClear,
  kKernel,  // whatever mathematics enqueues
  kLaunchGraph,
  kMark,  // made by the test itself
};

struct NotedCall {
  CudaCall call{};
  std::string stream;
  void* event = nullptr;
  int64_t bytes = 0;
  std::string what;   // of a kernel, an allocation or a mark
  std::string range;  // the operation that was being handed over
  std::thread::id thread;
};

// What the log outlives the runtime for.
struct CudaLog {
  std::mutex mutex;
  std::vector<NotedCall> calls;
  void add(NotedCall call) {
    const std::scoped_lock lock(mutex);
    call.thread = std::this_thread::get_id();
    calls.push_back(std::move(call));
  }
  int64_t count(CudaCall call) {
    const std::scoped_lock lock(mutex);
    return std::count_if(calls.begin(), calls.end(),
                         [&](const NotedCall& noted) { return noted.call == call; });
  }
};

struct ThreadCudaOptions {
  CudaProperties properties{};
  Bytes free_memory{int64_t{1} << 40};
  // Streams dawdle before one operation in this many, at random; 0: never.
  uint32_t dawdle_one_in = 0;
  // Called on the compute stream's thread before each module.
  std::function<void(const Op& op, int32_t step)> before_module{};
  // The copy, or the kernel, of this number (from 0) fails when it is enqueued; -1: none.
  int64_t failing_copy = -1;
  int64_t failing_kernel = -1;
};

class ThreadCuda : public CudaRuntime, public KernelQueue {
 public:
  ThreadCuda(std::shared_ptr<CudaLog> log, const ThreadCudaOptions& options);
  ~ThreadCuda() override;

  CudaProperties properties() override { return options_.properties; }
  Bytes free_memory() override;
  void bind_thread() override;
  void* allocate(Bytes bytes, const std::string& what) override;
  void free(void* memory) override;
  void* allocate_pinned(Bytes bytes, const std::string& what) override;
  void free_pinned(void* memory) override { free(memory); }
  void pin(void* memory, Bytes bytes, const std::string& what) override;
  void unpin(void*) override { require_bound(); }
  CudaStream create_stream(const char* name, StreamPriority priority) override;
  void destroy(CudaStream stream) override;
  CudaEvent create_event(CudaStream stream) override;
  void destroy(CudaEvent event) override;
  void record(CudaEvent event, CudaStream stream) override;
  void wait(CudaStream stream, CudaEvent event) override;
  bool done(CudaEvent event) override;
  void synchronize(CudaEvent event) override;
  void synchronize(CudaStream stream) override;
  double milliseconds(CudaEvent from, CudaEvent to) override;
  void copy(const CudaCopy& copy, CudaStream stream) override;
  void clear(void* memory, Bytes bytes, CudaStream stream) override;
  void begin_capture(CudaStream stream) override;
  CudaGraph end_capture(CudaStream stream) override;
  void launch(CudaGraph graph, CudaStream stream) override;
  void destroy(CudaGraph graph) override;
  void push_range(const char* name) override;
  void pop_range() override;

  void enqueue(CudaStream stream, const std::string& what, std::function<void()> work) override;

 private:
  struct Event {
    int64_t recorded = 0;
    int64_t completed = 0;
    int64_t time_ns = 0;
  };
  // What a stream does each time the graph is launched: an event is recorded, or waited for as it
  // was recorded by then, or work is done.
  struct Noted {
    CudaCall call = CudaCall::kKernel;
    CudaEvent event;
    std::function<void()> work;
  };
  using Graph = std::vector<Noted>;
  struct Stream {
    std::deque<std::function<void()>> queue;
    bool busy = false;
    bool stop = false;
    Graph* capture = nullptr;
    std::minstd_rand random;
    std::thread thread;
  };
  static Stream& of(CudaStream stream) { return *static_cast<Stream*>(stream.native); }
  static Event& of(CudaEvent event) { return *static_cast<Event*>(event.native); }
  void serve(Stream& stream);
  void push(CudaStream stream, std::function<void()> work);
  // Whether the stream captures, which then keeps it.
  bool note(CudaStream stream, Noted noted);
  void complete(Event& event, int64_t generation);
  // The calling thread has chosen this device, as the real runtime needs it.
  void require_bound() const;
  // As the real runtime, which lets nobody wait for a stream that captures.
  static void require_no_capture(const Stream& stream) { CHECK(stream.capture == nullptr); }

  std::shared_ptr<CudaLog> log_;
  ThreadCudaOptions options_;
  std::mutex mutex_;  // guards streams, events and what follows
  std::condition_variable changed_;
  std::map<void*, int64_t> allocated_;
  int64_t copies_ = 0;
  int64_t kernels_ = 0;
  const int64_t id_;  // other than that of any other runtime of the process
};

// The mathematics of a GPU by the CPU's kernels, on the threads of the streams.
class ThreadCudaMath : public CudaMath {
 public:
  // `before_module` is called on the stream's thread before each module; null: nothing is.
  using BeforeModule = std::function<void(const Op& op, int32_t step)>;
  ThreadCudaMath(const Training& training, KernelQueue& runtime, const RankPlace& place = {},
                 BeforeModule before_module = nullptr)
      : model_(rank_model(training.model, training.plan)),
        modules_(model_, training.model.vocab, training.plan, place, nullptr, nullptr),
        runtime_(runtime),
        before_module_(std::move(before_module)) {}

  void module(const Op& op, const OperationArguments& arguments, int32_t step,
              CudaStream stream) override;
  void loss(const Op& op, const OperationArguments& arguments, int32_t step, const Loss& loss,
            CudaStream stream) override;
  void tell_loss(const Op& op, const OperationArguments& arguments, int32_t step, std::byte* told,
                 CudaStream stream) override;
  void merge_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                  const std::byte* told, CudaStream stream) override;
  void norm_apart(const Op& op, const OperationArguments& arguments, int32_t step, float* gradient,
                  CudaStream stream) override;
  void cast(const CastRange& range, CudaStream stream) override;
  void casts(const std::vector<CastRange>& ranges, CudaStream stream) override;
  void sums(const SumRange& range, CudaStream stream) override;
  void add(const Addition& addition, CudaStream stream) override;
  void adam(const kernels::AdamArrays& arrays, const kernels::AdamConstants& constants,
            CudaStream stream) override;
  // Of every other tile the step is left to kFinish, as if its record did not hold it; but nothing
  // in every third step.
  void recorded_adam(const kernels::cuda::RecordedStep& step, kernels::cuda::RecordedPart part,
                     CudaStream stream) override;

 private:
  Model model_;  // of a rank
  HostModules modules_;
  KernelQueue& runtime_;
  BeforeModule before_module_;
  std::map<const uint8_t*, std::vector<float>> states_;  // before recorded steps; of one stream
};

}  // namespace ballast::tests
