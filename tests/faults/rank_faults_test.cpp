// Ranks whose messages come late or are lost, on a disk that may fail as well: all of them end, and
// when they resume they have the bits of ranks that nobody disturbed.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>

#include "backend/comm/local_ranks.h"
#include "backend/train/checkpoint_folder.h"
#include "tests/backend/tiny_training.h"
#include "tests/faults/disturbed_rank.h"
#include "tests/faults/seeds.h"
#include "tests/faults/simulated_disk.h"
#include "tests/faults/small_training.h"

namespace ballast {
namespace {

using tests::DisturbedRank;
using tests::Incident;
using tests::kFolder;
using tests::SimulatedDisk;
using tests::small_model;

constexpr int64_t kSteps = 6;
constexpr int64_t kPeriod = 2;

struct Setup {
  SyncMode sync{};
  int64_t ranks = 2;
  int64_t zero_stage = 1;
  auto key() const { return std::tuple(sync, ranks, zero_stage); }
};

Plan plan_of(const Setup& setup) {
  Plan plan = tiny::plan_of_both_homes(setup.sync);
  plan.data = plan.devices = setup.ranks;
  plan.micro_batch = 1;
  plan.global_batch = 2 * setup.ranks;
  plan.zero_stage = setup.zero_stage;
  if (setup.zero_stage == 3) plan.weights.flow_share = 0;
  return plan;
}

struct Disturbance {
  uint64_t seed = 0;
  int late = 0;
  int64_t losing_rank = -1;
  DisturbedRank::Loss loss{};
};

struct Run {
  std::string error;  // of the first rank that failed; empty: all went to their end
  std::vector<float> parameters;
  int64_t final_steps = 0;
  std::vector<std::map<Channel, int64_t>> exchanges;  // by rank
};

void train_rank(SimulatedDisk& disk, const Setup& setup, Communicator& rank, Run& run) {
  TrainerOptions options = tiny::options_for(kSteps);
  options.files = &disk;
  options.ranks = &rank;
  options.checkpoint_folder = kFolder;
  options.checkpoint_period_steps = kPeriod;
  options.resume = true;
  Trainer trainer(small_model(), plan_of(setup), options);
  const bool first = rank.rank() == 0;
  if (first) run.final_steps = trainer.next_step();
  trainer.train(kSteps, [&](const StepRecord& record) {
    if (first) run.final_steps = std::max<int64_t>(run.final_steps, record.step + 1);
  });
  std::vector<float> parameters = trainer.parameters();
  if (first) run.parameters = std::move(parameters);
}

Run run_on(SimulatedDisk& disk, const Setup& setup, const Disturbance& disturbance) {
  LocalRanks all(static_cast<int>(setup.ranks));
  std::vector<std::unique_ptr<DisturbedRank>> ranks;
  for (int64_t r = 0; r < setup.ranks; ++r) {
    std::optional<DisturbedRank::Loss> loss;
    if (r == disturbance.losing_rank) loss = disturbance.loss;
    ranks.push_back(std::make_unique<DisturbedRank>(all.of(static_cast<int>(r)), disturbance.seed,
                                                    disturbance.late, loss));
  }
  Run run;
  std::vector<std::string> errors(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          train_rank(disk, setup, *ranks[r], run);
        } catch (const Error& error) {
          errors[r] = error.what();
          ranks[r]->fail(error.what());
        }
      });
    }
  }
  if (all.failed() >= 0) run.error = errors[static_cast<size_t>(all.failed())];
  for (const auto& rank : ranks) run.exchanges.push_back(rank->exchanges());
  return run;
}

const Run& undisturbed(const Setup& setup) {
  static std::map<decltype(setup.key()), Run> known;
  const auto [found, is_new] = known.try_emplace(setup.key());
  if (is_new) {
    SimulatedDisk disk(0);
    found->second = run_on(disk, setup, {});
    EXPECT_EQ(found->second.error, "");
  }
  return found->second;
}

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed), disk_(seed), seed_(seed) {
    setup_.sync = std::array{SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}[draw(3)];
    setup_.ranks = 2 + static_cast<int64_t>(draw(2));
    setup_.zero_stage = 1 + static_cast<int64_t>(draw(3));
  }

  // Whether a rank ended before its time.
  bool run() {
    Disturbance disturbance = next_disturbance();
    told_ = fmt::format("{}, {} ranks, ZeRO {}: rank {} loses exchange {} of channel {}",
                        to_string(setup_.sync), setup_.ranks, setup_.zero_stage,
                        disturbance.losing_rank, disturbance.loss.exchange,
                        static_cast<int>(disturbance.loss.channel));
    if (draw(3) == 0) {
      disk_.expect({.kind = Incident::Kind::kPowerCut, .at = 1 + static_cast<int64_t>(draw(200))});
    }
    const Run run = run_on(disk_, setup_, disturbance);
    told_ += fmt::format("; ended after step {}: {}", run.final_steps, run.error);
    disk_.expect({});
    disk_.restart();
    expect_little_lost(run.final_steps);
    disturbance.losing_rank = -1;
    const Run resumed = run_on(disk_, setup_, disturbance);
    EXPECT_EQ(resumed.error, "") << told_;
    EXPECT_TRUE(tiny::same_bits(resumed.parameters, undisturbed(setup_).parameters)) << told_;
    return !run.error.empty();
  }

  const std::string& told() const { return told_; }

 private:
  size_t draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  Disturbance next_disturbance() {
    Disturbance disturbance{seed_, 1 + static_cast<int>(draw(8))};
    disturbance.losing_rank = static_cast<int64_t>(draw(static_cast<size_t>(setup_.ranks)));
    const auto& all = undisturbed(setup_).exchanges[static_cast<size_t>(disturbance.losing_rank)];
    auto channel = all.begin();
    std::advance(channel, static_cast<std::ptrdiff_t>(draw(all.size())));
    const auto count = static_cast<size_t>(channel->second);
    disturbance.loss = {channel->first, 1 + static_cast<int64_t>(draw(count))};
    return disturbance;
  }

  // One that is due, and one that was being written.
  void expect_little_lost(int64_t final_steps) {
    int64_t newest = 0;
    for (const std::string& name : disk_.names_in(kFolder)) {
      if (!name.starts_with("step-") || !name.ends_with(".safetensors")) continue;
      newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
    }
    EXPECT_LE(final_steps - newest, 2 * kPeriod) << told_;
  }

  std::mt19937_64 random_;
  SimulatedDisk disk_;
  uint64_t seed_;
  Setup setup_;
  std::string told_;
};

TEST(faults, ranks_that_lose_a_message_resume_with_the_bits_of_undisturbed_ones) {
  const tests::Seeds seeds = tests::seeds(100);
  uint64_t ended = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Simulation simulation(seed);
    ended += simulation.run();
    ASSERT_FALSE(HasFailure()) << simulation.told();
  }
  std::printf("%llu of %llu seeds ended the ranks\n", static_cast<unsigned long long>(ended),
              static_cast<unsigned long long>(seeds.count));
  if (seeds.count >= 50) EXPECT_GT(ended, seeds.count / 2);
}

}  // namespace
}  // namespace ballast
