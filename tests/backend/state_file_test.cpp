// State on a disk: chunks that go and come by both engines, what is told of a disk that fails, and
// trainings whose optimizer state does not fit the CPU memory that their plan gives it.
#include "backend/disk/state_file.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "backend/measure/disk_times.h"
#include "sim/base/error.h"
#include "sim/graph/report/memory.h"
#include "tests/backend/disturbed_training.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

std::vector<std::byte> drawn(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random());
  return bytes;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

class OfEngine : public testing::TestWithParam<IoEngine> {
 protected:
  DiskOptions options() const {
    DiskOptions here;
    here.folder = folder_.path();
    here.chunk = {3 * kDiskBlock};
    here.depth = 3;
    here.engine = GetParam();
    return here;
  }
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(StateFile, OfEngine, testing::Values(IoEngine::kBest, IoEngine::kThreads));

TEST_P(OfEngine, what_is_written_whole_and_in_parts_comes_back) {
  const std::vector<Bytes> sizes = {{1}, {4096}, {12288}, {100'001}, {333'333}};
  StateFile file(sizes, options());
  std::vector<std::vector<std::byte>> regions;
  for (size_t i = 0; i < sizes.size(); ++i) {
    regions.emplace_back(static_cast<size_t>(sizes[i].count));  // zeros, before anything is written
    std::vector<std::byte> read(regions[i].size(), std::byte{7});
    file.read(i, {read});
    EXPECT_EQ(read, regions[i]) << i;
    regions[i] = drawn(regions[i].size(), static_cast<uint32_t>(i));
    const std::span<const std::byte> all(regions[i]);
    file.write(i, {all.first(all.size() / 3), all.subspan(all.size() / 3)});
  }
  std::mt19937 random(1);
  for (int turn = 0; turn < 300; ++turn) {
    const size_t i = random() % sizes.size();
    const size_t begin = random() % regions[i].size();
    const size_t count = random() % (regions[i].size() - begin + 1);
    const std::span<std::byte> part = std::span(regions[i]).subspan(begin, count);
    const auto from = static_cast<int64_t>(begin);
    if (turn % 2 == 0) {
      const std::vector<std::byte> fresh = drawn(count, static_cast<uint32_t>(turn));
      std::copy(fresh.begin(), fresh.end(), part.begin());
      file.write_part(i, from, part);
    } else {
      std::vector<std::byte> read(count);
      file.read_part(i, from, read);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), read.begin())) << turn;
    }
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> read(regions[i].size());
    const std::span<std::byte> all(read);
    file.read(i, {all.first(all.size() / 2), all.subspan(all.size() / 2)});
    EXPECT_EQ(read, regions[i]) << i;
  }
}

// As the lanes of reads and writes do.
TEST_P(OfEngine, reads_and_writes_run_beside_each_other) {
  constexpr int kTurns = 50;
  StateFile file({{200'000}, {200'000}}, options());
  const std::vector<std::byte> still = drawn(200'000, 1);
  file.write(0, {still});
  std::thread writer([&] {
    for (int turn = 0; turn < kTurns; ++turn) {
      const std::vector<std::byte> bytes = drawn(200'000, static_cast<uint32_t>(turn));
      file.write(1, {bytes});
    }
  });
  int same = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<std::byte> read(200'000);
    file.read(0, {read});
    same += read == still ? 1 : 0;
  }
  writer.join();
  EXPECT_EQ(same, kTurns);
}

// By the descriptor, since nobody else has a name of the file.
TEST_P(OfEngine, a_flipped_bit_is_told_where_it_lies) {
  StateFile file({{100'000}, {100'000}}, options());
  const std::vector<std::byte> bytes = drawn(100'000, 3);
  file.write(1, {bytes});
  const int other = open(("/proc/self/fd/" + std::to_string(file.descriptor())).c_str(), O_RDWR);
  ASSERT_GE(other, 0);
  const off_t at = 102'400 + 20'000;
  unsigned char byte = 0;
  ASSERT_EQ(pread(other, &byte, 1, at), 1);
  byte ^= 16;
  ASSERT_EQ(pwrite(other, &byte, 1, at), 1);
  close(other);
  std::vector<std::byte> read(100'000);
  const std::string told = error_of([&] { file.read(1, {read}); });
  EXPECT_NE(told.find("12288 bytes from byte 114688 of its file are not those that were written"),
            std::string::npos)
      << told;
  EXPECT_EQ(told.find('\n'), std::string::npos);
  file.write(1, {bytes});  // goes on
  file.read(1, {read});
  EXPECT_EQ(read, bytes);
}

TEST_P(OfEngine, a_file_that_was_cut_short_is_told) {
  StateFile file({{100'000}}, options());
  file.write(0, {drawn(100'000, 3)});
  ASSERT_EQ(ftruncate(file.descriptor(), 50'000), 0);
  std::vector<std::byte> read(100'000);
  const std::string told = error_of([&] { file.read(0, {read}); });
  EXPECT_NE(told.find("its file ends before its state does"), std::string::npos) << told;
}

// A limit on the size of files stands in for a disk without room.
TEST_P(OfEngine, a_disk_without_room_is_told_before_training_begins) {
  const auto before = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit less{1 << 20, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &less), 0);
  const std::string told = error_of([&] { StateFile file({{1 << 24}}, options()); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, before);
  EXPECT_EQ(told.find("state on NVMe: cannot make a file of 16.8 MB in " + folder_.path()), 0u)
      << told;
  EXPECT_EQ(told.find('\n'), std::string::npos);
}

TEST_P(OfEngine, nothing_stays_in_the_folder) {
  StateFile file({{100'000}}, options());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST(StateFile, what_no_disk_can_do_is_refused) {
  DiskOptions options;
  options.chunk = {1000};
  EXPECT_EQ(error_of([&] { StateFile file({{1}}, options); }),
            "--nvme-chunk: 1000 bytes; use a multiple of 4096 bytes, 1 GiB at most");
  options = {};
  options.depth = 0;
  EXPECT_EQ(error_of([&] { StateFile file({{1}}, options); }),
            "--nvme-depth: 0 chunks at a time; use 1 to 1024");
  options = {};
  options.folder = "/nowhere";
  EXPECT_EQ(error_of([&] { StateFile file({{1}}, options); }).find("state on NVMe: cannot make"),
            0u);
}

// 1 s of reading and 2 s of writing that begin together. Neither slows the other: 2 s. As one after
// the other: 3 s. At 1.6 of their rates in sum each has 0.8 for 1.25 s, and then the write has 1 s
// left: 2.25 s.
TEST(DiskTimes, what_both_directions_reach_at_once_follows_from_the_time_that_both_take) {
  const auto share = [](double both) {
    return both_share_of(Duration::from_us(1e6), Duration::from_us(2e6),
                         Duration::from_us(1e6 * both));
  };
  EXPECT_NEAR(share(2), 2, 1e-9);
  EXPECT_NEAR(share(2.25), 1.6, 1e-9);
  EXPECT_NEAR(share(3), 1, 1e-9);
  EXPECT_EQ(share(1.9), 2);  // noise
  EXPECT_EQ(share(3.5), 1);
}

// Buckets of a segment each, whose memory the next ones use, so that few are there at a time.
Plan plan_on(OptimizerPlacement placement, int64_t data, int64_t zero_stage) {
  Plan plan = tiny::waiting_plan({.sequences = 4, .micro_batch = 1, .tokens = 12}, kSegment * 4);
  plan.optimizer.placement = placement;
  plan.optimizer.gpu_buckets = 0;
  plan.memory_reuse = MemoryReuse::kAtOnce;
  plan.data = plan.devices = data;
  plan.zero_stage = zero_stage;
  return plan;
}

TEST(StateOnNvme, trains_to_the_bits_of_state_in_memory_that_it_does_not_fit) {
  Model model = tiny::gpt2_model();
  model.layers = 6;
  const TrainerOptions options = tiny::disturbed_options();
  for (const auto& [data, zero_stage] : {std::pair{1, 0}, {2, 1}, {2, 2}, {2, 3}}) {
    const tiny::Outcome in_memory = tiny::train(
        model, plan_on(OptimizerPlacement::kCpu, data, zero_stage), options, tiny::kSteps, false);
    for (const IoEngine engine : {IoEngine::kBest, IoEngine::kThreads}) {
      TrainerOptions on_disk = options;
      on_disk.disk.engine = engine;
      on_disk.disk.chunk = {4 * kDiskBlock};
      Trainer trainer(model, plan_on(OptimizerPlacement::kNvme, data, zero_stage), on_disk);
      const Bytes memory = trainer.graph().arenas.size[static_cast<size_t>(Place::kDram)];
      const Bytes state = trainer.graph().arenas.size[static_cast<size_t>(Place::kNvme)];
      if (zero_stage < 3) EXPECT_GT(state.count, memory.count) << data << zero_stage;
      const TrainResult result = trainer.train(tiny::kSteps, nullptr);
      const tiny::Outcome outcome{trainer.parameters(), result.records, result.rollbacks};
      tiny::expect_same(outcome, in_memory, "ZeRO " + std::to_string(zero_stage));
      const MemoryUse& disk = result.memory.back();
      ASSERT_EQ(disk.place, Place::kNvme);
      EXPECT_EQ(disk.planned, state);
      // Whole blocks for each bucket.
      EXPECT_NEAR(static_cast<double>(disk.resident.count) / static_cast<double>(state.count), 1,
                  0.01);
    }
    for (const MemoryUse& use :
         Trainer(model, plan_on(OptimizerPlacement::kCpu, data, zero_stage), options)
             .train(1, nullptr)
             .memory) {
      EXPECT_NE(use.place, Place::kNvme);
    }
  }
}

// Weights that flow come from CPU memory: from 16-bit ones, or from the master in which they are
// stepped, which must be there before the first step, and before the first after a resume.
TEST(StateOnNvme, weights_that_flow_are_there_before_the_first_step) {
  Model model = tiny::gpt2_model();
  model.layers = 4;
  const TrainerOptions options = tiny::disturbed_options();
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const CastPlacement cast : {CastPlacement::kGpu, CastPlacement::kCpu}) {
      for (const double flow_share : {0.5, 1.0}) {
        for (const int64_t data : {1, 2}) {
          const auto train_on = [&](OptimizerPlacement placement) {
            Plan plan = plan_on(placement, data, data > 1 ? 3 : 0);
            plan.dtype = dtype;
            plan.optimizer.cast = cast;
            plan.weights.flow_share = flow_share;
            return tiny::train(model, plan, options, tiny::kSteps, false);
          };
          tiny::expect_same(train_on(OptimizerPlacement::kNvme), train_on(OptimizerPlacement::kCpu),
                            fmt::format("{}, cast on the {}, {} ranks, {} flow", to_string(dtype),
                                        to_string(cast), data, flow_share));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ballast
