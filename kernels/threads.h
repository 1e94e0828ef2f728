// Runs the kernels over whole buckets with a fixed set of pinned threads.
//
// Cuts at fixed tile boundaries, so no result depends on the number of threads. Worker k always
// gets the same part of a bucket of the same length: memory that it touched first stays near it.
// One call runs at a time; the caller waits and does no work itself. A single worker that need not
// be pinned is the caller itself, which saves the hand-over there and back.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <sched.h>
#include <thread>
#include <vector>

#include "kernels/bf16_moments.h"
#include "kernels/kernels.h"
#include "kernels/undo.h"

namespace ballast::kernels {

// The cores that this thread may use in so many parts without a core in common, each of neighbours
// in the machine's topology. None where there are fewer cores than parts.
std::vector<cpu_set_t> core_shares(int parts);

// Binds this thread, and those that it starts meanwhile, to some cores. At its end, on the same
// thread, that thread is bound as it was before; those that it started stay.
class CoreBinding {
 public:
  explicit CoreBinding(const cpu_set_t& cores);
  ~CoreBinding();
  CoreBinding(const CoreBinding&) = delete;
  CoreBinding& operator=(const CoreBinding&) = delete;

 private:
  std::optional<cpu_set_t> before_;
};

// kCores spreads the threads over the cores that this process may use, one each as far as they go.
enum class Pinning : uint8_t { kNone, kCores };

class Workers {
 public:
  Workers(int count, Pinning pinning);  // count >= 1
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int count() const { return count_; }

  // Cuts [0, count) at multiples of tile and calls body(begin, end) on every worker that gets a
  // part, once. Returns when all are done; rethrows the first exception.
  void for_tiles(int64_t count, int64_t tile,
                 const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  void serve(int worker, int workers);

  struct Job {
    int64_t count = 0;
    int64_t tile = 1;
    const std::function<void(int64_t, int64_t)>* body = nullptr;
  };
  int count_;
  Job job_;
  std::atomic<uint32_t> generation_ = 0;  // one more for every job; wakes the workers
  std::atomic<int> unfinished_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::exception_ptr> failures_;  // one a worker
  std::vector<std::thread> threads_;
};

// The functions of the table over whole buckets.
void adam_step(Workers&, const Table&, const AdamArrays&, const AdamConstants&);
void adam_step_bf16_moments(Workers&, const Table&, const AdamArrays&, const Bf16Moments&,
                            const AdamConstants&);
void adam_step_with_undo(Workers&, const Table&, const AdamArrays&, const AdamConstants&,
                         UndoRecord&);
void adam_undo(Workers&, const Table&, const AdamArrays&, const AdamConstants&, const UndoRecord&);
void cast(Workers&, const Table&, const void* src, Format src_format, void* dst, Format dst_format,
          int64_t count);
void copy_streaming(Workers&, const Table&, const void* src, void* dst, int64_t bytes);

// Writes zeros from the threads that will use these bytes of a bucket: values of value_bytes each.
void first_touch(Workers&, void* values, int64_t value_bytes, int64_t count);

}  // namespace ballast::kernels
