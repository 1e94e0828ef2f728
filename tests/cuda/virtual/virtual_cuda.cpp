#include "tests/cuda/virtual/virtual_cuda.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <sys/mman.h>

#include "sim/base/error.h"
#include "tests/cuda/emulated/emulation.h"

namespace ballast::tests {

namespace {

constexpr std::align_val_t kAlignment{256};

// What the calling thread hands over, and the calls that it has enqueued for it.
thread_local Doing handed;
thread_local int64_t handed_calls = 0;
// Whether it notes them instead, and what it handed over before.
thread_local std::optional<Doing> handed_before_capture;

// The emulation runs one kernel at a time.
std::mutex& emulated_block() {
  static std::mutex turn;
  return turn;
}

}  // namespace

VirtualCuda::VirtualCuda(std::shared_ptr<VirtualClock> clock, const PlayedMachine& machine,
                         bool computes)
    : clock_(std::move(clock)), machine_(machine), computes_(computes) {
  emulation::set_queue([](const emulation::Handed& kernel, std::function<void()> work) {
    emulated_kernel(kernel.stream, kernel.name, std::move(work));
  });
}

VirtualCuda::~VirtualCuda() {
  emulation::set_queue(nullptr);
  CHECK(allocated_.empty() || std::uncaught_exceptions() > 0);
}

void VirtualCuda::emulated_kernel(void* stream, const char* name, std::function<void()> work) {
  auto& of = *static_cast<Stream*>(stream);
  of.runtime->enqueue({stream, of.name}, name, [work = std::move(work)] {
    const std::scoped_lock turn(emulated_block());
    work();
  });
}

CudaProperties VirtualCuda::properties() {
  CudaProperties hopper;
  hopper.name = "a GH200 that is played";
  hopper.major = 9;
  hopper.multiprocessors = 132;
  hopper.shares_page_tables = true;
  return hopper;
}

Bytes VirtualCuda::free_memory() {
  const VirtualClock::Lock lock = clock_->lock();
  Bytes free = machine_.memory;
  for (const auto& [memory, taken] : allocated_) {
    if (taken.second) free -= taken.first;
  }
  return free;
}

// Memory of a device that computes nothing has addresses that nobody may touch.
void* VirtualCuda::allocate(Bytes bytes, const std::string&) {
  const auto size = static_cast<size_t>(bytes.count);
  void* memory = nullptr;
  if (computes_) {
    memory = ::operator new(size, kAlignment);
    std::memset(memory, 0xff, size);  // what nobody wrote is no number
  } else {
    memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
  }
  const VirtualClock::Lock lock = clock_->lock();
  allocated_[memory] = {bytes, true};
  return memory;
}

void VirtualCuda::free(void* memory) {
  Bytes bytes;
  {
    const VirtualClock::Lock lock = clock_->lock();
    CHECK(allocated_.contains(memory));
    bytes = allocated_.at(memory).first;
    allocated_.erase(memory);
  }
  if (computes_) {
    ::operator delete(memory, kAlignment);
  } else {
    munmap(memory, static_cast<size_t>(bytes.count));
  }
}

void* VirtualCuda::allocate_pinned(Bytes bytes, const std::string&) {
  const auto size = static_cast<size_t>(bytes.count);
  void* memory = ::operator new(size, kAlignment);
  std::memset(memory, computes_ ? 0xff : 0, size);
  const VirtualClock::Lock lock = clock_->lock();
  allocated_[memory] = {bytes, false};
  return memory;
}

void VirtualCuda::free_pinned(void* memory) {
  {
    const VirtualClock::Lock lock = clock_->lock();
    CHECK(allocated_.erase(memory) == 1);
  }
  ::operator delete(memory, kAlignment);
}

CudaStream VirtualCuda::create_stream(const char* name, StreamPriority) {
  auto* stream = new Stream;
  stream->runtime = this;
  stream->name = name;
  {
    const VirtualClock::Lock lock = clock_->lock();
    clock_->count(1);  // until its thread waits
  }
  stream->thread = std::thread([this, stream] { serve(*stream); });
  return {stream, name};
}

void VirtualCuda::destroy(CudaStream stream) {
  {
    const VirtualClock::Lock lock = clock_->lock();
    of(stream).stop = true;
    clock_->changed();
  }
  of(stream).thread.join();
  delete &of(stream);
}

void VirtualCuda::serve(Stream& stream) {
  VirtualClock::counts_me() = true;
  VirtualClock::Lock lock = clock_->lock();
  while (true) {
    clock_->wait_for(lock, [&] { return stream.stop || !stream.queue.empty(); });
    if (stream.queue.empty()) break;
    const Item item = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.busy = true;
    run(stream, lock, item);
    stream.busy = false;
    clock_->changed();
  }
  clock_->count(-1);
}

void VirtualCuda::run(Stream&, VirtualClock::Lock& lock, const Item& item) {
  if (item.kind == ItemKind::kWait) return wait_for(lock, *item.event, item.generation);
  if (item.kind == ItemKind::kRecord) {
    item.event->completed = std::max(item.event->completed, item.generation);
    item.event->time = clock_->now();
    return;
  }
  const Instant begin = clock_->now();
  const auto count = static_cast<size_t>(item.cost.demand_count);
  clock_->work(lock, item.cost.alone, std::span(item.cost.demands).first(count));
  if (computes_) {
    lock.unlock();
    item.body();
    lock.lock();
  }
  if (item.doing.op == nullptr || item.doing.repairs) return;
  ran_.push_back({item.doing.id, item.doing.step, begin, clock_->now()});
}

// What is there already is not waited for.
void VirtualCuda::wait_for(VirtualClock::Lock& lock, const Event& event, int64_t generation) {
  if (event.completed >= generation) return;
  clock_->wait_for(lock, [&] { return event.completed >= generation; });
  clock_->wait_until(lock, clock_->now() + machine_.handover);
}

// One call after another, whichever thread makes it.
void VirtualCuda::spend(VirtualClock::Lock& lock, Duration host) {
  const Instant begin = std::max(clock_->now(), driver_is_free_);
  driver_is_free_ = begin + host;
  if (handed.op != nullptr && !handed.repairs) {
    HostTime& time = host_times_[{handed.id, handed.step}];
    time.calls += host;
    time.waits += begin - clock_->now();
  }
  clock_->wait_until(lock, driver_is_free_);
}

void VirtualCuda::push(Stream& stream, Item item) {
  if (item.kind == ItemKind::kWork) ++handed_calls;
  item.doing = handed;
  if (stream.capture != nullptr) {
    stream.capture->push_back(std::move(item));
    return;
  }
  stream.queue.push_back(std::move(item));
  clock_->changed();
}

// The first time nobody knows how many it will be: the first kernel has all the time.
OpCost VirtualCuda::kernel_cost() {
  OpCost cost;
  if (handed.cost == nullptr) return cost;
  cost = *handed.cost;
  const auto last = calls_.find(handed.op);
  const int64_t calls = last == calls_.end() ? 0 : last->second;
  if (calls > 0) {
    cost.alone = {cost.alone.ps / calls};
  } else if (handed_calls > 0) {
    cost.alone = {};
  }
  cost.alone = std::max(cost.alone, machine_.launch);
  return cost;
}

void VirtualCuda::enqueue(CudaStream stream, const std::string&, std::function<void()> work) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  spend(lock, machine_.host.launch);
  push(of(stream), {ItemKind::kWork, {}, kernel_cost(), std::move(work), nullptr, 0});
}

void VirtualCuda::copy(const CudaCopy& copy, CudaStream stream) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  spend(lock, machine_.host.copy);
  OpCost cost = kernel_cost();
  if (handed.op != nullptr && std::holds_alternative<CopyWork>(handed.op->work)) {
    cost = machine_.copy(*handed.op, copy.bytes);
  }
  const auto work = [copy] {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes.count));
  };
  push(of(stream), {ItemKind::kWork, {}, cost, work, nullptr, 0});
}

void VirtualCuda::clear(void* memory, Bytes bytes, CudaStream stream) {
  enqueue(stream, "clear",
          [memory, bytes] { std::memset(memory, 0, static_cast<size_t>(bytes.count)); });
}

void VirtualCuda::record(CudaEvent event, CudaStream stream) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  spend(lock, machine_.host.record);
  if (of(stream).capture == nullptr) ++of(event).recorded;
  push(of(stream), {ItemKind::kRecord, {}, {}, nullptr, &of(event), of(event).recorded});
}

void VirtualCuda::wait(CudaStream stream, CudaEvent event) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  spend(lock, machine_.host.wait);
  push(of(stream), {ItemKind::kWait, {}, {}, nullptr, &of(event), of(event).recorded});
}

bool VirtualCuda::done(CudaEvent event) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  spend(lock, machine_.host.query);
  return of(event).completed >= of(event).recorded;
}

void VirtualCuda::synchronize(CudaEvent event) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  spend(lock, machine_.host.query);
  wait_for(lock, of(event), of(event).recorded);
}

void VirtualCuda::synchronize(CudaStream stream) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  spend(lock, machine_.host.query);
  clock_->wait_for(lock, [&] { return of(stream).queue.empty() && !of(stream).busy; });
}

double VirtualCuda::milliseconds(CudaEvent from, CudaEvent to) {
  const VirtualClock::Lock lock = clock_->lock();
  return static_cast<double>((of(to).time - of(from).time).ps) / 1e9;
}

void VirtualCuda::begin_capture(CudaStream stream) {
  const VirtualClock::Lock lock = clock_->lock();
  CHECK(of(stream).capture == nullptr);
  of(stream).capture = new std::vector<Item>;
  handed_before_capture = handed;
}

CudaGraph VirtualCuda::end_capture(CudaStream stream) {
  const VirtualClock::Lock lock = clock_->lock();
  handed = *std::exchange(handed_before_capture, std::nullopt);
  handed_calls = 0;
  return {std::exchange(of(stream).capture, nullptr)};
}

void VirtualCuda::name(const std::string& range, const Doing& doing) {
  const VirtualClock::Lock lock = clock_->lock();
  CHECK(named_.emplace(range, doing).second);
}

void VirtualCuda::push_range(const char* name) {
  if (!handed_before_capture) return;
  const VirtualClock::Lock lock = clock_->lock();
  handed = named_.at(name);
  handed.step = handed_before_capture->step;
  handed_calls = 0;
}

void VirtualCuda::launch(CudaGraph graph, CudaStream stream) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  spend(lock, machine_.host.launch);
  const int32_t step = handed.step;
  for (Item item : *static_cast<std::vector<Item>*>(graph.native)) {
    item.doing.step = step;
    if (item.kind == ItemKind::kRecord) ++item.event->recorded;
    if (item.kind != ItemKind::kWork) item.generation = item.event->recorded;
    of(stream).queue.push_back(std::move(item));
  }
  clock_->changed();
}

void VirtualCuda::destroy(CudaGraph graph) { delete static_cast<std::vector<Item>*>(graph.native); }

VirtualCuda::Handing::Handing(VirtualCuda& runtime, const Doing& doing) : runtime_(runtime) {
  handed = doing;
  handed_calls = 0;
}

VirtualCuda::Handing::~Handing() {
  if (handed.op != nullptr && handed_calls > 0) {
    const VirtualClock::Lock lock = runtime_.clock_->lock();
    runtime_.calls_[handed.op] = handed_calls;
  }
  handed = {};
}

void VirtualCuda::work_on_cpu(const std::function<void()>& work) {
  const VirtualClock::Visit visit(*clock_);
  VirtualClock::Lock lock = clock_->lock();
  const Instant begin = clock_->now();
  if (handed.cost != nullptr) {
    const auto count = static_cast<size_t>(handed.cost->demand_count);
    clock_->work(lock, handed.cost->alone, std::span(handed.cost->demands).first(count));
  }
  lock.unlock();
  work();
  lock.lock();
  if (handed.op == nullptr || handed.repairs) return;
  ran_.push_back({handed.id, handed.step, begin, clock_->now()});
}

int64_t VirtualCuda::calls_of(const Op& op) const {
  const auto found = calls_.find(&op);
  return found == calls_.end() ? 0 : found->second;
}

}  // namespace ballast::tests
