// Files that appear whole or not at all.
#include "sim/base/atomic_file.h"

#include <csignal>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/profiles/support.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;
using profile_tests::error_of;
using profile_tests::holds;

size_t files_in(const profile_tests::TemporaryFolder& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator{}));
}

TEST(AtomicFile, replaces_the_whole_content) {
  const profile_tests::TemporaryFolder folder;
  atomic_write(folder.file("a"), "old and long");
  atomic_write(folder.file("a"), "new");
  EXPECT_EQ(profile_tests::read_file(folder.file("a")), "new");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(AtomicFile, uncommitted_content_never_appears) {
  const profile_tests::TemporaryFolder folder;
  atomic_write(folder.file("a"), "old");
  {
    AtomicFile file(folder.file("a"));
    file.write("half of the n");
    EXPECT_EQ(profile_tests::read_file(folder.file("a")), "old");
    AtomicFile moved = std::move(file);
    moved.write("ew");
  }
  EXPECT_EQ(profile_tests::read_file(folder.file("a")), "old");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(AtomicFile, two_writers_of_one_target_do_not_mix) {
  const profile_tests::TemporaryFolder folder;
  AtomicFile one(folder.file("a"));
  AtomicFile two(folder.file("a"));
  one.write("1111");
  two.write("2222");
  one.commit();
  two.commit();
  EXPECT_EQ(profile_tests::read_file(folder.file("a")), "2222");
}

// A limit on file sizes fails the write as a full disk does.
TEST(AtomicFile, failed_write_leaves_the_old_file_and_no_rubbish) {
  const profile_tests::TemporaryFolder folder;
  atomic_write(folder.file("a"), "old");
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit small{4096, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message =
      error_of([&] { atomic_write(folder.file("a"), std::string(10'000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(holds(message, "cannot be written"));
  EXPECT_EQ(profile_tests::read_file(folder.file("a")), "old");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(AtomicFile, full_device_is_an_error) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  EXPECT_TRUE(holds(error_of([] { atomic_write("/dev/full", "x"); }), "No space left"));
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(AtomicFile, target_that_cannot_be_written_is_named) {
  const profile_tests::TemporaryFolder folder;
  EXPECT_TRUE(holds(error_of([&] { atomic_write(folder.file("no/a"), "x"); }),
                    "create the folder " + folder.file("no")));
  EXPECT_TRUE(holds(error_of([&] { atomic_write(folder.path(), "x"); }), "it is a folder"));
}

TEST(AtomicFile, what_a_dead_writer_left_beside_a_target_is_removed_by_the_next) {
  const profile_tests::TemporaryFolder folder;
  const auto put = [&](const char* name) { std::ofstream(folder.file(name)) << "half"; };
  // The second id is that of this process, as it may be in another container.
  const std::string own = "a.part-" + std::to_string(::getpid()) + "-7";
  for (const char* name : {"a.part-77-0", own.c_str()}) put(name);
  const std::string others[] = {"b.part-77-0", "a.part-77", "a.part-77-", "a.part-x-0",
                                "a.part-7-0x"};
  for (const std::string& name : others) put(name.c_str());
  AtomicFile living(folder.file("a"));
  EXPECT_FALSE(fs::exists(folder.file("a.part-77-0")));
  EXPECT_FALSE(fs::exists(folder.file(own.c_str())));
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(folder.file(name.c_str()))) << name;
  living.write("1");
  atomic_write(folder.file("a"), "2");  // leaves what the living one writes
  living.commit();
  EXPECT_EQ(profile_tests::read_file(folder.file("a")), "1");
}

TEST(AtomicFile, trying_leaves_everything_as_it_was) {
  const profile_tests::TemporaryFolder folder;
  try_to_write(folder.file("new"));
  EXPECT_EQ(files_in(folder), 0u);
  atomic_write(folder.file("a"), "old");
  try_to_write(folder.file("a"));
  EXPECT_EQ(profile_tests::read_file(folder.file("a")), "old");
  EXPECT_TRUE(holds(error_of([&] { try_to_write(folder.file("no/a")); }), "create the folder"));
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  EXPECT_TRUE(holds(error_of([] { try_to_write("/dev/full"); }), "No space left"));
  EXPECT_NO_THROW(try_to_write("/dev/null"));
}

TEST(AtomicFile, bytes_that_were_written_can_be_written_again) {
  const profile_tests::TemporaryFolder folder;
  AtomicFile file(folder.file("a"));
  file.write("0000 and the rest");
  const std::string_view head = "1234";
  file.rewrite(0, std::as_bytes(std::span(head)));
  file.write(", and more");
  file.commit();
  EXPECT_EQ(profile_tests::read_file(folder.file("a")), "1234 and the rest, and more");
}

TEST(AtomicFile, links_and_permissions_are_kept) {
  const profile_tests::TemporaryFolder folder;
  atomic_write(folder.file("a"), "old");
  fs::permissions(folder.file("a"), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(folder.file("a"), folder.file("link"));
  atomic_write(folder.file("link"), "new");
  EXPECT_TRUE(fs::is_symlink(folder.file("link")));
  EXPECT_EQ(profile_tests::read_file(folder.file("a")), "new");
  EXPECT_EQ(fs::status(folder.file("a")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

}  // namespace
}  // namespace ballast
