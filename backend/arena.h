// One contiguous region of memory that holds every tensor of a place; nothing else allocates.
//
// Will not do: hand out pieces (sim/graph/arena plans the offsets).
#pragma once

#include <cstddef>
#include <string>

#include "sim/base/units.h"

namespace ballast {

class Arena {
 public:
  // Reserves `size` bytes of zeros, backed only where touched. Throws Error if the system refuses.
  Arena(std::string name, Bytes size);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* at(int64_t offset) { return base_ + offset; }
  Bytes size() const { return size_; }
  // Bytes of it that the system has really backed with memory: the measured peak, since nothing
  // is given back while the arena lives.
  Bytes resident() const;

 private:
  std::string name_;
  std::byte* base_ = nullptr;
  Bytes size_;
};

}  // namespace ballast
