#include "backend/disk/state_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/base/crc32c.h"
#include "sim/base/error.h"
#include "sim/base/fault.h"
#include "sim/base/units.h"

namespace ballast {

StateFile::StateFile(const std::vector<Bytes>& regions, const DiskOptions& options)
    : folder_(options.folder), chunk_(options.chunk.count) {
  if (chunk_ <= 0 || chunk_ % kDiskBlock != 0 || chunk_ > (int64_t{1} << 30)) {
    throw Error("--nvme-chunk", fmt::format("{} bytes", chunk_),
                fmt::format("use a multiple of {} bytes, 1 GiB at most", kDiskBlock));
  }
  if (options.depth < 1 || options.depth > 1024) {
    throw Error("--nvme-depth", fmt::format("{} chunks at a time", options.depth), "use 1 to 1024");
  }
  if (folder_.empty()) {
    const char* const chosen = std::getenv("TMPDIR");
    folder_ = chosen == nullptr ? "/tmp" : chosen;
  }
  for (const Bytes bytes : regions) {
    Region& region = regions_.emplace_back(Region{size_.count, bytes.count, {}});
    region.chunks.resize(static_cast<size_t>(div_ceil(bytes.count, chunk_)));
    size_ += Bytes{round_up(bytes.count, kDiskBlock)};
  }
  open(options);
}

StateFile::~StateFile() {
  reads_.reset();
  writes_.reset();
  if (file_ >= 0) close(file_);
}

// Where the file system does not know direct transfers, its cache is used.
void StateFile::open(const DiskOptions& options) {
  std::string path;
  for (const int direct : {O_DIRECT, 0}) {
    path = folder_ + "/ballast-XXXXXX";
    file_ = mkostemp(path.data(), O_CLOEXEC | direct);
    direct_ = direct != 0;
    if (file_ >= 0 || errno != EINVAL) break;
  }
  int failure = file_ < 0 ? errno : 0;
  if (failure == 0) unlink(path.c_str());
  if (failure == 0 && size_.count > 0) failure = posix_fallocate(file_, 0, size_.count);
  if (failure != 0) {
    if (file_ >= 0) close(file_);
    file_ = -1;
    throw Error("state on NVMe",
                fmt::format("cannot make a file of {} in {}: {}", bytes_text(size_), folder_,
                            fault_name(failure)),
                failure == ENOSPC ? "name a folder with more room (--nvme), or choose a plan that "
                                    "needs less"
                                  : fault_remedy(failure));
  }
  int64_t largest = kDiskBlock;
  for (const Region& region : regions_) {
    largest = std::max(largest, std::min(chunk_, round_up(region.bytes, kDiskBlock)));
  }
  reads_ = make_disk_queue(file_, options.depth, largest, options.engine);
  writes_ = make_disk_queue(file_, options.depth, largest, options.engine);
}

Bytes StateFile::taken() const {
  constexpr int64_t kStatBlock = 512;  // whatever the file system's blocks are: stat(2)
  struct stat status;
  if (fstat(file_, &status) != 0) fail("cannot be looked at", "see that it is still mounted");
  return {status.st_blocks * kStatBlock};
}

std::string StateFile::described() const {
  return fmt::format("{}, {}", reads_->engine(), direct_ ? "direct" : "by the system's cache");
}

StateFile::Part StateFile::part_of(const Region& region, size_t chunk) const {
  const int64_t begin = static_cast<int64_t>(chunk) * chunk_;
  return {chunk, begin, std::min(chunk_, region.bytes - begin)};
}

void StateFile::fail(const std::string& what, const std::string& remedy) const {
  throw Error("state on NVMe in " + folder_, what, remedy);
}

void StateFile::finish(DiskQueue& queue, DiskQueue::Direction direction,
                       const DiskQueue::Done& done, int64_t at, int64_t bytes) const {
  const bool reads = direction == DiskQueue::Direction::kRead;
  int64_t moved = done.result;
  int failure = moved < 0 ? static_cast<int>(-moved) : 0;
  moved = std::max<int64_t>(0, moved);
  while (moved < bytes && (failure == 0 || failure == EINTR || failure == EAGAIN)) {
    std::byte* const memory = queue.buffer(done.buffer) + moved;
    const auto rest = static_cast<size_t>(bytes - moved);
    const ssize_t more =
        reads ? pread(file_, memory, rest, at + moved) : pwrite(file_, memory, rest, at + moved);
    failure = more < 0 ? errno : 0;
    if (more == 0) fail("its file ends before its state does", "resume from the last checkpoint");
    moved += std::max<ssize_t>(0, more);
  }
  if (failure == 0) return;
  fail(fmt::format("cannot {} {} bytes: {}", reads ? "read" : "write", bytes, fault_name(failure)),
       fault_remedy(failure));
}

void StateFile::check(const Region& region, const Part& part,
                      std::span<const std::byte> bytes) const {
  const Chunk& chunk = region.chunks[part.index];
  if (!chunk.written) return;
  const uint32_t found = crc32c(bytes);
  if (found == chunk.checksum) return;
  fail(fmt::format("{} bytes from byte {} of its file are not those that were written: their "
                   "checksum is {}, not {}",
                   part.bytes, region.begin + part.begin, hex_of(found), hex_of(chunk.checksum)),
       "resume from the last checkpoint, and have the disk tested");
}

// Chunks arrive in any order; each buffer goes on with the next one that nobody has begun.
template <class Use>
void StateFile::read_chunks(Region& region, size_t first, size_t last, const Use& use) {
  const std::scoped_lock lock(reading_);
  std::vector<Part> of_buffer(static_cast<size_t>(reads_->buffers()));
  size_t next = first;
  int under_way = 0;
  const auto begin = [&](int buffer) {
    const Part part = part_of(region, next++);
    of_buffer[static_cast<size_t>(buffer)] = part;
    reads_->begin(DiskQueue::Direction::kRead, buffer, region.begin + part.begin, part.blocks());
    ++under_way;
  };
  try {
    for (int i = 0; i < reads_->buffers() && next < last; ++i) begin(i);
    while (under_way > 0) {
      const DiskQueue::Done done = reads_->wait();
      --under_way;
      const Part part = of_buffer[static_cast<size_t>(done.buffer)];
      finish(*reads_, DiskQueue::Direction::kRead, done, region.begin + part.begin, part.blocks());
      const std::span<std::byte> bytes(reads_->buffer(done.buffer),
                                       static_cast<size_t>(part.bytes));
      check(region, part, bytes);
      use(part, bytes);
      if (next < last) begin(done.buffer);
    }
  } catch (const Error&) {
    for (; under_way > 0; --under_way) reads_->wait();  // whose buffers others would be given
    throw;
  }
}

template <class Fill>
void StateFile::write_chunks(Region& region, size_t first, size_t last, const Fill& fill) {
  const std::scoped_lock lock(writing_);
  std::vector<Part> of_buffer(static_cast<size_t>(writes_->buffers()));
  int under_way = 0;
  const auto end_one = [&] {
    const DiskQueue::Done done = writes_->wait();
    --under_way;
    const Part part = of_buffer[static_cast<size_t>(done.buffer)];
    finish(*writes_, DiskQueue::Direction::kWrite, done, region.begin + part.begin, part.blocks());
    return done.buffer;
  };
  try {
    for (size_t chunk = first; chunk < last; ++chunk) {
      const int buffer = under_way < writes_->buffers() ? under_way : end_one();
      const Part part = part_of(region, chunk);
      of_buffer[static_cast<size_t>(buffer)] = part;
      std::byte* const memory = writes_->buffer(buffer);
      const std::span<std::byte> bytes(memory, static_cast<size_t>(part.bytes));
      fill(part, bytes);
      std::memset(memory + part.bytes, 0, static_cast<size_t>(part.blocks() - part.bytes));
      region.chunks[chunk] = {crc32c(bytes), true};
      writes_->begin(DiskQueue::Direction::kWrite, buffer, region.begin + part.begin,
                     part.blocks());
      ++under_way;
    }
    while (under_way > 0) end_one();
  } catch (const Error&) {
    for (; under_way > 0; --under_way) writes_->wait();
    throw;
  }
}

namespace {

// Calls move(piece's bytes, offset in the chunk) for what of the pieces lies in [begin, begin +
// bytes), where they stand one after another.
template <class Pieces, class Move>
void for_overlaps(const Pieces& pieces, int64_t begin, int64_t bytes, const Move& move) {
  int64_t at = 0;
  for (const auto& piece : pieces) {
    const int64_t first = std::max(at, begin);
    const int64_t last = std::min(at + std::ssize(piece), begin + bytes);
    if (first < last) {
      move(piece.subspan(static_cast<size_t>(first - at), static_cast<size_t>(last - first)),
           first - begin);
    }
    at += std::ssize(piece);
  }
}

}  // namespace

void StateFile::read(size_t region, const Pieces& to) {
  flush();
  Region& found = regions_[region];
  read_chunks(
      found, 0, found.chunks.size(), [&](const Part& part, std::span<const std::byte> bytes) {
        for_overlaps(to, part.begin, part.bytes, [&](std::span<std::byte> piece, int64_t offset) {
          std::memcpy(piece.data(), bytes.data() + offset, piece.size());
        });
      });
}

void StateFile::write(size_t region, const ConstPieces& from) {
  flush();
  Region& found = regions_[region];
  write_chunks(found, 0, found.chunks.size(), [&](const Part& part, std::span<std::byte> bytes) {
    int64_t filled = 0;
    for_overlaps(from, part.begin, part.bytes,
                 [&](std::span<const std::byte> piece, int64_t offset) {
                   std::memcpy(bytes.data() + offset, piece.data(), piece.size());
                   filled = offset + std::ssize(piece);
                 });
    std::memset(bytes.data() + filled, 0, static_cast<size_t>(part.bytes - filled));
  });
}

// Neighbours are asked for one after another, by several threads: a few chunks stay in memory.
StateFile::Cached& StateFile::cached(size_t region, size_t chunk) {
  constexpr size_t kMost = 16;
  const auto is_it = [&](const Cached& one) { return one.region == region && one.chunk == chunk; };
  if (const auto found = std::find_if(cache_.begin(), cache_.end(), is_it); found != cache_.end()) {
    cache_.splice(cache_.begin(), cache_, found);
    return cache_.front();
  }
  if (cache_.size() == kMost) {
    write_back(cache_.back());
    cache_.pop_back();
  }
  Cached made{region, chunk, {}, false};
  read_chunks(regions_[region], chunk, chunk + 1,
              [&](const Part&, std::span<const std::byte> bytes) {
                made.bytes.assign(bytes.begin(), bytes.end());
              });
  return cache_.emplace_front(std::move(made));
}

void StateFile::write_back(const Cached& one) {
  if (!one.changed) return;
  write_chunks(regions_[one.region], one.chunk, one.chunk + 1,
               [&](const Part&, std::span<std::byte> bytes) {
                 std::copy(one.bytes.begin(), one.bytes.end(), bytes.begin());
               });
}

void StateFile::flush() {
  const std::scoped_lock lock(parts_);
  for (const Cached& one : cache_) write_back(one);
  cache_.clear();
}

void StateFile::read_part(size_t region, int64_t begin, std::span<std::byte> to) {
  CHECK(begin >= 0 && begin + std::ssize(to) <= regions_[region].bytes);
  const std::scoped_lock lock(parts_);
  for (int64_t at = 0; at < std::ssize(to);) {
    const int64_t chunk = (begin + at) / chunk_;
    const int64_t offset = (begin + at) % chunk_;
    const int64_t bytes = std::min(chunk_ - offset, std::ssize(to) - at);
    const Cached& from = cached(region, static_cast<size_t>(chunk));
    std::copy_n(from.bytes.begin() + offset, bytes, to.begin() + at);
    at += bytes;
  }
}

void StateFile::write_part(size_t region, int64_t begin, std::span<const std::byte> from) {
  CHECK(begin >= 0 && begin + std::ssize(from) <= regions_[region].bytes);
  const std::scoped_lock lock(parts_);
  for (int64_t at = 0; at < std::ssize(from);) {
    const int64_t chunk = (begin + at) / chunk_;
    const int64_t offset = (begin + at) % chunk_;
    const int64_t bytes = std::min(chunk_ - offset, std::ssize(from) - at);
    Cached& to = cached(region, static_cast<size_t>(chunk));
    std::copy_n(from.begin() + at, bytes, to.bytes.begin() + offset);
    to.changed = true;
    at += bytes;
  }
}

}  // namespace ballast
