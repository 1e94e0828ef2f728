// Files that appear whole or not at all: written beside the target, synchronised, then renamed.
//
// A reader, or a program that is killed half way, sees the old content or the new, never a part.
// A target that is not a regular file (a terminal, /dev/stdout, a pipe) is written directly.
// Will not do: create folders, lock against a second writer (the last commit wins), or append.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ballast {

// Move-only. Destroyed without commit() it removes what was written and leaves the target alone.
class AtomicFile {
 public:
  // Throws Error where the folder does not exist or may not be written.
  explicit AtomicFile(std::string path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends to the new content. Throws Error, and removes it, on a full disk. Requires !committed.
  void write(std::span<const std::byte> data);
  void write(std::string_view text);

  // Makes the content durable and puts it in the target's place; the file is closed after it.
  // Throws Error, leaving the target as it was, if any of it fails.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& what);
  void discard() noexcept;

  std::string path_;       // as the caller named it, for messages
  std::string target_;     // with links resolved
  std::string temporary_;  // beside target_; empty where the target is written directly
  int descriptor_ = -1;
};

// All of `content` or nothing.
void atomic_write(const std::string& path, std::string_view content);

}  // namespace ballast
