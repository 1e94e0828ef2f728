// Appends to a large file by direct I/O (O_DIRECT), which bypasses the system's page cache: that
// would cost the thread a second copy of each byte and the keeping of each page, and would push out
// what others read, while of a checkpoint nothing is read again soon.
//
// Bytes are gathered in aligned memory and written in large chunks. The last one, which is no whole
// number of blocks, goes through the cache, and so does everything where the file system or the
// disk refuses direct I/O. FastPersist writes so (Wang et al., "FastPersist: Accelerating Model
// Checkpointing in Deep Learning", arXiv 2406.13768), with several chunks under way; here it is
// one, since nothing waits for a write in the background. Will not do: synchronise, or write into
// the middle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ballast {

class Files;

class DirectWrite {
 public:
  // Of an empty file that is open for writing. It and `files` must outlive this. Memory is taken as
  // it fills.
  DirectWrite(Files& files, int descriptor) : files_(files), descriptor_(descriptor) {}

  // 0, or the error's number (errno), after which a part may be written and nothing may be
  // appended.
  int append(std::span<const std::byte> data);
  // Writes what is left and gives the memory back; the descriptor is used through the cache from
  // then on, and nothing may be appended. To finish again does nothing.
  int finish();

  static constexpr size_t kChunkBytes = size_t{4} << 20;

 private:
  void make_room_for(size_t bytes);
  int write_chunk();
  void use_cache();

  struct Free {
    void operator()(std::byte* memory) const;
  };

  Files& files_;
  int descriptor_;
  bool began_ = false, finished_ = false;
  bool is_direct_ = false;
  std::unique_ptr<std::byte[], Free> chunk_;
  size_t capacity_ = 0, filled_ = 0;  // bytes of it
  int64_t written_ = 0;               // bytes of the file
};

}  // namespace ballast
