#include "sim/base/direct_write.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/files.h"

namespace ballast {
namespace {

// Of memory, of places in the file and of lengths: what common disks ask for. One that asks for
// more refuses with EINVAL.
constexpr size_t kAlignment = 4096;
// Many files may be begun before the first of them is filled.
constexpr size_t kFirstBytes = size_t{64} << 10;
static_assert(DirectWrite::kChunkBytes % kAlignment == 0);

}  // namespace

void DirectWrite::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t{kAlignment});
}

int DirectWrite::append(std::span<const std::byte> data) {
  CHECK(!finished_ || data.empty());
  while (!data.empty()) {
    const size_t taken = std::min(data.size(), kChunkBytes - filled_);
    make_room_for(filled_ + taken);
    std::memcpy(chunk_.get() + filled_, data.data(), taken);
    filled_ += taken;
    data = data.subspan(taken);
    if (filled_ < kChunkBytes) continue;
    if (!std::exchange(began_, true)) is_direct_ = files_.set_direct(descriptor_, true) == 0;
    if (const int code = write_chunk(); code != 0) return code;
  }
  return 0;
}

void DirectWrite::make_room_for(size_t bytes) {
  if (bytes <= capacity_) return;
  const size_t capacity = std::max(kFirstBytes, std::min(std::bit_ceil(bytes), kChunkBytes));
  std::unique_ptr<std::byte[], Free> larger(new (std::align_val_t{kAlignment}) std::byte[capacity]);
  if (filled_ > 0) std::memcpy(larger.get(), chunk_.get(), filled_);
  chunk_ = std::move(larger);
  capacity_ = capacity;
}

int DirectWrite::write_chunk() {
  const std::span<const std::byte> chunk(chunk_.get(), filled_);
  int code = write_all_at(files_, descriptor_, written_, chunk);
  // Refused after all; or the system took a part, after which the rest is not aligned.
  if (code == EINVAL && is_direct_) {
    use_cache();
    code = write_all_at(files_, descriptor_, written_, chunk);
  }
  written_ += std::ssize(chunk);
  filled_ = 0;
  return code;
}

void DirectWrite::use_cache() {
  if (std::exchange(is_direct_, false)) files_.set_direct(descriptor_, false);
}

int DirectWrite::finish() {
  if (std::exchange(finished_, true)) return 0;
  use_cache();
  const int code = filled_ > 0 ? write_chunk() : 0;
  chunk_.reset();
  return code;
}

}  // namespace ballast
