// Loaded before the C library (LD_PRELOAD): lets a call on a file fail, or ends the process in it,
// at a number that a test chose.
//
//   BALLAST_FAULT_IN     part of the path of the files that count; relative names are made whole
//   BALLAST_FAULT_CALL   open, write, sync, rename, unlink, close; any
//   BALLAST_FAULT_AT     the number of the call, from 1; 0 counts alone
//   BALLAST_FAULT_WHAT   an errno, or KILL; a write that is killed has written half
//   BALLAST_FAULT_STAYS  1: so do all later ones
//   BALLAST_FAULT_COUNT  a file to which, at the end, goes how many calls there were
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <string_view>
#include <sys/types.h>
#include <unistd.h>

namespace {

std::atomic<long> calls{0};

const char* setting(const char* name) {
  const char* const value = ::getenv(name);
  return value == nullptr ? "" : value;
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

bool counts(const char* call, const char* path) {
  static const char* const of = setting("BALLAST_FAULT_CALL");
  static const char* const in = setting("BALLAST_FAULT_IN");
  if (*in == '\0' || (std::strcmp(of, "any") != 0 && std::strcmp(of, call) != 0)) return false;
  std::array<char, PATH_MAX> whole{};
  if (path[0] != '/') {
    if (::getcwd(whole.data(), whole.size()) == nullptr) return false;
    const size_t end = std::strlen(whole.data());
    std::snprintf(whole.data() + end, whole.size() - end, "/%s", path);
    path = whole.data();
  }
  return std::string_view(path).find(in) != std::string_view::npos;
}

bool counts(const char* call, int descriptor) {
  const int before = errno;
  std::array<char, 64> link{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  std::array<char, PATH_MAX> path{};
  const bool found = ::readlink(link.data(), path.data(), path.size() - 1) > 0;
  errno = before;
  return found && path[0] == '/' && counts(call, path.data());
}

enum class Fate { kNone, kFail, kKill };

// Of a call that counts.
Fate fate() {
  static const long at = std::atol(setting("BALLAST_FAULT_AT"));
  static const bool stays = *setting("BALLAST_FAULT_STAYS") == '1';
  static const char* const what = setting("BALLAST_FAULT_WHAT");
  const long number = ++calls;
  if (at == 0 || number < at || (number > at && !stays)) return Fate::kNone;
  if (std::strcmp(what, "KILL") == 0) return Fate::kKill;
  errno = std::atoi(what);
  return Fate::kFail;
}

void kill_this() { ::kill(::getpid(), SIGKILL); }

// -1 with errno, or the process ends; else what the call itself gives.
template <class Call>
auto with_fault(bool counted, const Call& call) -> decltype(call()) {
  const Fate what = counted ? fate() : Fate::kNone;
  if (what == Fate::kKill) kill_this();
  if (what == Fate::kFail) return -1;
  return call();
}

template <class Write>
ssize_t written(int descriptor, size_t size, const Write& write) {
  const Fate what = counts("write", descriptor) ? fate() : Fate::kNone;
  if (what == Fate::kFail) return -1;
  if (what == Fate::kKill) {
    write(size / 2);
    kill_this();
  }
  return write(size);
}

int opened(const char* name, const char* path, int flags, mode_t mode) {
  const bool writes = (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0;
  return with_fault(writes && counts("open", path),
                    [&] { return real<int (*)(const char*, int, ...)>(name)(path, flags, mode); });
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : mode_t{0};
}

__attribute__((destructor)) void tell() {
  const char* const path = setting("BALLAST_FAULT_COUNT");
  if (*path == '\0') return;
  if (std::FILE* const file = std::fopen(path, "w")) {
    std::fprintf(file, "%ld\n", calls.load());
    std::fclose(file);
  }
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened("open64", path, flags, mode);
}

ssize_t write(int descriptor, const void* data, size_t size) {
  return written(descriptor, size, [&](size_t part) {
    return real<ssize_t (*)(int, const void*, size_t)>("write")(descriptor, data, part);
  });
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t at) {
  return written(descriptor, size, [&](size_t part) {
    return real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(descriptor, data, part, at);
  });
}

ssize_t pwrite64(int descriptor, const void* data, size_t size, off64_t at) {
  return written(descriptor, size, [&](size_t part) {
    return real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64")(descriptor, data, part,
                                                                            at);
  });
}

int fsync(int descriptor) {
  return with_fault(counts("sync", descriptor),
                    [&] { return real<int (*)(int)>("fsync")(descriptor); });
}

int fdatasync(int descriptor) {
  return with_fault(counts("sync", descriptor),
                    [&] { return real<int (*)(int)>("fdatasync")(descriptor); });
}

int rename(const char* from, const char* to) {
  return with_fault(counts("rename", to),
                    [&] { return real<int (*)(const char*, const char*)>("rename")(from, to); });
}

int unlink(const char* path) {
  return with_fault(counts("unlink", path),
                    [&] { return real<int (*)(const char*)>("unlink")(path); });
}

int close(int descriptor) {
  const bool counted = counts("close", descriptor);
  const Fate what = counted ? fate() : Fate::kNone;
  if (what == Fate::kKill) kill_this();
  const int code = errno;
  const int result = real<int (*)(int)>("close")(descriptor);  // closed all the same
  if (what != Fate::kFail) return result;
  errno = code;
  return -1;
}
}
