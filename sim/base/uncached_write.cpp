#include "sim/base/uncached_write.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/files.h"

namespace ballast {
namespace {

// Of memory, of places in the file and of lengths: the largest that disks ask for.
constexpr std::align_val_t kDirectAlignment{4096};

}  // namespace

void UncachedWrite::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, kDirectAlignment);
}

UncachedWrite::UncachedWrite(Files& files, const std::string& path, int cached)
    : files_(files),
      cached_(cached),
      direct_(files.open(path, O_WRONLY | O_DIRECT, 0)),
      piece_(new(kDirectAlignment) std::byte[kPiece]) {}

UncachedWrite::~UncachedWrite() {
  if (direct_ >= 0) files_.close(direct_);
}

int UncachedWrite::append(std::span<const std::byte> data) {
  CHECK(piece_);
  while (!data.empty()) {
    const size_t taken = std::min(data.size(), kPiece - filled_);
    std::memcpy(piece_.get() + filled_, data.data(), taken);
    filled_ += taken;
    data = data.subspan(taken);
    if (filled_ < kPiece) continue;
    if (const int code = write_piece(); code != 0) return code;
  }
  return 0;
}

int UncachedWrite::write_piece() {
  const std::span<const std::byte> piece(piece_.get(), filled_);
  int code = EINVAL;
  if (direct_ >= 0) {
    code = write_all_at(files_, direct_, written_, piece);
    // Some file systems open a file so, and then take nothing of it.
    if (code == EINVAL) files_.close(std::exchange(direct_, -1));
  }
  if (direct_ < 0) code = write_all_at(files_, cached_, written_, piece);
  written_ += std::ssize(piece);
  filled_ = 0;
  return code;
}

int UncachedWrite::finish() {
  if (!piece_) return 0;
  const int direct = std::exchange(direct_, -1);
  const int code = filled_ > 0 ? write_piece() : 0;
  piece_.reset();
  const bool closed = direct < 0 || files_.close(direct) == 0 || errno == EINTR;
  return code == 0 && !closed ? errno : code;
}

}  // namespace ballast
