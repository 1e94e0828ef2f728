// Large files that bypass the page cache: the bytes are those that were given, wherever the chunks
// end and whatever a file system takes.
#include "sim/base/direct_write.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <random>
#include <set>

#include "backend/formats/safetensors.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "tests/backend/same_files.h"
#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

constexpr size_t kChunk = DirectWrite::kChunkBytes;

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
  AtomicFile file(path, {}, files, Cache::kBypassed);
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

// What a file system, or a disk, does with direct I/O.
class DirectFiles : public SameFiles {
 public:
  enum class Does : uint8_t { kTakes, kKnowsNone, kTakesNone, kTakesAPart, kIsFull };
  explicit DirectFiles(Does does) : does_(does) {}

  int close(int descriptor) override {
    direct_.erase(descriptor);
    return SameFiles::close(descriptor);
  }
  // Not every file system of a machine that runs tests knows it, so that the system is not asked.
  int set_direct(int descriptor, bool direct) override {
    if (does_ == Does::kKnowsNone) return failing(EINVAL);
    direct ? void(direct_.insert(descriptor)) : void(direct_.erase(descriptor));
    return 0;
  }
  ssize_t write_at(int descriptor, int64_t first_byte, std::span<const std::byte> data) override {
    if (!direct_.contains(descriptor)) {
      cached_bytes_ += data.size();
      return SameFiles::write_at(descriptor, first_byte, data);
    }
    const auto memory = reinterpret_cast<uintptr_t>(data.data());
    const bool is_aligned = (memory | data.size() | static_cast<size_t>(first_byte)) % 4096 == 0;
    if (!is_aligned || does_ == Does::kTakesNone) return failing(EINVAL);
    // The second chunk, so that there is one before it.
    const bool is_second = first_byte == static_cast<int64_t>(kChunk);
    if (does_ == Does::kIsFull && is_second) return failing(ENOSPC);
    if (does_ == Does::kTakesAPart && is_second) data = data.first(1000);
    direct_bytes_ += data.size();
    return SameFiles::write_at(descriptor, first_byte, data);
  }

  size_t direct_bytes() const { return direct_bytes_; }
  size_t cached_bytes() const { return cached_bytes_; }

 private:
  static int failing(int code) {
    errno = code;
    return -1;
  }

  Does does_;
  std::set<int> direct_;
  size_t direct_bytes_ = 0, cached_bytes_ = 0;
};

using Does = DirectFiles::Does;

TEST(DirectWrite, puts_down_the_bytes_that_were_given) {
  const TemporaryFolder folder;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, kChunk - 1, kChunk, kChunk + 1,
                             3 * kChunk, 3 * kChunk + 12'345}) {
    const std::string content = content_of(bytes);
    for (const size_t part : {size_t{100'003}, kChunk, 2 * kChunk + 7}) {
      DirectFiles files(Does::kTakes);
      write(folder / "a", content, part, files);
      EXPECT_EQ(read(folder / "a"), content) << bytes << " in parts of " << part;
      EXPECT_EQ(files.direct_bytes(), bytes / kChunk * kChunk);
      EXPECT_EQ(files.cached_bytes(), bytes % kChunk + std::min<size_t>(bytes, 100));
    }
  }
}

TEST(DirectWrite, goes_through_the_cache_where_direct_io_is_refused) {
  const TemporaryFolder folder;
  const std::string content = content_of(3 * kChunk + 5);
  for (const auto& [does, direct] :
       {std::pair(Does::kKnowsNone, size_t{0}), std::pair(Does::kTakesNone, size_t{0}),
        std::pair(Does::kTakesAPart, kChunk + 1000)}) {
    DirectFiles files(does);
    write(folder / "a", content, 1'000'000, files);
    EXPECT_EQ(read(folder / "a"), content);
    EXPECT_EQ(files.direct_bytes(), direct);
    // What was taken in part is written again, and so are the first bytes.
    EXPECT_EQ(files.cached_bytes(), content.size() + 100 - direct / kChunk * kChunk);
  }
}

// As a checkpoint and an export are.
TEST(DirectWrite, is_how_tensors_of_a_chunk_and_more_are_written) {
  const TemporaryFolder folder;
  for (const int64_t bytes : {int64_t{kChunk} - 4, int64_t{kChunk}, 2 * int64_t{kChunk} + 4}) {
    const std::vector<float> values(static_cast<size_t>(bytes) / sizeof(float), 1.5F);
    const TensorDeclaration tensors[] = {{"a", StoredType::kF32, {std::ssize(values) - 1}},
                                         {"b", StoredType::kF32, {1}}};
    DirectFiles files(Does::kTakes);
    SafetensorsWriter writer(folder / "t", tensors, {}, files);
    writer.write(std::as_bytes(std::span(values)));
    writer.commit();
    EXPECT_EQ(files.direct_bytes() > 0, bytes >= int64_t{kChunk});
    SafetensorsReader reader(folder / "t");
    EXPECT_NO_THROW(reader.verify());
  }
}

TEST(DirectWrite, that_fails_leaves_the_old_file_and_no_rubbish) {
  const TemporaryFolder folder;
  const std::string content = content_of(3 * kChunk + 5);
  atomic_write(folder / "a", "old");
  DirectFiles files(Does::kIsFull);
  EXPECT_THROW(write(folder / "a", content, 1'000'000, files), Error);
  EXPECT_EQ(read(folder / "a"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator{}),
            1);
}

TEST(DirectWrite, that_is_given_up_leaves_nothing) {
  const TemporaryFolder folder;
  DirectFiles files(Does::kTakes);
  {
    AtomicFile file(folder / "a", {}, files, Cache::kBypassed);
    file.write(content_of(2 * kChunk + 5));
    AtomicFile moved = std::move(file);
    moved.write(content_of(kChunk));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace ballast
