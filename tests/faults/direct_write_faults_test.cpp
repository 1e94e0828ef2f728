// Large files, written by direct I/O, on a disk that fails, fills up and stops: the old content or
// the new, whole.
#include <algorithm>
#include <array>
#include <cerrno>
#include <gtest/gtest.h>
#include <random>

#include "sim/base/atomic_file.h"
#include "sim/base/direct_write.h"
#include "sim/base/error.h"
#include "tests/faults/seeds.h"
#include "tests/faults/simulated_disk.h"

namespace ballast {
namespace {

using tests::Incident;
using tests::SimulatedDisk;

constexpr const char* kFile = "/weights";
constexpr int64_t kBytes = 2 * int64_t{DirectWrite::kChunkBytes} + 5000;

std::string bytes_of(char first) {
  std::string content(static_cast<size_t>(kBytes), first);
  for (size_t i = 0; i < content.size(); i += 97) content[i] = static_cast<char>(i / 97);
  return content;
}

bool write(SimulatedDisk& disk, const std::string& content) {
  try {
    AtomicFile file(kFile, {}, disk, Cache::kBypassed);
    for (std::string_view rest = content; !rest.empty();) {
      const std::string_view part = rest.substr(0, 3'000'000);
      file.write(part);
      rest.remove_prefix(part.size());
    }
    const std::string_view head = std::string_view(content).substr(0, 100);
    file.rewrite(0, std::as_bytes(std::span(head)));
    file.commit();
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(DirectWriteFaults, leave_the_old_content_or_the_new_one_whole) {
  const std::string old = bytes_of('o');
  const std::string made = bytes_of('n');
  std::array<int, 2> ends{};
  const auto [first, count] = tests::seeds(60);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    std::mt19937_64 random(seed);
    SimulatedDisk disk(seed);
    disk.put(kFile, old);
    if (random() % 2 == 0) disk.set_interruptions(4);
    Incident incident;
    incident.kind = static_cast<Incident::Kind>(1 + random() % 3);
    incident.at = 1 + static_cast<int64_t>(random() % 12);
    if (incident.kind == Incident::Kind::kFailure) {
      constexpr int kCodes[] = {EIO, ENOSPC, EDQUOT, EROFS};
      incident.code = kCodes[random() % 4];
      if (random() % 3 == 0) incident.room = static_cast<int64_t>(random() % kBytes);
    }
    disk.expect(incident);
    const bool written = write(disk, made);
    disk.restart();
    const std::string left = disk.content(kFile).value_or("");
    ASSERT_TRUE(left == old || left == made) << "seed " << seed;
    if (written) {
      ASSERT_TRUE(left == made && disk.is_durable(kFile)) << "seed " << seed;
    }
    ++ends[left == made ? 1 : 0];
  }
  if (count >= 60) {
    EXPECT_GT(std::min(ends[0], ends[1]), 5);
  }
}

}  // namespace
}  // namespace ballast
