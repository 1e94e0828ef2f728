#include "tests/backend/thread_cuda.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <new>
#include <span>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "kernels/kernels.h"
#include "kernels/undo.h"
#include "sim/base/error.h"

namespace ballast::tests {

namespace {

constexpr std::align_val_t kAlignment{256};

thread_local const char* range = "";
thread_local int64_t bound_to = -1;  // the runtime that this thread has chosen last

int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

ThreadCuda::ThreadCuda(std::shared_ptr<CudaLog> log, const ThreadCudaOptions& options)
    : log_(std::move(log)), options_(options), id_([] {
        static std::atomic<int64_t> made{0};
        return made++;
      }()) {
  bind_thread();
}

void ThreadCuda::bind_thread() { bound_to = id_; }
void ThreadCuda::require_bound() const { CHECK(bound_to == id_); }

// Whoever made something has given it back.
ThreadCuda::~ThreadCuda() { CHECK(allocated_.empty()); }

Bytes ThreadCuda::free_memory() {
  require_bound();
  const std::scoped_lock lock(mutex_);
  Bytes free = options_.free_memory;
  for (const auto& [memory, bytes] : allocated_) free.count -= bytes;
  return free;
}

void* ThreadCuda::allocate(Bytes bytes, const std::string& what) {
  require_bound();
  log_->add({CudaCall::kAllocate, "", nullptr, bytes.count, what, range, {}});
  void* memory = ::operator new(static_cast<size_t>(bytes.count), kAlignment);
  // What nobody wrote is no number.
  std::memset(memory, 0xff, static_cast<size_t>(bytes.count));
  const std::scoped_lock lock(mutex_);
  allocated_[memory] = bytes.count;
  return memory;
}

void* ThreadCuda::allocate_pinned(Bytes bytes, const std::string& what) {
  require_bound();
  log_->add({CudaCall::kAllocatePinned, "", nullptr, bytes.count, what, range, {}});
  void* memory = ::operator new(static_cast<size_t>(bytes.count), kAlignment);
  std::memset(memory, 0xff, static_cast<size_t>(bytes.count));
  const std::scoped_lock lock(mutex_);
  allocated_[memory] = 0;
  return memory;
}

void ThreadCuda::free(void* memory) {
  require_bound();
  {
    const std::scoped_lock lock(mutex_);
    CHECK(allocated_.erase(memory) == 1);
  }
  ::operator delete(memory, kAlignment);
}

void ThreadCuda::pin(void*, Bytes bytes, const std::string& what) {
  require_bound();
  log_->add({CudaCall::kPin, "", nullptr, bytes.count, what, range, {}});
}

CudaStream ThreadCuda::create_stream(const char* name, StreamPriority priority) {
  require_bound();
  const char* text = priority == StreamPriority::kHigh ? "high" : "low";
  log_->add({CudaCall::kCreateStream, name, nullptr, 0, text, range, {}});
  auto* stream = new Stream;
  stream->random.seed(static_cast<uint32_t>(name[0]) + static_cast<uint32_t>(name[1]));
  stream->thread = std::thread([this, stream] { serve(*stream); });
  return {stream, name};
}

void ThreadCuda::destroy(CudaStream stream) {
  require_bound();
  {
    const std::scoped_lock lock(mutex_);
    require_no_capture(of(stream));
    of(stream).stop = true;
    changed_.notify_all();
  }
  of(stream).thread.join();
  delete static_cast<Stream*>(stream.native);
}

void ThreadCuda::serve(Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stream.stop || !stream.queue.empty(); });
    if (stream.queue.empty()) return;
    const std::function<void()> work = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.busy = true;
    const bool dawdles =
        options_.dawdle_one_in > 0 && stream.random() % options_.dawdle_one_in == 0;
    lock.unlock();
    if (dawdles) std::this_thread::sleep_for(std::chrono::microseconds(300));
    work();
    lock.lock();
    stream.busy = false;
    changed_.notify_all();
  }
}

bool ThreadCuda::note(CudaStream stream, Noted noted) {
  const std::scoped_lock lock(mutex_);
  if (of(stream).capture == nullptr) return false;
  of(stream).capture->push_back(std::move(noted));
  return true;
}

void ThreadCuda::push(CudaStream stream, std::function<void()> work) {
  if (note(stream, {CudaCall::kKernel, {}, work})) return;
  const std::scoped_lock lock(mutex_);
  of(stream).queue.push_back(std::move(work));
  changed_.notify_all();
}

void ThreadCuda::enqueue(CudaStream stream, const std::string& what, std::function<void()> work) {
  require_bound();
  log_->add({CudaCall::kKernel, stream.name, nullptr, 0, what, range, {}});
  {
    const std::scoped_lock lock(mutex_);
    if (kernels_++ == options_.failing_kernel) {
      throw_cuda_error({"launch", {-1}, fmt::format("on stream {}", stream.name), range},
                       "invalid configuration (cudaErrorInvalidConfiguration)", CudaFault::kOther);
    }
  }
  push(stream, std::move(work));
}

CudaEvent ThreadCuda::create_event(CudaStream stream) {
  require_bound();
  auto* event = new Event;
  log_->add({CudaCall::kCreateEvent, stream.name, event, 0, "", range, {}});
  return {event, stream.name};
}

void ThreadCuda::destroy(CudaEvent event) {
  require_bound();
  delete static_cast<Event*>(event.native);
}

void ThreadCuda::complete(Event& event, int64_t generation) {
  const std::scoped_lock lock(mutex_);
  event.completed = std::max(event.completed, generation);
  event.time_ns = clock_ns();
  changed_.notify_all();
}

void ThreadCuda::record(CudaEvent event, CudaStream stream) {
  require_bound();
  if (note(stream, {CudaCall::kRecord, event, nullptr})) return;
  log_->add({CudaCall::kRecord, stream.name, event.native, 0, "", range, {}});
  int64_t generation = 0;
  {
    const std::scoped_lock lock(mutex_);
    generation = ++of(event).recorded;
  }
  push(stream, [this, event, generation] { complete(of(event), generation); });
}

void ThreadCuda::wait(CudaStream stream, CudaEvent event) {
  require_bound();
  if (note(stream, {CudaCall::kWait, event, nullptr})) return;
  log_->add({CudaCall::kWait, stream.name, event.native, 0, "", range, {}});
  int64_t generation = 0;
  {
    const std::scoped_lock lock(mutex_);
    generation = of(event).recorded;
  }
  push(stream, [this, event, generation] {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return of(event).completed >= generation; });
  });
}

bool ThreadCuda::done(CudaEvent event) {
  require_bound();
  const std::scoped_lock lock(mutex_);
  return of(event).completed >= of(event).recorded;
}

void ThreadCuda::synchronize(CudaEvent event) {
  require_bound();
  log_->add({CudaCall::kSynchronizeEvent, event.stream, event.native, 0, "", range, {}});
  std::unique_lock lock(mutex_);
  const int64_t generation = of(event).recorded;
  changed_.wait(lock, [&] { return of(event).completed >= generation; });
}

void ThreadCuda::synchronize(CudaStream stream) {
  require_bound();
  log_->add({CudaCall::kSynchronizeStream, stream.name, nullptr, 0, "", range, {}});
  std::unique_lock lock(mutex_);
  require_no_capture(of(stream));
  changed_.wait(lock, [&] { return of(stream).queue.empty() && !of(stream).busy; });
}

double ThreadCuda::milliseconds(CudaEvent from, CudaEvent to) {
  require_bound();
  const std::scoped_lock lock(mutex_);
  return static_cast<double>(of(to).time_ns - of(from).time_ns) / 1e6;
}

void ThreadCuda::copy(const CudaCopy& copy, CudaStream stream) {
  require_bound();
  log_->add({CudaCall::kCopy, stream.name, nullptr, copy.bytes.count, "", range, {}});
  {
    const std::scoped_lock lock(mutex_);
    if (copies_++ == options_.failing_copy) {
      throw_cuda_error({"copy", copy.bytes, fmt::format("on stream {}", stream.name), range},
                       "invalid argument (cudaErrorInvalidValue)", CudaFault::kOther);
    }
  }
  push(stream, [copy] { std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes.count)); });
}

void ThreadCuda::clear(void* memory, Bytes bytes, CudaStream stream) {
  require_bound();
  log_->add({CudaCall::kClear, stream.name, nullptr, bytes.count, "", range, {}});
  push(stream, [=] { std::memset(memory, 0, static_cast<size_t>(bytes.count)); });
}

void ThreadCuda::begin_capture(CudaStream stream) {
  require_bound();
  const std::scoped_lock lock(mutex_);
  of(stream).capture = new Graph;
}

CudaGraph ThreadCuda::end_capture(CudaStream stream) {
  require_bound();
  const std::scoped_lock lock(mutex_);
  return {std::exchange(of(stream).capture, nullptr)};
}

void ThreadCuda::launch(CudaGraph graph, CudaStream stream) {
  require_bound();
  log_->add({CudaCall::kLaunchGraph, stream.name, nullptr, 0, "", range, {}});
  for (const Noted& noted : *static_cast<Graph*>(graph.native)) {
    if (noted.call == CudaCall::kRecord) {
      record(noted.event, stream);
    } else if (noted.call == CudaCall::kWait) {
      wait(stream, noted.event);
    } else {
      push(stream, noted.work);
    }
  }
}

void ThreadCuda::destroy(CudaGraph graph) {
  require_bound();
  delete static_cast<Graph*>(graph.native);
}

void ThreadCuda::push_range(const char* name) { range = name; }
void ThreadCuda::pop_range() { range = ""; }

void ThreadCudaMath::module(const Op& op, const OperationArguments& arguments, int32_t step,
                            CudaStream stream) {
  runtime_.enqueue(stream, "module", [this, &op, &arguments, step] {
    if (before_module_) before_module_(op, step);
    modules_.module(op, arguments, step);
  });
}

void ThreadCudaMath::loss(const Op& op, const OperationArguments& arguments, int32_t step,
                          const Loss& loss, CudaStream stream) {
  runtime_.enqueue(stream, "loss", [this, &op, &arguments, step, loss] {
    const double before = op.label.loss_chunk > 0 ? *loss.mean : 0;
    *loss.mean = before + modules_.loss(op, arguments, step, loss.gradient_factor);
  });
}

void ThreadCudaMath::tell_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                               std::byte* told, CudaStream stream) {
  runtime_.enqueue(stream, "tell loss", [this, &op, &arguments, step, told] {
    modules_.tell_loss(op, arguments, step, told);
  });
}

void ThreadCudaMath::merge_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                                const std::byte* told, CudaStream stream) {
  runtime_.enqueue(stream, "merge loss", [this, &op, &arguments, step, told] {
    modules_.merge_loss(op, arguments, step, told);
  });
}

void ThreadCudaMath::norm_apart(const Op& op, const OperationArguments& arguments, int32_t step,
                                float* gradient, CudaStream stream) {
  runtime_.enqueue(stream, "norm", [this, &op, &arguments, step, gradient] {
    const int64_t count = arguments.find(op, Role::kParameterGradient, step).tensor->elements;
    modules_.norm_apart(op, arguments, step, {gradient, static_cast<size_t>(count)});
  });
}

void ThreadCudaMath::cast(const CastRange& range_of_values, CudaStream stream) {
  runtime_.enqueue(stream, "cast", [r = range_of_values] {
    kernels::best().cast(r.from, r.from_format, r.to, r.to_format, r.count);
  });
}

void ThreadCudaMath::casts(const std::vector<CastRange>& ranges, CudaStream stream) {
  const bool at_once = !ranges.empty() && ranges.front().crosses_link;
  if (!at_once) return CudaMath::casts(ranges, stream);
  runtime_.enqueue(stream, "casts", [ranges] {
    for (const CastRange& r : ranges) {
      kernels::best().cast(r.from, r.from_format, r.to, r.to_format, r.count);
    }
  });
}

void ThreadCudaMath::sums(const SumRange& range_of_values, CudaStream stream) {
  runtime_.enqueue(stream, "sums", [r = range_of_values] {
    for (int64_t done = 0; done < r.count; done += kSegment) {
      r.sums[done / kSegment] =
          kernels::best().sum_of_squares(r.values + done * kernels::bytes_of(r.format), r.format,
                                         std::min(kSegment, r.count - done));
    }
  });
}

void ThreadCudaMath::add(const Addition& addition, CudaStream stream) {
  runtime_.enqueue(stream, "add", [a = addition] {
    const std::array<const std::byte*, 2> parts = {a.to, a.from};
    sum_in_order(parts, a.to, a.count, {a.format, a.format});
  });
}

void ThreadCudaMath::adam(const kernels::AdamArrays& arrays,
                          const kernels::AdamConstants& constants, CudaStream stream) {
  runtime_.enqueue(stream, "adam",
                   [arrays, constants] { kernels::best().adam_step(arrays, constants); });
}

namespace {

using kernels::cuda::RecordedPart;
using kernels::cuda::RecordedStep;

constexpr uint8_t kMark = 0xa5;  // all over a record: it must be there when the record is used

std::span<uint8_t> record_of(const RecordedStep& step) {
  const int64_t bytes =
      kernels::UndoRecord::fixed_bytes(step.arrays.count, kernels::UndoForm::kRecord);
  return {step.record, static_cast<size_t>(bytes)};
}

// Every other tile is left to kFinish, as if its record did not hold it: use(tile's arrays, where
// it begins).
template <class Use>
void for_left_tiles(const kernels::AdamArrays& a, Use use) {
  for (int64_t begin = 0; begin < a.count; begin += 2 * kernels::kUndoTile) {
    use(kernels::slice(a, begin, std::min(kernels::kUndoTile, a.count - begin)), begin);
  }
}

std::vector<float> copy_of_state(const kernels::AdamArrays& a) {
  std::vector<float> state(a.master, a.master + a.count);
  state.insert(state.end(), a.moment1, a.moment1 + a.count);
  state.insert(state.end(), a.moment2, a.moment2 + a.count);
  return state;
}

// `part` of the arrays whose state was copied whole; it begins at `begin` of them.
void restore(const kernels::AdamArrays& part, const std::vector<float>& state, int64_t begin) {
  const int64_t whole = std::ssize(state) / 3;
  const float* from = state.data() + begin;
  std::copy_n(from, part.count, part.master);
  std::copy_n(from + whole, part.count, part.moment1);
  std::copy_n(from + 2 * whole, part.count, part.moment2);
}

}  // namespace

void ThreadCudaMath::recorded_adam(const RecordedStep& step, RecordedPart part, CudaStream stream) {
  runtime_.enqueue(stream, "recorded adam", [this, step, part] {
    const kernels::AdamArrays& a = step.arrays;
    const std::span<uint8_t> record = record_of(step);
    std::vector<float>& before = states_[step.record];
    if (part == RecordedPart::kStep) {
      CHECK(a.weights != nullptr);
      std::fill(record.begin(), record.end(), kMark);
      before = copy_of_state(a);
      kernels::best().adam_step(a, step.constants);
      if (step.mark % 3 == 0) return;
      for_left_tiles(a, [&](const auto& tile, int64_t begin) { restore(tile, before, begin); });
      *step.left = step.mark;
      return;
    }
    CHECK(std::all_of(record.begin(), record.end(), [](uint8_t byte) { return byte == kMark; }));
    if (part == RecordedPart::kUndo) return restore(a, before, 0);
    CHECK(*step.left == step.mark);
    for_left_tiles(
        a, [&](const auto& tile, int64_t) { kernels::best().adam_step(tile, step.constants); });
  });
}

}  // namespace ballast::tests
