#include <cerrno>
#include <liburing.h>
#include <vector>

#include "backend/disk/disk_queue.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// Buffers are registered where the limit of locked memory allows it: the system then need not find
// and hold their pages for every transfer.
class UringQueue : public DiskQueue {
 public:
  UringQueue(int file, int buffers, int64_t bytes) : DiskQueue(buffers, bytes), file_(file) {}
  ~UringQueue() override {
    if (is_open_) io_uring_queue_exit(&ring_);
  }

  bool open() {
    is_open_ = io_uring_queue_init(static_cast<unsigned>(buffers()), &ring_, 0) == 0;
    if (!is_open_) return false;
    std::vector<iovec> all;
    for (int i = 0; i < buffers(); ++i) {
      all.push_back({buffer(i), static_cast<size_t>(buffer_bytes())});
    }
    registered_ =
        io_uring_register_buffers(&ring_, all.data(), static_cast<unsigned>(all.size())) == 0;
    return true;
  }

  void begin(Direction direction, int index, int64_t at, int64_t bytes) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    CHECK(entry != nullptr && "more transfers than buffers");
    const auto size = static_cast<unsigned>(bytes);
    const auto offset = static_cast<uint64_t>(at);
    if (direction == Direction::kRead && registered_) {
      io_uring_prep_read_fixed(entry, file_, buffer(index), size, offset, index);
    } else if (direction == Direction::kRead) {
      io_uring_prep_read(entry, file_, buffer(index), size, offset);
    } else if (registered_) {
      io_uring_prep_write_fixed(entry, file_, buffer(index), size, offset, index);
    } else {
      io_uring_prep_write(entry, file_, buffer(index), size, offset);
    }
    io_uring_sqe_set_data64(entry, static_cast<uint64_t>(index));
    int taken = 0;
    do {
      taken = io_uring_submit(&ring_);
    } while (taken == -EINTR || taken == -EAGAIN);
    if (taken < 0) failed("begin a transfer", -taken);
  }

  Done wait() override {
    io_uring_cqe* end = nullptr;
    int failure = 0;
    do {
      failure = io_uring_wait_cqe(&ring_, &end);
    } while (failure == -EINTR);
    if (failure < 0) failed("wait for a transfer", -failure);
    const Done done{static_cast<int>(io_uring_cqe_get_data64(end)), end->res};
    io_uring_cqe_seen(&ring_, end);
    return done;
  }

  std::string_view engine() const override {
    return registered_ ? "io_uring" : "io_uring, buffers not registered";
  }

 private:
  [[noreturn]] static void failed(const std::string& what, int code) {
    throw Error("io_uring", "cannot " + what + ": error " + std::to_string(code),
                "report this system");
  }

  int file_;
  io_uring ring_{};
  bool is_open_ = false;
  bool registered_ = false;
};

}  // namespace

std::unique_ptr<DiskQueue> make_uring_queue(int file, int buffers, int64_t bytes) {
  auto queue = std::make_unique<UringQueue>(file, buffers, bytes);
  if (!queue->open()) return nullptr;
  return queue;
}

}  // namespace ballast
