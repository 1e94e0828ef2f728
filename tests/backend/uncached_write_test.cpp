// Large files that pass the system's cache by: the bytes are those that were given, wherever the
// pieces end and whatever a file system takes.
#include "sim/base/uncached_write.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <random>
#include <set>

#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "tests/backend/same_files.h"
#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

constexpr size_t kPiece = UncachedWrite::kPiece;

std::string content_of(size_t bytes) {
  std::mt19937_64 random(bytes);
  std::string content(bytes, '\0');
  for (char& c : content) c = static_cast<char>(random());
  return content;
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// In parts of so many bytes. Its first bytes are written again, as a header is.
void write(const std::string& path, const std::string& content, size_t part, Files& files) {
  AtomicFile file(path, {}, files, Cache::kPassedBy);
  std::string_view rest = content;
  while (!rest.empty()) {
    const std::string_view next = rest.substr(0, part);
    file.write(std::as_bytes(std::span(next)));
    rest.remove_prefix(next.size());
  }
  const std::string_view head = std::string_view(content).substr(0, 100);
  file.rewrite(0, std::as_bytes(std::span(head)));
  file.commit();
}

// What a file system, or a disk, does with writes that pass the cache by.
class DirectFiles : public SameFiles {
 public:
  enum class Does : uint8_t { kTakes, kOpensNone, kTakesNone, kTakesAPart, kIsFull, kFailsAtClose };
  explicit DirectFiles(Does does) : does_(does) {}

  int open(const std::string& path, int flags, mode_t mode) override {
    if ((flags & O_DIRECT) == 0) return SameFiles::open(path, flags, mode);
    if (does_ == Does::kOpensNone) return failing(EINVAL);
    // Not every file system of a machine that runs tests knows it: which bytes go there is told by
    // the descriptor.
    int found = SameFiles::open(path, flags, mode);
    if (found < 0) found = SameFiles::open(path, flags & ~O_DIRECT, mode);
    direct_.insert(found);
    return found;
  }
  ssize_t write_at(int descriptor, int64_t first_byte, std::span<const std::byte> data) override {
    if (!direct_.contains(descriptor)) {
      cached_ += data.size();
      return SameFiles::write_at(descriptor, first_byte, data);
    }
    // The second piece, so that there is one before it.
    const bool is_second = first_byte == static_cast<int64_t>(kPiece);
    const auto address = reinterpret_cast<uintptr_t>(data.data());
    if ((address | data.size() | static_cast<size_t>(first_byte)) % 512 != 0)
      return failing(EINVAL);
    if (does_ == Does::kTakesNone) return failing(EINVAL);
    if (does_ == Does::kIsFull && is_second) return failing(ENOSPC);
    if (does_ == Does::kTakesAPart && is_second) data = data.first(1000);
    direct_bytes_ += data.size();
    if (data.size() % 512 == 0) return SameFiles::write_at(descriptor, first_byte, data);
    return static_cast<ssize_t>(data.size());  // and the rest is refused, and written again
  }
  int close(int descriptor) override {
    const bool was_direct = direct_.erase(descriptor) > 0;
    const int closed = SameFiles::close(descriptor);
    return was_direct && does_ == Does::kFailsAtClose ? failing(EIO) : closed;
  }

  size_t direct_bytes() const { return direct_bytes_; }
  size_t cached_bytes() const { return cached_; }
  bool all_closed() const { return direct_.empty(); }

 private:
  static int failing(int code) {
    errno = code;
    return -1;
  }

  Does does_;
  std::set<int> direct_;
  size_t direct_bytes_ = 0, cached_ = 0;
};

using Does = DirectFiles::Does;

TEST(UncachedWrite, puts_down_the_bytes_that_were_given) {
  const TemporaryFolder folder;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, kPiece - 1, kPiece, kPiece + 1,
                             3 * kPiece, 3 * kPiece + 12'345}) {
    const std::string content = content_of(bytes);
    for (const size_t part : {size_t{100'003}, kPiece, 2 * kPiece + 7}) {
      DirectFiles files(Does::kTakes);
      write(folder / "a", content, part, files);
      EXPECT_EQ(read(folder / "a"), content) << bytes << " in parts of " << part;
      EXPECT_EQ(files.direct_bytes(), bytes / kPiece * kPiece);
      EXPECT_EQ(files.cached_bytes(), bytes % kPiece + std::min<size_t>(bytes, 100));
      EXPECT_TRUE(files.all_closed());
    }
  }
}

TEST(UncachedWrite, goes_through_the_cache_where_nothing_else_is_taken) {
  const TemporaryFolder folder;
  const std::string content = content_of(3 * kPiece + 5);
  for (const Does does : {Does::kOpensNone, Does::kTakesNone, Does::kTakesAPart}) {
    DirectFiles files(does);
    write(folder / "a", content, 1'000'000, files);
    EXPECT_EQ(read(folder / "a"), content);
    EXPECT_GT(files.cached_bytes(), kPiece);
    EXPECT_TRUE(files.all_closed());
  }
}

TEST(UncachedWrite, that_fails_leaves_the_old_file_and_no_rubbish) {
  const TemporaryFolder folder;
  const std::string content = content_of(3 * kPiece + 5);
  for (const Does does : {Does::kIsFull, Does::kFailsAtClose}) {
    atomic_write(folder / "a", "old");
    DirectFiles files(does);
    EXPECT_THROW(write(folder / "a", content, 1'000'000, files), Error);
    EXPECT_EQ(read(folder / "a"), "old");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                            std::filesystem::directory_iterator{}),
              1);
    EXPECT_TRUE(files.all_closed());
  }
}

TEST(UncachedWrite, that_is_given_up_leaves_nothing) {
  const TemporaryFolder folder;
  DirectFiles files(Does::kTakes);
  {
    AtomicFile file(folder / "a", {}, files, Cache::kPassedBy);
    file.write(content_of(2 * kPiece + 5));
    AtomicFile moved = std::move(file);
    moved.write(content_of(kPiece));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_TRUE(files.all_closed());
}

}  // namespace
}  // namespace ballast
