// Files that appear whole or not at all: written beside the target, synchronised, then renamed.
//
// A reader, or a program that is killed half way, sees the old content or the new, never a part.
// A target that is not a regular file (a terminal, /dev/stdout, a pipe) is written directly.
// What is written beside is TARGET.part-PID-N, locked (flock) as long as its writer lives: what an
// earlier writer of the same target left when it was killed is removed by the next.
// Will not do: create folders, lock against a second writer (the last commit wins), or append.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ballast {

class Files;
class DirectWrite;
Files& system_files();

// The system's page cache, which large files should bypass (sim/base/direct_write.h).
enum class Cache : uint8_t { kUsed, kBypassed };

// Move-only. Destroyed without commit() it removes what was written and leaves the target alone.
class AtomicFile {
 public:
  // Throws Error where the folder does not exist or may not be written.
  // `called`: what messages call it; empty: the path.
  // `files` must outlive this object.
  explicit AtomicFile(std::string path, std::string called = {}, Files& files = system_files(),
                      Cache cache = Cache::kUsed);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends to the new content. Throws Error, and removes it, on a full disk. Requires !committed.
  void write(std::span<const std::byte> data);
  void write(std::string_view text);

  // All has been appended: gives back what a bypassed cache took of memory. Where it is bypassed
  // nothing may be appended after that.
  void finish_appending();

  // Whether what was written can be written again: not where the target is written directly.
  bool can_rewrite() const { return !temporary_.empty(); }
  // Puts data in the place of bytes that were written. Requires can_rewrite(). Finishes
  // appending.
  void rewrite(int64_t first_byte, std::span<const std::byte> data);

  // Makes the content durable and puts it in the target's place; the file is closed after it.
  // Throws Error, leaving the target as it was, if any of it fails.
  void commit();

 private:
  friend void try_to_write(const std::string& path, const std::string& called, Files& files);
  [[noreturn]] void fail(const std::string& what, int code);
  void open_beside();
  void discard() noexcept;

  Files* files_;
  std::string path_;       // as the caller named it, for messages
  std::string target_;     // with links resolved
  std::string temporary_;  // beside target_; empty where the target is written directly
  int descriptor_ = -1;
  std::unique_ptr<DirectWrite> direct_;  // null where the cache is used
};

// All of `content` or nothing.
void atomic_write(const std::string& path, std::string_view content);

// Throws Error where a file of that name could not be written: puts a block beside it onto the disk
// and removes it. What is there stays; a device is only opened, and a pipe left alone. `called`: as
// above, "--out FILE".
void try_to_write(const std::string& path, const std::string& called = {},
                  Files& files = system_files());

// Throws Error, which names `called` and what is needed, where the file system of a folder has less
// than so many bytes left. Some file systems do not say how large they are.
void require_room(Files& files, const std::string& folder, double bytes, const std::string& called,
                  const std::string& needed);

// Whether a name is that of an unfinished copy beside a file called `target`.
bool is_part_of(std::string_view name, std::string_view target);

}  // namespace ballast
