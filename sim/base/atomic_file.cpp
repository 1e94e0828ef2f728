#include "sim/base/atomic_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr int kMaxTemporaries = 1000;

const char* const kRemedy = "free some space or choose another place, and run it again";

std::string reason(int code) { return std::strerror(code); }

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

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), target_(resolve(path_)) {
  struct stat found {};
  const bool exists = ::stat(target_.c_str(), &found) == 0;
  if (exists && S_ISDIR(found.st_mode)) fail("cannot be written: it is a folder");
  if (exists && !S_ISREG(found.st_mode)) {
    descriptor_ = open_retrying(target_, O_WRONLY, 0);
    if (descriptor_ < 0) fail("cannot be opened for writing: " + reason(errno));
    return;
  }
  for (int i = 0; i < kMaxTemporaries && descriptor_ < 0; ++i) {
    const std::string name =
        target_ + ".part-" + std::to_string(::getpid()) + "-" + std::to_string(i);
    descriptor_ = open_retrying(name, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (descriptor_ >= 0) {
      temporary_ = name;
    } else if (errno != EEXIST) {
      const int code = errno;
      throw Error(path_, "cannot be created: " + reason(code),
                  code == ENOENT ? "create the folder " + folder_of(target_) + " first" : kRemedy);
    }
  }
  if (descriptor_ < 0) fail("cannot be created: too many unfinished copies beside it");
  if (exists && ::fchmod(descriptor_, found.st_mode & 07777) != 0) {
    fail("cannot be given its old permissions: " + reason(errno));
  }
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

void AtomicFile::fail(const std::string& what) {
  discard();
  throw Error(path_, what, kRemedy);
}

void AtomicFile::write(std::span<const std::byte> data) {
  CHECK(descriptor_ >= 0);
  while (!data.empty()) {
    const ssize_t written = ::write(descriptor_, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot be written: " + reason(written < 0 ? errno : ENOSPC));
    data = data.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::commit() {
  CHECK(descriptor_ >= 0);
  // Pipes and terminals cannot be synchronised and say so with EINVAL or EROFS.
  const bool synchronised = ::fsync(descriptor_) == 0;
  if (!synchronised && (!temporary_.empty() || (errno != EINVAL && errno != EROFS))) {
    fail("cannot be made durable: " + reason(errno));
  }
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) {
    fail("cannot be closed: " + reason(errno));
  }
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail("cannot be put in place: " + reason(errno));
  }
  temporary_.clear();
  // The rename itself lives in the folder, which is synchronised on its own.
  const int folder = open_retrying(folder_of(target_), O_RDONLY | O_DIRECTORY, 0);
  const bool durable = folder >= 0 && (::fsync(folder) == 0 || errno == EINVAL);
  const int code = errno;
  if (folder >= 0) ::close(folder);
  if (!durable) fail("is in place, but its folder cannot be made durable: " + reason(code));
}

void atomic_write(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace ballast
