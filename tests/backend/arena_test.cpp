// Memory of arenas: what the system refuses is told, and not met later by whoever touches it.
#include "backend/execute/arena.h"

#include <gtest/gtest.h>
#include <string>
#include <sys/mman.h>

#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

TEST(Arena, whole_one_is_backed_before_anybody_touches_it) {
  const Arena whole("dram", {8 * kHugePage}, ArenaBacking::kWhole);
  const Arena touched("dram", {8 * kHugePage}, ArenaBacking::kWhereTouched);
  EXPECT_EQ(whole.resident().count, 8 * kHugePage);
  EXPECT_EQ(touched.resident().count, 0);
}

// A hole in the region is what the system has no memory for: ENOMEM, as where there is none left.
TEST(Arena, memory_that_cannot_be_backed_is_an_error_that_names_the_arena) {
  const auto size = static_cast<size_t>(8 * kHugePage);
  void* region = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(region, MAP_FAILED);
  auto* base = static_cast<std::byte*>(region);
  EXPECT_NO_THROW(back_whole("dram", base, {8 * kHugePage}));
  ASSERT_EQ(munmap(base + 5 * kHugePage, 4096), 0);
  try {
    back_whole("dram", base, {8 * kHugePage});
    ADD_FAILURE() << "the hole was passed over";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with("arena dram: cannot back 16.8 MB with memory: ")) << what;
  }
  munmap(region, size);
}

}  // namespace
}  // namespace ballast
