#include "sim/base/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "sim/base/error.h"

namespace ballast {
namespace {

class SystemFiles : public Files {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    return ::open(path.c_str(), flags | O_CLOEXEC, mode);
  }
  int duplicate(int descriptor) override { return ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0); }
  int close(int descriptor) override { return ::close(descriptor); }
  ssize_t write(int descriptor, std::span<const std::byte> data) override {
    return ::write(descriptor, data.data(), data.size());
  }
  ssize_t write_at(int descriptor, int64_t first_byte, std::span<const std::byte> data) override {
    return ::pwrite(descriptor, data.data(), data.size(), first_byte);
  }
  ssize_t read_at(int descriptor, int64_t first_byte, std::span<std::byte> out) override {
    return ::pread(descriptor, out.data(), out.size(), first_byte);
  }
  int set_direct(int descriptor, bool direct) override {
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (flags < 0) return -1;
    return ::fcntl(descriptor, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
  }
  int truncate(int descriptor, int64_t bytes) override { return ::ftruncate(descriptor, bytes); }
  int synchronise(int descriptor) override { return ::fsync(descriptor); }
  int lock(int descriptor) override { return ::flock(descriptor, LOCK_EX | LOCK_NB); }
  int set_mode(int descriptor, mode_t mode) override { return ::fchmod(descriptor, mode); }
  int status(int descriptor, struct stat& found) override { return ::fstat(descriptor, &found); }

  int status(const std::string& path, struct stat& found) override {
    return ::stat(path.c_str(), &found);
  }
  int rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str());
  }
  int remove(const std::string& path) override { return ::unlink(path.c_str()); }
  int make_folder(const std::string& path) override {
    std::error_code failure;
    std::filesystem::create_directories(path, failure);
    errno = failure.value();
    return failure ? -1 : 0;
  }
  std::string resolved(const std::string& path) override {
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
    return real ? std::string(real.get()) : path;
  }
  std::vector<std::string> names_in(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::optional<double> free_bytes(const std::string& folder) override {
    struct statvfs room{};
    if (::statvfs(folder.c_str(), &room) != 0 || room.f_blocks == 0) return std::nullopt;
    return static_cast<double>(room.f_bavail) * static_cast<double>(room.f_frsize);
  }
};

template <class Put>
int put_all(std::span<const std::byte> data, const Put& put) {
  while (!data.empty()) {
    const ssize_t written = put(data);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    data = data.subspan(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

Files& system_files() {
  static SystemFiles files;  // without state
  return files;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void refuse_named_pipe(const std::string& path) {
  struct stat found{};
  const bool is_pipe = ::stat(path.c_str(), &found) == 0 && S_ISFIFO(found.st_mode);
  if (!is_pipe || path.starts_with("/dev/") || path.starts_with("/proc/")) return;
  throw Error(path, "is a pipe, which is waited for until somebody writes", "give a file");
}

int write_all(Files& files, int descriptor, std::span<const std::byte> data) {
  return put_all(data,
                 [&](std::span<const std::byte> rest) { return files.write(descriptor, rest); });
}

int write_all_at(Files& files, int descriptor, int64_t first_byte,
                 std::span<const std::byte> data) {
  const std::byte* const begin = data.data();
  return put_all(data, [&](std::span<const std::byte> rest) {
    return files.write_at(descriptor, first_byte + (rest.data() - begin), rest);
  });
}

}  // namespace ballast
