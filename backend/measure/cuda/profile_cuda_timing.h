// How one thing is timed on a GPU, and the memory it works on.
//
// The protocol: warm up; then, again and again, enqueue a few repeats between events of one stream
// behind one that does not count (and, where they are short, behind something long), so that the
// host is ahead and no launch is in the time; until the median absolute deviation is small or the
// time is used up. As profile_probes.h for the CPU.
// Will not do: know what is timed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/measure/profile_probes.h"
#include "sim/spec/dtype.h"

namespace ballast {

// Seconds of a clock that only ascends.
using SecondsNow = std::function<double()>;

// A stream or an event that goes when its owner goes. The runtime must outlive it.
template <class Handle>
class CudaOwned {
 public:
  CudaOwned(CudaRuntime& runtime, Handle handle) : runtime_(runtime), handle_(handle) {}
  ~CudaOwned() {
    try {
      runtime_.destroy(handle_);
    } catch (const Error&) {
      // The device has failed, which whoever used it was told.
    }
  }
  CudaOwned(const CudaOwned&) = delete;
  CudaOwned& operator=(const CudaOwned&) = delete;
  Handle get() const { return handle_; }

 private:
  CudaRuntime& runtime_;
  Handle handle_;
};

class CudaStopwatch {
 public:
  // `held`: device memory that it takes, clears of which are long enough for the host to get ahead
  // of what is short. The runtime must outlive this.
  CudaStopwatch(CudaRuntime& runtime, SecondsNow now, Bytes held);

  CudaStream stream() const { return stream_.get(); }
  double now() const { return now_(); }
  Bytes held() const { return held_.bytes(); }

  // Enqueues one repeat on stream(); `repeat` counts from 0 (the warm-up is -1).
  using Enqueue = std::function<void(int repeat)>;
  Timing time(const Enqueue& body, const ProbeLimits& limits);

  // From before the first to behind the last of what `body` enqueues, on stream() or behind it,
  // once `hold` is done: enqueued first, it lasts long enough for the host to be ahead.
  Duration time_of_run(const Enqueue& body, const std::function<void()>& hold);

 private:
  static constexpr int kMostAhead = 8;
  Duration between(size_t from, size_t to);
  // Of one repeat, in seconds, roughly.
  double estimate(const Enqueue& body);

  CudaRuntime& runtime_;
  SecondsNow now_;
  CudaOwned<CudaStream> stream_;
  CudaMemory held_;
  std::deque<CudaOwned<CudaEvent>> events_;
};

// Device memory that probes share, one after another: what they read, and what they write. The two
// are apart, so that no probe reads the results of another, which would grow beyond all bounds.
class CudaWorkspace {
 public:
  static constexpr int64_t kAlignment = 256;  // of what is taken, bytes
  CudaWorkspace(CudaRuntime& runtime, CudaStream stream, Bytes bytes);

  // Normal deviates of deviation 1 (backend/train/random.h), the same 64 Ki again and again, in
  // this format all over. Requires fp32, bf16, fp16 or e4m3; the last are scaled as a training
  // does.
  void fill(DType dtype);

  // From here on everything may be taken again.
  void reset();
  // Throws Error where so much is not left.
  std::byte* take_input(Bytes bytes) { return take(bytes, inputs_); }
  std::byte* take_output(Bytes bytes) { return take(bytes, outputs_); }
  Bytes inputs_left() const { return inputs_.end - inputs_.begin; }
  Bytes outputs_left() const { return outputs_.end - outputs_.begin; }

 private:
  struct Range {
    Bytes begin, end;
  };
  std::byte* take(Bytes bytes, Range& from);

  CudaRuntime& runtime_;
  CudaStream stream_;
  CudaMemory memory_;
  Range inputs_, outputs_;  // what is left of them
};

}  // namespace ballast
