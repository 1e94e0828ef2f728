#include "backend/host/compute_threads.h"

#include <algorithm>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/units.h"

namespace ballast {

namespace {

// Enough for the cores of a socket to end at about the same time, and few enough to be worth it.
constexpr int64_t kMostParts = 64;

thread_local ComputeThreads* lent = nullptr;

}  // namespace

ComputeThreads::ComputeThreads(int count) {
  CHECK(count >= 1);
  threads_.reserve(static_cast<size_t>(count - 1));
  for (int i = 1; i < count; ++i) threads_.emplace_back([this] { serve(); });
}

ComputeThreads::~ComputeThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Carries out one part, if any is left; the lock is released meanwhile.
bool ComputeThreads::take(std::unique_lock<std::mutex>& lock) {
  if (job_.next >= job_.parts) return false;
  const int64_t part = job_.next++;
  lock.unlock();
  std::exception_ptr failure;
  try {
    (*job_.body)(part);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (failure && (job_.failed < 0 || part < job_.failed)) {
    job_.failed = part;
    job_.failure = std::move(failure);
  }
  if (++job_.done == job_.parts) finished_.notify_one();
  return true;
}

void ComputeThreads::serve() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!take(lock)) work_.wait(lock);
  }
}

void ComputeThreads::run(int64_t parts, const std::function<void(int64_t)>& body) {
  const std::unique_lock alone(caller_, std::try_to_lock);
  if (threads_.empty() || parts < 2 || !alone.owns_lock()) {
    for (int64_t part = 0; part < parts; ++part) body(part);
    return;
  }
  const Lease nothing(nullptr);  // what a part calls is done within the part
  std::unique_lock lock(mutex_);
  job_ = Job();
  job_.parts = parts;
  job_.body = &body;
  const int64_t helpers = std::min<int64_t>(parts - 1, count() - 1);
  for (int64_t i = 0; i < helpers; ++i) work_.notify_one();
  while (take(lock)) {
  }
  finished_.wait(lock, [&] { return job_.done == job_.parts; });
  if (job_.failure) std::rethrow_exception(std::exchange(job_.failure, nullptr));
}

ComputeThreads::Lease::Lease(ComputeThreads* threads) : before_(std::exchange(lent, threads)) {}
ComputeThreads::Lease::~Lease() { lent = before_; }

void for_parts(int64_t parts, const std::function<void(int64_t)>& body) {
  if (lent != nullptr) return lent->run(parts, body);
  for (int64_t part = 0; part < parts; ++part) body(part);
}

int64_t parts_of(int64_t count, RangeCut cut) {
  const int64_t granules = div_ceil(count, cut.granule);
  return std::clamp<int64_t>(count / std::max<int64_t>(cut.least, 1), 1,
                             std::max<int64_t>(std::min(kMostParts, granules), 1));
}

Range range_of(int64_t count, int64_t granule, int64_t parts, int64_t part) {
  const int64_t granules = div_ceil(count, granule);
  return {granules * part / parts * granule,
          std::min(granules * (part + 1) / parts * granule, count)};
}

void for_ranges(int64_t count, RangeCut cut, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t parts = parts_of(count, cut);
  for_parts(parts, [&](int64_t part) {
    const Range range = range_of(count, cut.granule, parts, part);
    body(range.begin, range.end);
  });
}

RangeCut by_rows(int64_t columns) {
  return {std::max<int64_t>(kByValue.least / std::max<int64_t>(columns, 1), 1), 1};
}

}  // namespace ballast
