// Optimizer state on a disk: a file of regions, read and written whole in chunks that go past the
// system's cache (O_DIRECT), several at a time, each with a checksum.
//
// The file has no name, so it vanishes with the process however that ends, and nobody can remove
// it; it is allocated when it is made, so that a full disk is told then. A chunk is copied through
// a buffer on its way, where its checksum (CRC-32C) is made or held against what was written. Reads
// and writes have queues of their own, and do not wait for each other.
// Will not do: know which tensors lie in it (backend/host), or outlive the process: what is resumed
// from is a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/disk/disk_queue.h"
#include "sim/base/units.h"

namespace ballast {

struct DiskOptions {
  std::string folder;                // empty: that for temporary files
  Bytes chunk = {int64_t{8} << 20};  // whole blocks
  int depth = 4;                     // chunks under way in each direction
  IoEngine engine = IoEngine::kBest;
};

class StateFile {
 public:
  using Pieces = std::vector<std::span<std::byte>>;
  using ConstPieces = std::vector<std::span<const std::byte>>;

  // Of zeros. Throws Error, which names the folder, where the file cannot be made.
  StateFile(const std::vector<Bytes>& regions, const DiskOptions& options);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  // All of a region, which the pieces are one after another; what they are shorter is left. Throw
  // Error where the system fails, and where what is read is not what was written. From any thread.
  void read(size_t region, const Pieces& to);
  void write(size_t region, const ConstPieces& from);
  // Some bytes of a region, by a few chunks that stay in memory until a whole region moves. While
  // none does.
  void read_part(size_t region, int64_t begin, std::span<std::byte> to);
  void write_part(size_t region, int64_t begin, std::span<const std::byte> from);

  // "io_uring, direct", as transfers are carried out.
  std::string described() const;
  // For tests, and benchmarks that read the same file plainly.
  int descriptor() const { return file_; }
  Bytes size() const { return size_; }
  // Of the disk, as the system counts them.
  Bytes taken() const;

 private:
  // None was written where `written` is false: it is zeros.
  struct Chunk {
    uint32_t checksum = 0;
    bool written = false;
  };
  struct Region {
    int64_t begin = 0;  // in the file; whole blocks
    int64_t bytes = 0;
    std::vector<Chunk> chunks;
  };
  struct Part {  // of a region: a chunk
    size_t index = 0;
    int64_t begin = 0;
    int64_t bytes = 0;
    int64_t blocks() const { return round_up(bytes, kDiskBlock); }
  };
  Part part_of(const Region& region, size_t chunk) const;
  void open(const DiskOptions& options);
  struct Cached {
    size_t region = 0, chunk = 0;
    std::vector<std::byte> bytes;
    bool changed = false;
  };
  Cached& cached(size_t region, size_t chunk);
  void write_back(const Cached& one);
  void flush();
  // Whole transfers: what the system left is moved here.
  void finish(DiskQueue& queue, DiskQueue::Direction direction, const DiskQueue::Done& done,
              int64_t at, int64_t bytes) const;
  void check(const Region& region, const Part& part, std::span<const std::byte> bytes) const;
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const;
  // Calls use(chunk, buffer) for the chunks [first, last) of a region, as they arrive.
  template <class Use>
  void read_chunks(Region& region, size_t first, size_t last, const Use& use);
  // Calls fill(chunk, buffer) for each before it leaves.
  template <class Fill>
  void write_chunks(Region& region, size_t first, size_t last, const Fill& fill);

  std::string folder_;
  int64_t chunk_;
  int file_ = -1;
  bool direct_ = false;
  Bytes size_;
  std::vector<Region> regions_;
  std::mutex reading_, writing_, parts_;
  std::list<Cached> cache_;  // the one that was used last first
  std::unique_ptr<DiskQueue> reads_, writes_;
};

}  // namespace ballast
