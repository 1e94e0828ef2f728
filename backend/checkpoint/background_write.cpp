#include "backend/checkpoint/background_write.h"

#include <sys/resource.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "sim/base/error.h"

namespace ballast {
namespace {

// A tenth of a core where steps want all of them (the kernel's table of weights, 110 of 1024), so
// that a write ends within some steps in any case.
constexpr int kNicer = 10;

// Of a thread on Linux, whatever POSIX says of processes. It may always be made nicer.
//
// Not by a clock that a test lets pass: it stands still for a thread that waits for a core, so that
// steps would go on by it for as long as the write is put last.
void let_others_go_first(const HostClock& clock) {
  if (&clock != &host_clock()) return;
  const auto self = static_cast<id_t>(gettid());
  setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + kNicer);
}

}  // namespace

BackgroundWrite::BackgroundWrite(const HostClock& clock) : clock_(clock) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error("checkpoints in the background",
                std::string("no thread can be started: ") + error.what(),
                "allow this process more threads (ulimit -u, pids.max)");
  }
}

BackgroundWrite::~BackgroundWrite() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundWrite::run() {
  let_others_go_first(clock_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return work_ || ends_; });
    if (!work_) return;
    // Nobody else touches it while it is set.
    lock.unlock();
    std::exception_ptr failure;
    try {
      work_();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = std::move(failure);
    times_.end = clock_.now();
    work_ = nullptr;
    changed_.notify_all();
  }
}

void BackgroundWrite::begin(std::function<void()> work) {
  const std::scoped_lock lock(mutex_);
  CHECK(!work_ && !failure_);
  work_ = std::move(work);
  times_ = {clock_.now(), std::chrono::nanoseconds::max()};
  changed_.notify_all();
}

bool BackgroundWrite::is_under_way() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<bool>(work_);
}

bool BackgroundWrite::has_failed() const {
  const std::scoped_lock lock(mutex_);
  return failure_ != nullptr;
}

void BackgroundWrite::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !work_; });
  if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) {
    lock.unlock();
    std::rethrow_exception(failure);
  }
}

BackgroundWrite::Times BackgroundWrite::times() const {
  const std::scoped_lock lock(mutex_);
  return times_;
}

}  // namespace ballast
