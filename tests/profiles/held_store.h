// A store that another program is writing to: a child process holds the lock of SQLite's file
// format (its "pending" byte and those after it) until it is released.
#pragma once

#include <csignal>
#include <fcntl.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/base/error.h"

namespace ballast {

class HeldStore {
 public:
  explicit HeldStore(const std::string& path) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    child_ = fork();
    CHECK(child_ >= 0);
    if (child_ == 0) {
      const int file = open(path.c_str(), O_RDWR);
      struct flock lock {};
      lock.l_type = F_WRLCK;
      lock.l_start = kPendingByte;
      lock.l_len = kLockBytes;
      const char held = file >= 0 && fcntl(file, F_SETLK, &lock) == 0 ? 1 : 0;
      if (write(ready[1], &held, 1) != 1) _exit(1);
      while (true) pause();
    }
    char held = 0;
    CHECK(read(ready[0], &held, 1) == 1 && held == 1);
    close(ready[0]);
    close(ready[1]);
  }
  HeldStore(const HeldStore&) = delete;
  HeldStore& operator=(const HeldStore&) = delete;
  ~HeldStore() { release(); }

  void release() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  pid_t holder() const { return child_; }

 private:
  static constexpr off_t kPendingByte = 0x40000000;  // sqlite.org/fileformat2.html, "lock-byte"
  static constexpr off_t kLockBytes = 512;
  pid_t child_ = 0;
};

}  // namespace ballast
