// Metrics on a disk that fails, fills up and stops: what stays are whole lines, and a run that goes
// on has every step once.
#include <array>
#include <cerrno>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <random>

#include "cli/run/metrics_file.h"
#include "sim/base/error.h"
#include "tests/faults/seeds.h"
#include "tests/faults/simulated_disk.h"

namespace ballast {
namespace {

using tests::Incident;
using tests::SimulatedDisk;

constexpr const char* kMetrics = "/metrics.jsonl";
constexpr int64_t kMetricSteps = 40;

std::string line_of(int64_t step) {
  return fmt::format("{{\"step\": {}, \"loss\": {}}}", step, std::string(300, '1'));
}

// Steps of the whole lines, in their order; -1 for one that is none of ours.
std::vector<int64_t> steps_in(const std::string& content) {
  std::vector<int64_t> steps;
  for (size_t at = 0; at < content.size();) {
    const size_t end = content.find('\n', at);
    const std::string line = content.substr(at, end - at);
    int64_t step = -1;
    for (int64_t s = 0; s < kMetricSteps; ++s) {
      if (line == line_of(s)) step = s;
    }
    steps.push_back(end == std::string::npos ? -1 : step);
    at = end == std::string::npos ? content.size() : end + 1;
  }
  return steps;
}

class MetricsSimulation {
 public:
  explicit MetricsSimulation(uint64_t seed) : random_(seed), disk_(seed) {
    if (draw(2) == 0) disk_.set_interruptions(4);
  }

  void run() {
    const Incident incident = next_incident();
    disk_.expect(incident);
    const bool whole = write(MetricsFile::Mode::kNew, 0);
    const bool is_gone = disk_.is_down();
    // Where the attempt to write a block could not be taken back, the run never began.
    if (opened_ && incident.kind == Incident::Kind::kFailure && !incident.stays) {
      for (const int64_t step : steps_in(disk_.content(kMetrics).value_or(""))) {
        EXPECT_GE(step, 0) << "a part of a line stayed";
      }
    }
    ended_ = !whole;
    disk_.set_interruptions(0);
    if (is_gone) disk_.restart();
    disk_.expect({});
    const auto first = static_cast<int64_t>(draw(static_cast<size_t>(told_) + 1));
    ASSERT_TRUE(write(MetricsFile::Mode::kContinue, first));
    const std::vector<int64_t> steps = steps_in(disk_.content(kMetrics).value_or(""));
    if (incident.kind != Incident::Kind::kPowerCut) {
      ASSERT_EQ(std::ssize(steps), kMetricSteps) << "going on at " << first;
    }
    // What was not on the disk yet is missing as one run of steps before the one to go on with.
    const int64_t missing = kMetricSteps - std::ssize(steps);
    ASSERT_GE(missing, 0);
    lacks_ = missing > 0;
    const int64_t before = first - missing;
    began_anew_ = before == 0;
    for (int64_t i = 0; i < std::ssize(steps); ++i) {
      EXPECT_EQ(steps[static_cast<size_t>(i)], i < before ? i : i + missing)
          << "going on at " << first;
    }
  }

  bool ended_by_incident() const { return ended_; }
  bool lacks_steps() const { return lacks_; }
  bool began_anew() const { return began_anew_; }

 private:
  size_t draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  Incident next_incident() {
    Incident incident;
    incident.at = 1 + static_cast<int64_t>(draw(kMetricSteps + 4));
    incident.kind = std::array{Incident::Kind::kKill, Incident::Kind::kPowerCut,
                               Incident::Kind::kFailure}[draw(3)];
    incident.code = draw(2) == 0 ? EIO : ENOSPC;
    incident.stays = draw(4) == 0;
    if (draw(4) > 0) return incident;
    incident.kind = Incident::Kind::kFailure;  // and no other one than a full disk
    incident.at = 0;
    incident.room = 4096 + static_cast<int64_t>(draw(8192));
    return incident;
  }

  // False where a line is missing, or none could be written at all.
  bool write(MetricsFile::Mode mode, int64_t first) {
    told_ = first;
    try {
      MetricsFile metrics(kMetrics, mode, first, disk_);
      opened_ = true;
      for (int64_t step = first; step < kMetricSteps; ++step) {
        metrics.add(step, line_of(step));
        metrics.require_whole();
        told_ = step + 1;
      }
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  std::mt19937_64 random_;
  SimulatedDisk disk_;
  int64_t told_ = 0;  // steps whose lines are written
  bool opened_ = false;
  bool ended_ = false;
  bool lacks_ = false;
  bool began_anew_ = false;
};

TEST(metrics_faults, lines_are_whole_and_every_step_is_there_once) {
  const tests::Seeds seeds = tests::seeds(300);
  uint64_t ended = 0;
  uint64_t lacking = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(fmt::format("BALLAST_FAULT_FIRST_SEED={} BALLAST_FAULT_SEEDS=1", seed));
    MetricsSimulation simulation(seed);
    testing::internal::CaptureStderr();  // a note for each
    simulation.run();
    const std::string said = testing::internal::GetCapturedStderr();
    ended += simulation.ended_by_incident();
    lacking += simulation.lacks_steps();
    if (simulation.lacks_steps() && said.find(" lacks steps ") == std::string::npos) {
      // Where not even the name was on the disk the file begins anew.
      EXPECT_TRUE(simulation.began_anew()) << said;
    }
    if (HasFailure()) return;
  }
  if (seeds.count < 100) return;
  EXPECT_GT(ended, seeds.count / 4);
  EXPECT_GT(lacking, seeds.count / 20);
}

}  // namespace
}  // namespace ballast
