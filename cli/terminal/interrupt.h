// Ctrl-C (and SIGTERM, SIGHUP) as a question that a running job asks from time to time. A second
// one ends the program at once, which the first says where standard error is a terminal.
#pragma once

namespace ballast {

class InterruptWatch {
 public:
  InterruptWatch();   // from here on signals are noted; at most one watch lives at a time
  ~InterruptWatch();  // from here on they end the program again
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool interrupted() const;
};

// From here on a write into a pipe that nobody reads fails, and the program lives.
void ignore_broken_pipes();
// Likewise a write beyond the largest file that the system allows (ulimit -f).
void ignore_file_size_limit();

}  // namespace ballast
