// Appends to a large file past the system's cache, which would cost a core the copying of each byte
// and the keeping of each page, and would push out what others read: of a checkpoint nothing is
// read again soon.
//
// Bytes are gathered in aligned memory and written in large pieces (O_DIRECT), the last one, which
// is no whole number of blocks, through the cache. Where a file system takes none so, all go there.
// As FastPersist does (Wang et al., "FastPersist: Accelerating Model Checkpointing in Deep
// Learning", 2024, section 4.1), with one piece on its way at a time: who writes is in no hurry.
// Will not do: synchronise, or write into the middle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ballast {

class Files;

class UncachedWrite {
 public:
  // Of the file at `path`, which is empty and is open for writing as `cached`; both must outlive
  // this.
  UncachedWrite(Files& files, const std::string& path, int cached);
  ~UncachedWrite();
  UncachedWrite(const UncachedWrite&) = delete;
  UncachedWrite& operator=(const UncachedWrite&) = delete;

  // 0, or the error's number (errno), after which a part may be written. Only finish() leaves
  // nothing in memory; after it nothing may be appended, and to finish again does nothing.
  int append(std::span<const std::byte> data);
  int finish();

  static constexpr size_t kPiece = size_t{4} << 20;  // bytes

 private:
  int write_piece();

  struct Free {
    void operator()(std::byte* memory) const;
  };

  Files& files_;
  int cached_;
  int direct_;  // below 0 where all goes through the cache
  std::unique_ptr<std::byte[], Free> piece_;  // null when finished
  size_t filled_ = 0;    // bytes of it
  int64_t written_ = 0;  // bytes of the file
};

}  // namespace ballast
