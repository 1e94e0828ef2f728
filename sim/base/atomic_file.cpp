#include "sim/base/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "sim/base/direct_write.h"
#include "sim/base/error.h"
#include "sim/base/fault.h"
#include "sim/base/files.h"
#include "sim/base/units.h"

namespace ballast {
namespace {

constexpr int kMaxTemporaries = 1000;
constexpr std::string_view kPart = ".part-";
constexpr size_t kBlock = 4096;  // bytes: more than a file system keeps beside a name

int open_retrying(Files& files, const std::string& path, int flags, mode_t mode) {
  int descriptor = -1;
  do {
    descriptor = files.open(path, flags, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// Takes digits from the front; false where there are none.
bool take_digits(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(end);
  return end > 0;
}

// Removes the copies beside a target whose writers are gone: with a writer goes its lock, whichever
// way it ends, and a process id says nothing where folders are shared between containers.
// On a file system without locks nothing is ever free.
void sweep(Files& files, const std::string& target) {
  const std::string folder = folder_of(target);
  const std::string name = target.substr(target.rfind('/') + 1);
  for (const std::string& beside : files.names_in(folder)) {
    if (!is_part_of(beside, name)) continue;
    const std::string path = (folder == "/" ? "" : folder) + "/" + beside;
    const int left = open_retrying(files, path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    if (left < 0) continue;
    if (files.lock(left) == 0) files.remove(path);
    files.close(left);
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

// A link is followed, so that what it points to is replaced and not the link.
AtomicFile::AtomicFile(std::string path, std::string called, Files& files, Cache cache)
    : files_(&files),
      path_(called.empty() ? path : std::move(called)),
      target_(files.resolved(path)) {
  struct stat found{};
  const bool exists = files_->status(target_, found) == 0;
  if (exists && S_ISDIR(found.st_mode)) {
    throw Error(path_, "cannot be written: it is a folder", "name a file");
  }
  if (exists && !S_ISREG(found.st_mode)) {
    descriptor_ = open_retrying(*files_, target_, O_WRONLY, 0);
    if (descriptor_ < 0) fail("cannot be opened for writing", errno);
    return;
  }
  sweep(*files_, target_);
  open_beside();
  if (exists && files_->set_mode(descriptor_, found.st_mode & 07777) != 0) {
    fail("cannot be given its old permissions", errno);
  }
  if (cache == Cache::kBypassed) direct_ = std::make_unique<DirectWrite>(*files_, descriptor_);
}

void AtomicFile::open_beside() {
  for (int i = 0; i < kMaxTemporaries; ++i) {
    const std::string name =
        target_ + std::string(kPart) + std::to_string(::getpid()) + "-" + std::to_string(i);
    descriptor_ = open_retrying(*files_, name, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) {
      const int code = errno;
      throw Error(path_, "cannot be created: " + fault_name(code),
                  code == ENOENT ? "create the folder " + folder_of(target_) + " first"
                                 : fault_remedy(code));
    }
    // Between the two calls another may have taken it for left over. Where there are no locks,
    // nobody sweeps.
    const bool locked = files_->lock(descriptor_) == 0;
    struct stat made{};
    if ((locked || errno != EWOULDBLOCK) && files_->status(descriptor_, made) == 0 &&
        made.st_nlink > 0) {
      temporary_ = name;
      return;
    }
    files_->close(std::exchange(descriptor_, -1));
  }
  throw Error(path_, "cannot be created: too many unfinished copies beside it", "remove those");
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(std::move(other.direct_)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this != &other) {
    discard();
    files_ = other.files_;
    path_ = std::move(other.path_);
    target_ = std::move(other.target_);
    temporary_ = std::exchange(other.temporary_, {});
    descriptor_ = std::exchange(other.descriptor_, -1);
    direct_ = std::move(other.direct_);
  }
  return *this;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  direct_.reset();
  if (descriptor_ >= 0) files_->close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) files_->remove(temporary_);
  temporary_.clear();
}

void AtomicFile::fail(const std::string& what, int code) {
  discard();
  throw Error(path_, what + ": " + fault_name(code), fault_remedy(code));
}

void AtomicFile::write(std::span<const std::byte> data) {
  CHECK(descriptor_ >= 0);
  const int code = direct_ ? direct_->append(data) : write_all(*files_, descriptor_, data);
  if (code != 0) fail("cannot be written", code);
}

void AtomicFile::finish_appending() {
  if (!direct_) return;
  const int code = direct_->finish();
  if (code != 0) fail("cannot be written", code);
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::rewrite(int64_t first_byte, std::span<const std::byte> data) {
  CHECK(descriptor_ >= 0 && can_rewrite());
  finish_appending();
  const int code = write_all_at(*files_, descriptor_, first_byte, data);
  if (code != 0) fail("cannot be written", code);
}

void AtomicFile::commit() {
  CHECK(descriptor_ >= 0);
  finish_appending();
  // Pipes and terminals cannot be synchronised and say so with EINVAL or EROFS.
  const bool synchronised = files_->synchronise(descriptor_) == 0;
  if (!synchronised && (can_rewrite() || (errno != EINVAL && errno != EROFS))) {
    fail("cannot be made durable", errno);
  }
  // Holds the lock until the file has its name: some file systems say only when it is closed what
  // went wrong, and in between another would take it for left over.
  const int lock = can_rewrite() ? files_->duplicate(descriptor_) : -1;
  const bool closed = files_->close(std::exchange(descriptor_, -1)) == 0 || errno == EINTR;
  int code = closed ? 0 : errno;
  const bool placed = closed && (temporary_.empty() || files_->rename(temporary_, target_) == 0);
  if (closed && !placed) code = errno;
  if (lock >= 0) files_->close(lock);
  if (!placed) fail(closed ? "cannot be put in place" : "cannot be closed", code);
  if (temporary_.empty()) return;
  temporary_.clear();
  // The rename itself lives in the folder, which is synchronised on its own.
  const int folder = open_retrying(*files_, folder_of(target_), O_RDONLY | O_DIRECTORY, 0);
  const bool durable = folder >= 0 && (files_->synchronise(folder) == 0 || errno == EINVAL);
  code = errno;
  if (folder >= 0) files_->close(folder);
  if (!durable) fail("is in place, but its folder cannot be made durable", code);
}

void require_room(Files& files, const std::string& folder, double bytes, const std::string& called,
                  const std::string& needed) {
  const std::optional<double> free = files.free_bytes(folder);
  if (!free || *free >= bytes) return;
  throw Error(called,
              fmt::format("{}: {}, and {} are free", fault_name(ENOSPC), needed,
                          bytes_text({static_cast<int64_t>(*free)})),
              fault_remedy(ENOSPC));
}

void try_to_write(const std::string& path, const std::string& called, Files& files) {
  struct stat found{};
  // Whoever reads a pipe takes the end of the trial for the end of all.
  if (files.status(path, found) == 0 && S_ISFIFO(found.st_mode)) return;
  AtomicFile file(path, called, files);
  if (!file.can_rewrite()) {
    // Nothing is put into a pipe, and a device that takes nothing says so.
    if (files.write(file.descriptor_, {}) < 0) file.fail("cannot be written", errno);
    return;
  }
  file.write(std::string(kBlock, '\n'));
  // A quota, or a disk of another machine, is asked only here.
  if (files.synchronise(file.descriptor_) != 0) file.fail("cannot be made durable", errno);
}

void atomic_write(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace ballast
