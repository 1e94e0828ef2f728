#include "sim/base/write_all.h"

#include <cerrno>
#include <unistd.h>

namespace ballast {
namespace {

template <class Put>
int put_all(std::span<const std::byte> data, const Put& put) {
  while (!data.empty()) {
    const ssize_t written = put(data);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    data = data.subspan(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

int write_all(int descriptor, std::span<const std::byte> data) {
  return put_all(data, [&](std::span<const std::byte> rest) {
    return ::write(descriptor, rest.data(), rest.size());
  });
}

int write_all_at(int descriptor, int64_t first_byte, std::span<const std::byte> data) {
  const std::byte* const begin = data.data();
  return put_all(data, [&](std::span<const std::byte> rest) {
    return ::pwrite(descriptor, rest.data(), rest.size(), first_byte + (rest.data() - begin));
  });
}

}  // namespace ballast
