#include "sim/base/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/fault.h"
#include "sim/base/write_all.h"

namespace ballast {
namespace {

constexpr int kMaxTemporaries = 1000;
constexpr std::string_view kPart = ".part-";
constexpr size_t kBlock = 4096;  // bytes: more than a file system keeps beside a name

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A link is followed, so that what it points to is replaced and not the link.
std::string resolve(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  return real ? std::string(real.get()) : path;
}

int open_retrying(const std::string& path, int flags, mode_t mode) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// Takes digits from the front; false where there are none.
bool take_digits(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(end);
  return end > 0;
}

// Locks the file for this process. On a file system without locks nothing is ever free.
bool lock_alone(int descriptor) { return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0; }

// Removes the copies beside a target whose writers are gone: with a writer goes its lock, whichever
// way it ends, and a process id says nothing where folders are shared between containers.
void sweep(const std::string& target) {
  const std::string name = target.substr(target.rfind('/') + 1);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(target), ignored)) {
    if (!is_part_of(entry.path().filename().string(), name)) continue;
    const int left = open_retrying(entry.path().string(), O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    if (left < 0) continue;
    if (lock_alone(left)) ::unlink(entry.path().c_str());
    ::close(left);
  }
}

}  // namespace

bool is_part_of(std::string_view name, std::string_view target) {
  if (!name.starts_with(target)) return false;
  name.remove_prefix(target.size());
  if (!name.starts_with(kPart)) return false;
  name.remove_prefix(kPart.size());
  if (!take_digits(name) || !name.starts_with('-')) return false;
  name.remove_prefix(1);
  return take_digits(name) && name.empty();
}

AtomicFile::AtomicFile(std::string path, std::string called)
    : path_(called.empty() ? path : std::move(called)), target_(resolve(path)) {
  struct stat found {};
  const bool exists = ::stat(target_.c_str(), &found) == 0;
  if (exists && S_ISDIR(found.st_mode)) {
    throw Error(path_, "cannot be written: it is a folder", "name a file");
  }
  if (exists && !S_ISREG(found.st_mode)) {
    descriptor_ = open_retrying(target_, O_WRONLY, 0);
    if (descriptor_ < 0) fail("cannot be opened for writing", errno);
    return;
  }
  sweep(target_);
  open_beside();
  if (exists && ::fchmod(descriptor_, found.st_mode & 07777) != 0) {
    fail("cannot be given its old permissions", errno);
  }
}

void AtomicFile::open_beside() {
  for (int i = 0; i < kMaxTemporaries; ++i) {
    const std::string name =
        target_ + std::string(kPart) + std::to_string(::getpid()) + "-" + std::to_string(i);
    descriptor_ = open_retrying(name, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) {
      const int code = errno;
      throw Error(path_, "cannot be created: " + fault_name(code),
                  code == ENOENT ? "create the folder " + folder_of(target_) + " first"
                                 : fault_remedy(code));
    }
    // Between the two calls another may have taken it for left over. Where there are no locks,
    // nobody sweeps.
    const bool locked = lock_alone(descriptor_);
    struct stat made {};
    if ((locked || errno != EWOULDBLOCK) && ::fstat(descriptor_, &made) == 0 && made.st_nlink > 0) {
      temporary_ = name;
      return;
    }
    ::close(std::exchange(descriptor_, -1));
  }
  throw Error(path_, "cannot be created: too many unfinished copies beside it", "remove those");
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this != &other) {
    discard();
    path_ = std::move(other.path_);
    target_ = std::move(other.target_);
    temporary_ = std::exchange(other.temporary_, {});
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::fail(const std::string& what, int code) {
  discard();
  throw Error(path_, what + ": " + fault_name(code), fault_remedy(code));
}

void AtomicFile::write(std::span<const std::byte> data) {
  CHECK(descriptor_ >= 0);
  if (const int code = write_all(descriptor_, data); code != 0) fail("cannot be written", code);
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::rewrite(int64_t first_byte, std::span<const std::byte> data) {
  CHECK(descriptor_ >= 0 && can_rewrite());
  const int code = write_all_at(descriptor_, first_byte, data);
  if (code != 0) fail("cannot be written", code);
}

void AtomicFile::commit() {
  CHECK(descriptor_ >= 0);
  // Pipes and terminals cannot be synchronised and say so with EINVAL or EROFS.
  const bool synchronised = ::fsync(descriptor_) == 0;
  if (!synchronised && (can_rewrite() || (errno != EINVAL && errno != EROFS))) {
    fail("cannot be made durable", errno);
  }
  // Holds the lock until the file has its name: some file systems say only when it is closed what
  // went wrong, and in between another would take it for left over.
  const int lock = can_rewrite() ? ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0) : -1;
  const bool closed = ::close(std::exchange(descriptor_, -1)) == 0 || errno == EINTR;
  int code = closed ? 0 : errno;
  const bool placed =
      closed && (temporary_.empty() || ::rename(temporary_.c_str(), target_.c_str()) == 0);
  if (closed && !placed) code = errno;
  if (lock >= 0) ::close(lock);
  if (!placed) fail(closed ? "cannot be put in place" : "cannot be closed", code);
  if (temporary_.empty()) return;
  temporary_.clear();
  // The rename itself lives in the folder, which is synchronised on its own.
  const int folder = open_retrying(folder_of(target_), O_RDONLY | O_DIRECTORY, 0);
  const bool durable = folder >= 0 && (::fsync(folder) == 0 || errno == EINVAL);
  code = errno;
  if (folder >= 0) ::close(folder);
  if (!durable) fail("is in place, but its folder cannot be made durable", code);
}

void try_to_write(const std::string& path, const std::string& called) {
  struct stat found {};
  // Whoever reads a pipe takes the end of the trial for the end of all.
  if (::stat(path.c_str(), &found) == 0 && S_ISFIFO(found.st_mode)) return;
  AtomicFile file(path, called);
  if (!file.can_rewrite()) {
    // Nothing is put into a pipe, and a device that takes nothing says so.
    if (::write(file.descriptor_, "", 0) < 0) file.fail("cannot be written", errno);
    return;
  }
  file.write(std::string(kBlock, '\n'));
  // A quota, or a disk of another machine, is asked only here.
  if (::fsync(file.descriptor_) != 0) file.fail("cannot be made durable", errno);
}

void atomic_write(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace ballast
