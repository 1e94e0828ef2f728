// The store on a disk that fails, tears and forgets: what it said was appended is there, of what
// it did not say all or nothing, and it opens again without a word.
#include <array>
#include <cerrno>
#include <cstdio>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>

#include "profiles/store.h"
#include "sim/base/error.h"
#include "tests/faults/seeds.h"
#include "tests/faults/simulated_disk.h"
#include "tests/faults/simulated_store.h"

namespace ballast {
namespace {

using tests::Incident;
using tests::SimulatedDisk;
using tests::SimulatedStore;

constexpr const char* kPath = "store.db";
constexpr int kAppends = 4;         // of a run
constexpr int kRows = 30;           // of one
constexpr int64_t kMostCalls = 90;  // of such a run

const Host kHost{"here", "cpu", "1"};

class StoreSimulation {
 public:
  explicit StoreSimulation(uint64_t seed) : random_(seed), disk_(seed), store_(disk_) {
    // SQLite reads a journal back from the cache before it rolls back, and cannot know that a
    // synchronise() that failed long ago has dropped it: a power cut amid that is beyond it.
    disk_.set_forgetful(false);
    if (draw(2) == 0) disk_.set_interruptions(4);
  }

  void run() {
    const size_t incidents = 1 + draw(4);
    for (size_t i = 0; i < incidents && !testing::Test::HasFailure(); ++i) {
      disk_.expect(next_incident());
      append_some();
      disk_.expect({});
      disk_.restart();
      look();
    }
  }

  const std::string& told() const { return told_; }
  int ended() const { return ended_; }

 private:
  size_t draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  Incident next_incident() {
    Incident incident;
    incident.at = 1 + static_cast<int64_t>(draw(kMostCalls));
    switch (draw(4)) {
      case 0:
        incident.kind = Incident::Kind::kKill;
        break;
      case 1:
        incident.kind = Incident::Kind::kFailure;
        incident.code = std::array{EIO, ENOSPC, EROFS, EDQUOT}[draw(4)];
        incident.stays = draw(2) == 0;
        break;
      default:
        incident.kind = Incident::Kind::kPowerCut;
    }
    told_ += fmt::format("incident {} at {}, errno {}{}; ", static_cast<int>(incident.kind),
                         incident.at, incident.code, incident.stays ? " for good" : "");
    return incident;
  }

  // An append is of rows that all name its number.
  void append_some() {
    try {
      Store store(kPath, {"1", "commit"});
      for (int i = 0; i < kAppends; ++i) {
        ++tried_;
        Measurements rows;
        for (int row = 0; row < kRows; ++row) {
          Measurement& measurement = rows[fmt::format("{}-{}", tried_, row)];
          measurement.group = std::string(draw(200), 'g');
          measurement.median = {1000 * tried_};
        }
        store.append(kHost, rows);
        told_ += fmt::format("{} appended; ", tried_);
        certain_.insert(tried_);
      }
    } catch (const Error& error) {
      ++ended_;
      told_ += fmt::format("{}; ", error.what());
    }
  }

  void look() {
    std::map<int, int> found;
    try {
      Store store(kPath, {"1", "commit"});
      for (const auto& [name, measurement] : store.timings(kHost)) ++found[std::stoi(name)];
    } catch (const Error& error) {
      FAIL() << error.what() << ": " << told_;
    }
    for (const int number : certain_)
      EXPECT_TRUE(found.contains(number)) << number << ": " << told_;
    for (const auto& [number, rows] : found) {
      EXPECT_EQ(rows, kRows) << number << ": " << told_;
      EXPECT_LE(number, tried_) << told_;
    }
  }

  std::mt19937_64 random_;
  SimulatedDisk disk_;
  SimulatedStore store_;
  std::string told_;
  int tried_ = 0;
  std::set<int> certain_;
  int ended_ = 0;
};

TEST(faults, what_the_store_said_it_appended_is_there_whatever_befalls_the_disk) {
  const tests::Seeds seeds = tests::seeds(400);
  int ended = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    StoreSimulation simulation(seed);
    simulation.run();
    ended += simulation.ended();
    ASSERT_FALSE(HasFailure()) << simulation.told();
  }
  std::printf("%d runs ended by a fault\n", ended);
  if (seeds.count >= 50) EXPECT_GT(static_cast<uint64_t>(ended), seeds.count / 2);
}

}  // namespace
}  // namespace ballast
