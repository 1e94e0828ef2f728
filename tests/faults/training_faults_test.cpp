// A training on a disk that fails, fills up, tears and forgets: whatever happens, a run that
// resumes ends with the bits of one that nobody disturbed.
#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "backend/train/checkpoint.h"
#include "backend/train/checkpoint_folder.h"
#include "sim/base/fault.h"
#include "tests/backend/tiny_training.h"
#include "tests/faults/seeds.h"
#include "tests/faults/simulated_disk.h"
#include "tests/faults/small_training.h"

namespace ballast {
namespace {

using tests::Incident;
using tests::kFolder;
using tests::SimulatedDisk;
using tests::small_model;

constexpr const char* kExport = "/out.safetensors";
constexpr const char* kOldExport = "the old one";
constexpr int64_t kTrainedSteps = 7;
constexpr int kMostIncidents = 3;

struct TrainingSetup {
  SyncMode sync{};
  int64_t ranks = 1;
  int64_t period = 1;
  bool in_background = false;
  auto key() const { return std::tuple(sync, ranks, period, in_background); }
  std::string text() const {
    return fmt::format("{}, {} ranks, a checkpoint every {} steps{}", to_string(sync), ranks,
                       period, in_background ? " in the background" : "");
  }
};

Plan plan_of(const TrainingSetup& setup) {
  Plan plan = tiny::plan_of_both_homes(setup.sync);
  plan.micro_batch = 1;
  plan.data = plan.devices = setup.ranks;
  plan.zero_stage = setup.ranks > 1 ? 1 : 0;
  return plan;
}

struct TrainingRun {
  std::string error;  // empty: it went to its end
  std::vector<float> parameters;
  int64_t first_step = 0;
  int64_t final_steps = 0;  // that its caller was told of
};

TrainingRun run_on(SimulatedDisk& disk, const TrainingSetup& setup) {
  TrainerOptions options = tiny::options_for(kTrainedSteps);
  options.files = &disk;
  options.checkpoint_folder = kFolder;
  options.checkpoint_period_steps = setup.period;
  options.checkpoints_in_background = setup.in_background;
  options.resume = true;
  TrainingRun run;
  try {
    Trainer trainer(small_model(), plan_of(setup), options);
    run.first_step = run.final_steps = trainer.next_step();
    trainer.train(kTrainedSteps, [&](const StepRecord& record) {
      run.final_steps = std::max<int64_t>(run.final_steps, record.step + 1);
    });
    trainer.export_weights(kExport);
    run.parameters = trainer.parameters();
  } catch (const Error& error) {
    run.error = error.what();
  }
  return run;
}

// Of a run that nobody disturbs.
struct Undisturbed {
  std::vector<float> parameters;
  std::string exported;
  int64_t calls = 0;  // that change files
};

const Undisturbed& undisturbed(const TrainingSetup& setup) {
  static std::map<decltype(setup.key()), Undisturbed> known;
  const auto [found, is_new] = known.try_emplace(setup.key());
  if (is_new) {
    SimulatedDisk disk(0);
    disk.put(kExport, kOldExport);
    disk.expect({});
    TrainingRun run = run_on(disk, setup);
    EXPECT_EQ(run.error, "");
    found->second = {std::move(run.parameters), disk.content(kExport).value_or(""), disk.calls()};
  }
  return found->second;
}

class TrainingSimulation {
 public:
  explicit TrainingSimulation(uint64_t seed) : random_(seed), disk_(seed) {
    setup_.sync = std::array{SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}[draw(3)];
    setup_.ranks = draw(4) == 0 ? 2 : 1;
    setup_.period = 1 + static_cast<int64_t>(draw(3));
    setup_.in_background = draw(2) == 0;
    disk_.put(kExport, kOldExport);
    if (draw(2) == 0) disk_.set_interruptions(4);
  }

  void run() {
    const size_t incidents = 1 + draw(kMostIncidents);
    for (size_t i = 0; i < incidents && !testing::Test::HasFailure(); ++i) meet(next_incident());
    if (testing::Test::HasFailure()) return;
    disk_.set_interruptions(0);
    disk_.expect({});
    const TrainingRun run = run_on(disk_, setup_);
    ASSERT_EQ(run.error, "") << told_;
    EXPECT_TRUE(tiny::same_bits(run.parameters, undisturbed(setup_).parameters)) << told_;
    EXPECT_EQ(disk_.content(kExport), undisturbed(setup_).exported) << told_;
    for (const std::string& folder : {std::string(kFolder), std::string("/")}) {
      for (const std::string& name : disk_.names_in(folder)) {
        EXPECT_EQ(name.find(".part-"), std::string::npos) << name << ": " << told_;
        EXPECT_EQ(name.find(".damaged"), std::string::npos) << name << ": " << told_;
      }
    }
    expect_named_shards();
  }

  const std::string& told() const { return told_; }
  bool ended_by_incident() const { return ended_ > 0; }

 private:
  size_t draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  Incident next_incident() {
    Incident incident;
    const auto calls = static_cast<size_t>(undisturbed(setup_).calls);
    incident.at = 1 + static_cast<int64_t>(draw(calls + calls / 8));
    switch (draw(5)) {
      case 0:
        incident.kind = Incident::Kind::kKill;
        break;
      case 1:
      case 2:
        incident.kind = Incident::Kind::kPowerCut;
        break;
      case 3:
        incident.kind = Incident::Kind::kFailure;
        incident.code = std::array{EIO, ENOSPC, EROFS, EDQUOT}[draw(4)];
        incident.stays = draw(2) == 0;
        break;
      default:
        incident.at = 0;
        incident.room = static_cast<int64_t>(draw(5 * undisturbed(setup_).exported.size()));
    }
    return incident;
  }

  void meet(const Incident& incident) {
    told_ += fmt::format("{}; incident {} at call {}, errno {}{}, room {}; ", setup_.text(),
                         static_cast<int>(incident.kind), incident.at, incident.code,
                         incident.stays ? " for good" : "", incident.room);
    disk_.expect(incident);
    const TrainingRun run = run_on(disk_, setup_);
    disk_.expect({});
    told_ += fmt::format("steps {} to {} {}; ", run.first_step, run.final_steps, run.error);
    if (!run.error.empty()) {
      ++ended_;
      const int code = disk_.is_down() ? EIO : incident.room >= 0 ? ENOSPC : incident.code;
      EXPECT_NE(run.error.find(fault_name(code)), std::string::npos) << told_;
    } else {
      EXPECT_TRUE(tiny::same_bits(run.parameters, undisturbed(setup_).parameters)) << told_;
    }
    const int64_t kept = newest([this](const std::string& path) { return disk_.is_durable(path); });
    disk_.restart();
    const int64_t left = newest([](const std::string&) { return true; });
    EXPECT_GE(left, kept) << told_;
    // A checkpoint under way in the background is lost with the one that is due.
    EXPECT_LE(run.final_steps - left, (setup_.in_background ? 2 : 1) * setup_.period) << told_;
    const auto exported = disk_.content(kExport);
    EXPECT_TRUE(exported == kOldExport || exported == undisturbed(setup_).exported) << told_;
  }

  // Of several ranks all shards are those of checkpoints that are there.
  void expect_named_shards() {
    std::set<std::string> expected, found;
    for (const std::string& name : disk_.names_in(kFolder)) {
      const std::string path = std::string(kFolder) + "/" + name;
      if (name.starts_with("shard-")) found.insert(path);
      if (!name.starts_with("step-")) continue;
      for (const std::string& shard : shards_of_checkpoint(path, disk_)) expected.insert(shard);
    }
    EXPECT_EQ(found, expected) << told_;
    EXPECT_EQ(found.empty(), setup_.ranks == 1) << told_;
  }

  void expect_whole(const std::string& path) {
    try {
      EXPECT_TRUE(verify_checkpoint(path, disk_)) << path << ": " << told_;
    } catch (const Error& error) {
      ADD_FAILURE() << error.what() << ": " << told_;
    }
  }

  // The step of the newest checkpoint of which this holds; each that has its name is whole.
  template <class Holds>
  int64_t newest(const Holds& holds) {
    int64_t step = 0;
    for (const auto& [its, path] : tests::checkpoints_on(disk_)) {
      if (!holds(path)) continue;
      if (!disk_.is_down()) expect_whole(path);
      step = its;
    }
    return step;
  }

  std::mt19937_64 random_;
  SimulatedDisk disk_;
  TrainingSetup setup_;
  std::string told_;
  int ended_ = 0;
};

TEST(faults, whatever_befalls_the_disk_a_run_that_resumes_has_the_bits_of_an_undisturbed_one) {
  const tests::Seeds seeds = tests::seeds(200);
  uint64_t ended = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    TrainingSimulation simulation(seed);
    simulation.run();
    ended += simulation.ended_by_incident();
    ASSERT_FALSE(HasFailure()) << simulation.told();
  }
  std::printf("%llu of %llu seeds ended a run\n", static_cast<unsigned long long>(ended),
              static_cast<unsigned long long>(seeds.count));
  if (seeds.count >= 50) EXPECT_GT(ended, seeds.count / 2);
}

}  // namespace
}  // namespace ballast
