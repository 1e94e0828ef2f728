// Writes to file descriptors that go on where the system took only a part, or was interrupted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ballast {

// All of data, at the end of what was written or at a byte of the file; 0, or else the error's
// number (errno), after which a part may be written.
int write_all(int descriptor, std::span<const std::byte> data);
int write_all_at(int descriptor, int64_t first_byte, std::span<const std::byte> data);

}  // namespace ballast
