// Files: the calls on files through which everything goes that has to survive a fault: what is
// written beside and renamed (atomic_file), safetensors, the folder of a run's checkpoints.
//
// One interface, so that a test can stand in for the system, lose what was not synced, tear what
// was being written and fail where it likes. Each call does what the call of the system does and
// says so as that one does: below 0 with errno. Interrupted ones are not repeated here.
// Will not do: buffer, or know what is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <sys/stat.h>
#include <sys/types.h>
#include <vector>

namespace ballast {

class Files {
 public:
  virtual ~Files() = default;

  virtual int open(const std::string& path, int flags, mode_t mode) = 0;
  virtual int duplicate(int descriptor) = 0;
  virtual int close(int descriptor) = 0;
  virtual ssize_t write(int descriptor, std::span<const std::byte> data) = 0;
  virtual ssize_t write_at(int descriptor, int64_t first_byte, std::span<const std::byte> data) = 0;
  virtual ssize_t read_at(int descriptor, int64_t first_byte, std::span<std::byte> out) = 0;
  // Whether what is written to it from now on bypasses the page cache, for which memory, places and
  // lengths are to be aligned. EINVAL where the file system does not do that.
  virtual int set_direct(int descriptor, bool direct) = 0;
  virtual int truncate(int descriptor, int64_t bytes) = 0;
  // Of a file or a folder: puts what was written, or the names that changed, onto the disk.
  virtual int synchronise(int descriptor) = 0;
  // Alone, until the last copy of the descriptor is closed; fails at once with EWOULDBLOCK.
  virtual int lock(int descriptor) = 0;
  virtual int set_mode(int descriptor, mode_t mode) = 0;
  virtual int status(int descriptor, struct stat& found) = 0;

  virtual int status(const std::string& path, struct stat& found) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int remove(const std::string& path) = 0;
  // With those above it; one that is there is fine.
  virtual int make_folder(const std::string& path) = 0;
  // With links followed; the path itself where there is no such file.
  virtual std::string resolved(const std::string& path) = 0;
  // Sorted; none of a folder that cannot be read.
  virtual std::vector<std::string> names_in(const std::string& folder) = 0;
  // Nothing where the file system does not say how large it is.
  virtual std::optional<double> free_bytes(const std::string& folder) = 0;
};

// Those of this process.
Files& system_files();

// The folder that a file lies in: "." of a bare name, "/" of one in the root.
std::string folder_of(const std::string& path);

// Throws Error where the path is that of a named pipe, which would be waited for until somebody
// writes into it. A shell's own (/dev/stdin, or /dev/fd/63 of <(command)) has its writer already.
void refuse_named_pipe(const std::string& path);

// Writes that go on where the system took only a part, or was interrupted: all of data, at the end
// of what was written or at a byte of the file. 0, or else the error's number (errno), after which
// a part may be written.
int write_all(Files& files, int descriptor, std::span<const std::byte> data);
int write_all_at(Files& files, int descriptor, int64_t first_byte, std::span<const std::byte> data);

}  // namespace ballast
