// One contiguous region of memory that holds every tensor of a place; nothing else allocates.
//
// Will not do: hand out pieces (sim/graph/core/arena plans the offsets).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/base/units.h"

namespace ballast {

enum class ArenaBacking : uint8_t {
  kWhereTouched,  // page by page
  kWhole,         // at once, by all cores, in huge pages where the system gives them
  kNone,          // addresses alone, which nobody may touch: what lies there is on a disk
};

// Backs memory that mmap gave, by all cores at once; `arena` is its name. Throws Error where the
// system has not got it. Where Linux does not know how (before 5.14), whoever touches or pins it
// backs it, one page after another.
void back_whole(const std::string& arena, std::byte* base, Bytes size);

class Arena {
 public:
  // Reserves `size` bytes of zeros, and with kWhole backs them. Throws Error if the system refuses.
  Arena(std::string name, Bytes size, ArenaBacking backing = ArenaBacking::kWhereTouched);
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
