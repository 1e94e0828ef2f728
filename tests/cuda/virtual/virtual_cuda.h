// A CUDA runtime on a virtual clock: a GPU that nobody has, played. Streams are threads that do
// what is enqueued, one after another, and what they do takes what the machine's tables say; calls
// take the host's time. So wrong order, a host that is late, and overlap that is missing show on a
// machine without a GPU, in virtual time, which repeats itself.
//
//   kernels   an operation's time by the tables (sim/engine/cost), in equal parts over as many
//             kernels as it was the last time, each at least the GPU's time from launch to launch
//   copies    each call by its own bytes on the link's curve: an operation of many small ones is
//             slower than one of as many bytes
//   sharing   what runs at once shares HBM, DRAM and both directions of the link
//   waiting   a stream or thread that had to wait for another goes on the machine's hand-over later
//   the host  calls of all threads go through one lock of the driver, one after another
//
// A kernel does its work when its time is over, so that what reads or overwrites too early computes
// wrong numbers. Will not do: caches, clocks that change, what kernels do to each other.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_runtime.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/core/op_cost.h"
#include "tests/backend/kernel_queue.h"
#include "tests/cuda/virtual/virtual_clock.h"

namespace ballast::tests {

// What a call takes of the thread that makes it.
struct HostPrices {
  // H200, small kernels back to back (profiles/published/micro/launch.json): the host's or the
  // GPU's time, whichever is more, so the host's is at most this.
  Duration launch = Duration::from_us(2.4);
  Duration copy = Duration::from_us(2.4);  // assumed: as a launch
  // Assumed, of half a launch: a record and a wait of a stream push a command each, as a launch
  // does, without arguments; a query reads a word.
  Duration record = Duration::from_us(1.2);
  Duration wait = Duration::from_us(1.2);
  Duration query = Duration::from_us(0.5);
};

// What things take on the machine that is played.
struct PlayedMachine {
  CostTable step;    // of Graph::step
  CostTable repair;  // of Graph::repair
  RateFunction rates;
  // Of one call of a copy operation that has so many bytes.
  std::function<OpCost(const Op& op, Bytes bytes)> copy;
  Duration launch;    // on the GPU, from the start of a kernel to that of the next, at least
  Duration handover;  // from the end of what was waited for
  Bytes memory;       // of the GPU, free
  HostPrices host;
};

// The operation that a thread hands over, or does.
struct Doing {
  const Op* op = nullptr;
  OpId id = -1;
  int32_t step = 0;
  const OpCost* cost = nullptr;
  bool repairs = false;
};

// Something that ran for an operation of the step: a kernel or a copy of a stream, or all of it on
// a thread of the CPU.
struct Ran {
  OpId op = -1;
  int32_t step = 0;
  Instant begin, end;
};

// What it took of the host to hand an operation over: its own calls, and those of other threads
// that were in the driver before them.
struct HostTime {
  Duration calls, waits;
};

class VirtualCuda : public CudaRuntime, public KernelQueue {
 public:
  // `computes`: else nothing is done but wait, and memory of the device has addresses alone.
  VirtualCuda(std::shared_ptr<VirtualClock> clock, const PlayedMachine& machine, bool computes);
  ~VirtualCuda() override;

  CudaProperties properties() override;
  Bytes free_memory() override;
  void bind_thread() override {}
  void* allocate(Bytes bytes, const std::string& what) override;
  void free(void* memory) override;
  void* allocate_pinned(Bytes bytes, const std::string& what) override;
  void free_pinned(void* memory) override;
  void pin(void*, Bytes, const std::string&) override {}
  void unpin(void*) override {}
  CudaStream create_stream(const char* name, StreamPriority priority) override;
  void destroy(CudaStream stream) override;
  CudaEvent create_event(CudaStream stream) override { return {new Event, stream.name}; }
  void destroy(CudaEvent event) override { delete &of(event); }
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
  void pop_range() override {}

  // A kernel.
  void enqueue(CudaStream stream, const std::string& what, std::function<void()> work) override;

  // Whose range has this name: while a stream captures, what is noted in the range is its own.
  void name(const std::string& range, const Doing& doing);
  // What the calling thread hands over or does until this ends.
  class Handing {
   public:
    Handing(VirtualCuda& runtime, const Doing& doing);
    ~Handing();
    Handing(const Handing&) = delete;
    Handing& operator=(const Handing&) = delete;

   private:
    VirtualCuda& runtime_;
  };
  // Of a thread of the CPU: the work of the operation that it does.
  void work_on_cpu(const std::function<void()>& work);

  // While nothing runs. What ran, in the order in which it ended; and by operation of the step and
  // step, what it took of the host to hand it over.
  const std::vector<Ran>& ran() const { return ran_; }
  const std::map<std::pair<OpId, int32_t>, HostTime>& host_times() const { return host_times_; }
  // Kernels and copies by operation of the step, of its last run.
  int64_t calls_of(const Op& op) const;

 private:
  struct Event {
    int64_t recorded = 0;
    int64_t completed = 0;
    Instant time;
  };
  enum class ItemKind : uint8_t { kWork, kRecord, kWait };
  struct Item {
    ItemKind kind = ItemKind::kWork;
    Doing doing;
    OpCost cost;  // of work
    std::function<void()> body;
    Event* event = nullptr;
    int64_t generation = 0;
  };
  struct Stream {
    VirtualCuda* runtime = nullptr;
    const char* name = "";
    std::deque<Item> queue;
    bool busy = false;
    bool stop = false;
    std::vector<Item>* capture = nullptr;
    std::thread thread;
  };

  static Stream& of(CudaStream stream) { return *static_cast<Stream*>(stream.native); }
  static Event& of(CudaEvent event) { return *static_cast<Event*>(event.native); }
  static void emulated_kernel(void* stream, const char* name, std::function<void()> work);
  void serve(Stream& stream);
  void run(Stream& stream, VirtualClock::Lock& lock, const Item& item);
  void wait_for(VirtualClock::Lock& lock, const Event& event, int64_t generation);
  void spend(VirtualClock::Lock& lock, Duration host);
  void push(Stream& stream, Item item);
  OpCost kernel_cost();

  std::shared_ptr<VirtualClock> clock_;
  PlayedMachine machine_;
  bool computes_;
  // What follows is guarded by the clock's lock.
  Instant driver_is_free_;
  std::map<void*, std::pair<Bytes, bool>> allocated_;  // bytes, and whether they are the device's
  std::map<std::string, Doing> named_;
  std::map<const Op*, int64_t> calls_;  // of the last time
  std::vector<Ran> ran_;
  std::map<std::pair<OpId, int32_t>, HostTime> host_times_;
};

}  // namespace ballast::tests
