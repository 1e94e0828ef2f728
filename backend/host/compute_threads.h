// The threads of the host device's compute lane: one call's independent parts, divided over them.
//
// What is divided is the output (rows, columns, heads), never a sum, and where it is cut depends on
// its size alone: the same bits for every number of threads. A thread takes the next part when it
// is done with one, so that one that has to share its core holds the others up by one part at most.
// Will not do: pin threads, or order operations.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ballast {

class ComputeThreads {
 public:
  explicit ComputeThreads(int count);  // >= 1; the caller is one of them, so 1 starts none
  ~ComputeThreads();
  ComputeThreads(const ComputeThreads&) = delete;
  ComputeThreads& operator=(const ComputeThreads&) = delete;

  int count() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(part) once for every part in [0, parts), in no order, and returns when all are done.
  // Throws what the body threw, for the lowest part that did. A call within a body, or while
  // another thread's is under way, is carried out by its caller alone.
  void run(int64_t parts, const std::function<void(int64_t part)>& body);

  // Lends the threads to the thread that makes this, as long as it lives: for_parts and for_ranges
  // use what is lent to the thread that calls them. Null lends nothing.
  class Lease {
   public:
    explicit Lease(ComputeThreads* threads);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

   private:
    ComputeThreads* before_;
  };

 private:
  void serve();
  bool take(std::unique_lock<std::mutex>& lock);

  struct Job {
    int64_t parts = 0;
    int64_t next = 0;  // the first part that nobody took yet
    int64_t done = 0;
    const std::function<void(int64_t)>* body = nullptr;
    int64_t failed = -1;  // the lowest part that threw
    std::exception_ptr failure;
  };
  std::mutex caller_;  // held by the call that is under way
  std::mutex mutex_;   // of all below
  std::condition_variable work_, finished_;
  Job job_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Calls body(part) for every part in [0, parts): on the threads that are lent to this one, or here.
void for_parts(int64_t parts, const std::function<void(int64_t part)>& body);

// Cuts [0, count) into ranges of `least` or more and calls body(begin, end) for each. Cuts are at
// multiples of `granule`, and the same for every number of threads.
struct RangeCut {
  int64_t least = 1;
  int64_t granule = 1;
};
void for_ranges(int64_t count, RangeCut cut,
                const std::function<void(int64_t begin, int64_t end)>& body);

// The part of [0, count) that is range `part` of `parts`, cut at multiples of the granule.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
int64_t parts_of(int64_t count, RangeCut cut);
Range range_of(int64_t count, int64_t granule, int64_t parts, int64_t part);

// Rows of `columns` values that are worth a hand-over to another thread.
RangeCut by_rows(int64_t columns);
// Values of an array that are: whole cache lines.
inline constexpr RangeCut kByValue{16384, 1024};

}  // namespace ballast
