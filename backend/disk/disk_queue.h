// Transfers between a file and a few buffers, as many at a time as there are buffers.
//
// Two engines: io_uring, with the buffers and the file registered once, and threads that each read
// or write one buffer where the program was built without liburing or the system does not allow it.
// Will not do: know what is in a buffer (state_file).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ballast {

enum class IoEngine : uint8_t { kBest, kThreads };

// What direct transfers are multiples of, in the file and in memory.
inline constexpr int64_t kDiskBlock = 4096;

class DiskQueue {
 public:
  enum class Direction : uint8_t { kRead, kWrite };
  // result: bytes moved, or less than 0 the error's number.
  struct Done {
    int buffer = 0;
    int64_t result = 0;
  };

  // `buffers` of `bytes` each, whole blocks. Throws Error where there is no memory.
  DiskQueue(int buffers, int64_t bytes);
  virtual ~DiskQueue() = default;
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  int buffers() const { return buffers_; }
  std::byte* buffer(int i) const { return memory_.get() + i * bytes_; }
  int64_t buffer_bytes() const { return bytes_; }

  // The first `bytes` of a buffer that is at rest, from or to this byte of the file.
  virtual void begin(Direction direction, int buffer, int64_t at, int64_t bytes) = 0;
  // The next transfer that ends; requires that one is under way.
  virtual Done wait() = 0;
  virtual std::string_view engine() const = 0;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  int buffers_;
  int64_t bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
};

// Of a file that stays open meanwhile.
std::unique_ptr<DiskQueue> make_disk_queue(int file, int buffers, int64_t bytes, IoEngine engine);
// Null where io_uring is not built in or not allowed.
std::unique_ptr<DiskQueue> make_uring_queue(int file, int buffers, int64_t bytes);

}  // namespace ballast
