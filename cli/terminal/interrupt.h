// Ctrl-C (and SIGTERM, SIGHUP) as a question that a running job asks from time to time. A second
// one ends the program at once.
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

}  // namespace ballast
