#include "backend/disk/disk_queue.h"

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <unistd.h>

#include "sim/base/error.h"

namespace ballast {

void DiskQueue::Free::operator()(std::byte* memory) const { std::free(memory); }

DiskQueue::DiskQueue(int buffers, int64_t bytes) : buffers_(buffers), bytes_(bytes) {
  CHECK(buffers > 0 && bytes > 0 && bytes % kDiskBlock == 0);
  const auto size = static_cast<size_t>(buffers) * static_cast<size_t>(bytes);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, size)));
  if (memory_ == nullptr) {
    throw Error("buffers of NVMe", "there is no memory for " + std::to_string(size) + " bytes",
                "choose smaller or fewer chunks");
  }
}

namespace {

// One thread a buffer.
class ThreadQueue : public DiskQueue {
 public:
  ThreadQueue(int file, int buffers, int64_t bytes) : DiskQueue(buffers, bytes), file_(file) {
    for (int i = 0; i < buffers; ++i) crew_.emplace_back([this] { work(); });
  }
  ~ThreadQueue() override {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    given_.notify_all();
    crew_.clear();
  }

  void begin(Direction direction, int buffer, int64_t at, int64_t bytes) override {
    {
      const std::scoped_lock lock(mutex_);
      waiting_.push_back({direction, buffer, at, bytes});
    }
    given_.notify_one();
  }

  Done wait() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return !done_.empty(); });
    const Done done = done_.front();
    done_.pop_front();
    return done;
  }

  std::string_view engine() const override { return "threads"; }

 private:
  struct Transfer {
    Direction direction{};
    int buffer = 0;
    int64_t at = 0;
    int64_t bytes = 0;
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      given_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Transfer next = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      std::byte* const at = buffer(next.buffer);
      const auto size = static_cast<size_t>(next.bytes);
      const ssize_t moved = next.direction == Direction::kRead ? pread(file_, at, size, next.at)
                                                               : pwrite(file_, at, size, next.at);
      const int64_t result = moved < 0 ? -int64_t{errno} : moved;
      lock.lock();
      done_.push_back({next.buffer, result});
      ended_.notify_one();
    }
  }

  int file_;
  std::mutex mutex_;
  std::condition_variable given_, ended_;
  std::deque<Transfer> waiting_;
  std::deque<Done> done_;
  bool ends_ = false;
  std::vector<std::jthread> crew_;
};

}  // namespace

std::unique_ptr<DiskQueue> make_disk_queue(int file, int buffers, int64_t bytes, IoEngine engine) {
  if (engine == IoEngine::kBest) {
    if (auto ring = make_uring_queue(file, buffers, bytes)) return ring;
  }
  return std::make_unique<ThreadQueue>(file, buffers, bytes);
}

}  // namespace ballast
